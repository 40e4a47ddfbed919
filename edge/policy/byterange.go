package policy

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// extent is how much of an object answers a request with a Range.
type extent uint8

const (
	whole         extent = iota // 200
	partial                     // 206
	unsatisfiable               // 416
)

// parseRange returns the bytes of a body, from from to before end, for a Range with one range of bytes (RFC 9110,
// section 14.1.2). Several ranges, other units, malformed ranges and ranges of an empty body are ignored (14.2).
func parseRange(line string, size int) (from, end int, e extent) {
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
	from, hasFirst := parsePosition(first)
	to, hasLast := parsePosition(last)
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

// maxPosition is at least any position in a body.
const maxPosition = 1 << 30

// parsePosition returns a number of at least one digit, capped at [maxPosition].
func parsePosition(digits string) (n int, ok bool) {
	for i := range len(digits) {
		c := digits[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int(c-'0'), maxPosition)
	}
	return n, digits != ""
}

// rangeAnswer is the part of an object for a request with a Range.
type rangeAnswer struct {
	extent
	variant      int // unless whole
	from, end    int // partial: the bytes from from to before end
	contentRange string
}

// answerRange returns the part of o for a request with a Range: bytes of the identity encoding, if the client accepts
// identity. Range is ignored with methods except GET, with an If-Range that doesn't hold, and with answers except 200.
//
//go:noinline
func (p *responder) answerRange(r *Request, nowMS int64, o *wire.Object, acceptEncoding string) (part rangeAnswer) {
	variants := o.Variants()
	part.variant = slices.IndexFunc(variants, func(v wire.Variant) bool { return v.Encoding == wire.Identity })
	if r.method() != "GET" || r.fields[headerRange].lines > 1 || o.Status != 0 || part.variant < 0 ||
		chooseVariant(variants[part.variant:part.variant+1], acceptEncoding) < 0 || !p.meetsIfRange(r, nowMS, o) {
		return rangeAnswer{}
	}
	size := int(variants[part.variant].Length)
	part.from, part.end, part.extent = parseRange(r.fields[headerRange].value, size)
	all := append(p.text, "bytes "...)
	if part.extent == partial {
		all = strconv.AppendInt(append(strconv.AppendInt(all, int64(part.from), 10), '-'), int64(part.end-1), 10)
	} else {
		all = append(all, '*')
	}
	part.contentRange = p.text.compose(strconv.AppendInt(append(all, '/'), int64(size), 10))
	return part
}

// meetsIfRange reports whether the request has no If-Range, or an If-Range that holds: the strong entity-tag of the
// identity encoding, or the Last-Modified, which is a strong validator after a second (RFC 9110, section 13.1.5).
func (p *responder) meetsIfRange(r *Request, nowMS int64, o *wire.Object) bool {
	f := &r.fields[headerIfRange]
	if f.lines != 1 || f.value == o.ETag {
		return f.lines <= 1
	}
	date, err := time.Parse(imfFixdate, f.value)
	return err == nil && f.value == p.lastModified(o) && date.UnixMilli()+1000+lagMS <= nowMS
}
