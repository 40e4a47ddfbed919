package credential

import (
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// Shard is the verifier for the follower of a single shard.
type Shard struct {
	*Devices
	shard int
}

// Shard returns the verifier for the follower of shard i.
func (d *Devices) Shard(i int) Shard { return Shard{d, i} }

// shardState is what Devices knows about a shard.
type shardState struct {
	resync uint64 // number of full resyncs
	synced bool   // all records were read once, so devices without a record are unknown
}

// allSynced reports whether all records of all shards were read once.
// +checklocks:d.mu
func (d *Devices) allSynced() bool {
	return !slices.ContainsFunc(d.shards, func(s shardState) bool { return !s.synced })
}

// BeginResync begins a full resync of the shard: its versions start over, and [Shard.EndResync] makes devices unknown
// whose record was not applied again.
func (s Shard) BeginResync() {
	d := s.Devices
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shards[s.shard].resync++
}

// recordsPerLock is the number of records checked per lock, during which verifications wait.
const recordsPerLock = 4096

// Unapplied returns the devices whose record the shard's resync has not applied yet.
func (s Shard) Unapplied() []string {
	d := s.Devices
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	looked := 0
	for id, r := range d.records.all { // may change while the lock is released; new records belong to this resync
		if r.shard == s.shard && r.resync != d.shards[s.shard].resync {
			ids = append(ids, id)
		}
		if looked++; looked%recordsPerLock == 0 {
			d.mu.Unlock()
			d.mu.Lock()
		}
	}
	return ids
}

// EndResync removes the shard's devices whose record the resync has not applied. From the first call on, verifications
// of the shard's devices are answered.
func (s Shard) EndResync() {
	d := s.Devices
	d.mu.Lock()
	defer d.mu.Unlock()
	looked := 0
	for id := range d.records.all { // may change while the lock is released; new records belong to this resync
		if r := d.records.all[id]; r != nil && r.shard == s.shard && r.resync != d.shards[s.shard].resync {
			d.replaceRecord(id, nil)
		}
		if looked++; looked%recordsPerLock == 0 {
			d.mu.Unlock()
			d.mu.Lock()
		}
	}
	d.records.fit()
	if d.shards[s.shard].synced {
		return
	}
	d.shards[s.shard].synced = true
	if d.allSynced() {
		d.config.Known.Restored()
		if d.config.Authority == nil { // otherwise no device is unknown
			d.memory.SetDevicesComplete()
		}
		d.warnUnlisted()
	}
}

// mayBeExpired reports whether r is a tombstone that Redis has removed or, because clocks differ, may have removed. A
// version that is not newer than an expired tombstone comes from a writer that has started over.
func (r *record) mayBeExpired(now time.Time) bool {
	const clocksDiffer = time.Minute
	return r.tombstone && now.UnixMilli() > r.publishedMS+(contract.TombstoneLife-clocksDiffer).Milliseconds()
}
