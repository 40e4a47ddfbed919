package publish

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// Object is the response that the edges serve for a key.
type Object struct {
	// Key is the path with, after '?', the canonical query (objectkey.CanonicalQuery). Prefixes: "//name" of a virtual
	// host ([KeyOfVirtualHost]), and "@device" in front for an object of a single device (objectkey.OfDevice).
	Key string
	// Body is the identity encoding, at most limits.MaxBody bytes. Put does not retain Body.
	Body []byte
	// ContentType is sent unchanged; required.
	ContentType string
	// Status is the status code: 200, 301, 302, 307, 308, 404 or 410; 0 means 200.
	Status int
	// Headers are sent in this order. [contract.CheckAnswer] has the allowed headers; names are converted to lower case.
	// Redirects need location. cache-control and last-modified replace the edge's own values.
	Headers []Header
	// ETag is a strong entity-tag with its quotes; empty means the default, see [Object.EntityTag].
	ETag string
	// TTL is the freshness lifetime, in whole milliseconds; 0 means until the object changes.
	TTL time.Duration
	// Tags are for [Publisher.Purge]: at most contract.MaxTags, of the form of contract.CheckTags.
	Tags []string
	// Version must exceed the stored version; 0 means the next version.
	Version uint64
	// IfVersion is the required version of the stored object or its tombstone. If versions differ, Put returns [ErrStale].
	// 0: any.
	IfVersion uint64
	// IfAbsent makes Put return [ErrExists] if an object exists at Key.
	IfAbsent bool
}

// Header is a header line of an answer.
type Header = contract.Header

// Put publishes o with all encodings smaller than the body.
func (p *Publisher) Put(ctx context.Context, o Object) (Receipt, error) {
	r := p.PutAll(ctx, []Object{o})[0]
	return r.Receipt, r.Err
}

// EntityTag returns o.ETag or, if empty, the default: [ETag], or with a status or headers the first 128 bits of the
// SHA-256 of content type, a zero byte, status, a line feed, the header lines, a line feed and the body.
func (o *Object) EntityTag() string {
	status := cmp.Or(o.Status, 200)
	switch {
	case o.ETag != "":
		return o.ETag
	case status == 200 && len(o.Headers) == 0:
		return ETag(o.ContentType, o.Body)
	}
	headers := contract.JoinHeaders(inLowerCase(o.Headers))
	return entityTag(fmt.Sprintf("%s\x00%d\n%s\n", o.ContentType, status, headers), o.Body)
}

// inLowerCase returns headers with their names in lower case.
func inLowerCase(headers []Header) []Header {
	headers = slices.Clone(headers)
	for i := range headers {
		headers[i].Name = strings.ToLower(headers[i].Name)
	}
	return headers
}

// ETag returns the default entity-tag of an object without status and headers: the first 128 bits of the SHA-256 of
// content type, a line feed and body. The tag covers everything that a 304 doesn't repeat (RFC 9110, section 15.4.5);
// otherwise caches would keep an old content type for ever.
func ETag(contentType string, body []byte) string { return entityTag(contentType+"\n", body) }

func entityTag(head string, body []byte) string {
	hash := sha256.New()
	io.WriteString(hash, head) // never fails
	hash.Write(body)
	return `"` + hex.EncodeToString(hash.Sum(nil)[:16]) + `"`
}

// checkObject returns an error if o is invalid, and makes key, status and headers canonical.
func (o *Object) checkObject() (err error) {
	if o.Key, err = canonicalKey(o.Key); err != nil {
		return err
	}
	switch {
	case len(o.Body) > limits.MaxBody:
		return refuse("body of %q: %d bytes, at most %d are allowed", o.Key, len(o.Body), limits.MaxBody)
	case !limits.ValidContentType(o.ContentType):
		return refuse("content type %q of %q: want 1 to %d bytes of printable ASCII without a blank at an end",
			o.ContentType, o.Key, limits.MaxContentType)
	case o.ETag != "" && !limits.ValidETag(o.ETag):
		return refuse(`etag %q of %q: want a strong entity-tag, a quoted string of at most %d bytes of visible ASCII`,
			o.ETag, o.Key, limits.MaxETag)
	case o.Version != 0 && o.IfVersion != 0, o.Version != 0 && o.IfAbsent, o.IfVersion != 0 && o.IfAbsent:
		return refuse("%q: want one of version, if-version and if-absent at most", o.Key)
	case o.IfVersion > limits.MaxVersion:
		return refuse("if-version %d of %q: at most %d is allowed", o.IfVersion, o.Key, uint64(limits.MaxVersion))
	case o.TTL < 0 || o.TTL%time.Millisecond != 0:
		return refuse("ttl %v of %q: want whole milliseconds, or 0 for fresh until changed", o.TTL, o.Key)
	}
	o.Headers = inLowerCase(o.Headers)
	if err := contract.CheckAnswer(o.Status, o.Headers); err != nil {
		return refuse("object %q: %w", o.Key, err)
	}
	if o.Status == 200 {
		o.Status = 0 // the contract has no field for 200
	}
	if err := contract.CheckTags(distinctNames(o.Tags)); err != nil {
		return refuse("object %q: %w", o.Key, err)
	}
	return checkVersion(o.Version)
}

