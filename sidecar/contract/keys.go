package contract

import "time"

// DefaultShard is the shard that an empty [Keys] means.
const DefaultShard = "0"

// TombstoneLife is how long a tombstone stays, and with it the version that a later
// write has to exceed.
const TombstoneLife = 24 * time.Hour

// Fields of the hashes.
const (
	FieldVersion     = "version"
	FieldPublished   = "published"
	FieldDeleted     = "deleted"
	FieldETag        = "etag"
	FieldContentType = "content-type"
	FieldTTL         = "ttl"
	FieldBody        = "body"
	FieldHash        = "hash"
	FieldPermissions = "permissions"
	FieldDisabled    = "disabled"
	FieldNotAfter    = "not-after"
)

// Keys names the keys of one shard.
type Keys struct {
	// Shard is the shard's name, without braces; empty means [DefaultShard].
	Shard string
}

func (k Keys) name(rest string) string {
	shard := k.Shard
	if shard == "" {
		shard = DefaultShard
	}
	return "{gatehouse:" + shard + "}:" + rest
}

// ObjectKey is the key of an object's hash.
func (k Keys) ObjectKey(key string) string { return k.name("o:" + key) }

// CredentialKey is the key of a device's credential hash.
func (k Keys) CredentialKey(id string) string { return k.name("c:" + id) }

// RecordKey is the key of the hash that m names.
func (k Keys) RecordKey(m Member) string { return k.name(m.String()) }

// SeqKey is the key of the last sequence number.
func (k Keys) SeqKey() string { return k.name("seq") }

// LogKey is the key of the compacted change log.
func (k Keys) LogKey() string { return k.name("log") }

// EpochKey is the key of the data epoch.
func (k Keys) EpochKey() string { return k.name("epoch") }

// ChainKey is the key of the hash that has the [Link] of the last writes ([ChainHead], [ChainField])
// and [ChainFloor].
func (k Keys) ChainKey() string { return k.name("chain") }

// EventsChannel is the channel of the events.
func (k Keys) EventsChannel() string { return k.name("events") }

// ResyncKey is the key that is there while a sidecar reads all objects again.
func (k Keys) ResyncKey() string { return k.name("resync") }

// VerdictKey is the key of a verdict that sidecars share, by its name in hex.
func (k Keys) VerdictKey(name string) string { return k.name("v:" + name) }

// VerdictLockKey is the key that is there while a sidecar runs bcrypt for that verdict.
func (k Keys) VerdictLockKey(name string) string { return k.name("v:" + name + ":lock") }
