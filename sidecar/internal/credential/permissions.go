package credential

import (
	"errors"
	"time"
)

// Records whose permission names lack bits are checked again every retryEvery.
const retryEvery = time.Second

// assignBits gets bits for the record's permission names; mu is held. If bits are lacking but some will be free soon,
// the device must try again; otherwise the device is refused. Callers retry assignBits until it succeeds.
func (v *Verifier) assignBits(r *record, id string, names []string) error {
	var err error
	if r.permissions, err = v.acquireBits(names); err == nil {
		return nil
	}
	r.pendingNames = names
	var soon interface{ Later() bool }
	if errors.As(err, &soon) && soon.Later() {
		r.refusal = reasonPermissions
	} else {
		r.refusal = reasonRefusedRecord
	}
	return err
}

// acquireBits gets bits for names. If bits are lacking, acquireBits ends expired answers and tries again; mu is held.
func (v *Verifier) acquireBits(names []string) (uint64, error) {
	set, err := v.memory.Permissions(names)
	if err != nil && v.endExpiredAnswers(time.Now()) {
		return v.memory.Permissions(names)
	}
	return set, err
}

// releaseBits releases the bits of a record that is replaced or removed; mu is held.
func (v *Verifier) releaseBits(r *record) {
	if r != nil && r.permissions != 0 {
		v.memory.ReleasePermissions(r.permissions)
		r.permissions = 0
	}
}

// scheduleRetry schedules another check of the device's record; mu is held.
func (v *Verifier) scheduleRetry(id string) {
	v.waitingForBits[id] = struct{}{}
	if !v.retryScheduled {
		v.retryScheduled = true
		time.AfterFunc(retryEvery, v.retryBits)
	}
}

// retryBits checks all records again whose permission names lack bits.
func (v *Verifier) retryBits() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.retryScheduled = false
	for id := range v.waitingForBits {
		r := v.records[id]
		if r == nil || r.pendingNames == nil {
			delete(v.waitingForBits, id)
			continue
		}
		next := *r
		next.pendingNames, next.refusal = nil, ""
		if v.assignBits(&next, id, r.pendingNames) == nil {
			delete(v.waitingForBits, id)
			v.replaceRecord(id, &next)
		} else if next.refusal != r.refusal {
			v.replaceRecord(id, &next)
		}
	}
	for id := range v.waitingForBits {
		v.scheduleRetry(id)
		return
	}
	v.waitingForBits = make(map[string]struct{}) // an empty map keeps its memory
}
