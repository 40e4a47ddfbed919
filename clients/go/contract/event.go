package contract

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

const (
	eventFormat = "2"
	// maxLengthDigits bounds a netstring's length prefix: far more than any field needs, and no overflow.
	maxLengthDigits = 9
	maxDataEpoch    = 64
	// maxTraceparent is the size of a traceparent of version 00 (W3C Trace Context, 3.2.2).
	maxTraceparent = 55
)

// Event is one write, as announced in the events channel.
type Event struct {
	// DataEpoch is the data epoch of Redis.
	DataEpoch string
	// Seq is the write's sequence number, from 1.
	Seq uint64
	// Digest chains the event to the event before, see [Follows].
	Digest string
	// Member names the written record.
	Member Member
	// Traceparent is the trace that the write belongs to (W3C Trace Context); empty: none.
	Traceparent string
	// Fields is the new content of the hash, for [ParseObject] or [ParseCredential].
	Fields map[string]string
}

// AppendEvent appends the payload of e to dst, with its fields in bytewise order.
func AppendEvent(dst []byte, e Event) []byte {
	dst = appendNetstring(dst, eventFormat)
	dst = appendNetstring(dst, e.Digest)
	dst = appendNetstring(dst, e.DataEpoch)
	dst = appendNetstring(dst, strconv.FormatUint(e.Seq, 10))
	dst = appendNetstring(dst, e.Member.String())
	dst = appendNetstring(dst, e.Traceparent)
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

// ParseEvent parses a payload without checking the fields. The event shares the payload's memory. With an error,
// ParseEvent returns the parts parsed before: a Seq other than 0 is valid, so that a reader can skip the write.
func ParseEvent(payload string) (Event, error) {
	var e Event
	r := netstringReader{rest: payload, size: len(payload)}
	format, err := r.readNext("format")
	if err != nil {
		return e, err
	}
	if format != eventFormat {
		return e, refuse(ReasonFormat, "event: format %s, this program reads %q", quote(format), eventFormat)
	}
	if e.Digest, err = r.readDigest(); err != nil {
		return e, err
	}
	epoch, err := r.readNext("epoch")
	if err != nil {
		return e, err
	}
	if !ValidDataEpoch(epoch) {
		return e, refuse(ReasonMalformed, "event: data epoch %s: want 1 to %d lowercase hex digits",
			quote(epoch), maxDataEpoch)
	}
	e.DataEpoch = epoch
	seq, err := r.readNext("seq")
	if err != nil {
		return e, err
	}
	if e.Seq, err = parseNumber("event: seq", seq, 1); err != nil {
		return e, err
	}
	member, err := r.readNext("member")
	if err != nil {
		return e, err
	}
	if e.Member, err = ParseMember(member); err != nil {
		return e, err
	}
	if e.Traceparent, err = r.readNext("traceparent"); err != nil {
		return e, err
	}
	if e.Traceparent != "" && !limits.ValidTraceparent(e.Traceparent) {
		return e, refuse(ReasonMalformed, "event: traceparent %s: want none, or %d bytes as W3C Trace Context has it",
			quote(e.Traceparent), maxTraceparent)
	}
	e.Fields, err = r.readFields()
	return e, err
}

func isLowercaseHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// ValidDataEpoch reports whether s can be a data epoch: 1 to 64 lowercase hex digits.
func ValidDataEpoch(s string) bool {
	return s != "" && len(s) <= maxDataEpoch && isLowercaseHex(s)
}

// netstringReader parses a payload from its start.
type netstringReader struct {
	rest string
	size int // of the whole payload in bytes, for the offset in errors
}

// readNext returns and removes the next netstring. what names the netstring in errors.
func (r *netstringReader) readNext(what string) (string, error) {
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
		return "", refuse(ReasonMalformed, "event: byte %d: %s of %d bytes and its comma, %d are left",
			at, what, length, len(body))
	}
	if body[length] != ',' {
		return "", refuse(ReasonMalformed, "event: byte %d: no comma after %s of %d bytes", at, what, length)
	}
	r.rest = body[length+1:]
	return body[:length], nil
}

func (r *netstringReader) readDigest() (string, error) {
	digest, err := r.readNext("digest")
	if err == nil && !ValidDigest(digest) {
		err = refuse(ReasonMalformed, "event: digest %s: want %d lowercase hex digits", quote(digest), digestSize)
	}
	return digest, err
}

// readField returns and removes the name and the value of the next field.
func (r *netstringReader) readField() (name, value string, err error) {
	if name, err = r.readNext("a field name"); err != nil {
		return "", "", err
	}
	value, err = r.readNext("field " + quote(name))
	return name, value, err
}

func (r *netstringReader) readFields() (map[string]string, error) {
	fields := make(map[string]string, 12)
	for r.rest != "" {
		name, value, err := r.readField()
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

// parseNumber parses a number of the contract, lowest to 2^53-1. what names the number in errors.
func parseNumber(what, s string, lowest uint64) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || s[0] == '0' && s != "0" {
		return 0, refuse(ReasonMalformed, "%s: %s is not a decimal number", what, quote(s))
	}
	if n < lowest || n > limits.MaxVersion {
		return 0, refuse(ReasonLimit, "%s: %d is out of %d to %d", what, n, lowest, uint64(limits.MaxVersion))
	}
	return n, nil
}
