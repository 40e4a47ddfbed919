package edgemem

import (
	"context"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/shrink"
)

// Bounds of a bucket of verdicts.
const (
	maxDenies = meanEntries // so that the maximum numbers of denies and allows are equal
	maxAllows = 64
)

// Every sweepEvery, one of sweepParts parts of the table is searched for expired verdicts.
const (
	sweepEvery = 100 * time.Millisecond
	sweepParts = 64
)

// verdicts has the verdicts on recently verified credentials, and the devices.
type verdicts struct {
	buckets []verdictBucket
	dirty   queue
	allows  int
	denies  int
	evicted uint64 // verdicts evicted before they expired
	cursor  uint32 // where sweep and eviction continue
	devices devices
	scratch struct { // for one record
		verdicts []wire.Verdict
		devices  []wire.Device
	}
}

// verdictBucket has the verdicts and the devices of a bucket.
type verdictBucket struct {
	verdicts []*verdict // oldest first
	devices  []deviceEntry
	written  bool // a record of this epoch was taken
}

type verdict struct {
	wire.Verdict
	device      string
	bucket      uint32
	keepUntilMS int64 // if there is room, the verdict stays after its end until this time, unix ms
}

func newVerdicts(buckets int) verdicts {
	return verdicts{buckets: make([]verdictBucket, buckets), dirty: newQueue(buckets)}
}

// PutVerdict stores the verdict on a device's secret, and sets v's digest. Device and secret must be within their
// limits. isOnly: no other secret of the device is right, so while the edge has the verdict, it refuses all other
// secrets by itself. Denies never evict allows.
func (m *Memory) PutVerdict(device, secret string, v wire.Verdict, isOnly bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.Digest(device, secret)
	m.storeVerdict(device, v, isOnly, 0)
}

// PutAnswer stores an authority's verdict on a device's secret. After its end the verdict stays for verdict_grace,
// until the given time, while the table is half empty.
func (m *Memory) PutAnswer(device, secret string, v wire.Verdict, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.Digest(device, secret)
	m.storeVerdict(device, v, false, until.UnixMilli())
}

// PutSession stores the verdict on a token's session.
func (m *Memory) PutSession(device, session string, v wire.Verdict) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.SessionDigest(device, session)
	m.storeVerdict(device, v, false, 0)
}

// storeVerdict stores a verdict on device; mu is held.
func (m *Memory) storeVerdict(device string, v wire.Verdict, isOnly bool, keepUntilMS int64) {
	now := time.Now().UnixMilli()
	if v.ExpiresMS <= now {
		return
	}
	index, _ := m.keys.Device(device, uint32(len(m.verdicts.buckets)))
	m.removeExpired(index, now)
	for _, other := range m.verdicts.buckets[index].verdicts {
		if other.Digest == v.Digest {
			if m.verdicts.buckets[index].isUpToDate(other, &v, isOnly, now) {
				return // credentials exchanged for tokens again and again must not cause a push
			}
			m.removeVerdict(other)
			break
		}
	}
	m.makeVerdictRoom(index, v.Outcome)
	stored := &verdict{Verdict: v, device: device, bucket: index, keepUntilMS: keepUntilMS}
	m.addVerdict(stored)
	if v.Outcome == wire.Allow {
		m.verdicts.buckets[index].markAuthenticated(device)
	}
	if isOnly {
		m.verdicts.buckets[index].closeEntry(stored)
	}
	m.wakePusher()
}

// isUpToDate reports whether the stored verdict and its device's entry already have everything in v, and need no
// refresh yet.
func (k *verdictBucket) isUpToDate(stored *verdict, v *wire.Verdict, isOnly bool, nowMS int64) bool {
	if stored.Outcome != v.Outcome || stored.Permissions != v.Permissions || stored.NotAfterMS != v.NotAfterMS ||
		v.Outcome == wire.Allow && nowMS >= stored.RefreshAfterMS {
		return false
	}
	for i := range k.devices {
		if entry := &k.devices[i]; entry.device == stored.device {
			return (entry.onlyVerdict == stored) == isOnly && !(entry.isNew && v.Outcome == wire.Allow)
		}
	}
	return true
}

