package wire

import (
	"encoding/binary"

	"github.com/gatehouse/gatehouse/clients/go/coding"
	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// Encoding is a content coding for publishers.
type Encoding = coding.Encoding

// The content codings of stored bodies.
const (
	Identity = coding.Identity
	Gzip     = coding.Gzip
	Brotli   = coding.Brotli
	Zstd     = coding.Zstd
	// Encodings is their number.
	Encodings = coding.Encodings
)

// Variant is the place of an object's body in one encoding.
type Variant struct {
	Encoding Encoding
	Slot     uint32
	Length   uint32 // of the encoded body, bytes
	Stamp    uint64 // of the body record
}

// Object is an object's entry in a bucket. The strings of a parsed one refer to the record.
type Object struct {
	Key     string
	Version uint64
	// PublishedMS is the time of publication, unix ms; if Redis's clock is ahead, of the first receipt by the sidecar.
	PublishedMS int64
	// TTLMS is the freshness lifetime counted from PublishedMS, ms; 0: fresh until changed.
	TTLMS       uint64
	ETag        string // strong, with quotes
	ContentType string
	Stale       bool // purged softly: as good as expired
	// Tags has a bit for each tag; several tags may share a bit, see [Purge].
	Tags uint32
	// Status is the status code, a [limits.ValidStatus]; 0 means 200.
	Status uint16
	// Headers are the publisher's lines "name: value", joined by LF, with names in lower case.
	Headers  string
	variants [Encodings]Variant
	count    int
}

// Variants returns the stored encodings, 1 to 4; the slice belongs to the object.
func (o *Object) Variants() []Variant { return o.variants[:o.count] }

// AddVariant adds an encoding; it panics beyond [Encodings].
func (o *Object) AddVariant(v Variant) {
	o.variants[o.count] = v
	o.count++
}

const (
	objectSize  = 44
	variantSize = 20
	stale       = 0x80 // in the number of variants
)

// AppendObjectsHeader begins a bucket of count entries; add each with [AppendObject], and end with [FinishRecord]. A
// bucket without entries is a tombstone.
func AppendObjectsHeader(dst []byte, epoch uint64, count int) []byte {
	return appendHeader(dst, RegionObjects, count, 0, epoch)
}

// AppendObject appends an entry to a bucket. The object's strings must be within their limits.
func AppendObject(dst []byte, tag uint32, o *Object) []byte {
	size := objectSize + o.count*variantSize + len(o.Key) + len(o.ETag) + len(o.ContentType) + len(o.Headers)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(size))
	dst = binary.LittleEndian.AppendUint32(dst, tag)
	dst = binary.LittleEndian.AppendUint64(dst, o.Version)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(o.PublishedMS))
	dst = binary.LittleEndian.AppendUint64(dst, o.TTLMS)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(o.Key)))
	count := byte(o.count)
	if o.Stale {
		count |= stale
	}
	dst = append(dst, byte(len(o.ETag)), byte(len(o.ContentType)), count, byte(max(o.Status, 200)-200))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(o.Headers)))
	dst = binary.LittleEndian.AppendUint32(dst, o.Tags)
	for _, v := range o.Variants() {
		dst = append(dst, byte(v.Encoding), 0, 0, 0)
		dst = binary.LittleEndian.AppendUint32(dst, v.Slot)
		dst = binary.LittleEndian.AppendUint32(dst, v.Length)
		dst = binary.LittleEndian.AppendUint64(dst, v.Stamp)
	}
	return append(append(append(append(dst, o.Key...), o.ETag...), o.ContentType...), o.Headers...)
}

// FinishRecord pads the record from start on to [MinRecord].
func FinishRecord(dst []byte, start int) []byte { return pad(dst, start) }

