package policy

import (
	"unicode"
	"unicode/utf8"
)

// followNonASCII continues with the start of text, a non-ASCII character, and returns the character's size.
func (r *readings) followNonASCII(text string) (size int) {
	c, size := utf8.DecodeRuneInString(text)
	switch {
	case c == utf8.RuneError && size == 1:
		return r.followInvalid(text)
	case isBlank(c):
		r.followOdd(c)
	default:
		for i := range size {
			r.followLetter(text[i])
		}
	}
	return size
}

// isBlank reports whether some routers trim c, which isn't ASCII, off a text. U+FEFF is a space in JavaScript.
func isBlank(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) || c == '\ufeff' }

// overlongChoices is the number of choices of a sequence with a second meaning: no honest path has one.
const overlongChoices = 7

// followInvalid is followNonASCII for invalid UTF-8.
func (r *readings) followInvalid(text string) (size int) {
	c, size := decodeOverlong(text)
	if size == 0 {
		c, size = rune(text[0]), 1
	}
	if r.isIdle() && c != '\n' && c != '\r' {
		r.checkClimb()
		switch classes[c&0xff] {
		case slash:
			r.dots |= 1
		case dot:
			r.dots |= r.dots << 1
		}
		return size
	}
	if c >= utf8.RuneSelf && r.ascii {
		if r.afterOdd {
			r.choices--
		}
		r.followOdd(c)
		return size
	}
	was := r.front
	r.choices += overlongChoices
	r.followOdd(c)
	without := r.front
	r.front = was
	switch {
	case c >= utf8.RuneSelf:
		for _, b := range utf8.AppendRune(make([]byte, 0, utf8.UTFMax), c) {
			r.followLetter(b)
		}
	case classes[c] == slash:
		r.followSlash('/')
	case classes[c] == dot:
		r.followDot()
	case classes[c] != odd:
		r.followLetter(byte(c))
	}
	for _, s := range without.live.list() {
		r.addSpot(&r.live, s)
	}
	for _, s := range without.waiting.list() {
		r.addSpot(&r.waiting, s)
	}
	r.dots |= without.dots
	return size
}

// decodeOverlong returns the ASCII character at the start of text that is encoded in too many bytes, and its size; 0
// for none (RFC 3629, section 3).
func decodeOverlong(text string) (c rune, size int) {
	switch first := text[0]; {
	case first == 0xc0 || first == 0xc1:
		c, size = rune(first&1), 2
	case first == 0xe0:
		size = 3
	case first == 0xf0:
		size = 4
	}
	if len(text) < size {
		return 0, 0
	}
	for i := 1; i < size; i++ {
		if text[i]&0xc0 != 0x80 {
			return 0, 0
		}
		c = c<<6 | rune(text[i]&0x3f)
	}
	if c >= utf8.RuneSelf {
		return 0, 0
	}
	return c, size
}
