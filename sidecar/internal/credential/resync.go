package credential

import (
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// Shard is the verifier for the follower of a single shard.
type Shard struct {
	*Verifier
	shard int
}

// Shard returns the verifier for the follower of shard i.
func (v *Verifier) Shard(i int) Shard { return Shard{v, i} }

// BeginResync begins a full resync of the shard: its versions start over, and [Shard.EndResync] makes devices unknown
// whose record was not applied again.
func (s Shard) BeginResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resyncs[s.shard]++
}

// recordsPerLock is the number of records checked per lock, during which verifications wait.
const recordsPerLock = 4096

// Unapplied returns the devices whose record the shard's resync has not applied yet.
func (s Shard) Unapplied() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	looked := 0
	for id, r := range s.records { // may change while the lock is released; new records belong to this resync
		if r.shard == s.shard && r.resync != s.resyncs[s.shard] {
			ids = append(ids, id)
		}
		if looked++; looked%recordsPerLock == 0 {
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
	return ids
}

// EndResync removes the shard's devices whose record the resync has not applied. From the first call on, verifications
// of the shard's devices are answered.
func (s Shard) EndResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	looked := 0
	for id := range s.records { // may change while the lock is released; new records belong to this resync
		if r := s.records[id]; r != nil && r.shard == s.shard && r.resync != s.resyncs[s.shard] {
			s.replaceRecord(id, nil)
		}
		if looked++; looked%recordsPerLock == 0 {
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
	s.records = s.size.Fit(s.records)
	if s.synced[s.shard] {
		return
	}
	s.synced[s.shard] = true
	if !slices.Contains(s.synced, false) {
		s.restored = true
		s.Known.Restored()
		if s.Authority == nil { // otherwise no device is unknown
			s.memory.SetDevicesComplete()
		}
		s.warnUnlisted()
	}
}

// mayBeExpired reports whether r is a tombstone that Redis has removed or, because clocks differ, may have removed. A
// version that is not newer than an expired tombstone comes from a writer that has started over.
func (r *record) mayBeExpired(now time.Time) bool {
	const clocksDiffer = time.Minute
	return r.tombstone && now.UnixMilli() > r.publishedMS+(contract.TombstoneLife-clocksDiffer).Milliseconds()
}
