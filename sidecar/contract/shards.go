package contract

import (
	"fmt"
	"hash/crc32"
	"strconv"
)

// MaxShards is the maximum number of shards: a reader follows each over its own connection and compares its position
// once a second.
const MaxShards = 64

// ShardsKey is the key with the number of shards, in the slot of shard 0. The first writer sets it, and it never
// changes.
const ShardsKey = "{gatehouse:0}:shards"

// Shards is the number of shards, 1 to [MaxShards], the same for all writers and readers of a Redis. The zero value
// means 1.
type Shards int

// Count returns the number of shards.
func (n Shards) Count() int { return max(int(n), 1) }

// Check returns an error if n is out of bounds.
func (n Shards) Check() error {
	if n < 0 || n > MaxShards {
		return refuse(ReasonLimit, "shards: %d is out of 1 to %d", n, MaxShards)
	}
	return nil
}

// Of returns the shard of the record with this id, a cache key or a device id: the CRC-32 (IEEE) of its bytes modulo
// the number of shards.
func (n Shards) Of(id string) int {
	if n <= 1 {
		return 0
	}
	return int(crc32.ChecksumIEEE([]byte(id)) % uint32(n))
}

// KeysOf returns the keys of the shard of the record with this id.
func (n Shards) KeysOf(id string) Keys { return ShardKeys(n.Of(id)) }

// ShardKeys returns the keys of shard i.
func ShardKeys(i int) Keys { return Keys{Shard: strconv.Itoa(i)} }

// Belongs returns an error if a member in the log or events of shard i belongs to another shard.
func (n Shards) Belongs(m Member, i int) error {
	if of := n.Of(m.ID); of != i {
		return refuse(ReasonConflict,
			"member %s: in shard %d, but of %d shards it belongs to %d: its writer counts another number of shards",
			quote(m.String()), i, n.Count(), of)
	}
	return nil
}

// Agree returns an error unless stored, the value of [ShardsKey], equals n or is empty because nothing was written yet.
func (n Shards) Agree(stored string) error {
	if stored == "" || stored == strconv.Itoa(n.Count()) {
		return nil
	}
	if _, err := parseNumber(ShardsKey, stored, 1); err != nil {
		return fmt.Errorf("%w; delete it: the next writer sets it", err)
	}
	return &ShardsError{Stored: stored, Ours: n.Count()}
}

// ShardsError means that Redis has another number of shards than this program, which would look for records in the
// wrong shards.
type ShardsError struct {
	// Stored is the number in Redis.
	Stored string
	// Ours is the number of this program.
	Ours int
}

// Error names both numbers and the fixes.
func (e *ShardsError) Error() string {
	return fmt.Sprintf(
		"%s is %s, this program is set to %d: set it to %s (--redis.shards, gatehousectl --shards, publish.Shards); "+
			"to change the number itself, stop the writers, delete all keys {gatehouse:*}:*, and publish everything again",
		ShardsKey, e.Stored, e.Ours, e.Stored)
}
