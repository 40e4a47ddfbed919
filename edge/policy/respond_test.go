package policy

import (
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

func TestChoose(t *testing.T) {
	variants := []wire.Variant{
		{Encoding: wire.Identity, Length: 1000},
		{Encoding: wire.Gzip, Length: 300},
		{Encoding: wire.Brotli, Length: 250},
	}
	const none = -1
	tests := []struct {
		name, header string
		want         int
	}{
		{"no header, or an empty one", "", 0},
		{"gzip", "gzip", 1},
		{"x-gzip", "X-GZIP", 1},
		{"shortest of equals", "gzip, deflate, br", 2},
		{"q decides", "gzip;q=1.0, br;q=0.5", 1},
		{"q of three digits", "gzip;q=0.001, br;q=0.002", 2},
		{"unknown only", "deflate, exi", 0},
		{"zero", "gzip;q=0, br;q=0.000", 0},
		{"star", "*", 2},
		{"star but", "*, br;q=0", 1},
		{"identity first", "identity, gzip;q=0.5", 0},
		{"identity refused", "identity;q=0, gzip;q=0.1", 1},
		{"all refused", "*;q=0", none},
		{"identity refused, none other", "identity;q=0", none},
		{"star refused but identity", "*;q=0, identity;q=0.1", 0},
		{"spaces", " gzip ; q=0.2 ,\tbr ;q=0.1", 1},
		{"malformed q refuses", "gzip;q=high, br;q=0.1", 2},
		{"q over one", "gzip;q=1.5, br;q=0.9", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := chooseVariant(variants, tt.header); got != tt.want {
				t.Errorf("choose(%q): got %d, want %d", tt.header, got, tt.want)
			}
		})
	}
}

func FuzzChoose(f *testing.F) {
	f.Add("gzip;q=0.5, *;q=0")
	variants := []wire.Variant{{Encoding: wire.Identity}, {Encoding: wire.Zstd}}
	f.Fuzz(func(t *testing.T, header string) {
		if got := chooseVariant(variants, header); got < -1 || got >= len(variants) {
			t.Errorf("choose(%q): got %d", header, got)
		}
	})
}

// TestKeyHasUpperEscapes: clients spell escapes in either case; stored keys have upper case.
func TestKeyHasUpperEscapes(t *testing.T) {
	e := NewEngine(&Config{})
	for target, want := range map[string]string{
		"/%c3%a9": "/%C3%A9", "/%C3%A9": "/%C3%A9", "/abc%": "/abc%", "/a?%fb=1&%Fa=%ff": "/a?%FA=%FF&%FB=1",
	} {
		r := Request{governor: &governor{}}
		r.fields[headerTarget] = field{value: target, lines: 1}
		if got, ok := e.responder.cacheKey(&r, &Cache{}, ""); got != want || !ok {
			t.Errorf("%s: got %s, %v; want %s", target, got, ok, want)
		}
		if got, ok := e.responder.cacheKey(&r, &Cache{PerDevice: true}, "d%aa"); got != "@d%aa"+want || !ok {
			t.Errorf("%s of a device: got %s, %v", target, got, ok)
		}
	}
	r := Request{governor: &governor{}}
	r.fields[headerTarget] = field{value: "/%aa" + strings.Repeat("a", 2*limits.MaxKey), lines: 1}
	if _, ok := e.responder.cacheKey(&r, &Cache{}, ""); ok {
		t.Error("a target that is too long has a key")
	}
}
