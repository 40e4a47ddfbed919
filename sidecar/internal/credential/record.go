package credential

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/sidecar/internal/shrink"
)

// record is the sidecar's knowledge about a device.
type record struct {
	version      uint64
	generation   uint64 // unique to this record
	shard        int
	resync       uint64 // the shard's last full resync that had the record
	refusal      Reason // why the record can't authenticate the device, or empty
	tombstone    bool
	doubted      bool // Redis may have another record, or none; like reasonUnsure, for a record that can't authenticate
	publishedMS  int64
	writtenMS    int64 // publishedMS of the record, also if in the future
	permissions  uint64
	pendingNames []string  // permission names without bits: the device can't authenticate until they have bits
	notAfter     time.Time // zero: no end
	hashes       []hash    // the newest first
	oldUntil     time.Time // when only the first hash counts; zero: never
	ends         *time.Timer
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

// Apply makes c the record of its device, if c is newer than the known record, and drops the device's verdicts. A
// running verification starts over.
func (v *Verifier) Apply(c contract.Credential) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.applyLocked(c)
}

// applyLocked is Apply; mu is held.
func (v *Verifier) applyLocked(c contract.Credential) {
	v.forgetTombstones(time.Now())
	shard := v.Shards.Of(c.ID)
	before := v.currentRecord(c.ID, time.Now())
	if before != nil && before.resync == v.resyncs[shard] && !before.mayBeExpired(time.Now()) && !before.isOlderThan(&c) {
		return
	}
	r := &record{version: c.Version, shard: shard, resync: v.resyncs[shard], tombstone: c.Deleted,
		publishedMS: c.PublishedMS, writtenMS: c.PublishedMS}
	if r.tombstone { // a time in the future would delay the removal of this and later tombstones
		r.publishedMS = min(r.publishedMS, time.Now().UnixMilli())
	}
	var crowded error
	if r.refusal = v.fillRecord(r, &c); r.refusal == "" {
		crowded = v.assignBits(r, c.ID, c.Permissions)
	}
	if before != nil && before.version == c.Version && before.isSameWrite(r) {
		v.releaseBits(r)
		before.doubted = false
		before.resync, before.refusal = v.resyncs[shard], r.refusal // in this resync, and without doubt
		return
	}
	if crowded != nil { // the device's previous names may free some bits
		v.releaseBits(before)
		r.refusal, r.pendingNames = "", nil
		crowded = v.assignBits(r, c.ID, c.Permissions)
	}
	v.replaceRecord(c.ID, r)
	if crowded != nil {
		v.scheduleRetry(c.ID)
		if r.refusal == reasonRefusedRecord {
			v.refuseRecord("permissions", c.ID, crowded)
		}
	}
	if r.tombstone {
		v.tombstones = append(v.tombstones, tombstone{c.ID, r})
		// A device that is deleted again and again has a single valid tombstone.
		if count := len(v.records) - v.live; len(v.tombstones) > 2*count+maxStale {
			v.tombstones = shrink.Slice(slices.DeleteFunc(v.tombstones, func(t tombstone) bool {
				return v.records[t.id] != t.record
			}))
		}
	}
}

// isOlderThan reports whether r is older than c; a record in doubt is older than any. An equal version comes from
// another server that counted to the same number: the later write wins.
func (r *record) isOlderThan(c *contract.Credential) bool {
	return r.doubted || r.refusal == reasonUnsure || c.Version > r.version ||
		c.Version == r.version && (c.PublishedMS > r.publishedMS || c.PublishedMS == limits.MaxVersion) // no later time
}

// maxStale is the number of obsolete tombstones, in addition to as many as valid tombstones, that are kept.
const maxStale = 1000

// tombstone is a record that may still be its device's current record.
type tombstone struct {
	id     string
	record *record
}

// forgetTombstones removes devices whose tombstones have expired in Redis; otherwise ids that never return would stay
// for ever. mu is held.
func (v *Verifier) forgetTombstones(now time.Time) {
	for len(v.tombstones) > 0 {
		first := v.tombstones[0]
		if v.records[first.id] == first.record {
			if !first.record.mayBeExpired(now) {
				return
			}
			v.replaceRecord(first.id, nil)
		}
		v.tombstones[0] = tombstone{} // the array outlives the element
		if v.tombstones = v.tombstones[1:]; len(v.tombstones) == 0 {
			v.tombstones = nil
		}
	}
	v.records = v.size.Fit(v.records)
}

// fillRecord fills r from c. It returns why the record can't authenticate the device, or empty.
func (v *Verifier) fillRecord(r *record, c *contract.Credential) Reason {
	switch {
	case c.Deleted:
		return reasonDeleted
	case c.Revoked:
		return reasonRevoked
	case c.Disabled:
		return reasonDisabled
	}
	for _, text := range c.Hashes {
		h, err := contract.ParseHash(text)
		if err == nil {
			err = passhash.CheckCost(h, v.MaxCost)
		}
		if err != nil {
			return v.refuseRecord("cost", c.ID, err)
		}
		pepper := v.findPepper(h.Pepper)
		if h.Scheme == contract.GH1 && pepper == nil {
			return v.refuseRecord("pepper", c.ID, fmt.Errorf("its pepper, %s, is none of --credential.pepper-file", h.Pepper))
		}
		r.hashes = append(r.hashes, hash{text: text, pepper: pepper})
	}
	if len(r.hashes) == 0 {
		return v.refuseRecord("corrupt", c.ID, errors.New("no hash"))
	}
	if c.NotAfterMS > 0 {
		r.notAfter = time.UnixMilli(min(c.NotAfterMS, limits.MaxTime))
	}
	if c.OldUntilMS > 0 {
		r.oldUntil = time.UnixMilli(min(c.OldUntilMS, limits.MaxTime))
		if !time.Now().Before(r.oldUntil) {
			r.hashes = r.hashes[:1:1]
		}
	}
	return ""
}

