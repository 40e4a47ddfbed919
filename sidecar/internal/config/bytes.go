package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size: a number of bytes, or a number with a unit such as "256MiB".
type Bytes int64

var units = []struct {
	suffix string
	size   int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}, {"", 1}}

// UnmarshalText parses a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	for _, unit := range units {
		digits, found := strings.CutSuffix(string(text), unit.suffix)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n > uint64(math.MaxInt64/unit.size) {
			break
		}
		*b = Bytes(int64(n) * unit.size)
		return nil
	}
	return fmt.Errorf("bad size %q: want a number and B, KiB, MiB, GiB or TiB", text)
}

// String returns the size in the largest unit that divides the size.
func (b Bytes) String() string {
	for _, i := range []int{3, 2, 1, 0} {
		if unit := units[i]; b != 0 && int64(b)%unit.size == 0 {
			return strconv.FormatInt(int64(b)/unit.size, 10) + unit.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}