// Delete deletes the object at key, if version is newer than the stored version; 0 means the next version. A missing
// key also gets a tombstone, so that a concurrent put with an older version does not restore the object.
// [Publisher.MayExist] reports whether a key exists.
func (p *Publisher) Delete(ctx context.Context, key string, version uint64) (Receipt, error) {
	if err := checkVersion(version); err != nil {
		return Receipt{}, fmt.Errorf("delete %q: %w", key, err)
	}
	return p.deleteObject(ctx, key, contract.Object{Version: version, Deleted: true}.Fields())
}

// DeleteIf deletes the object at key if the stored version is version, at least 1. Otherwise the error is [ErrStale].
func (p *Publisher) DeleteIf(ctx context.Context, key string, version uint64) (Receipt, error) {
	if version == 0 || version > limits.MaxVersion {
		return Receipt{}, fmt.Errorf("delete %q: %w", key, refuse("version %d: no object has it", version))
	}
	return p.deleteObject(ctx, key, requireVersion(contract.Object{Deleted: true}.Fields(), version))
}

func (p *Publisher) deleteObject(ctx context.Context, key string, fields map[string]string) (Receipt, error) {
	r := p.deleteAll(ctx, []string{key}, func(int) map[string]string { return fields })[0]
	return r.Receipt, r.Err
}

// MayExist reports whether an object may exist at key: the record exists and is not a tombstone, or only the log has
// the key, because Redis evicted the record or the tombstone expired.
func (p *Publisher) MayExist(ctx context.Context, key string) (bool, error) {
	key, err := canonicalKey(key)
	if err == nil {
		err = p.checkShards(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("look for object: %w", err)
	}
	state, err := p.reader.readState(ctx, contract.ObjectMember(key))
	if err != nil {
		return false, fmt.Errorf("look for %q: %w", key, err)
	}
	return state.isKnown(), nil
}

// Get returns the object at key. [ErrNotFound]: missing or purged. [ErrCorrupt]: the contract does not allow the stored
// record.
func (p *Publisher) Get(ctx context.Context, key string) (contract.Object, error) {
	key, err := canonicalKey(key)
	if err != nil {
		return contract.Object{}, fmt.Errorf("get object: %w", err)
	}
	fields, err := p.client.HGetAll(ctx, p.keyspace.KeysOf(key).ObjectKey(key)).Result()
	if err != nil {
		return contract.Object{}, fmt.Errorf("get %q: %w", key, err)
	}
	if len(fields) == 0 {
		if err := p.checkShards(ctx); err != nil {
			return contract.Object{}, fmt.Errorf("get %q: %w", key, err)
		}
		return contract.Object{}, fmt.Errorf("get %q: %w", key, ErrNotFound)
	}
	o, err := contract.ParseObject(fields)
	if err != nil {
		return contract.Object{}, fmt.Errorf("get %q: %w: %w", key, ErrCorrupt, err)
	}
	purges, err := p.reader.readPurgesOf(ctx, key, o.Tags)
	if err != nil {
		return contract.Object{}, fmt.Errorf("get %q: %w", key, err)
	}
	if purged, _ := purges.Of(key, o.Tags, o.Seq); purged || o.Deleted {
		return contract.Object{}, fmt.Errorf("get %q: %w", key, ErrNotFound)
	}
	o.Key = key
	return o, nil
}

// Entry is an object in a listing, with fields as stored, not checked.
type Entry struct {
	// Key is the cache key.
	Key string `json:"key"`
	// Version is the stored version.
	Version uint64 `json:"version"`
	// PublishedMS is the time of publication, in unix milliseconds.
	PublishedMS int64 `json:"published_ms"`
	// ETag is the entity-tag with its quotes.
	ETag string `json:"etag"`
	// ContentType is the content type.
	ContentType string `json:"content_type"`
	// Status is the status code.
	Status int `json:"status"`
	// TTLMS is the freshness lifetime in milliseconds, 0 for no end.
	TTLMS int64 `json:"ttl_ms,omitempty"`
	// Tags are for purges.
	Tags []string `json:"tags,omitempty"`
	// Seq is the sequence number of the write in its shard.
	Seq uint64 `json:"-"`
	// Stale means softly purged.
	Stale bool `json:"stale,omitempty"`
	// Size is the size of the identity encoding in bytes.
	Size int64 `json:"size"`
}

// List yields the objects with keys that start with prefix, without bodies, in each shard the oldest write first.
// Purged objects are left out. An object written meanwhile may be yielded twice, the newer version later. An error ends
// the list.
func (p *Publisher) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		err := p.checkShards(ctx)
		for i, more := 0, true; err == nil && more && i < p.keyspace.Count(); i++ {
			more, err = p.reader.listShard(ctx, p.keyspace.Keys(i), prefix, yield)
		}
		if err != nil {
			yield(Entry{}, fmt.Errorf("list objects: %w", err))
		}
	}
}

