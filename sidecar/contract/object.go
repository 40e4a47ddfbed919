package contract

import (
	"strconv"
	"strings"
	"unique"

	"github.com/gatehouse/gatehouse/wire"
)

// encodings are those that an object can have, in the order of [Object.Bodies].
var encodings = [...]wire.Encoding{wire.Identity, wire.Gzip, wire.Brotli, wire.Zstd}

// Object is what an object's hash says. A tombstone has Key, Version, Deleted and
// PublishedMS only.
type Object struct {
	// Key is the cache key; it is not in the hash, the caller of [ParseObject] sets it.
	Key string
	// Version grows with every write of the key.
	Version uint64
	// Deleted marks a tombstone.
	Deleted bool
	// PublishedMS is when Redis took the write, in unix milliseconds.
	PublishedMS int64
	// ETag is a strong entity-tag, with its quotes.
	ETag string
	// ContentType is sent unchanged.
	ContentType string
	// TTLMS is the freshness lifetime from PublishedMS; 0 means until the object changes.
	TTLMS int64
	// Bodies are the encodings: identity first, then those present of gzip, br, zstd.
	Bodies []Body
}

// Body is an object in one encoding.
type Body struct {
	// Encoding is the content coding.
	Encoding wire.Encoding
	// Bytes are at most wire.MaxBody.
	Bytes []byte
}

// BodyField is the field that holds the encoding e: "body", or "body.gzip" and the like.
func BodyField(e wire.Encoding) string {
	if e == wire.Identity {
		return FieldBody
	}
	return FieldBody + "." + e.String()
}

// ParseObject reads an object's hash, as HGETALL or an event gives it. All that it
// returns is a copy, so that an object kept does not hold a whole event's payload. A key
// that is not there gives no fields, which is an error: ask first.
func ParseObject(fields map[string]string) (Object, error) {
	o, err := ParseObjectHead(fields)
	if err != nil || o.Deleted {
		return o, err
	}
	if _, found := fields[FieldBody]; !found {
		return Object{}, refuse(ReasonMissing, "%s: missing", FieldBody)
	}
	if o.Bodies, err = parseBodies(fields); err != nil {
		return Object{}, err
	}
	return o, nil
}

// HeadFields are the fields of an object's hash that [ParseObjectHead] reads, all but the bodies.
func HeadFields() []string {
	return []string{FieldVersion, FieldPublished, FieldDeleted, FieldETag, FieldContentType, FieldTTL}
}

// ParseObjectHead is [ParseObject] without the bodies, whether they are among fields or not.
func ParseObjectHead(fields map[string]string) (Object, error) {
	h, err := parseHead(fields, objectField)
	if err != nil {
		return Object{}, err
	}
	o := Object{Version: h.version, PublishedMS: h.published, Deleted: h.deleted}
	if o.Deleted {
		return o, nil
	}
	for _, field := range []string{FieldETag, FieldContentType} {
		if _, found := fields[field]; !found {
			return Object{}, refuse(ReasonMissing, "%s: missing", field)
		}
	}
	if o.ETag = strings.Clone(fields[FieldETag]); !wire.ValidETag(o.ETag) {
		return Object{}, refuse(ReasonMalformed, "etag: %s: want a quoted string of at most %d bytes of visible ASCII", quote(o.ETag), wire.MaxETag)
	}
	if o.ContentType = fields[FieldContentType]; !wire.ValidContentType(o.ContentType) {
		return Object{}, refuse(ReasonMalformed, "content-type: %s: want 1 to %d bytes of printable ASCII", quote(o.ContentType), wire.MaxContentType)
	}
	o.ContentType = unique.Make(o.ContentType).Value() // there are few, in many objects
	if ttl, found := fields[FieldTTL]; found {
		if o.TTLMS, err = parseMillis(FieldTTL, ttl, 1); err != nil {
			return Object{}, err
		}
	}
	return o, nil
}

func parseBodies(fields map[string]string) ([]Body, error) {
	bodies := make([]Body, 0, len(encodings))
	for _, e := range encodings {
		field := BodyField(e)
		value, found := fields[field]
		switch {
		case !found:
			continue
		case len(value) > wire.MaxBody:
			return nil, refuse(ReasonLimit, "%s: %d bytes, at most %d are allowed", field, len(value), wire.MaxBody)
		case value == "" && e != wire.Identity:
			return nil, refuse(ReasonMalformed, "%s: empty, which no content coding gives", field)
		}
		bodies = append(bodies, Body{e, []byte(value)})
	}
	return bodies, nil
}

func objectField(field string) bool {
	switch field {
	case FieldETag, FieldContentType, FieldTTL:
		return true
	}
	for _, e := range encodings {
		if field == BodyField(e) {
			return true
		}
	}
	return false
}

// Fields is the hash of o, which [ParseObject] reads.
func (o Object) Fields() map[string]string {
	fields := head{o.Version, o.PublishedMS, o.Deleted}.fields()
	if o.Deleted {
		return fields
	}
	fields[FieldETag] = o.ETag
	fields[FieldContentType] = o.ContentType
	if o.TTLMS != 0 {
		fields[FieldTTL] = strconv.FormatInt(o.TTLMS, 10)
	}
	for _, body := range o.Bodies {
		fields[BodyField(body.Encoding)] = string(body.Bytes)
	}
	return fields
}
