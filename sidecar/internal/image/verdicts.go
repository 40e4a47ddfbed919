package image

import (
	"context"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/wire"
)

// Bounds of one bucket of verdicts.
const (
	maxDenies = meanEntries // so that denies in total are as many as allows
	maxAllows = 64
)

// sweepEvery is how often a part of the table is searched for expired verdicts, and
// sweepParts is how many parts there are.
const (
	sweepEvery = 100 * time.Millisecond
	sweepParts = 64
)

// verdicts are the credentials that were verified lately.
type verdicts struct {
	buckets []verdictBucket
	dirty   queue
	allows  int
	denies  int
	evicted uint64 // that had not expired
	cursor  uint32 // where sweep and eviction go on
	devices devices
	scratch struct { // of one record
		verdicts []wire.Verdict
		devices  []wire.Device
	}
}

// verdictBucket is all that is known of the devices that lie in it.
type verdictBucket struct {
	verdicts []*verdict // oldest first
	devices  []deviceEntry
	written  bool // holds a record of this epoch
}

type verdict struct {
	wire.Verdict
	device string
	bucket uint32
}

func newVerdicts(buckets int) verdicts {
	return verdicts{buckets: make([]verdictBucket, buckets), dirty: newQueue(buckets)}
}

// PutVerdict stores what is known of device and secret, both within their limits; the
// image makes v's digest. only says that no other secret of the device is right: as long
// as the verdict is there, the edge refuses others by itself. Denies never evict allows.
func (m *Memory) PutVerdict(device, secret string, v wire.Verdict, only bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.Digest(device, secret)
	m.put(device, v, only)
}

// PutSession is likewise of a token's session.
func (m *Memory) PutSession(device, session string, v wire.Verdict) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.SessionDigest(device, session)
	m.put(device, v, false)
}

// put stores a verdict of device; mu is held.
func (m *Memory) put(device string, v wire.Verdict, only bool) {
	now := time.Now().UnixMilli()
	if v.ExpiresMS <= now {
		return
	}
	index, _ := m.keys.Device(device, uint32(len(m.verdicts.buckets)))
	m.expire(index, now)
	for _, other := range m.verdicts.buckets[index].verdicts {
		if other.Digest == v.Digest {
			if m.verdicts.buckets[index].saysSo(other, &v, only, now) {
				return // a credential that is shown again and again, for tokens, is no reason to push
			}
			m.forget(other)
			break
		}
	}
	m.makeRoom(index, v.Outcome)
	stored := &verdict{Verdict: v, device: device, bucket: index}
	m.remember(stored)
	if v.Outcome == wire.Allow {
		m.verdicts.buckets[index].meet(device)
	}
	if only {
		m.verdicts.buckets[index].close(stored)
	}
	m.notify()
}

// saysSo reports whether other and its device's entry say all that v is to say, and need no renewal yet.
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

// DropVerdicts removes all that is known of device.
func (m *Memory) DropVerdicts(device string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	index, _ := m.keys.Device(device, uint32(len(m.verdicts.buckets)))
	if m.forgetAll(index, func(v *verdict) bool { return v.device == device }) {
		m.notify()
	}
}

// makeRoom evicts verdicts until one more of outcome can go into the bucket.
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
	// The table is full: some bucket near the cursor has an allow. Those that expire
	// next are as good as any, since all live about as long.
	for m.verdicts.allows >= m.maxAllows {
		if oldest, count := m.verdicts.buckets[m.verdicts.cursor].first(outcome); count > 0 {
			m.evict(oldest)
		}
		m.verdicts.advance()
	}
}

// first is the verdict of this outcome that expires first, and how many there are.
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
	k.verdicts = slices.DeleteFunc(k.verdicts, func(other *verdict) bool { return other == v })
	k.open(v)
	s.dirty.push(v.bucket)
	if v.Outcome == wire.Allow {
		s.allows--
	} else {
		s.denies--
	}
}

// expire drops a bucket's expired verdicts.
func (m *Memory) expire(index uint32, nowMS int64) {
	m.forgetAll(index, func(v *verdict) bool { return v.ExpiresMS <= nowMS })
}

// forgetAll drops those of a bucket's verdicts that gone reports, and reports whether there
// were any.
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

// Sweep drops the expired verdicts of the next part of the table.
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
