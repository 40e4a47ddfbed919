package wire

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

func TestVerifyRequestRoundTrip(t *testing.T) {
	tests := []struct {
		name    string
		request VerifyRequest
	}{
		{"sample", VerifyRequest{"demo-device", "demo-secret", "203.0.113.7", ""}},
		{"session", VerifyRequest{"demo-device", "", "203.0.113.7", "7-1763690399000"}},
		{"none of both", VerifyRequest{}},
		{"no secret", VerifyRequest{"demo-device", "", "::1", ""}},
		{"no id", VerifyRequest{"", "demo-secret", "", ""}},
		{"at the limits", VerifyRequest{strings.Repeat("d", limits.MaxDeviceID), strings.Repeat("s", limits.MaxSecret),
			strings.Repeat("1", MaxSource), ""}},
		{"session at the limits", VerifyRequest{strings.Repeat("d", limits.MaxDeviceID), "", strings.Repeat("1", MaxSource),
			strings.Repeat("7", limits.MaxSession)}},
		{"any bytes", VerifyRequest{"\x00\xff", "\n\x00,\"", "\xff", ""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := AppendVerifyRequest(nil, &tt.request)
			got, err := ParseVerifyRequest(b)
			clear(b) // nothing in a request refers to its bytes
			if err != nil || got != tt.request {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.request)
			}
		})
	}
}

func TestParseVerifyRequestRefused(t *testing.T) {
	good := AppendVerifyRequest(nil, &VerifyRequest{"demo-device", "demo-secret", "203.0.113.7", ""})
	long := func(id, secret, source int) []byte {
		return AppendVerifyRequest(nil, &VerifyRequest{strings.Repeat("d", id), strings.Repeat("s", secret),
			strings.Repeat("1", source), ""})
	}
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrMalformed},
		{"cut in its header", edited(good, cut(4)), ErrMalformed},
		{"layout before this", edited(good, set8(0, Layout-1)), ErrLayout},
		{"layout after this", edited(good, set8(0, Layout+1)), ErrLayout},
		{"cut", edited(good, cut(len(good)-1)), ErrMalformed},
		{"a byte more", edited(good, add(0)), ErrMalformed},
		{"id over its limit", long(limits.MaxDeviceID+1, 1, 1), ErrMalformed},
		{"secret over its limit", long(1, limits.MaxSecret+1, 1), ErrMalformed},
		{"source over its limit", long(1, 1, MaxSource+1), ErrMalformed},
		{"session over its limit",
			AppendVerifyRequest(nil, &VerifyRequest{"d", "", "", strings.Repeat("7", limits.MaxSession+1)}), ErrMalformed},
		{"secret and session", AppendVerifyRequest(nil, &VerifyRequest{"d", "s", "", "7-1"}), ErrMalformed},
		{"id whose length doesn't fit a byte", long(256+3, 3, 0), ErrMalformed},
		{"secret whose length doesn't fit a byte", long(3, 256+3, 0), ErrMalformed},
		{"both lengths don't fit a byte", long(256, 256, 0), ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ParseVerifyRequest(tt.b); !errors.Is(err, tt.want) || got != (VerifyRequest{}) {
				t.Errorf("got %+v, %v, want %v", got, err, tt.want)
			}
			sameBeyond(t, tt.b, readVerifyRequest)
		})
	}
}

func TestSessionResponseRoundTrip(t *testing.T) {
	for _, response := range []SessionResponse{
		{Outcome: Allow, Body: []byte("{}")},
		{Outcome: Deny, Body: []byte{}},
		{Outcome: Unavailable, RetryAfterS: math.MaxUint16, Body: []byte{}},
		{Outcome: Throttled, RetryAfterS: 12, ThrottleMS: 12000, Body: []byte{}},
	} {
		got, err := ParseSessionResponse(AppendSessionResponse(nil, &response))
		if err != nil || !reflect.DeepEqual(got, response) {
			t.Errorf("got %+v, %v, want %+v", got, err, response)
		}
	}
}

