package contract

import (
	"strconv"
	"strings"
	"time"
)

// TombstoneLife is the lifetime of a tombstone, and of the deleted record's version, which the next write must exceed.
const TombstoneLife = 24 * time.Hour

// SeenBegin is the member of [Keys.SeenKey] with the time when sidecars began to write the set. No device has this id.
const SeenBegin = ""

// MaxFailed is the number of members that [Keys.SeenFailedKey] keeps: the members with most wrong secrets.
const MaxFailed = 1000

// FailedMember returns the member of [Keys.SeenFailedKey] for wrong secrets of a device from a network, "-" if unknown.
func FailedMember(network, device string) string { return network + " " + device }

// ParseFailedMember parses a member of [Keys.SeenFailedKey].
func ParseFailedMember(member string) (network, device string, ok bool) {
	return strings.Cut(member, " ")
}

// MaxAuthor is the maximum number of bytes of an author in the audit.
const MaxAuthor = 128

// Fields of the hashes.
const (
	FieldVersion     = "version"
	FieldPublished   = "published"
	FieldDeleted     = "deleted"
	FieldETag        = "etag"
	FieldContentType = "content-type"
	FieldStatus      = "status"
	FieldHeaders     = "headers"
	FieldTTL         = "ttl"
	FieldBody        = "body"
	FieldHash        = "hash"
	FieldPermissions = "permissions"
	FieldDisabled    = "disabled"
	FieldNotAfter    = "not-after"
	FieldOldUntil    = "old-until"
	FieldLabels      = "labels"
	FieldTags        = "tags"
	FieldSeq         = "seq"
	FieldHard        = "hard"
	FieldSoft        = "soft"
)

// DisabledRevoked is the value of [FieldDisabled] that a revocation writes; a change of the device writes "1".
const DisabledRevoked = "revoked"

// Keys names the keys of one shard. The zero value is shard 0 of the default namespace in database 0.
type Keys struct {
	// Namespace and Database are the [Keyspace]'s.
	Namespace string
	Database  int
	// Shard is the shard's number.
	Shard int
}

func (k Keys) keyName(rest string) string {
	return "{" + keyPrefix(k.Namespace) + ":" + strconv.Itoa(k.Shard) + "}:" + rest
}

// keyPrefix returns the common begin of all keys of a namespace, after the brace.
func keyPrefix(namespace string) string {
	if namespace == "" {
		return "gatehouse"
	}
	return "gatehouse." + namespace
}

// ObjectKey returns the key of an object's hash.
func (k Keys) ObjectKey(key string) string { return k.keyName("o:" + key) }

// CredentialKey returns the key of a device's credential hash.
func (k Keys) CredentialKey(id string) string { return k.keyName("c:" + id) }

// RecordKey returns the key of m's hash.
func (k Keys) RecordKey(m Member) string { return k.keyName(m.String()) }

// SeqKey returns the key of the last sequence number.
func (k Keys) SeqKey() string { return k.keyName("seq") }

// LogKey returns the key of the change log.
func (k Keys) LogKey() string { return k.keyName("log") }

// DataEpochKey returns the key of the data epoch.
func (k Keys) DataEpochKey() string { return k.keyName("epoch") }

// ChainKey returns the key of the hash with the [Link] of the last writes ([ChainHead], [ChainField]) and [ChainFloor].
func (k Keys) ChainKey() string { return k.keyName("chain") }

// AuditKey returns the key of the stream of changes of devices, for operators.
func (k Keys) AuditKey() string { return k.keyName("audit") }

// SeenKey returns the key of the sorted set of devices by their last authentication, unix milliseconds.
func (k Keys) SeenKey() string { return k.keyName("seen") }

// SeenOldKey returns the key of the same for authentications with an old secret, during an overlap.
func (k Keys) SeenOldKey() string { return k.keyName("seen:old") }

// SeenFailedKey returns the key of the sorted set of wrong secrets on the day of t in UTC, by [FailedMember].
func (k Keys) SeenFailedKey(t time.Time) string {
	return k.keyName("seen:failed:" + t.UTC().Format("20060102"))
}

// EventsChannel returns the name of the events channel. The name contains the database, because Redis's channels span
// databases.
func (k Keys) EventsChannel() string {
	if k.Database == 0 {
		return k.keyName("events")
	}
	return k.keyName("events:" + strconv.Itoa(k.Database))
}

// ResyncKey returns the key of the lease that a sidecar holds during a full resync.
func (k Keys) ResyncKey() string { return k.keyName("resync") }

// SnapshotsKey returns the key of the hash with the valid snapshots: by their SHA-256 in hex, the time of their
// position in unix milliseconds.
func (k Keys) SnapshotsKey() string { return k.keyName("snapshots") }

// VerdictKey returns the key of a shared verdict; name is in hex.
func (k Keys) VerdictKey(name string) string { return k.keyName("v:" + name) }

// VerdictLockKey returns the key of the lock that a sidecar holds while running bcrypt for the verdict.
func (k Keys) VerdictLockKey(name string) string { return k.keyName("v:" + name + ":lock") }