// FindObject looks up key in a bucket. It allocates nothing; the object refers to rec. For a nil rec, of a place never
// written, it returns [ErrNotFound].
func FindObject(rec []byte, epoch uint64, tag uint32, key string) (Object, error) {
	if rec == nil {
		return Object{}, ErrNotFound
	}
	if err := checkEpoch(rec, RegionObjects, epoch); err != nil {
		return Object{}, err
	}
	rest := rec[headerSize:]
	for range binary.LittleEndian.Uint16(rec[2:]) {
		if len(rest) < objectSize {
			return Object{}, ErrMalformed
		}
		size := binary.LittleEndian.Uint32(rest)
		if size < objectSize || uint64(size) > uint64(len(rest)) {
			return Object{}, ErrMalformed
		}
		if binary.LittleEndian.Uint32(rest[4:]) == tag {
			o, err := parseObject(rest[:size])
			if err != nil || o.Key == key {
				return o, err
			}
		}
		rest = rest[size:]
	}
	return Object{}, ErrNotFound
}

// parseObject reads an entry, at least objectSize long.
func parseObject(b []byte) (Object, error) {
	o := Object{
		Version:     binary.LittleEndian.Uint64(b[8:]),
		PublishedMS: int64(binary.LittleEndian.Uint64(b[16:])),
		TTLMS:       binary.LittleEndian.Uint64(b[24:]),
		Stale:       b[36]&stale != 0,
		Tags:        binary.LittleEndian.Uint32(b[40:]),
	}
	key, etag, ctype := int(binary.LittleEndian.Uint16(b[32:])), int(b[34]), int(b[35])
	count, headers := int(b[36]&^stale), int(binary.LittleEndian.Uint16(b[38:]))
	if count < 1 || count > int(Encodings) || len(b) != objectSize+count*variantSize+key+etag+ctype+headers {
		return Object{}, ErrMalformed
	}
	if b[37] != 0 {
		if o.Status = 200 + uint16(b[37]); !limits.ValidStatus(int(o.Status)) {
			return Object{}, ErrMalformed
		}
	}
	b = b[objectSize:]
	for range count {
		v := Variant{
			Encoding: Encoding(b[0]),
			Slot:     binary.LittleEndian.Uint32(b[4:]),
			Length:   binary.LittleEndian.Uint32(b[8:]),
			Stamp:    binary.LittleEndian.Uint64(b[12:]),
		}
		if v.Encoding >= Encodings || v.Length > limits.MaxBody {
			return Object{}, ErrMalformed
		}
		o.AddVariant(v)
		b = b[variantSize:]
	}
	o.Key, o.ETag, b = alias(b[:key]), alias(b[key:key+etag]), b[key+etag:]
	o.ContentType, o.Headers = alias(b[:ctype]), alias(b[ctype:])
	return o, nil
}

// bodySize is the size of a body record without the body.
const bodySize = 24

// AppendBody appends the record of an encoding to dst, with a copy of body; a stamp of 0 and no bytes is a tombstone.
func AppendBody(dst []byte, epoch, stamp uint64, body []byte) []byte {
	start := len(dst)
	dst = appendHeader(dst, RegionBodies, 0, uint32(len(body)), epoch)
	dst = binary.LittleEndian.AppendUint64(dst, stamp)
	return pad(append(dst, body...), start)
}

// IsBlank reports whether a body record is a tombstone, which [FindBody] doesn't find.
func IsBlank(rec []byte) bool {
	return len(rec) == MinRecord && binary.LittleEndian.Uint32(rec[4:]) == 0 && binary.LittleEndian.Uint64(rec[16:]) == 0
}

// FindBody returns the bytes of v, or an error if the slot holds anything else. They refer to rec.
func FindBody(rec []byte, epoch uint64, v Variant) ([]byte, error) {
	if rec == nil {
		return nil, ErrNotFound
	}
	if err := checkEpoch(rec, RegionBodies, epoch); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint32(rec[4:])
	if uint64(length) > uint64(len(rec)-bodySize) {
		return nil, ErrMalformed
	}
	if stamp := binary.LittleEndian.Uint64(rec[16:]); stamp == 0 || stamp != v.Stamp || length != v.Length {
		return nil, ErrNotFound
	}
	return rec[bodySize : bodySize+int(length)], nil
}