func TestParseSessionResponseRefused(t *testing.T) {
	good := AppendSessionResponse(nil, &SessionResponse{Outcome: Allow, Body: []byte("{}")})
	for _, tt := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrMalformed},
		{"cut in its header", edited(good, cut(7)), ErrMalformed},
		{"cut", edited(good, cut(len(good)-1)), ErrMalformed},
		{"a byte more", edited(good, add(0)), ErrMalformed},
		{"layout after this", edited(good, set8(0, Layout+1)), ErrLayout},
		{"outcome 0", edited(good, set8(1, 0)), ErrMalformed},
		{"outcome 5", edited(good, set8(1, 5)), ErrMalformed},
		{"deny with a token", edited(good, set8(1, byte(Deny))), ErrMalformed},
		{"allow without a token", AppendSessionResponse(nil, &SessionResponse{Outcome: Allow}), ErrMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ParseSessionResponse(tt.b); !errors.Is(err, tt.want) || got.Body != nil {
				t.Errorf("got %+v, %v, want %v", got, err, tt.want)
			}
			sameBeyond(t, tt.b, readSessionResponse)
		})
	}
}

func TestNetwork(t *testing.T) {
	tests := []struct{ source, network string }{
		{"192.0.2.1", "192.0.2.1"},
		{"::ffff:192.0.2.1", "192.0.2.1"},
		{"2001:db8:0:1::1", "2001:db8:0:1::"},
		{"2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::"},
		{"fe80::1%eth0", "fe80::"},
	}
	for _, tt := range tests {
		if got, ok := Network(tt.source); !ok || got.String() != tt.network {
			t.Errorf("%s: got %v, %v, want %s", tt.source, got, ok, tt.network)
		}
	}
	for _, source := range []string{"", "unix", "192.0.2.1:80", "192.0.2.256"} {
		if got, ok := Network(source); ok {
			t.Errorf("%q: got %v, want none", source, got)
		}
	}
}

func TestVerifyResponseRoundTrip(t *testing.T) {
	tests := []struct {
		name     string
		response VerifyResponse
	}{
		{"allow", VerifyResponse{Outcome: Allow, Permissions: "a,b", Epoch: 1}},
		{"deny", VerifyResponse{Outcome: Deny, Epoch: testEpoch}},
		{"unavailable", VerifyResponse{Outcome: Unavailable, RetryAfterS: 30}},
		{"unavailable for a while", VerifyResponse{Outcome: Unavailable, RetryAfterS: 5, ThrottleMS: 5000}},
		{"throttled", VerifyResponse{Outcome: Throttled, RetryAfterS: 5, ThrottleMS: 5000}},
		{"away", VerifyResponse{Outcome: Away, RetryAfterS: 1}},
		{"every number at its end", VerifyResponse{Allow, math.MaxUint16, math.MaxUint32, math.MaxUint64,
			strings.Repeat("p", limits.MaxPermissions*65)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseVerifyResponse(AppendVerifyResponse(nil, &tt.response))
			if err != nil || got != tt.response {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.response)
			}
		})
	}
}

// TestParseVerifyResponseRefused checks that an unknown outcome is an error: authentication fails closed.
func TestParseVerifyResponseRefused(t *testing.T) {
	good := AppendVerifyResponse(nil, &VerifyResponse{Outcome: Allow, Permissions: "a,b", Epoch: 1})
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrMalformed},
		{"cut", edited(good, cut(len(good)-1)), ErrMalformed},
		{"cut in its header", edited(good, cut(19)), ErrMalformed},
		{"a byte more", edited(good, add(0)), ErrMalformed},
		{"layout before this", edited(good, set8(0, Layout-1)), ErrLayout},
		{"layout after this", edited(good, set8(0, Layout+1)), ErrLayout},
		{"outcome 0", edited(good, set8(1, 0)), ErrMalformed},
		{"outcome 6", edited(good, set8(1, 6)), ErrMalformed},
		{"outcome 255", edited(good, set8(1, 255)), ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ParseVerifyResponse(tt.b); !errors.Is(err, tt.want) || got != (VerifyResponse{}) {
				t.Errorf("got %+v, %v, want %v", got, err, tt.want)
			}
			sameBeyond(t, tt.b, readVerifyResponse)
		})
	}
}

