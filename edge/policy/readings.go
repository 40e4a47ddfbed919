package policy

import (
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

const (
	// maxParts bounds the segments and parameters of a path. A path with more is ambiguous, rule or not.
	maxParts = 256
	// maxChoices bounds the places of a path that routers read differently while a rule may still match, maxLines the
	// path's lines, maxPath a path and maxEscaped a path with escapes, in bytes. Beyond a bound the path is ambiguous.
	maxChoices = 64
	maxLines   = 4
	maxPath    = 8192 // default limit of a request line in nginx and Apache
	maxEscaped = 4096
)

// maxDecoded is the maximum number of decodings of a path: by one router, and again by a second router.
const maxDecoded = 2

// class tells how routers may read a byte of a path, decoded or not.
type class uint8

const (
	letter class = iota // stands only for itself
	dot
	slash  // including a backslash
	odd    // may end the path or a segment, or be removed
	high   // part of a UTF-8 sequence, or invalid
	escape // stands for itself in a path that is not decoded any more
)

var classes = func() (all [256]class) {
	for c := range all {
		switch {
		case c <= ' ' || c == 0x7f || c == '?' || c == '#' || c == ';':
			all[c] = odd
		case c >= utf8.RuneSelf:
			all[c] = high
		}
	}
	all['.'], all['/'], all['\\'], all['%'] = dot, slash, slash, escape
	return all
}()

// readings follows all readings of a path by routers, at once and byte by byte, along the rules' paths. Routers differ
// in each of the following points, and a reading is any mixture of them:
//
//   - escapes stay, or are decoded once or twice;
//   - an odd byte stands for itself, is removed, or ends the path or the segment; after the end of a line a path begins
//     (in some routers' expressions ^ matches at the start of a line);
//   - a backslash is a slash or not; slashes are merged or not; two slashes at the beginning precede a host;
//   - dots at a segment's end are removed (so "." is no segment), or not;
//   - an overlong sequence is the encoded ASCII character; an invalid byte is odd, or a character of ISO 8859-1.
//
// A reading that leaves the rules' paths is dropped: the rules bound the number of readings at a time. A reading that
// climbs (a segment "..") is ambiguous.
type readings struct {
	texts []string // the rules' paths, sorted; see newReadings
	ascii bool     // texts are ASCII

	front
	found   spots // where a reading ended, or left the rules' paths
	parts   int   // of the path as decoded now
	choices int
	lines   int
	lost    bool // the path climbs, or exceeds a bound

	decoded [maxDecoded][]byte
	text    []byte
}

// front is the position of all readings.
type front struct {
	live     spots // readings of everything so far
	waiting  spots // readings that skip the rest of this segment
	dots     uint8 // bit n: the segment may be n dots so far
	afterOdd bool  // the last character was odd
}

// climbing is the bit of dots for a segment "..".
const climbing = 1 << 2

// isIdle reports whether no reading can match a rule any more.
func (f *front) isIdle() bool { return f.live.count+f.waiting.count == 0 }

// spot is the position of a reading: the first n bytes, common to texts[from:to]. spot has no padding, so comparing two
// is one operation.
type spot struct {
	from, to, n uint16
	dots        bool // dots were removed, so the segment must end now
	// more means that no rule's path continues with the bytes after n: any bytes for a found spot; else slashes, which
	// are ignored at the end of the path.
	more bool
}

// spots is a small set; a linear search is fastest.
type spots struct {
	all   [12]spot
	count int
}

func (s *spots) list() []spot { return s.all[:s.count] }

// hasOneReading reports whether a rule can name path: all routers read path in the same way.
func hasOneReading(path string) bool {
	for _, c := range path {
		if c == utf8.RuneError || c >= utf8.RuneSelf && isBlank(c) || c < utf8.RuneSelf && classes[c] == odd {
			return false
		}
	}
	return true
}

// newReadings returns readings for the paths of rules.
func newReadings(rules []Rule) (r readings) {
	for i := range rules {
		m := &rules[i].Match
		if m.Prefix != "" {
			r.texts = append(r.texts, m.Prefix)
			continue
		}
		r.texts = append(r.texts, trimSlashes(m.Path))
		if trimSlashes(m.Path) != "/" {
			r.texts = append(r.texts, trimSlashes(m.Path)+"/")
		}
	}
	slices.Sort(r.texts)
	r.ascii = !strings.ContainsFunc(strings.Join(r.texts, ""), func(c rune) bool { return c >= utf8.RuneSelf })
	r.texts = slices.Compact(r.texts)
	return r
}

// readPath finds the ends of all readings of path, which has no query; false if path is ambiguous.
func (r *readings) readPath(path string) bool {
	r.found.count, r.choices, r.lines, r.lost = 0, 0, 0, false
	if len(path) > maxPath {
		return false
	}
	if len(path) > maxEscaped && strings.IndexByte(path, '%') >= 0 {
		return false
	}
	r.followPath(path)
	for i := 0; i < maxDecoded && !r.lost; i++ {
		r.decoded[i] = objectkey.AppendPercentDecode(r.decoded[i][:0], path)
		if len(r.decoded[i]) == len(path) {
			break
		}
		path = asString(r.decoded[i])
		r.followPath(path)
	}
	return !r.lost
}

// eachEnd calls f with a path for every found class of readings with the same rules, until f returns false.
func (r *readings) eachEnd(f func(path string) bool) {
	for _, s := range r.found.list() {
		r.text = r.text[:0]
		if s.n > 0 {
			r.text = append(r.text, r.texts[s.from][:s.n]...)
		}
		if s.more {
			r.text = append(r.text, 0) // no rule has this byte
		}
		if !f(asString(r.text)) {
			return
		}
	}
}

// followPath follows the readings of a path, decoded as often as some router does.
func (r *readings) followPath(path string) {
	root := spot{to: uint16(len(r.texts))}
	r.front = front{dots: 1}
	r.parts = 0
	r.addSpot(&r.live, root)
	if classes[path[0]] != slash { // a URL with scheme and host, or a path to which some routers prepend a slash
		r.addSpot(&r.waiting, root)
		r.followSlash('/')
		r.addSpot(&r.live, root)
		r.addSpot(&r.waiting, root)
	}
	for i := 0; i < len(path) && !r.lost; i++ {
		if r.isIdle() {
			if i = r.skimPath(path, i); i == len(path) {
				break
			}
		}
		c := path[i]
		k := classes[c]
		if k == letter || k == escape {
			r.followLetter(c)
			continue
		}
		if k == slash || c == ';' {
			r.parts++
		} else if r.live.count > 0 && !(r.afterOdd && k == odd) {
			r.choices++
		}
		switch k {
		case dot:
			r.followDot()
		case slash:
			r.followSlash(c)
		case odd:
			r.followOdd(rune(c))
		case high:
			i += r.followNonASCII(path[i:]) - 1
		}
		r.lost = r.lost || r.parts > maxParts || r.choices > maxChoices || r.lines > maxLines
	}
	r.endReadings()
}

// followLetter continues the readings with c.
func (r *readings) followLetter(c byte) {
	r.afterOdd = false
	if r.dots = 0; r.live.count == 0 {
		return
	}
	was := r.live
	r.live.count = 0
	for _, s := range was.list() {
		r.extendSpot(s, c)
	}
}

// extendSpot continues a reading with c.
func (r *readings) extendSpot(s spot, c byte) {
	if s.dots { // another reading has kept the dots
		return
	}
	from, to := r.narrowTexts(s, c)
	if s.more || from == to {
		r.leaveRules(s)
		return
	}
	r.addSpot(&r.live, spot{from: from, to: to, n: s.n + 1})
}

// narrowTexts returns the texts of a spot with c as next byte.
func (r *readings) narrowTexts(s spot, c byte) (from, to uint16) {
	next := func(i uint16) int { // the shortest comes first
		if text := r.texts[i]; len(text) > int(s.n) {
			return int(text[s.n])
		}
		return -1
	}
	first := func(from uint16, least int) uint16 {
		to := s.to
		for from < to {
			if at := from + (to-from)/2; next(at) < least {
				from = at + 1
			} else {
				to = at
			}
		}
		return from
	}
	from = first(s.from, int(c))
	return from, first(from, int(c)+1)
}

// followDot continues with a dot, read or removed.
func (r *readings) followDot() {
	r.dots <<= 1
	r.afterOdd = false
	was := r.live
	r.live.count = 0
	for _, s := range was.list() {
		r.extendSpot(s, '.')
		s.dots = true
		r.addSpot(&r.live, s)
	}
}

// followSlash ends a segment with c; a backslash may also stay in the segment.
func (r *readings) followSlash(c byte) {
	r.checkClimb()
	r.dots, r.afterOdd = 1, false
	if r.isIdle() {
		return
	}
	was, waiting := r.live, r.waiting
	if c == '\\' {
		r.leaveAll()
	} else {
		r.waiting.count = 0
	}
	r.live.count = 0
	for _, some := range [...]*spots{&was, &waiting} {
		for _, s := range some.list() {
			s.dots = false
			if s.n == 0 || r.texts[s.from][s.n-1] != '/' {
				r.extendSpot(s, '/')
				continue
			}
			if s.n == 1 { // as in //host/path
				r.addSpot(&r.waiting, spot{to: uint16(len(r.texts))})
			}
			r.addSpot(&r.live, s)
			s.more = true
			r.addSpot(&r.live, s)
		}
	}
}

// followOdd continues with a character that is read (no rule has the character), removed, or ends the path or a
// segment. A second odd character in a row changes nothing, except after the end of a line: a path begins there.
func (r *readings) followOdd(c rune) {
	line := c == '\n' || c == '\r'
	if r.afterOdd && !line {
		return
	}
	r.afterOdd = !line
	r.endReadings()
	r.leaveAll()
	for _, s := range r.live.list() {
		r.addSpot(&r.waiting, s)
	}
	if line {
		r.lines++
		r.addSpot(&r.live, spot{to: uint16(len(r.texts))})
	}
}

// endReadings ends all readings at this byte, perhaps the end of the path.
func (r *readings) endReadings() {
	r.checkClimb()
	for _, s := range r.live.list() {
		r.addSpot(&r.found, spot{from: s.from, to: s.to, n: s.n})
	}
}

// checkClimb marks the path as ambiguous if the segment before this byte may be "..".
func (r *readings) checkClimb() {
	r.lost = r.lost || r.dots&climbing != 0
}

// leaveRules ends a reading that leaves the rules' paths.
func (r *readings) leaveRules(s spot) {
	r.addSpot(&r.found, spot{from: s.from, to: s.to, n: s.n, more: true})
}

// leaveAll ends readings at a character that no rule has.
func (r *readings) leaveAll() {
	for _, s := range r.live.list() {
		if !s.dots {
			r.leaveRules(s)
		}
	}
}

func (r *readings) addSpot(to *spots, s spot) {
	switch {
	case slices.Contains(to.list(), s):
	case to.count == len(to.all):
		r.lost = true
	default:
		to.all[to.count] = s
		to.count++
	}
}

// asString returns b as a string, valid as long as b isn't changed.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
