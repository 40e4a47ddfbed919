package policy

import "unsafe"

// skimPath does the work of followPath, from byte i on, while no reading can match a rule. It returns the index of the
// next byte for followPath.
func (r *readings) skimPath(path string, i int) int {
	dots := r.dots
	for ; i < len(path); i++ {
		for i+8 <= len(path) && lettersOnly(*(*uint64)(unsafe.Pointer(unsafe.StringData(path[i:])))) {
			i += 8
			dots = 0
		}
		if i == len(path) {
			break
		}
		c := path[i]
		k := classes[c]
		if k == letter || k == escape {
			dots = 0
			continue
		}
		if k == dot {
			dots <<= 1
			if len(path) <= maxEscaped {
				continue
			}
			r.parts++
		}
		if k == high {
			if dots == 0 && c != 0xc0 && c != 0xc1 && c != 0xe0 && c != 0xf0 { // certainly not overlong
				continue
			}
			r.dots = dots
			r.afterOdd = false
			if i += r.followNonASCII(path[i:]) - 1; !r.isIdle() {
				// A path begins behind an overlong line feed.
				return i + 1
			}
			dots = r.dots
			continue
		}
		if k != dot && (dots&climbing != 0 || c == '\n' || c == '\r') {
			break
		}
		if k == slash {
			dots = 1
			r.parts++
		} else if c == ';' {
			r.parts++
		}
		if r.parts > maxParts {
			r.lost = true
			return len(path)
		}
	}
	r.dots = dots
	r.afterOdd = false
	return i
}

// lettersOnly reports whether each of eight bytes is a letter or escape; false negatives are possible.
func lettersOnly(eight uint64) bool {
	const (
		ones  = 0x0101010101010101
		highs = ones << 7
	)
	// Where a byte is 0, the subtraction borrows from the byte's highest bit, which was not set.
	dots := (eight | ones) ^ ones*'/'    // and slashes
	ends := (eight | ones<<2) ^ ones*'?' // and semicolons
	hash, back, del := eight^ones*'#', eight^ones*'\\', eight^ones*0x7f
	return (eight|(eight-ones*('\x20'+1))&^eight|(dots-ones)&^dots|(ends-ones)&^ends|
		(hash-ones)&^hash|(back-ones)&^back|(del-ones)&^del)&highs == 0
}
