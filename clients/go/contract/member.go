package contract

import (
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// Kinds of a [Member].
const (
	// KindObject marks an object; the id is its cache key.
	KindObject = 'o'
	// KindCredential marks a credential; the id is the device's.
	KindCredential = 'c'
	// KindPurge marks a purge; the id is [PrefixPurge] or [TagPurge]. Each shard has a purge of its own.
	KindPurge = 'p'
)

// Member names a changed record, in the log and in events.
type Member struct {
	// Kind is [KindObject], [KindCredential] or [KindPurge].
	Kind byte
	// ID is the cache key, the device id, or the purge's ID.
	ID string
}

// ObjectMember returns the member of the object at key.
func ObjectMember(key string) Member { return Member{KindObject, key} }

// CredentialMember returns the member of device id.
func CredentialMember(id string) Member { return Member{KindCredential, id} }

// PurgeMember returns the member of a purge, see [PrefixPurge] and [TagPurge].
func PurgeMember(id string) Member { return Member{KindPurge, id} }

// String returns the member as stored in the log: "o:/path", "c:device" or "p:/prefix/".
func (m Member) String() string { return string([]byte{m.Kind, ':'}) + m.ID }

// ParseMember parses the result of [Member.String]. ID is a copy, since s may be part of a large event.
func ParseMember(s string) (Member, error) {
	if len(s) < 2 || s[1] != ':' {
		return Member{}, refuse(ReasonMalformed, `member %s: want "o:<key>", "c:<device id>" or "p:<purge>"`, quote(s))
	}
	m := Member{Kind: s[0], ID: strings.Clone(s[2:])}
	switch m.Kind {
	case KindObject:
		if len(m.ID) > limits.MaxKey {
			return Member{}, refuse(ReasonLimit, "member %s: key of %d bytes, at most %d are allowed",
				quote(s), len(m.ID), limits.MaxKey)
		}
		if _, query, _ := strings.Cut(m.ID, "?"); !limits.ValidQuery(query) {
			return Member{}, refuse(ReasonLimit, "member %s: key of more than %d parameters", quote(s), limits.MaxPairs)
		}
		if !limits.ValidKey(m.ID) {
			return Member{}, refuse(ReasonMalformed,
				"key %s: want \"/path\" in visible ASCII; before it may be \"@device\", then \"//virtual-host:host\", "+
					"the host in lower case and without a port, behind it \"#language\"", quote(m.ID))
		}
		if want := objectkey.Canonical(m.ID); m.ID != want {
			return Member{}, refuse(ReasonMalformed, "member %s: not canonical, want key %s", quote(s), quote(want))
		}
	case KindCredential:
		if len(m.ID) > limits.MaxDeviceID {
			return Member{}, refuse(ReasonLimit, "device id %s: %d bytes, at most %d are allowed",
				quote(m.ID), len(m.ID), limits.MaxDeviceID)
		}
		if !limits.ValidDeviceID(m.ID) {
			return Member{},
				refuse(ReasonMalformed, `device id %s: want visible ASCII without '/', '?', ',' and '"'`, quote(m.ID))
		}
	case KindPurge:
		if err := checkPurge(m.ID); err != nil {
			return Member{}, err
		}
	default:
		return Member{}, refuse(ReasonUnknown, `member %s: kind %q, want 'o', 'c' or 'p'`, quote(s), m.Kind)
	}
	return m, nil
}
