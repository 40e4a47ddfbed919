package contract

import (
	"fmt"
	"regexp"
	"strconv"
)

// Keyspace is where the writers and readers of a fleet have their data. Fleets with different keyspaces can share a
// Redis. The zero value is the default namespace in database 0, with one shard.
type Keyspace struct {
	// Namespace is a part of all names of keys and channels, see [CheckNamespace]; "": the default one.
	Namespace string
	// Database is the number of the Redis database. The events channel's name contains Database.
	Database int
	Shards
}

var namespaceForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// CheckNamespace returns an error if name is neither empty nor a valid namespace. Few characters are allowed, so that a
// pattern of Redis's ACL for a namespace matches no other namespace.
func CheckNamespace(name string) error {
	if name != "" && !namespaceForm.MatchString(name) {
		return refuse(ReasonMalformed,
			"%s: want 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit", quote(name))
	}
	return nil
}

// Check returns an error if the namespace or the number of shards is invalid.
func (k Keyspace) Check() error {
	if err := CheckNamespace(k.Namespace); err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	return k.Shards.Check()
}

// Keys returns the keys of a shard.
func (k Keyspace) Keys(shard int) Keys { return Keys{k.Namespace, k.Database, shard} }

// KeysOf returns the keys of the shard of the record with this id.
func (k Keyspace) KeysOf(id string) Keys { return k.Keys(k.Of(id)) }

// ShardsKey returns the key with the number of shards. The first writer sets the number, which never changes.
func (k Keyspace) ShardsKey() string { return k.Keys(0).keyName("shards") }

// EdgesKey returns the key of the hash with the running sidecars, for operators.
func (k Keyspace) EdgesKey() string { return k.Keys(0).keyName("edges") }

// Agree returns an error unless stored, the value of [Keyspace.ShardsKey], equals the number of shards or is empty
// because nothing was written yet.
func (k Keyspace) Agree(stored string) error {
	if stored == "" || stored == strconv.Itoa(k.Count()) {
		return nil
	}
	if _, err := parseNumber(k.ShardsKey(), stored, 1); err != nil {
		return fmt.Errorf("%w; delete it: the next writer sets it", err)
	}
	return &ShardsError{Stored: stored, Ours: k}
}

// ShardsError means that Redis and this program differ in the number of shards: the program would look for records in
// wrong shards.
type ShardsError struct {
	// Stored is the number in Redis.
	Stored string
	// Ours has the program's number.
	Ours Keyspace
}

// Error names both numbers and the fixes.
func (e *ShardsError) Error() string {
	return fmt.Sprintf(
		"%s is %s, this program is set to %d: set it to %s (--redis.shards, gatehousectl --shards, publish.Shards); "+
			"to change the number itself, stop the writers, delete all keys {%s:*}:*, and publish everything again",
		e.Ours.ShardsKey(), e.Stored, e.Ours.Count(), e.Stored, keyPrefix(e.Ours.Namespace))
}
