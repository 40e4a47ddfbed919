package wire

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

func verdicts(n int) []Verdict {
	all := make([]Verdict, n)
	for i := range all {
		all[i] = Verdict{
			Digest: testKeys.Digest(fmt.Sprintf("device-%d", i), "secret"), Permissions: strings.Repeat("p,", i),
			ExpiresMS: int64(i) + 1, RefreshAfterMS: int64(i), Outcome: Allow + Outcome(i%2),
		}
	}
	return all
}

func TestVerdictRoundTrip(t *testing.T) {
	tests := []struct {
		name     string
		verdicts []Verdict
		devices  []Device
	}{
		{"none", nil, nil},
		{"one", verdicts(1), nil},
		{"a device only", nil, testDevices[:1]},
		{"sample", testVerdicts, testDevices},
		{"a crowded bucket", verdicts(300), devices(3000)},
		{"the longest names", []Verdict{{Outcome: Allow, Permissions: strings.Repeat("p", limits.MaxPermissions*65)},
			{Digest: Digest{1}, Outcome: Allow, Permissions: "p"}}, devices(1)},
		{"every number at its end", []Verdict{{
			Digest: Digest{15: 1}, ExpiresMS: math.MaxInt64, RefreshAfterMS: math.MinInt64,
			NotAfterMS: 1<<48 - 1, Outcome: Deny,
		}}, []Device{{math.MaxUint64 &^ 3, true, true}, {0, true, false}, {4, false, true}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rec := AppendVerdicts(nil, testEpoch, tt.verdicts, tt.devices)
			for _, want := range tt.verdicts {
				if got, status, err := FindVerdict(rec, testEpoch, &want.Digest, 8); err != nil || got != want || status != Found {
					t.Errorf("got %+v, %d, %v, want %+v", got, status, err, want)
				}
			}
			absent := testKeys.Digest("device-0", "another secret")
			for _, device := range tt.devices {
				want := Registered
				switch {
				case device.Closed:
					want = Closed
				case device.New:
					want = New
				}
				if got, status, err := FindVerdict(rec, testEpoch, &absent, device.Tag); err != nil || status != want ||
					got != (Verdict{}) {
					t.Errorf("device %+v: got %+v, %d, %v, want %d", device, got, status, err, want)
				}
			}
			if got, status, err := FindVerdict(rec, testEpoch, &absent, tagOf("nobody")); err != nil ||
				status != Unregistered || got != (Verdict{}) {
				t.Errorf("absent: got %+v, %d, %v, want %d", got, status, err, Unregistered)
			}
		})
	}
}

func devices(n int) []Device {
	all := make([]Device, n)
	for i := range all {
		all[i] = Device{Tag: tagOf(fmt.Sprint("device-", i)), Closed: i%2 == 0, New: i%3 == 0}
	}
	return all
}

// TestFindVerdictWholeDigest checks that a credential whose digest differs from a stored digest in a single bit doesn't
// get the stored verdict, nor a device another device's status.
func TestFindVerdictWholeDigest(t *testing.T) {
	rec := AppendVerdicts(nil, testEpoch, testVerdicts[:1], testDevices[:1])
	for bit := range 128 {
		d := testVerdicts[0].Digest
		d[bit/8] ^= 1 << (bit % 8)
		if got, status, err := FindVerdict(rec, testEpoch, &d, testDevices[0].Tag); err != nil || status != Closed {
			t.Errorf("bit %d: got %+v, %d, %v, want %d", bit, got, status, err, Closed)
		}
		if bit < 2 || bit > 63 {
			continue // a tag has 62
		}
		if _, status, err := FindVerdict(rec, testEpoch, &d, testDevices[0].Tag^1<<bit); err != nil ||
			status != Unregistered {
			t.Errorf("bit %d of the tag: got %d, %v, want %d", bit, status, err, Unregistered)
		}
	}
}

func TestFindVerdictMalformed(t *testing.T) {
	good := AppendVerdicts(nil, testEpoch, testVerdicts, testDevices)
	none := AppendVerdicts(nil, testEpoch, nil, nil)
	tests := []struct {
		name string
		rec  []byte
		want CredentialStatus
	}{
		{"cut in the last name", edited(good, cut(len(good)-1)), Unreadable},
		{"cut in the last device", edited(good, cut(len(good)-len(testVerdicts[0].Permissions)-1)), Unreadable},
		{"cut in the last verdict", edited(good, cut(16+44+43)), Unreadable},
		{"a verdict more than are there", edited(good, set16(2, 3)), Unreadable},
		{"the greatest count", edited(good, set16(2, math.MaxUint16)), Unreadable},
		{"a device more than are there", edited(good, set32(4, 4)), Unreadable},
		{"the greatest count of devices", edited(good, set32(4, math.MaxUint32)), Unreadable},
		{"devices whose length is more than 32 bits", edited(good, set32(4, 1<<29+1)), Unreadable},
		{"both counts at their ends", edited(good, set16(2, math.MaxUint16), set32(4, math.MaxUint32)), Unreadable},
		{"names of a byte more than are left", edited(good, set32(16+44+40, 1)), Unreadable},
		{"the longest names", edited(good, set32(16+40, math.MaxUint32)), Unreadable},
		{"names whose length is more than 32 bits",
			edited(good, set32(16+40, math.MaxUint32), set32(16+44+40, math.MaxUint32)), Unreadable},
		{"padding taken for a verdict", edited(none, set16(2, 1)), Unreadable},
		{"padding taken for devices", edited(none, set32(4, 3)), Unreadable},
		{"outcome 0", edited(good, set8(16+44+32, 0)), Unreadable},
		{"outcome unavailable", edited(good, set8(16+44+32, byte(Unavailable))), Unreadable},
		{"outcome 255", edited(good, set8(16+44+32, 255)), Unreadable},
		{"none although they are there", edited(good, set16(2, 0), set32(4, 0)), Unregistered},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, status, err := FindVerdict(tt.rec, testEpoch, &testVerdicts[1].Digest, testDevices[0].Tag)
			if status != tt.want || errors.Is(err, ErrMalformed) != (tt.want == Unreadable) || got != (Verdict{}) {
				t.Errorf("got %+v, %d, %v, want %d", got, status, err, tt.want)
			}
			sameBeyond(t, tt.rec, readVerdicts)
		})
	}
}
