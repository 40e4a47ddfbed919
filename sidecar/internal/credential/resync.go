package credential

import (
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// Shard is the verifier for the reader of one shard.
type Shard struct {
	*Verifier
	shard int
}

// Shard is the verifier for the reader of shard i.
func (v *Verifier) Shard(i int) Shard { return Shard{v, i} }

// BeginResync begins a full resync of the shard: its versions start over, and a device
// whose record is not applied again until [Shard.EndResync] is unknown then.
func (s Shard) BeginResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resyncs[s.shard]++
}

// maxLooked is how many records are checked without a break: verifications wait for that.
const maxLooked = 4096

// Unmet returns the devices that the shard's resync has not met yet.
func (s Shard) Unmet() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	looked := 0
	for id, r := range s.records { // which may change while the lock is released: new records were met
		if r.shard == s.shard && r.resync != s.resyncs[s.shard] {
			ids = append(ids, id)
		}
		if looked++; looked%maxLooked == 0 {
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
	return ids
}

// EndResync removes devices that the shard no longer has; those of other shards stay. From the first call on,
// verifications of the shard's devices are answered.
func (s Shard) EndResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	looked := 0
	for id, r := range s.records { // which may change while the lock is released: new records are of this resync
		if r.shard == s.shard && r.resync != s.resyncs[s.shard] {
			s.replace(id, nil)
		}
		if looked++; looked%maxLooked == 0 {
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
	if s.synced[s.shard] {
		return
	}
	s.synced[s.shard] = true
	if !slices.Contains(s.synced, false) { //mutant:TestDevicesComplete true
		s.restored = true
		s.Known.Restored()
		s.memory.SetDevicesComplete()
		s.warnCrowded()
	}
}

// expiring reports whether r is a tombstone that Redis has forgotten or, as clocks differ,
// may have: then a version that is not newer comes from a writer that has started over.
func (r *record) expiring(now time.Time) bool {
	const clocksDiffer = time.Minute
	return r.tombstone && now.UnixMilli() > r.publishedMS+(contract.TombstoneLife-clocksDiffer).Milliseconds()
}
