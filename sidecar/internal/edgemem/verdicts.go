package edgemem

import (
	"context"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/shrink"
)

// Bounds of a bucket of verdicts.
const (
	maxDenies = meanEntries // so that the maximum numbers of denies and allows are equal
	maxAllows = 64
)

// shortNames is the length, in bytes, up to which a device's permission names take no room from other devices. Longer
// ones share room for shortNames in each allow.
const shortNames = 64

// Every sweepEvery, one of sweepParts parts of the table is searched for expired verdicts.
const (
	sweepEvery = 100 * time.Millisecond
	sweepParts = 64
)

// verdictTable places verdicts on recently verified credentials, and the devices, in buckets, the same at all edges.
type verdictTable struct {
	keys      *wire.Keys
	edges     *attached
	maxAllows int // in all buckets

	buckets []verdictBucket
	allows  int
	denies  int
	long    int    // bytes of long permission names
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
}

type verdict struct {
	wire.Verdict
	device      string
	bucket      uint32
	keepUntilMS int64 // if there is room, the verdict stays after its end until this time, unix ms
}

func newVerdictTable(keys *wire.Keys, edges *attached, buckets, maxAllows int) verdictTable {
	return verdictTable{keys: keys, edges: edges, maxAllows: maxAllows, buckets: make([]verdictBucket, buckets)}
}

// queueBucket makes all edges get a bucket.
func (t *verdictTable) queueBucket(index uint32) {
	for _, o := range *t.edges {
		o.dirtyVerdicts.push(index)
	}
}

// PutVerdict stores the verdict on a device's secret, and sets v's digest. Device and secret must be within their
// limits. isOnly: no other secret of the device is right, so while the edge has the verdict, it refuses all other
// secrets by itself. Denies never evict allows.
func (m *Memory) PutVerdict(device, secret string, v wire.Verdict, isOnly bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.Digest(device, secret)
	m.wakeIf(m.verdicts.storeVerdict(device, v, isOnly, 0))
}

// PutAnswer stores an authority's verdict on a device's secret. After its end the verdict stays for verdict_grace,
// until the given time, while the table is half empty.
func (m *Memory) PutAnswer(device, secret string, v wire.Verdict, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.Digest(device, secret)
	m.wakeIf(m.verdicts.storeVerdict(device, v, false, until.UnixMilli()))
}

// PutSession stores the verdict on a token's session.
func (m *Memory) PutSession(device, session string, v wire.Verdict) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Digest = m.keys.SessionDigest(device, session)
	m.wakeIf(m.verdicts.storeVerdict(device, v, false, 0))
}

// storeVerdict stores a verdict on device and reports whether anything changed.
func (t *verdictTable) storeVerdict(device string, v wire.Verdict, isOnly bool, keepUntilMS int64) bool {
	now := time.Now().UnixMilli()
	if v.ExpiresMS <= now {
		return false
	}
	index := t.findBucket(device)
	t.removeExpired(index, now)
	for _, other := range t.buckets[index].verdicts {
		if other.Digest == v.Digest {
			if t.buckets[index].isUpToDate(other, &v, isOnly, now) {
				return false // credentials exchanged for tokens again and again must not cause a push
			}
			t.removeVerdict(other)
			break
		}
	}
	t.makeVerdictRoom(index, &v)
	stored := &verdict{Verdict: v, device: device, bucket: index, keepUntilMS: keepUntilMS}
	t.addVerdict(stored)
	if entry := t.buckets[index].findEntry(device); entry != nil {
		entry.isNew = entry.isNew && v.Outcome != wire.Allow
		if isOnly {
			entry.onlyVerdict = stored
		}
	}
	return true
}

// findBucket returns the index of a device's bucket.
func (t *verdictTable) findBucket(device string) uint32 {
	index, _ := t.keys.Device(device, uint32(len(t.buckets)))
	return index
}

// isUpToDate reports whether the stored verdict and its device's entry already have everything in v, and need no
// refresh yet.
func (k *verdictBucket) isUpToDate(stored *verdict, v *wire.Verdict, isOnly bool, nowMS int64) bool {
	if stored.Outcome != v.Outcome || stored.Permissions != v.Permissions || stored.NotAfterMS != v.NotAfterMS ||
		v.Outcome == wire.Allow && nowMS >= stored.RefreshAfterMS {
		return false
	}
	entry := k.findEntry(stored.device)
	return entry == nil || (entry.onlyVerdict == stored) == isOnly && !(entry.isNew && v.Outcome == wire.Allow)
}

// DropVerdicts removes all verdicts on device.
func (m *Memory) DropVerdicts(device string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	index := m.verdicts.findBucket(device)
	found := m.verdicts.removeMatching(index, func(v *verdict) bool { return v.device == device })
	for _, o := range m.all {
		o.markDropped(index, found)
	}
	m.wakeIf(found)
}

