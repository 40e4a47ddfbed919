// Package contract specifies the Redis contract between writers and sidecars: key names, the fields of the hashes, and
// the bytes of an event. Package publish writes it and the sidecar reads it. docs/redis-contract.md has the same for
// other languages, with the script's arguments, its errors, an example in Python, and the guarantees.
//
// # Keys
//
// A shard S is a number from 0; there are N of them, 1 unless writers and readers are configured otherwise. The hash
// tag {gatehouse:S} keeps a shard's keys in one slot of a Redis Cluster. The shard of a record is the CRC-32 (IEEE) of
// its cache key or device id, modulo N. With a namespace, such as shop, all names begin with {gatehouse.shop:S}.
//
//	{gatehouse:S}:o:<cache key>  hash     an object, or its tombstone
//	{gatehouse:S}:c:<device id>  hash     a credential, or its tombstone
//	{gatehouse:S}:seq            integer  the shard's last sequence number, from 1
//	{gatehouse:S}:log            zset     member "o:<cache key>" or "c:<device id>", score its last sequence number
//	{gatehouse:S}:epoch          string   1 to 64 lowercase hex digits, random, set once: the data epoch
//	{gatehouse:S}:chain          hash     "head", and for each of the last 65,536 writes the field seq modulo
//	                                      65,536: sequence number, a space, digest. "floor": see [ChainFloor],
//	                                      "lost": see [ChainLost]
//	{gatehouse:S}:events         channel  one message a write; events:D in a database D other than 0
//	{gatehouse:S}:v:<name>       string   a verdict that sidecars share, with a lock beside it; writers ignore it
//	{gatehouse:S}:audit          stream   who changed which device; readers ignore it
//	{gatehouse:S}:seen           zset     device id, score its last authentication; also seen:old, seen:failed:<day>
//	{gatehouse:0}:shards         string   N, set by the first writer and never changed
//
// Cache keys obey limits.ValidKey, and objectkey.Canonical does not change them. Device ids obey limits.ValidDeviceID.
//
// # Hashes
//
// Numbers are decimal, without sign, leading zeros or fraction, and below 2^53, because
// Redis scripts count in doubles. A field that is not listed makes the record corrupt:
// upgrade the sidecars before the writers. In every hash:
//
//	version    from 1; grows with every write of the key, its deletion included
//	published  unix milliseconds by the clock of Redis (TIME)
//	deleted    "1" in a tombstone, which has these three fields only and expires after
//	           24 hours; otherwise absent
//
// An object, besides:
//
//	etag          a strong entity-tag with its quotes; unless the publisher chose one, the
//	              first 16 bytes of the SHA-256 of content-type, a line end and body in
//	              lowercase hex, which covers all that a 304 doesn't repeat; with status or
//	              headers of content-type, a zero byte, status, a line end, headers, a line
//	              end and body
//	content-type  1 to 255 bytes of printable ASCII without a blank at an end
//	status        301, 302, 307, 308, 404 or 410; absent: 200
//	headers       lines "name: value", joined by "\n" ([CheckAnswer]); absent: none
//	ttl           freshness lifetime in milliseconds, from published; absent: fresh until
//	              the object changes
//	body          the identity encoding, 0 bytes to 1 MiB
//	body.gzip     the same in these content codings, 1 byte to 1 MiB each. A writer leaves
//	body.br       out one that is not smaller than body.
//	body.zstd
//
// A credential, besides:
//
//	hash         1 to 4 hashes ([ParseHash]), joined by "\n"; may be absent where disabled is set
//	permissions  names (limits.ValidPermission), sorted, joined by ","; absent: none
//	disabled     "revoked" by a revocation, or "1": refuse the device; otherwise absent
//	not-after    unix milliseconds, from 1; refuse the device from then on; absent: no end
//
// # Events
//
// The payload is a sequence of netstrings, each <length>:<bytes>, with a decimal length:
//
//	"2"          the format
//	digest       40 lowercase hex digits, see below
//	epoch        the data epoch
//	seq          the sequence number of this write
//	member       as in the log
//	traceparent  the trace that the write belongs to (W3C Trace Context), or empty
//	field value, field value, …   the new content of the hash, in any order, each field once
//
// For example, the deletion of /a as write number 7, where a chain begins:
//
//	1:2,40:4aa923dfb271b11dc01c7bf9f1afb80e0c88a931,4:beef,1:7,4:o:/a,0:,
//	7:deleted,1:1,9:published,13:1735689600000,7:version,1:3,
//
// The digest links the event to the one before: it is the SHA-1 of the netstring of the previous digest, and of all
// netstrings after the digest, where the value of each body (body, body.gzip, …) is replaced by its decimal length.
// The previous digest is that of write seq-1 in the chain's head, and empty if the head is not of seq-1.
//
// # Writing
//
// One script does all of a write or nothing (publish/write.lua): refuse a version that is not newer than the stored
// one, with an error that starts with "STALE "; check all that can fail; in a deletion or revocation PERSIST seq, so
// that a full Redis takes it; SET epoch NX; INCR seq; ZADD log; HSET the record, HDEL its obsolete fields, PEXPIRE it
// if it is a tombstone, otherwise PERSIST it; HSET the chain; PUBLISH, on a Redis Cluster SPUBLISH. If a writer does
// not count versions, the script takes the stored one + 1. If none is stored any more, it takes the maximum of the
// member's score in the log and the chain's floor, + 1.
//
// # Reading
//
// SUBSCRIBE, on a Redis Cluster SSUBSCRIBE, at the master and wait for the acknowledgement; GET epoch and seq, with
// INFO to check that it is a master, and which; page through the log with ZRANGE BYSCORE; HGETALL each member, but
// HMGET first of objects that may be known; then apply the events that arrived meanwhile. Records are applied by
// version, so order and repetition do no harm. A member without a hash was deleted, and its tombstone has expired.
package contract
