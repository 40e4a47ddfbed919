package policy

import "strings"

// extent is how much of an object answers a request with a Range.
type extent uint8

const (
	whole         extent = iota // 200
	partial                     // 206
	unsatisfiable               // 416
)

// cut returns which bytes of a body a Range asks for, those from from to before end, if that is one range of bytes (RFC
// 9110, section 14.1.2). It ignores several ranges, other units, malformed ones, and those of an empty body (14.2).
func cut(line string, size int) (from, end int, e extent) {
	unit, set, _ := strings.Cut(line, "=")
	if size == 0 || len(unit) != len("bytes") || !strings.EqualFold(unit, "bytes") {
		return 0, size, whole
	}
	only := ""
	for set != "" {
		var spec string
		spec, set, _ = strings.Cut(set, ",")
		if spec = strings.Trim(spec, " \t"); spec == "" { // a list may have empty elements (5.6.1.2)
			continue
		}
		if only != "" {
			return 0, size, whole
		}
		only = spec
	}
	first, last, found := strings.Cut(only, "-")
	from, hasFirst := position(first)
	to, hasLast := position(last)
	switch {
	case !found || !hasFirst && first != "" || !hasLast && last != "" || !hasFirst && !hasLast:
		return 0, size, whole
	case !hasFirst && to > 0: // the last bytes
		return max(size-to, 0), size, partial
	case !hasFirst:
		return 0, size, unsatisfiable
	case hasLast && to < from:
		return 0, size, whole
	case from >= size:
		return 0, size, unsatisfiable
	case !hasLast:
		return from, size, partial
	}
	return from, min(to, size-1) + 1, partial
}

// beyond is at least any position in a body.
const beyond = 1 << 30

// position returns a number of at least one digit, [beyond] if it is higher.
func position(digits string) (n int, ok bool) {
	for i := range len(digits) {
		c := digits[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int(c-'0'), beyond)
	}
	return n, digits != ""
}
