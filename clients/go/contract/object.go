package contract

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/gatehouse/gatehouse/clients/go/coding"
	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// encodings are the possible encodings of an object, in the order of [Object.Bodies].
var encodings = [...]coding.Encoding{coding.Identity, coding.Gzip, coding.Brotli, coding.Zstd}

// Object is the content of an object's hash in Redis. A tombstone has only Key, Version, Deleted and PublishedMS.
type Object struct {
	// Key is the cache key, which the hash does not contain: the caller of [ParseObject] sets Key.
	Key string
	// Version increases with every write of the key. The tombstone of a trimmed object keeps the version.
	Version uint64
	// Deleted marks a tombstone.
	Deleted bool
	// Stale marks a softly purged object. The hash does not contain Stale; sidecars set it.
	Stale bool
	// PublishedMS is the time of the write, in unix milliseconds of Redis.
	PublishedMS int64
	// ETag is a strong entity-tag, with its quotes.
	ETag string
	// ContentType is sent unchanged.
	ContentType string
	// Status is the status code, one of limits.ValidStatus; 0 means 200.
	Status int
	// Headers are the publisher's header lines.
	Headers Headers
	// TTLMS is the freshness lifetime from PublishedMS; 0 means until the object changes.
	TTLMS int64
	// Tags are for purges, in byte order, each once: 1 to [MaxTags] (limits.ValidTag), or none.
	Tags []string
	// Seq is the sequence number of the write in its shard; 0 in records of older writers. Redis sets Seq, not the writer.
	Seq uint64
	// Bodies are the stored encodings: identity first, then gzip, br and zstd, if present.
	Bodies []Body
}

// TTL returns the freshness lifetime, at most the longest duration, 292 years; 0: until the object changes.
func (o *Object) TTL() time.Duration {
	return time.Duration(min(o.TTLMS, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// Body is an object in one encoding.
type Body struct {
	// Encoding is the content coding.
	Encoding coding.Encoding
	// Bytes are at most limits.MaxBody.
	Bytes []byte
}

// BodyField returns the name of the field with the encoding e: "body", "body.gzip", ….
func BodyField(e coding.Encoding) string {
	if e == coding.Identity {
		return FieldBody
	}
	return FieldBody + "." + e.String()
}

// ParseObject parses an object's hash from HGETALL or an event. Everything is copied, so that a stored object does not
// retain a whole event. A missing key, which has no fields, is an error: check for missing keys first.
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

// HeadFields returns the fields that [ParseObjectHead] reads: all but the bodies.
func HeadFields() []string {
	return []string{FieldVersion, FieldPublished, FieldDeleted, FieldETag, FieldContentType, FieldStatus, FieldHeaders,
		FieldTTL, FieldTags, FieldSeq}
}

// HeadOf returns the fields of an answer to HMGET of [HeadFields], without the absent ones.
func HeadOf(values []any) map[string]string {
	names, fields := HeadFields(), make(map[string]string, len(values))
	for i, value := range values {
		if text, found := value.(string); found {
			fields[names[i]] = text
		}
	}
	return fields
}

// ParseObjectHead is [ParseObject] without the bodies, whether or not fields has bodies.
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
	if o.ETag = strings.Clone(fields[FieldETag]); !limits.ValidETag(o.ETag) {
		return Object{}, refuse(ReasonMalformed, "etag: %s: want a quoted string of at most %d bytes of visible ASCII",
			quote(o.ETag), limits.MaxETag)
	}
	if o.ContentType = fields[FieldContentType]; !limits.ValidContentType(o.ContentType) {
		return Object{},
			refuse(ReasonMalformed, "content-type: %s: want 1 to %d bytes of printable ASCII without a blank at an end",
				quote(o.ContentType), limits.MaxContentType)
	}
	o.ContentType = unique.Make(o.ContentType).Value() // few distinct types, in many objects
	if o.Status, o.Headers, err = parseAnswer(fields); err != nil {
		return Object{}, err
	}
	if ttl, found := fields[FieldTTL]; found {
		if o.TTLMS, err = parseMillis(FieldTTL, ttl, 1); err != nil {
			return Object{}, err
		}
	}
	if tags, found := fields[FieldTags]; found {
		if o.Tags, err = parseTags(tags); err != nil {
			return Object{}, err
		}
	}
	if seq, found := fields[FieldSeq]; found {
		if o.Seq, err = parseNumber(FieldSeq, seq, 1); err != nil {
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
		case len(value) > limits.MaxBody:
			return nil, refuse(ReasonLimit, "%s: %d bytes, at most %d are allowed", field, len(value), limits.MaxBody)
		case value == "" && e != coding.Identity:
			return nil, refuse(ReasonMalformed, "%s: empty, which no content coding gives", field)
		}
		bodies = append(bodies, Body{e, []byte(value)})
	}
	return bodies, nil
}

func objectField(field string) bool {
	switch field {
	case FieldETag, FieldContentType, FieldStatus, FieldHeaders, FieldTTL, FieldTags, FieldSeq:
		return true
	}
	for _, e := range encodings {
		if field == BodyField(e) {
			return true
		}
	}
	return false
}

// Fields returns the hash of o, for [ParseObject].
func (o Object) Fields() map[string]string {
	fields := recordHead{o.Version, o.PublishedMS, o.Deleted}.headFields()
	if o.Deleted {
		return fields
	}
	fields[FieldETag] = o.ETag
	fields[FieldContentType] = o.ContentType
	if o.Status != 0 {
		fields[FieldStatus] = strconv.Itoa(o.Status)
	}
	if o.Headers != "" {
		fields[FieldHeaders] = string(o.Headers)
	}
	if o.TTLMS != 0 {
		fields[FieldTTL] = strconv.FormatInt(o.TTLMS, 10)
	}
	if len(o.Tags) > 0 {
		fields[FieldTags] = strings.Join(o.Tags, ",")
	}
	if o.Seq != 0 {
		fields[FieldSeq] = strconv.FormatUint(o.Seq, 10)
	}
	for _, body := range o.Bodies {
		fields[BodyField(body.Encoding)] = string(body.Bytes)
	}
	return fields
}
