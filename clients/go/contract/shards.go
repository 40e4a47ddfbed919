package contract

import (
	"hash/crc32"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// Shards is the number of shards, 1 to [limits.MaxShards], the same for all writers and readers of a [Keyspace]. The
// zero value means 1.
type Shards int

// Count returns the number of shards.
func (n Shards) Count() int { return max(int(n), 1) }

// Check returns an error if n is out of bounds.
func (n Shards) Check() error {
	if n < 0 || n > limits.MaxShards {
		return refuse(ReasonLimit, "shards: %d is out of 1 to %d", n, limits.MaxShards)
	}
	return nil
}

// Of returns the shard of the record with id, a cache key or a device id: the CRC-32 (IEEE) of id modulo the number of
// shards.
func (n Shards) Of(id string) int {
	if n <= 1 {
		return 0
	}
	return int(crc32.ChecksumIEEE([]byte(id)) % uint32(n))
}

// Belongs returns an error if a member in the log or events of shard i belongs to a different shard. A purge belongs to
// every shard.
func (n Shards) Belongs(m Member, i int) error {
	if of := n.Of(m.ID); of != i && m.Kind != KindPurge {
		return refuse(ReasonConflict,
			"member %s: in shard %d, but of %d shards it belongs to %d: its writer counts another number of shards",
			quote(m.String()), i, n.Count(), of)
	}
	return nil
}
