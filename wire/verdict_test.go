package wire

import (
	"errors"
	"fmt"
	"math"
	"testing"
)

func verdicts(n int) []Verdict {
	all := make([]Verdict, n)
	for i := range all {
		all[i] = Verdict{
			Digest: testKeys.Digest(fmt.Sprintf("device-%d", i), "secret"), Permissions: uint64(i) << 32,
			ExpiresMS: int64(i) + 1, RefreshAfterMS: int64(i), Outcome: Allow + Outcome(i%2),
		}
	}
	return all
}

func TestVerdictRoundTrip(t *testing.T) {
	tests := []struct {
		name     string
		verdicts []Verdict
	}{
		{"none", nil},
		{"one", verdicts(1)},
		{"sample", testVerdicts},
		{"a crowded bucket", verdicts(300)},
		{"every number at its end", []Verdict{{
			Digest: Digest{15: 1}, Permissions: math.MaxUint64, ExpiresMS: math.MaxInt64, RefreshAfterMS: math.MinInt64, Outcome: Deny,
		}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rec := AppendVerdicts(nil, testEpoch, tt.verdicts)
			for _, want := range tt.verdicts {
				if got, err := FindVerdict(rec, testEpoch, &want.Digest); err != nil || got != want {
					t.Errorf("got %+v, %v, want %+v", got, err, want)
				}
			}
			absent := testKeys.Digest("device-0", "another secret")
			if got, err := FindVerdict(rec, testEpoch, &absent); !errors.Is(err, ErrNotFound) || got != (Verdict{}) {
				t.Errorf("absent: got %+v, %v, want %v", got, err, ErrNotFound)
			}
		})
	}
}

// TestFindVerdictWholeDigest checks that a credential whose digest differs from a stored
// one in a single bit doesn't get its verdict.
func TestFindVerdictWholeDigest(t *testing.T) {
	rec := AppendVerdicts(nil, testEpoch, testVerdicts[:1])
	for bit := range 128 {
		d := testVerdicts[0].Digest
		d[bit/8] ^= 1 << (bit % 8)
		if got, err := FindVerdict(rec, testEpoch, &d); !errors.Is(err, ErrNotFound) {
			t.Errorf("bit %d: got %+v, %v, want %v", bit, got, err, ErrNotFound)
		}
	}
}

func TestFindVerdictMalformed(t *testing.T) {
	good := AppendVerdicts(nil, testEpoch, testVerdicts)
	tests := []struct {
		name string
		rec  []byte
		want error
	}{
		{"cut in the last verdict", edited(good, cut(len(good)-1)), ErrMalformed},
		{"a verdict more than are there", edited(good, set16(2, 3)), ErrMalformed},
		{"the greatest count", edited(good, set16(2, math.MaxUint16)), ErrMalformed},
		{"padding taken for a verdict", edited(AppendVerdicts(nil, testEpoch, nil), set16(2, 1)), ErrMalformed},
		{"outcome 0", edited(good, set8(16+48+40, 0)), ErrMalformed},
		{"outcome unavailable", edited(good, set8(16+48+40, byte(Unavailable))), ErrMalformed},
		{"outcome 255", edited(good, set8(16+48+40, 255)), ErrMalformed},
		{"fewer than are there", edited(good, set16(2, 1)), ErrNotFound},
		{"none although they are there", edited(good, set16(2, 0)), ErrNotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := FindVerdict(tt.rec, testEpoch, &testVerdicts[1].Digest); !errors.Is(err, tt.want) || got != (Verdict{}) {
				t.Errorf("got %+v, %v, want %v", got, err, tt.want)
			}
			sameBeyond(t, tt.rec, readVerdicts)
		})
	}
}
