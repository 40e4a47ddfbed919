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
		marks    []Mark
	}{
		{"none", nil, nil},
		{"one", verdicts(1), nil},
		{"a mark only", nil, testMarks[:1]},
		{"sample", testVerdicts, testMarks},
		{"a crowded bucket", verdicts(300), marks(3000)},
		{"every number at its end", []Verdict{{
			Digest: Digest{15: 1}, Permissions: math.MaxUint64, ExpiresMS: math.MaxInt64, RefreshAfterMS: math.MinInt64, NotAfterMS: 1<<48 - 1, Outcome: Deny,
		}}, []Mark{{math.MaxUint64 &^ 3, true, true}, {0, true, false}, {4, false, true}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rec := AppendVerdicts(nil, testEpoch, tt.verdicts, tt.marks)
			for _, want := range tt.verdicts {
				if got, standing, err := FindVerdict(rec, testEpoch, &want.Digest, 8); err != nil || got != want || standing != Found {
					t.Errorf("got %+v, %d, %v, want %+v", got, standing, err, want)
				}
			}
			absent := testKeys.Digest("device-0", "another secret")
			for _, mark := range tt.marks {
				want := Marked
				switch {
				case mark.Closed:
					want = Closed
				case mark.New:
					want = New
				}
				if got, standing, err := FindVerdict(rec, testEpoch, &absent, mark.Tag); err != nil || standing != want || got != (Verdict{}) {
					t.Errorf("mark %+v: got %+v, %d, %v, want %d", mark, got, standing, err, want)
				}
			}
			if got, standing, err := FindVerdict(rec, testEpoch, &absent, tagOf("nobody")); err != nil || standing != Absent || got != (Verdict{}) {
				t.Errorf("absent: got %+v, %d, %v, want %d", got, standing, err, Absent)
			}
		})
	}
}

func marks(n int) []Mark {
	all := make([]Mark, n)
	for i := range all {
		all[i] = Mark{Tag: tagOf(fmt.Sprint("device-", i)), Closed: i%2 == 0, New: i%3 == 0}
	}
	return all
}

// TestFindVerdictWholeDigest checks that a credential whose digest differs from a stored
// one in a single bit doesn't get its verdict, nor a device the mark of another.
func TestFindVerdictWholeDigest(t *testing.T) {
	rec := AppendVerdicts(nil, testEpoch, testVerdicts[:1], testMarks[:1])
	for bit := range 128 {
		d := testVerdicts[0].Digest
		d[bit/8] ^= 1 << (bit % 8)
		if got, standing, err := FindVerdict(rec, testEpoch, &d, testMarks[0].Tag); err != nil || standing != Closed {
			t.Errorf("bit %d: got %+v, %d, %v, want %d", bit, got, standing, err, Closed)
		}
		if bit < 2 || bit > 63 {
			continue // a tag has 62
		}
		if _, standing, err := FindVerdict(rec, testEpoch, &d, testMarks[0].Tag^1<<bit); err != nil || standing != Absent {
			t.Errorf("bit %d of the tag: got %d, %v, want %d", bit, standing, err, Absent)
		}
	}
}

func TestFindVerdictMalformed(t *testing.T) {
	good := AppendVerdicts(nil, testEpoch, testVerdicts, testMarks)
	none := AppendVerdicts(nil, testEpoch, nil, nil)
	tests := []struct {
		name string
		rec  []byte
		want Standing
	}{
		{"cut in the last mark", edited(good, cut(len(good)-1)), Unreadable},
		{"cut in the last verdict", edited(good, cut(16+48+47)), Unreadable},
		{"a verdict more than are there", edited(good, set16(2, 3)), Unreadable},
		{"the greatest count", edited(good, set16(2, math.MaxUint16)), Unreadable},
		{"a mark more than are there", edited(good, set32(4, 4)), Unreadable},
		{"the greatest count of marks", edited(good, set32(4, math.MaxUint32)), Unreadable},
		{"marks whose length is more than 32 bits", edited(good, set32(4, 1<<29+1)), Unreadable},
		{"both counts at their ends", edited(good, set16(2, math.MaxUint16), set32(4, math.MaxUint32)), Unreadable},
		{"padding taken for a verdict", edited(none, set16(2, 1)), Unreadable},
		{"padding taken for marks", edited(none, set32(4, 3)), Unreadable},
		{"outcome 0", edited(good, set8(16+48+40, 0)), Unreadable},
		{"outcome unavailable", edited(good, set8(16+48+40, byte(Unavailable))), Unreadable},
		{"outcome 255", edited(good, set8(16+48+40, 255)), Unreadable},
		{"none although they are there", edited(good, set16(2, 0), set32(4, 0)), Absent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, standing, err := FindVerdict(tt.rec, testEpoch, &testVerdicts[1].Digest, testMarks[0].Tag)
			if standing != tt.want || errors.Is(err, ErrMalformed) != (tt.want == Unreadable) || got != (Verdict{}) {
				t.Errorf("got %+v, %d, %v, want %d", got, standing, err, tt.want)
			}
			sameBeyond(t, tt.rec, readVerdicts)
		})
	}
}