func TestFetchResponseRoundTrip(t *testing.T) {
	empty := object(Object{Key: "/empty", Version: 1}, Variant{Length: 0})
	large := object(Object{Key: "/large", Version: 1}, Variant{Identity, 0, limits.MaxBody, 1},
		Variant{Gzip, 0, 0, 2}, Variant{Zstd, 0, 3, 3})
	tests := []struct {
		name   string
		object Object
		bodies [][]byte
	}{
		{"four encodings", productObject, productBodies},
		{"an empty body", empty, [][]byte{{}}},
		{"a large body, an empty one, a small one", large, [][]byte{make([]byte, limits.MaxBody), {}, []byte("abc")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ParseFetchResponse(AppendFetchResponse(nil, testEpoch, &tt.object, tt.bodies))
			if err != nil || r.Epoch != testEpoch {
				t.Fatalf("got epoch %x, %v, want %x", r.Epoch, err, uint64(testEpoch))
			}
			o, err := FindObject(r.Record, r.Epoch, 0, tt.object.Key)
			if err != nil || o != tt.object {
				t.Fatalf("got %+v, %v, want %+v", o, err, tt.object)
			}
			for i, want := range tt.bodies {
				if got := r.Body(&o, i); got == nil || !bytes.Equal(got, want) {
					t.Errorf("body %d: got %d bytes (nil %t), want %d", i, len(got), got == nil, len(want))
				}
			}
		})
	}
}

func TestParseFetchResponseRefused(t *testing.T) {
	good := AppendFetchResponse(nil, testEpoch, nil, nil)
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrMalformed},
		{"cut in its header", edited(good, cut(7)), ErrMalformed},
		{"header only", edited(good, cut(8)), ErrMalformed},
		{"cut in the record", edited(good, cut(len(good)-1)), ErrMalformed},
		{"layout before this", edited(good, set8(0, Layout-1)), ErrLayout},
		{"layout after this", edited(good, set8(0, Layout+1)), ErrLayout},
		{"record of a layout after this", edited(good, set8(8, Layout+1)), ErrLayout},
		{"record of another region", edited(good, set8(9, byte(RegionBodies))), ErrMalformed},
		{"record below the least", edited(good, set32(4, MinRecord-1)), ErrMalformed},
		{"record of none", edited(good, set32(4, 0)), ErrMalformed},
		{"length one more than is left", edited(good, set32(4, MinRecord+1)), ErrMalformed},
		{"the greatest length", edited(good, set32(4, math.MaxUint32)), ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ParseFetchResponse(tt.b); !errors.Is(err, tt.want) || got.Record != nil {
				t.Errorf("got %+v, %v, want %v", got, err, tt.want)
			}
			sameBeyond(t, tt.b, readFetchResponse)
		})
	}
}

// TestFetchResponseShort checks that a truncated body is not returned.
func TestFetchResponseShort(t *testing.T) {
	good := AppendFetchResponse(nil, testEpoch, &productObject, productBodies)
	for missing := 0; missing <= 14; missing++ {
		r, err := ParseFetchResponse(edited(good, cut(len(good)-missing)))
		if err != nil {
			t.Fatal(err)
		}
		left := 14 - missing
		for i, end := range []int{5, 9, 12, 14} {
			got := r.Body(&productObject, i)
			if (got != nil) != (end <= left) || got != nil && !bytes.Equal(got, productBodies[i]) {
				t.Errorf("%d bytes missing: got body %d %q, want it: %t", missing, i, got, end <= left)
			}
		}
	}
}

func TestHits(t *testing.T) {
	report := BeginHits(nil)
	for _, key := range []string{"/a", "/", "/a"} {
		report = AppendHit(report, key)
	}
	keys, err := ParseHits(report)
	if want := []string{"/a", "/", "/a"}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("got %q, %v; want %q", keys, err, want)
	}
	if keys, err := ParseHits(BeginHits(nil)); err != nil || len(keys) != 0 {
		t.Errorf("empty: got %q, %v; want none", keys, err)
	}
	for n := range len(report) {
		whole := n == 4 || n == 8 || n == 11 // ends with the header, or with a key
		if got, err := ParseHits(report[:n]); (err == nil) != whole {
			t.Errorf("cut to %d bytes: got %q, %v", n, got, err)
		}
	}
	report[0]++
	if _, err := ParseHits(report); !errors.Is(err, ErrLayout) {
		t.Errorf("another layout: got %v, want %v", err, ErrLayout)
	}
}

func FuzzParseHits(f *testing.F) {
	f.Add(AppendHit(AppendHit(BeginHits(nil), "/a"), "/b?c=d"))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := ParseHits(b)
		if err != nil {
			return
		}
		again := BeginHits(nil)
		for _, key := range keys {
			again = AppendHit(again, key)
		}
		if !bytes.Equal(again[hitsSize:], b[hitsSize:]) {
			t.Errorf("got %x, want %x", again, b)
		}
	})
}
