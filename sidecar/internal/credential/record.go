package credential

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// record is what is known of a device.
type record struct {
	version     uint64
	generation  uint64 // unique to this record
	resync      uint64 // the full resync in which it was last seen
	refusal     string // why it lets nobody in, or empty
	tombstone   bool
	permissions uint64
	notAfter    time.Time // zero: no end
	hashes      []hash
}

// hash is one of the record's hashes, and what is known of it.
type hash struct {
	bcrypt      string
	resolved    bool      // a secret has matched it:
	digest      digest    // this one
	pinnedUntil time.Time // confirmed without bcrypt until then
}

// Apply makes c the record of its device, if it is newer than the known one, and drops
// the device's verdicts: a verification that is under way starts over.
func (v *Verifier) Apply(c contract.Credential) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.records[c.ID]
	if before != nil && before.resync == v.resync && before.version >= c.Version {
		return
	}
	r := &record{version: c.Version, resync: v.resync, tombstone: c.Deleted}
	r.refusal = v.read(r, &c)
	if before != nil && before.version == c.Version && before.same(r) {
		before.resync = v.resync // a full resync met what is known
		return
	}
	v.replace(c.ID, r)
}

// read fills r from c; the answer is why nobody can be let in, or empty.
func (v *Verifier) read(r *record, c *contract.Credential) string {
	switch {
	case c.Deleted:
		return "revoked"
	case c.Disabled:
		return "disabled"
	}
	for _, text := range c.Hashes {
		if cost, err := bcrypt.Cost([]byte(text)); err != nil || cost > v.MaxCost {
			if err == nil {
				err = fmt.Errorf("cost %d, at most %d is allowed: raise --bcrypt.max-cost, or hash the secret again", cost, v.MaxCost)
			}
			return v.refuse("cost", c.ID, err)
		}
		r.hashes = append(r.hashes, hash{bcrypt: text})
	}
	if len(r.hashes) == 0 {
		return v.refuse("corrupt", c.ID, errors.New("no hash"))
	}
	var err error
	if r.permissions, err = v.edge.Permissions(c.Permissions); err != nil {
		return v.refuse("permissions", c.ID, err)
	}
	if c.NotAfterMS > 0 {
		r.notAfter = time.UnixMilli(c.NotAfterMS)
	}
	return ""
}

func (v *Verifier) refuse(reason, id string, err error) string {
	v.metrics.Refused.WithLabelValues(reason).Inc()
	v.log.Warn("credential record refused: the device is let in nowhere", "device", id, "error", err)
	return "refused_record"
}

// same reports whether other was made of the same record.
func (r *record) same(other *record) bool {
	if r.refusal != other.refusal || r.permissions != other.permissions ||
		!r.notAfter.Equal(other.notAfter) || len(r.hashes) != len(other.hashes) {
		return false
	}
	for i := range r.hashes {
		if r.hashes[i].bcrypt != other.hashes[i].bcrypt {
			return false
		}
	}
	return true
}

// replace makes r, nil for none, what is known of the device; mu is held.
func (v *Verifier) replace(id string, r *record) {
	if before := v.records[id]; before != nil && !before.tombstone {
		v.live--
	}
	if r == nil {
		delete(v.records, id)
	} else {
		v.generation++
		r.generation = v.generation
		v.records[id] = r
		if !r.tombstone {
			v.live++
		}
	}
	v.edge.DropVerdicts(id)
	v.metrics.Credentials.Set(float64(v.live))
}

// Remove makes the device unknown: Redis has no record of it, or none that can be read.
func (v *Verifier) Remove(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.records[id] != nil {
		v.replace(id, nil)
	}
}

// BeginResync begins a full resync: versions start over, and a device whose record is
// not applied again until [Verifier.EndResync] is unknown then.
func (v *Verifier) BeginResync() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.resync++
}

// EndResync makes devices unknown that Redis no longer has. From the first one on,
// verifications are answered.
func (v *Verifier) EndResync() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, r := range v.records {
		if r.resync != v.resync {
			v.replace(id, nil)
		}
	}
	v.synced = true
}