// DropVerdicts removes all verdicts on device.
func (m *Memory) DropVerdicts(device string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	index, _ := m.keys.Device(device, uint32(len(m.verdicts.buckets)))
	if m.removeMatching(index, func(v *verdict) bool { return v.device == device }) {
		m.wakePusher()
	}
}

// makeVerdictRoom evicts verdicts until the bucket has room for another verdict with outcome.
func (m *Memory) makeVerdictRoom(index uint32, outcome wire.Outcome) {
	if outcome != wire.Allow {
		if oldest, count := m.verdicts.buckets[index].firstToExpire(outcome); count >= maxDenies {
			m.evictVerdict(oldest)
		}
		return
	}
	if oldest, count := m.verdicts.buckets[index].firstToExpire(outcome); count >= maxAllows {
		m.evictVerdict(oldest)
	}
	// The table is full, so some bucket near the cursor has an allow. Evicting the first to expire there is good
	// enough, since all allows have about the same lifetime.
	for m.verdicts.allows >= m.maxAllows {
		if oldest, count := m.verdicts.buckets[m.verdicts.cursor].firstToExpire(outcome); count > 0 {
			m.evictVerdict(oldest)
		}
		m.verdicts.advanceCursor()
	}
}

// firstToExpire returns the verdict with this outcome that expires first, and the number of verdicts with the outcome.
func (k *verdictBucket) firstToExpire(outcome wire.Outcome) (first *verdict, count int) {
	for _, v := range k.verdicts {
		if v.Outcome == outcome {
			if first == nil || v.ExpiresMS < first.ExpiresMS {
				first = v
			}
			count++
		}
	}
	return first, count
}

func (s *verdicts) advanceCursor() { s.cursor = (s.cursor + 1) % uint32(len(s.buckets)) }

func (m *Memory) evictVerdict(v *verdict) {
	m.removeVerdict(v)
	m.verdicts.evicted++
}

func (m *Memory) addVerdict(v *verdict) {
	s := &m.verdicts
	s.buckets[v.bucket].verdicts = append(s.buckets[v.bucket].verdicts, v)
	s.dirty.push(v.bucket)
	if v.Outcome == wire.Allow {
		s.allows++
	} else {
		s.denies++
	}
}

func (m *Memory) removeVerdict(v *verdict) {
	s := &m.verdicts
	k := &s.buckets[v.bucket]
	k.verdicts = shrink.Slice(slices.DeleteFunc(k.verdicts, func(other *verdict) bool { return other == v }))
	k.reopenEntry(v)
	s.dirty.push(v.bucket)
	if v.Outcome == wire.Allow {
		s.allows--
	} else {
		s.denies--
	}
}

// removeExpired removes a bucket's expired verdicts.
func (m *Memory) removeExpired(index uint32, nowMS int64) {
	m.removeMatching(index, func(v *verdict) bool {
		return v.ExpiresMS <= nowMS && (v.keepUntilMS <= nowMS || 2*m.verdicts.allows > m.maxAllows)
	})
}

// removeMatching removes a bucket's verdicts for which matches returns true, and reports whether any matched.
func (m *Memory) removeMatching(index uint32, matches func(*verdict) bool) (found bool) {
	for i := 0; i < len(m.verdicts.buckets[index].verdicts); {
		if v := m.verdicts.buckets[index].verdicts[i]; matches(v) {
			m.removeVerdict(v)
			found = true
		} else {
			i++
		}
	}
	return found
}

// Sweep removes the expired verdicts in the next part of the table.
func (m *Memory) Sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now().UnixMilli()
	for range len(m.verdicts.buckets)/sweepParts + 1 {
		m.removeExpired(m.verdicts.cursor, now)
		m.verdicts.advanceCursor()
	}
	if m.verdicts.dirty.len() > 0 {
		m.wakePusher()
	}
}

// Run sweeps until ctx ends.
func (m *Memory) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			m.Sweep()
		}
	}
}

func (m *Memory) resetVerdicts() {
	s := &m.verdicts
	s.dirty.clear()
	before := s.buckets
	s.buckets = make([]verdictBucket, len(before))
	s.allows, s.denies = 0, 0
	for i := range before {
		for _, entry := range before[i].devices {
			m.addDevice(entry.device, entry.isNew)
		}
	}
	m.deferComplete()
}
