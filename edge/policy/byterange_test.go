package policy

import (
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		line      string
		size      int
		from, end int
		extent    extent
	}{
		{"bytes=0-0", 10, 0, 1, partial}, {"bytes=0-9", 10, 0, 10, partial}, {"bytes=9-9", 10, 9, 10, partial},
		{"bytes=0-10", 10, 0, 10, partial}, {"bytes=5-", 10, 5, 10, partial}, {"bytes=0-", 10, 0, 10, partial},
		{"bytes=-1", 10, 9, 10, partial}, {"bytes=-10", 10, 0, 10, partial}, {"bytes=-11", 10, 0, 10, partial},
		{"bytes=-99999999999999999999999", 10, 0, 10, partial}, {"bytes=1-99999999999999999999999", 10, 1, 10, partial},
		{"bytes=-01", 10, 9, 10, partial}, {"bytes=0001-0002", 10, 1, 3, partial}, {"BYTES=1-2", 10, 1, 3, partial},
		{"bytes=,1-2", 10, 1, 3, partial}, {"bytes=1-2 ,, ", 10, 1, 3, partial}, {"bytes= 1-2", 10, 1, 3, partial},
		{"bytes=10-", 10, 0, 10, unsatisfiable}, {"bytes=10-20", 10, 0, 10, unsatisfiable},
		{"bytes=18446744073709551616-", 10, 0, 10, unsatisfiable}, {"bytes=-0", 10, 0, 10, unsatisfiable},
		{"bytes=4294967296-", 10, 0, 10, unsatisfiable}, {"bytes=-000", 10, 0, 10, unsatisfiable},
		{"bytes=0-0,2-2", 10, 0, 10, whole}, {"bytes=0-0,0-0", 10, 0, 10, whole}, {"bytes=0-0,x", 10, 0, 10, whole},
		{"bytes=5-4", 10, 0, 10, whole}, {"bytes=20-10", 10, 0, 10, whole}, {"bytes=-", 10, 0, 10, whole},
		{"bytes=--1", 10, 0, 10, whole}, {"bytes=1--2", 10, 0, 10, whole}, {"bytes=1-2-3", 10, 0, 10, whole},
		{"bytes=1", 10, 0, 10, whole}, {"bytes=", 10, 0, 10, whole}, {"bytes", 10, 0, 10, whole}, {"", 10, 0, 10, whole},
		{"bytes=+1-2", 10, 0, 10, whole}, {"bytes=1 -2", 10, 0, 10, whole}, {"bytes=0x1-2", 10, 0, 10, whole},
		{"bytes=1.0-2", 10, 0, 10, whole}, {"bytes =1-2", 10, 0, 10, whole}, {"items=1-2", 10, 0, 10, whole},
		{"byteſ=1-2", 10, 0, 10, whole}, {"bytes=1-٢", 10, 0, 10, whole}, {"none=1-2", 10, 0, 10, whole},
		{"bytes=0-0", 1, 0, 1, partial}, {"bytes=1-", 1, 0, 1, unsatisfiable}, {"bytes=-1", 1, 0, 1, partial},
		{"bytes=0-0", 0, 0, 0, whole}, {"bytes=-1", 0, 0, 0, whole}, {"bytes=0-", 0, 0, 0, whole},
		{"bytes=1048575-", 1 << 20, 1<<20 - 1, 1 << 20, partial}, {"bytes=1048576-", 1 << 20, 0, 1 << 20, unsatisfiable},
	} {
		if from, end, e := cut(tt.line, tt.size); from != tt.from || end != tt.end || e != tt.extent {
			t.Errorf("%q of %d: got %d to %d, %d; want %d to %d, %d", tt.line, tt.size, from, end, e, tt.from, tt.end, tt.extent)
		}
	}
}

// The grammar of RFC 9110, sections 14.1 to 14.2, with one range-spec: int-range and suffix-range.
var oneRange = regexp.MustCompile(`^(?i:bytes)=[ \t,]*(?:([0-9]+)-([0-9]*)|-([0-9]+))[ \t]*(?:,[ \t,]*)?$`)

// rangeByRFC returns what a server that doesn't ignore one valid range of a body must send: "first-last" for a 206, "416",
// or "200".
func rangeByRFC(line string, size int) string {
	m := oneRange.FindStringSubmatch(line)
	if m == nil || size == 0 {
		return "200"
	}
	number := func(digits string) *big.Int {
		n, _ := new(big.Int).SetString(digits, 10)
		return n
	}
	length, first, last := big.NewInt(int64(size)), new(big.Int), big.NewInt(int64(size-1))
	if m[3] != "" {
		suffix := number(m[3])
		switch {
		case suffix.Sign() == 0:
			return "416"
		case suffix.Cmp(length) < 0: // otherwise the entire representation is used (14.1.2)
			first.Sub(length, suffix)
		}
		return fmt.Sprintf("%s-%s", first, last)
	}
	first = number(m[1])
	if m[2] != "" {
		to := number(m[2])
		if to.Cmp(first) < 0 {
			return "200" // invalid (14.1.1), so it may be ignored
		}
		if to.Cmp(last) < 0 {
			last = to
		}
	}
	if first.Cmp(length) >= 0 {
		return "416"
	}
	return fmt.Sprintf("%s-%s", first, last)
}

func FuzzCut(f *testing.F) {
	for _, line := range []string{"bytes=0-0", "bytes=-5", "bytes=5-", "bytes=,7-9, ", "bytes=9-8", "Bytes=1-2,3-4", "x=1-2",
		"bytes=99999999999-99999999998", "bytes=-0"} {
		f.Add(line, uint32(10))
	}
	f.Fuzz(func(t *testing.T, line string, size uint32) {
		n := int(size % (1<<20 + 1))
		from, end, e := cut(line, n)
		got := map[extent]string{whole: "200", partial: fmt.Sprintf("%d-%d", from, end-1), unsatisfiable: "416"}[e]
		want := rangeByRFC(line, n)
		// A position far beyond the end counts as any other.
		if invalid := want == "200" && got == "416" && strings.Count(line, "-") == 1 && oneRange.MatchString(line); got != want &&
			!invalid {
			t.Errorf("%q of %d: got %s, want %s", line, n, got, want)
		}
		if e == partial && (from < 0 || from >= end || end > n) || e != partial && (from != 0 || end != n) {
			t.Errorf("%q of %d: %d to %d, %d", line, n, from, end, e)
		}
	})
}