// makeVerdictRoom evicts verdicts until the bucket has room for v.
func (t *verdictTable) makeVerdictRoom(index uint32, v *wire.Verdict) {
	outcome := v.Outcome
	if outcome != wire.Allow {
		if oldest, count := t.buckets[index].firstToExpire(outcome); count >= maxDenies {
			t.evictVerdict(oldest)
		}
		return
	}
	if oldest, count := t.buckets[index].firstToExpire(outcome); count >= maxAllows {
		t.evictVerdict(oldest)
	}
	// The table is full, so some bucket near the cursor has an allow. Evicting the first to expire there is good
	// enough, since all allows have about the same lifetime.
	for t.allows >= t.maxAllows {
		if oldest, count := t.buckets[t.cursor].firstToExpire(outcome); count > 0 {
			t.evictVerdict(oldest)
		}
		t.advanceCursor()
	}
	for n := longNames(v); n > 0 && t.long > 0 && t.long+n > shortNames*t.maxAllows; t.advanceCursor() {
		t.removeMatching(t.cursor, func(other *verdict) bool {
			isLong := longNames(&other.Verdict) > 0
			if isLong {
				t.evicted++
			}
			return isLong
		})
	}
}

// longNames returns the length of v's permission names if they are long, otherwise 0.
func longNames(v *wire.Verdict) int {
	if n := len(v.Permissions); n > shortNames {
		return n
	}
	return 0
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

func (t *verdictTable) advanceCursor() { t.cursor = (t.cursor + 1) % uint32(len(t.buckets)) }

func (t *verdictTable) evictVerdict(v *verdict) {
	t.removeVerdict(v)
	t.evicted++
}

func (t *verdictTable) addVerdict(v *verdict) {
	t.buckets[v.bucket].verdicts = append(t.buckets[v.bucket].verdicts, v)
	t.queueBucket(v.bucket)
	t.long += longNames(&v.Verdict)
	if v.Outcome == wire.Allow {
		t.allows++
	} else {
		t.denies++
	}
}

func (t *verdictTable) removeVerdict(v *verdict) {
	k := &t.buckets[v.bucket]
	k.verdicts = shrink.Slice(slices.DeleteFunc(k.verdicts, func(other *verdict) bool { return other == v }))
	if entry := k.findEntry(v.device); entry != nil && entry.onlyVerdict == v {
		entry.onlyVerdict = nil // opens the entry
	}
	t.queueBucket(v.bucket)
	t.long -= longNames(&v.Verdict)
	if v.Outcome == wire.Allow {
		t.allows--
	} else {
		t.denies--
	}
}

// removeExpired removes a bucket's expired verdicts, and reports whether there were any.
func (t *verdictTable) removeExpired(index uint32, nowMS int64) bool {
	return t.removeMatching(index, func(v *verdict) bool {
		return v.ExpiresMS <= nowMS && (v.keepUntilMS <= nowMS || 2*t.allows > t.maxAllows)
	})
}

// removeMatching removes a bucket's verdicts for which matches returns true, and reports whether any matched.
func (t *verdictTable) removeMatching(index uint32, matches func(*verdict) bool) (found bool) {
	for i := 0; i < len(t.buckets[index].verdicts); {
		if v := t.buckets[index].verdicts[i]; matches(v) {
			t.removeVerdict(v)
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
	m.wakeIf(m.verdicts.sweep())
}

// sweep removes the expired verdicts in the next part of the table, and reports whether there were any.
func (t *verdictTable) sweep() (found bool) {
	now := time.Now().UnixMilli()
	for range len(t.buckets)/sweepParts + 1 {
		found = t.removeExpired(t.cursor, now) || found
		t.advanceCursor()
	}
	return found
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

// takeVerdicts adds changed buckets of verdicts, and leaves room for objects.
func (o *outbox) takeVerdicts(b *batch) {
	o.dirtyVerdicts.popWhile(func(index uint32) bool { return b.ops < maxVerdictOps && o.takeVerdictBucket(b, index) })
}

// takeVerdictBucket adds a bucket of verdicts and reports whether the record fits.
func (o *outbox) takeVerdictBucket(b *batch, index uint32) bool {
	t := &o.verdicts
	k := &t.buckets[index]
	t.removeExpired(index, time.Now().UnixMilli())
	if len(k.verdicts) == 0 && len(k.devices) == 0 && !o.writtenVerdicts.has(index) {
		delete(o.dropped, index)
		return true
	}
	if !b.hasRoom(k.recordSize()) {
		return false
	}
	b.addRecord(wire.RegionVerdicts, index, func(dst []byte) []byte { return t.appendRecord(dst, k, o.epoch) })
	o.writtenVerdicts.set(index)
	if _, found := o.dropped[index]; found {
		o.dropped[index] = true
	}
	return true
}
