package edgemem

import (
	"context"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/shrink"
)

// Bounds of one bucket of verdicts.
const (
	maxDenies = meanEntries // so that the maximum numbers of denies and allows are equal
	maxAllows = 64
)

// Each sweepEvery, one of sweepParts parts of the table is searched for expired verdicts.
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
	evicted uint64 // not expired ones that were evicted
	cursor  uint32 // where sweep and eviction continue
	devices devices
	scratch struct { // for one record
		verdicts []wire.Verdict
		devices  []wire.Device
	}
}

// verdictBucket has the verdicts and the devices of one bucket.
type verdictBucket struct {
	verdicts []*verdict // oldest first
	devices  []deviceEntry
	written  bool // a record of this epoch was taken
}

type verdict struct {
	wire.Verdict
	device string
	bucket uint32
	keptMS int64 // it stays until then after its end if there is room, unix ms
}

func newVerdicts(buckets int) verdicts {
	return verdicts{buckets: make([]verdictBucket, buckets), dirty: newQueue(buckets)}
}

// PutVerdict stores the verdict on a device's secret; both must be within their limits. It sets v's digest. only: no
// other secret of the device is right, so the edge refuses others by itself while it has the verdict. Denies never
// evict allows.
func (m *Memory) PutVerdict(device, secret string, v wire.Verdict, only bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.Digest(device, secret)
	m.put(device, v, only, 0)
}

// PutAnswer stores an authority's verdict on a device's secret. It stays after its end, for verdict_grace, until the
// time given, while the table is half empty.
func (m *Memory) PutAnswer(device, secret string, v wire.Verdict, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.Digest(device, secret)
	m.put(device, v, false, until.UnixMilli())
}

// PutSession stores the verdict on a token's session.
func (m *Memory) PutSession(device, session string, v wire.Verdict) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.SessionDigest(device, session)
	m.put(device, v, false, 0)
}

// put stores a verdict on device; mu is held.
func (m *Memory) put(device string, v wire.Verdict, only bool, keptMS int64) {
	now := time.Now().UnixMilli()
	if v.ExpiresMS <= now {
		return
	}
	index, _ := m.keys.Device(device, uint32(len(m.verdicts.buckets)))
	m.expire(index, now)
	for _, other := range m.verdicts.buckets[index].verdicts {
		if other.Digest == v.Digest {
			if m.verdicts.buckets[index].saysSo(other, &v, only, now) {
				return // credentials exchanged for tokens again and again must not cause a push
			}
			m.forget(other)
			break
		}
	}
	m.makeRoom(index, v.Outcome)
	stored := &verdict{Verdict: v, device: device, bucket: index, keptMS: keptMS}
	m.remember(stored)
	if v.Outcome == wire.Allow {
		m.verdicts.buckets[index].meet(device)
	}
	if only {
		m.verdicts.buckets[index].close(stored)
	}
	m.notify()
}

// saysSo reports whether other and its device's entry already have everything in v, and need no refresh yet.
func (k *verdictBucket) saysSo(other *verdict, v *wire.Verdict, only bool, nowMS int64) bool {
	if other.Outcome != v.Outcome || other.Permissions != v.Permissions || other.NotAfterMS != v.NotAfterMS ||
		v.Outcome == wire.Allow && nowMS >= other.RefreshAfterMS {
		return false
	}
	for i := range k.devices {
		if entry := &k.devices[i]; entry.device == other.device {
			return (entry.only == other) == only && !(entry.isNew && v.Outcome == wire.Allow)
		}
	}
	return true
}

// DropVerdicts removes all verdicts on device.
func (m *Memory) DropVerdicts(device string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	index, _ := m.keys.Device(device, uint32(len(m.verdicts.buckets)))
	if m.forgetAll(index, func(v *verdict) bool { return v.device == device }) {
		m.notify()
	}
}

// makeRoom evicts verdicts until the bucket has room for one more with outcome.
func (m *Memory) makeRoom(index uint32, outcome wire.Outcome) {
	if outcome != wire.Allow {
		if oldest, count := m.verdicts.buckets[index].first(outcome); count >= maxDenies {
			m.evict(oldest)
		}
		return
	}
	if oldest, count := m.verdicts.buckets[index].first(outcome); count >= maxAllows {
		m.evict(oldest)
	}
	// The table is full, so some bucket near the cursor has an allow. The one that expires first is as good as any,
	// since all have about the same lifetime.
	for m.verdicts.allows >= m.maxAllows {
		if oldest, count := m.verdicts.buckets[m.verdicts.cursor].first(outcome); count > 0 {
			m.evict(oldest)
		}
		m.verdicts.advance()
	}
}

// first returns the verdict with this outcome that expires first, and the number of verdicts with it.
func (k *verdictBucket) first(outcome wire.Outcome) (first *verdict, count int) {
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

func (s *verdicts) advance() { s.cursor = (s.cursor + 1) % uint32(len(s.buckets)) }

func (m *Memory) evict(v *verdict) {
	m.forget(v)
	m.verdicts.evicted++
}

func (m *Memory) remember(v *verdict) {
	s := &m.verdicts
	s.buckets[v.bucket].verdicts = append(s.buckets[v.bucket].verdicts, v)
	s.dirty.push(v.bucket)
	if v.Outcome == wire.Allow {
		s.allows++
	} else {
		s.denies++
	}
}

func (m *Memory) forget(v *verdict) {
	s := &m.verdicts
	k := &s.buckets[v.bucket]
	k.verdicts = shrink.Slice(slices.DeleteFunc(k.verdicts, func(other *verdict) bool { return other == v }))
	k.open(v)
	s.dirty.push(v.bucket)
	if v.Outcome == wire.Allow {
		s.allows--
	} else {
		s.denies--
	}
}

// expire removes a bucket's expired verdicts.
func (m *Memory) expire(index uint32, nowMS int64) {
	m.forgetAll(index, func(v *verdict) bool {
		return v.ExpiresMS <= nowMS && (v.keptMS <= nowMS || 2*m.verdicts.allows > m.maxAllows)
	})
}

// forgetAll removes a bucket's verdicts for which gone returns true, and reports whether there were any.
func (m *Memory) forgetAll(index uint32, gone func(*verdict) bool) (found bool) {
	for i := 0; i < len(m.verdicts.buckets[index].verdicts); {
		if v := m.verdicts.buckets[index].verdicts[i]; gone(v) {
			m.forget(v)
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
		m.expire(m.verdicts.cursor, now)
		m.verdicts.advance()
	}
	if m.verdicts.dirty.len() > 0 {
		m.notify()
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
			m.placeDevice(entry.device, entry.isNew)
		}
	}
	m.deferComplete()
}
