package credential

import (
	"errors"
	"time"
)

// retryEvery is the interval at which records whose permission names have no bit are checked again.
const retryEvery = time.Second

// permit gets bits for the record's permission names; mu is held. If there are not enough, the device is told to try
// again if some will be free soon, and otherwise refused; permit is retried until it succeeds.
func (v *Verifier) permit(r *record, id string, names []string) error {
	var err error
	if r.permissions, err = v.bits(names); err == nil {
		return nil
	}
	r.wanted = names
	var soon interface{ Later() bool }
	if errors.As(err, &soon) && soon.Later() {
		r.refusal = wantsBits
	} else {
		r.refusal = isRefused
	}
	return err
}

// bits gets bits for names. If there are not enough, it first ends answers that have expired; mu is held.
func (v *Verifier) bits(names []string) (uint64, error) {
	set, err := v.memory.Permissions(names)
	if err != nil && v.endExpired(time.Now()) {
		return v.memory.Permissions(names)
	}
	return set, err
}

// release returns the bits of a record that is replaced or removed; mu is held.
func (v *Verifier) release(r *record) {
	if r != nil && r.permissions != 0 {
		v.memory.ReleasePermissions(r.permissions)
		r.permissions = 0
	}
}

// retryLater schedules another check of the record; mu is held.
func (v *Verifier) retryLater(id string) {
	v.waiting[id] = struct{}{}
	if !v.retries {
		v.retries = true
		time.AfterFunc(retryEvery, v.retry)
	}
}

// retry checks all records again whose permission names had no bit.
func (v *Verifier) retry() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.retries = false
	for id := range v.waiting {
		r := v.records[id]
		if r == nil || r.wanted == nil {
			delete(v.waiting, id)
			continue
		}
		next := *r
		next.wanted, next.refusal = nil, ""
		if v.permit(&next, id, r.wanted) == nil {
			delete(v.waiting, id)
			v.replace(id, &next)
		} else if next.refusal != r.refusal {
			v.replace(id, &next)
		}
	}
	for id := range v.waiting {
		v.retryLater(id)
		return
	}
	v.waiting = make(map[string]struct{}) // an empty map keeps its memory
}