// findPepper returns the pepper with this ID, nil for none.
func (v *Verifier) findPepper(id string) *contract.Pepper {
	for i := range v.Peppers {
		if v.Peppers[i].ID == id {
			return &v.Peppers[i]
		}
	}
	return nil
}

func (v *Verifier) refuseRecord(reason, id string, err error) Reason {
	v.metrics.Refused.WithLabelValues(reason).Inc()
	v.recordLog.Do(func() {
		v.log.Warn("credential record refused: the device can't authenticate", "device", id, "error", err)
	})
	return reasonRefusedRecord
}

// isSameWrite reports whether r and other are from the same write of the record.
func (r *record) isSameWrite(other *record) bool {
	refusal := r.refusal
	if refusal == reasonUnsure {
		refusal = "" // without the doubt; bits of pendingNames are missing in permissions
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

// replaceRecord stores r, nil for none, as the device's record; mu is held.
func (v *Verifier) replaceRecord(id string, r *record) {
	before := v.records[id]
	if before != nil && !before.tombstone {
		v.live--
	}
	if before != nil && before.ends != nil {
		before.ends.Stop()
	}
	if r == nil {
		delete(v.records, id)
	} else {
		v.generation++
		r.generation = v.generation
		if before != nil {
			r.sources = before.sources // a new secret does not make a device new
			r.inheritResults(before)
		} else {
			// nor does a restart
			r.sources = v.restoreSources(id)
		}
		v.records[id] = r
		v.size.Add(v.records)
		v.scheduleOverlapEnd(id, r)
		if !r.tombstone {
			v.live++
		}
	}
	v.memory.DropVerdicts(id)
	v.invalidateAnswers(id, r)
	v.releaseBits(before)
	v.updateDeviceList(id, before, r)
	v.metrics.Credentials.Set(float64(v.live))
}

// updateDeviceList lists the device at the edge, or removes it, if its right to authenticate has changed; mu is held.
func (v *Verifier) updateDeviceList(id string, before, after *record) {
	was, is := before.mayAuthenticate(), after.mayAuthenticate()
	switch {
	case was && !is:
		v.memory.DropDevice(id)
	case is && !was:
		if err := v.memory.PutDevice(id, len(after.sources) == 0); err != nil && v.listError == nil {
			v.listError = err
			v.warnUnlisted()
		}
	}
}

// warnUnlisted logs that the edge can't list all devices, once all records were read and their number is known.
func (v *Verifier) warnUnlisted() {
	if v.listError != nil && !slices.Contains(v.synced, false) {
		v.log.Warn("the edge can't list all devices: each unknown one costs a call", "devices", v.live, "error", v.listError)
	}
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

// scheduleOverlapEnd calls currentRecord when old secrets end, so the edge drops their verdicts even if its own clock
// is behind; mu is held.
func (v *Verifier) scheduleOverlapEnd(id string, r *record) {
	if !r.hasOverlap() {
		return
	}
	r.ends = time.AfterFunc(time.Until(r.oldUntil), func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.currentRecord(id, time.Now()) == r {
			v.scheduleOverlapEnd(id, r) // only if the clock was set back
		}
	})
}

// currentRecord returns the device's record, nil for none. If the overlap is over, it drops the old secrets with the
// device's verdicts, and running verifications start over. mu is held.
func (v *Verifier) currentRecord(id string, now time.Time) *record {
	r := v.records[id]
	if r == nil || !r.hasOverlap() || now.Before(r.oldUntil) {
		return r
	}
	for _, old := range r.hashes[1:] {
		if old.resolved {
			r.ended = append(r.ended, old.digest)
		}
	}
	r.hashes = r.hashes[:1:1]
	v.generation++
	r.generation = v.generation
	v.memory.DropVerdicts(id)
	return r
}

// Doubt disables the device's record until the record is applied again or removed: Redis may have another record. Until
// then, a device that could authenticate is neither allowed nor refused. If the same record is applied, bcrypt's
// results count again: otherwise each message of a publisher could cost a run.
func (v *Verifier) Doubt(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch r := v.records[id]; {
	case r.mayAuthenticate():
		r.refusal, r.pendingNames = reasonUnsure, nil
		v.memory.DropVerdicts(id)
	case r != nil && v.Authority != nil:
		r.doubted = true // the authority could decide about an unknown device
	case r != nil:
		v.replaceRecord(id, nil)
	}
	v.doubtAnswers(id)
}

// Announce applies c, from an event that deletes or disables its device, until the record in Redis is applied, in any
// version, or removed. Every writer of objects can forge the event. So c must not outlive the record, and an authority
// decides only once Redis has no record, see [Verifier.confirmNoRecord].
func (v *Verifier) Announce(c contract.Credential) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.applyLocked(c)
	if r := v.records[c.ID]; r != nil && !r.mayAuthenticate() {
		r.doubted = true
	}
}

// ApplyMalformed refuses the device: its record in Redis can't be read.
func (v *Verifier) ApplyMalformed(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	shard := v.Shards.Of(id)
	switch {
	case v.Authority != nil: // the authority would decide about an unknown device
		v.replaceRecord(id, &record{shard: shard, resync: v.resyncs[shard], refusal: reasonRefusedRecord, doubted: true})
	case v.records[id] != nil:
		v.replaceRecord(id, nil)
	}
}

// Remove makes the device unknown: Redis has no record.
func (v *Verifier) Remove(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.records[id] != nil {
		v.replaceRecord(id, nil)
	}
}
