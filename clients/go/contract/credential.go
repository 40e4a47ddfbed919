package contract

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

const (
	// MaxHashes bounds the hashes of one credential, because each wrong secret costs a run per hash. Two are enough to
	// change a secret without a gap.
	MaxHashes = 4
	// MaxLabels, MaxLabelName and MaxLabelValue bound the labels of one credential, in number and bytes.
	MaxLabels     = 16
	MaxLabelName  = 32
	MaxLabelValue = 64
)

// Credential is the content of a credential's hash in Redis. A tombstone has only ID, Version, PublishedMS and Deleted.
// If [ParseCredential] returns an error, refuse the device, because the record may remove a permission.
type Credential struct {
	// ID is the device id, which the hash does not contain: the caller of [ParseCredential] sets ID.
	ID string
	// Version increases with every write of the record.
	Version uint64
	// PublishedMS is the time of the write, in unix milliseconds of Redis.
	PublishedMS int64
	// Deleted marks a tombstone.
	Deleted bool
	// Disabled means that the device is refused with any credential.
	Disabled bool
	// Revoked means that a revocation has disabled the device, not a change of settings; only if Disabled.
	Revoked bool
	// Hashes are hashes of [ParseHash], the newest first. A secret must match any of Hashes.
	Hashes []string
	// OldUntilMS is the time from which only the first hash counts, in unix milliseconds; 0 means never.
	OldUntilMS int64
	// Permissions are names in bytewise order without duplicates.
	Permissions []string
	// NotAfterMS is the time from which the device is refused, in unix milliseconds; 0 means never.
	NotAfterMS int64
	// Labels are for operators, and decide nothing.
	Labels map[string]string
}

// ParseCredential parses a credential's hash from HGETALL or an event. A missing key, which has no fields, is an error:
// check for missing keys first.
func ParseCredential(fields map[string]string) (Credential, error) {
	h, err := parseHead(fields, credentialField)
	if err != nil {
		return Credential{}, err
	}
	c := Credential{Version: h.version, PublishedMS: h.published, Deleted: h.deleted}
	if c.Deleted {
		return c, nil
	}
	if c.Revoked = fields[FieldDisabled] == DisabledRevoked; c.Revoked {
		c.Disabled = true
	} else if c.Disabled, err = parseFlag(fields, FieldDisabled); err != nil {
		return Credential{}, err
	}
	if hashes, found := fields[FieldHash]; found {
		if c.Hashes, err = parseHashes(hashes); err != nil {
			return Credential{}, err
		}
	} else if !c.Disabled {
		return Credential{}, refuse(ReasonMissing, "%s: missing", FieldHash)
	}
	if c.Permissions, err = parsePermissions(fields[FieldPermissions]); err != nil {
		return Credential{}, err
	}
	for field, ms := range map[string]*int64{FieldNotAfter: &c.NotAfterMS, FieldOldUntil: &c.OldUntilMS} {
		if text, found := fields[field]; found {
			if *ms, err = parseMillis(field, text, 1); err != nil {
				return Credential{}, err
			}
		}
	}
	if text, found := fields[FieldLabels]; found {
		if c.Labels, err = ParseLabels(text); err != nil {
			return Credential{}, err
		}
	}
	return c, nil
}

// ParseLabels parses labels as their field has them: name=value, joined by commas, in any order.
func ParseLabels(text string) (map[string]string, error) {
	if most := MaxLabels * (MaxLabelName + MaxLabelValue + 2); len(text) > most {
		return nil, refuse(ReasonLimit, "labels: %d bytes, at most %d are allowed", len(text), most)
	}
	labels := map[string]string{}
	for pair := range strings.SplitSeq(strings.Clone(text), ",") {
		name, value, found := strings.Cut(pair, "=")
		if _, twice := labels[name]; twice {
			return nil, refuse(ReasonConflict, "labels: %s comes twice", quote(name))
		}
		if !found {
			return nil, refuse(ReasonMalformed, "labels: %s: want name=value", quote(pair))
		}
		if err := CheckLabel(name, value); err != nil {
			return nil, err
		}
		labels[name] = value
	}
	if len(labels) > MaxLabels {
		return nil, refuse(ReasonLimit, "labels: %d, at most %d are allowed", len(labels), MaxLabels)
	}
	return labels, nil
}

// FormatLabels returns labels as their field has them, in byte order.
func FormatLabels(labels map[string]string) string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, name+"="+labels[name])
	}
	return strings.Join(pairs, ",")
}

// CheckLabel returns an error if a label is invalid.
func CheckLabel(name, value string) error {
	if n := len(name); n == 0 || n > MaxLabelName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
		return refuse(ReasonMalformed, "labels: name %s: want 1 to %d of a-z, 0-9 and . _ -", quote(name), MaxLabelName)
	}
	if value != "" && (len(value) > MaxLabelValue || !limits.ValidPermission(value)) {
		return refuse(ReasonMalformed, "labels: value %s of %s: want at most %d letters, digits and . _ : -", quote(value),
			name, MaxLabelValue)
	}
	return nil
}

func parseHashes(text string) ([]string, error) {
	if n := strings.Count(text, "\n") + 1; n > MaxHashes {
		return nil, refuse(ReasonLimit, "hash: %d lines, at most %d are allowed", n, MaxHashes)
	}
	hashes := strings.Split(strings.Clone(text), "\n")
	for i, hash := range hashes {
		if err := CheckHash(hash); err != nil {
			return nil, fmt.Errorf("hash: line %d: %w", i+1, err)
		}
	}
	return hashes, nil
}

// parsePermissions accepts any order and duplicates, which change nothing.
func parsePermissions(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	if most := limits.MaxPermissions * (limits.MaxPermissionName + 1); len(text) > most {
		return nil, refuse(ReasonLimit, "permissions: %d bytes, at most %d are allowed", len(text), most)
	}
	names := strings.Split(strings.Clone(text), ",")
	for _, name := range names {
		if !limits.ValidPermission(name) {
			return nil, refuse(ReasonMalformed, "permissions: name %s: want 1 to %d of letters, digits and . _ : -",
				quote(name), limits.MaxPermissionName)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > limits.MaxPermissions {
		return nil, refuse(ReasonLimit, "permissions: %d names, at most %d are allowed", len(names), limits.MaxPermissions)
	}
	return names, nil
}

func credentialField(field string) bool {
	switch field {
	case FieldHash, FieldPermissions, FieldDisabled, FieldNotAfter, FieldOldUntil, FieldLabels:
		return true
	}
	return false
}

// Fields returns the hash of c, for [ParseCredential].
func (c Credential) Fields() map[string]string {
	fields := recordHead{c.Version, c.PublishedMS, c.Deleted}.headFields()
	if c.Deleted {
		return fields
	}
	switch {
	case c.Revoked:
		fields[FieldDisabled] = DisabledRevoked
	case c.Disabled:
		fields[FieldDisabled] = "1"
	}
	if len(c.Hashes) > 0 {
		fields[FieldHash] = strings.Join(c.Hashes, "\n")
	}
	if len(c.Permissions) > 0 {
		fields[FieldPermissions] = strings.Join(c.Permissions, ",")
	}
	if c.NotAfterMS != 0 {
		fields[FieldNotAfter] = strconv.FormatInt(c.NotAfterMS, 10)
	}
	if c.OldUntilMS != 0 {
		fields[FieldOldUntil] = strconv.FormatInt(c.OldUntilMS, 10)
	}
	if len(c.Labels) > 0 {
		fields[FieldLabels] = FormatLabels(c.Labels)
	}
	return fields
}