// listShard is List for a single shard. more is true if yield never returned false.
func (r reader) listShard(ctx context.Context, shard contract.Keys, prefix string,
	yield func(Entry, error) bool) (more bool, err error) {
	purges, err := r.readAllPurges(ctx, shard)
	if err != nil {
		return false, err
	}
	var failed error
	more, err = r.visitShardMembers(ctx, shard, contract.KindObject, func(members []contract.Member) bool {
		var entries []Entry
		if entries, failed = r.readEntries(ctx, members, prefix); failed != nil {
			return false
		}
		for _, entry := range entries {
			var purged bool
			if purged, entry.Stale = purges.Of(entry.Key, entry.Tags, entry.Seq); !purged && !yield(entry, nil) {
				return false
			}
		}
		return true
	})
	return more, errors.Join(err, failed)
}

// readEntries reads members without bodies in one round trip.
func (r reader) readEntries(ctx context.Context, members []contract.Member, prefix string) ([]Entry, error) {
	type query struct {
		key   string
		heads *redis.SliceCmd
		size  *redis.IntCmd
	}
	var queries []query
	pipe := r.client.Pipeline()
	for _, m := range members {
		if strings.HasPrefix(m.ID, prefix) {
			key := r.keyspace.KeysOf(m.ID).RecordKey(m)
			queries = append(queries, query{
				m.ID,
				pipe.HMGet(ctx, key, contract.FieldVersion, contract.FieldPublished, contract.FieldETag,
					contract.FieldContentType, contract.FieldTTL, contract.FieldTags, contract.FieldSeq, contract.FieldStatus),
				pipe.HStrLen(ctx, key, contract.FieldBody),
			})
		}
	}
	if len(queries) == 0 {
		return nil, nil
	}
	if err := redisurl.ExecPipeline(ctx, pipe); err != nil {
		return nil, err
	}
	var entries []Entry
	for _, q := range queries {
		var text [8]string
		for i, value := range q.heads.Val() {
			text[i], _ = value.(string)
		}
		if text[2] == "" { // every object has an entity-tag, a tombstone has none
			continue
		}
		entry := Entry{Key: q.key, ETag: text[2], ContentType: text[3], Size: q.size.Val(), Status: 200}
		entry.Version, _ = strconv.ParseUint(text[0], 10, 64)
		entry.PublishedMS, _ = strconv.ParseInt(text[1], 10, 64)
		entry.TTLMS, _ = strconv.ParseInt(text[4], 10, 64)
		entry.Seq, _ = strconv.ParseUint(text[6], 10, 64)
		if text[5] != "" {
			entry.Tags = strings.Split(text[5], ",")
		}
		if text[7] != "" {
			entry.Status, _ = strconv.Atoi(text[7])
		}
		entries = append(entries, entry)
	}
	return entries, nil
}
