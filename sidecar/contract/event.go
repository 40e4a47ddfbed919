package contract

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/wire"
)

const (
	eventFormat = "1"
	// maxLengthDigits bounds a netstring's length prefix: far over any field, far under overflow.
	maxLengthDigits = 9
	maxEpoch        = 64
)

// Event is one write as the events channel announces it.
type Event struct {
	// Epoch is the data epoch of Redis.
	Epoch string
	// Seq is the write's sequence number, from 1.
	Seq uint64
	// Member names what was written.
	Member Member
	// Fields is the hash as it is now, for [ParseObject] or [ParseCredential].
	Fields map[string]string
}

// AppendEvent appends the payload of e to dst, its fields in bytewise order.
func AppendEvent(dst []byte, e Event) []byte {
	dst = appendNetstring(dst, eventFormat)
	dst = appendNetstring(dst, e.Epoch)
	dst = appendNetstring(dst, strconv.FormatUint(e.Seq, 10))
	dst = appendNetstring(dst, e.Member.String())
	for _, field := range slices.Sorted(maps.Keys(e.Fields)) {
		dst = appendNetstring(dst, field)
		dst = appendNetstring(dst, e.Fields[field])
	}
	return dst
}

func appendNetstring(dst []byte, s string) []byte {
	dst = strconv.AppendInt(dst, int64(len(s)), 10)
	dst = append(dst, ':')
	dst = append(dst, s...)
	return append(dst, ',')
}

// ParseEvent reads a payload, whose memory the event shares. The fields are not looked
// into. With an error the event holds what was read before it: a Seq other than 0 is
// good, so that a reader can count a number as seen although it has to skip the write.
func ParseEvent(payload string) (Event, error) {
	var e Event
	r := netstrings{rest: payload, size: len(payload)}
	format, err := r.next("format")
	if err != nil {
		return e, err
	}
	if format != eventFormat {
		return e, refuse(ReasonFormat, "event: format %s, this program reads %q", quote(format), eventFormat)
	}
	epoch, err := r.next("epoch")
	if err != nil {
		return e, err
	}
	if !ValidEpoch(epoch) {
		return e, refuse(ReasonMalformed, "event: epoch %s: want 1 to %d lowercase hex digits", quote(epoch), maxEpoch)
	}
	e.Epoch = epoch
	seq, err := r.next("seq")
	if err != nil {
		return e, err
	}
	if e.Seq, err = parseNumber("event: seq", seq, 1); err != nil {
		return e, err
	}
	member, err := r.next("member")
	if err != nil {
		return e, err
	}
	if e.Member, err = ParseMember(member); err != nil {
		return e, err
	}
	e.Fields, err = r.fields()
	return e, err
}

// ValidEpoch reports whether s can be a data epoch: 1 to 64 lowercase hex digits.
func ValidEpoch(s string) bool {
	return s != "" && len(s) <= maxEpoch && strings.Trim(s, "0123456789abcdef") == ""
}

// netstrings reads a payload from its start.
type netstrings struct {
	rest string
	size int // of the whole payload in bytes, for the offset in errors
}

// next takes one netstring off the rest; what names it in the error.
func (r *netstrings) next(what string) (string, error) {
	at := r.size - len(r.rest)
	head := r.rest[:min(len(r.rest), maxLengthDigits+1)]
	digits, _, found := strings.Cut(head, ":")
	if !found {
		return "", refuse(ReasonMalformed, "event: byte %d: no length of %s in %d bytes", at, what, len(r.rest))
	}
	length, err := parseNumber("event: length of "+what, digits, 0)
	if err != nil {
		return "", err
	}
	body := r.rest[len(digits)+1:]
	if length >= uint64(len(body)) {
		return "", refuse(ReasonMalformed, "event: byte %d: %s of %d bytes and its comma, %d are left", at, what, length, len(body))
	}
	if body[length] != ',' {
		return "", refuse(ReasonMalformed, "event: byte %d: no comma after %s of %d bytes", at, what, length)
	}
	r.rest = body[length+1:]
	return body[:length], nil
}

func (r *netstrings) fields() (map[string]string, error) {
	fields := make(map[string]string, 12)
	for r.rest != "" {
		name, err := r.next("a field name")
		if err != nil {
			return nil, err
		}
		value, err := r.next("field " + quote(name))
		if err != nil {
			return nil, err
		}
		if _, found := fields[name]; found {
			return nil, refuse(ReasonConflict, "event: field %s twice", quote(name))
		}
		fields[name] = value
	}
	return fields, nil
}

// parseNumber reads a number of the contract, lowest to 2^53-1; what names it in the error.
func parseNumber(what, s string, lowest uint64) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || s[0] == '0' && s != "0" {
		return 0, refuse(ReasonMalformed, "%s: %s is not a decimal number", what, quote(s))
	}
	if n < lowest || n > wire.MaxVersion {
		return 0, refuse(ReasonLimit, "%s: %d is out of %d to %d", what, n, lowest, uint64(wire.MaxVersion))
	}
	return n, nil
}
