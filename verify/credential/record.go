package credential

import (
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// record is the sidecar's knowledge about a device.
type record struct {
	version     uint64
	generation  uint64 // unique to this record
	shard       int
	resync      uint64 // the shard's last full resync that had the record
	refusal     Reason // why the record can't authenticate the device, or empty
	tombstone   bool
	doubted     bool // Redis may have another record, or none; like reasonUnsure, for a record that can't authenticate
	publishedMS int64
	writtenMS   int64     // publishedMS of the record, also if in the future
	permissions string    // names in byte order, joined by commas
	notAfter    time.Time // zero: no end
	hashes      []hash    // the newest first
	oldUntil    time.Time // when only the first hash counts; zero: never
	ends        *time.Timer
	// ended has the digests of secrets whose hashes don't count any more.
	ended []digest
	// refuted has the last wrong secrets, at most maxRefuted, oldest first. A wrong secret stays wrong while the record
	// is unchanged.
	refuted []digest
	refused *Refused // the last refusal, nil for none
	// sources has the last maxSources sources from which the device authenticated, under this record or an earlier
	// record, or before a restart, oldest first. Only devices that may authenticate have sources, so a flood can
	// neither grow the list nor displace entries.
	sources []source
}

// joinNames returns sorted names, joined by commas, for records and answers. Most devices share few sets of names, and
// their memory.
func joinNames(names []string) string { return unique.Make(strings.Join(names, ",")).Value() }

// mayAuthenticate reports whether the device of r, nil for none, can authenticate, now or soon.
func (r *record) mayAuthenticate() bool { return r != nil && (r.refusal == "" || r.refusal.NotYet()) }

// Bounds of a record's history.
const (
	maxRefuted = 4
	maxSources = 4
)

// addRefuted stores a secret that matches none of the hashes.
func (r *record) addRefuted(d digest) { r.refuted = appendRecent(r.refuted, d, maxRefuted) }

// addSource stores a source from which the device authenticated, and returns true for a new source.
func (r *record) addSource(from source) (isNew bool) {
	isNew = !slices.Contains(r.sources, from)
	r.sources = appendRecent(r.sources, from, maxSources)
	return isNew
}

// appendRecent returns list with value as its newest element, and at most n elements.
func appendRecent[T comparable](list []T, value T, n int) []T {
	if i := slices.Index(list, value); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) >= n {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, value)
}

// hash is a hash of a record, with the result of earlier verifications.
type hash struct {
	text        string
	pepper      *contract.Pepper // of gh1, which needs no run; nil: another scheme
	resolved    bool             // a secret has matched
	digest      digest           // of the matching secret
	pinnedUntil time.Time        // until then, a match needs no bcrypt
}

// isOlderThan reports whether r is older than c; a record in doubt is older than any. An equal version comes from
// another server that counted to the same number: the later write wins.
func (r *record) isOlderThan(c *contract.Credential) bool {
	return r.doubted || r.refusal == reasonUnsure || c.Version > r.version ||
		c.Version == r.version && (c.PublishedMS > r.publishedMS || c.PublishedMS == limits.MaxVersion) // no later time
}

// isSameWrite reports whether r and other are from the same write of the record.
func (r *record) isSameWrite(other *record) bool {
	refusal := r.refusal
	if refusal == reasonUnsure {
		refusal = "" // without the doubt
	}
	if r.publishedMS != other.publishedMS || refusal != other.refusal || r.permissions != other.permissions ||
		!r.notAfter.Equal(other.notAfter) || !r.oldUntil.Equal(other.oldUntil) || len(r.hashes) != len(other.hashes) {
		return false
	}
	for i := range r.hashes {
		if r.hashes[i].text != other.hashes[i].text {
			return false
		}
	}
	return true
}

// inheritResults copies bcrypt's results for hashes that before has, too.
func (r *record) inheritResults(before *record) {
	for i := range r.hashes {
		for _, known := range before.hashes {
			if known.text == r.hashes[i].text {
				r.hashes[i] = known
			}
		}
	}
}

// hasOverlap reports whether the record has old secrets that count until oldUntil.
func (r *record) hasOverlap() bool { return len(r.hashes) > 1 && !r.oldUntil.IsZero() }

// isOldHash reports whether a secret of this hash ends at oldUntil.
func (r *record) isOldHash(hash string) bool { return r.hasOverlap() && hash != r.hashes[0].text }

// accessEnd returns when a secret, old or not, stops to authenticate the device; zero for never.
func (r *record) accessEnd(old bool) time.Time {
	if old && (r.notAfter.IsZero() || r.oldUntil.Before(r.notAfter)) {
		return r.oldUntil
	}
	return r.notAfter
}

// storeMatch stores that a secret matches, until latest at most: m may come from a sidecar with other settings or
// another clock.
func (r *record) storeMatch(d digest, m *Match, latest time.Time) {
	until := earlier(m.Until, latest)
	for i := range r.hashes {
		if h := &r.hashes[i]; h.text == m.Hash {
			h.resolved, h.digest, h.pinnedUntil = true, d, until
		}
	}
}
