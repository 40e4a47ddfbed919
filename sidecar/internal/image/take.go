package image

import (
	"context"
	"time"

	"github.com/gatehouse/gatehouse/wire"
)

// Taken says what a batch is.
type Taken struct {
	// Ops is how many operations it has.
	Ops int
	// Takeover is set in the first batch of an epoch.
	Takeover bool
	// Drained says that the edge will hold all of the image once it has applied the batch.
	Drained bool
	// More says that another batch is worth sending at once.
	More bool
	// Renew says that the image waits for a new epoch: call [Image.Reset].
	Renew bool
}

// sentState is what a state record told the edge, as far as another record must follow when it changes.
type sentState struct {
	epoch       uint64
	permissions int  // how many names
	slots       int  // how many slots may be filled
	superseded  bool // objects and verdicts of an earlier epoch may still be found
	devices     bool // every device is listed
}

// inStepTimes are times at which this memory was in step with its source. The edge may be told of one
// as soon as all that waited at that time was taken, which under steady load is earlier than when
// nothing waits.
type inStepTimes struct {
	tellableMS        int64 // the edge may be told this one
	waitingMS         int64 // that one not yet; 0: none waits
	objects, verdicts uint64
}

type indexRange struct {
	region    wire.Region
	next, end uint32
}

func (r *indexRange) empty() bool { return r.next >= r.end }

// SetInStep records that the image held all that its source held at t, when t lies
// before the call.
func (m *Memory) SetInStep(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inStepMS = t.UnixMilli()
	if m.inStep.waitingMS == 0 {
		m.awaitLatest()
	}
}

// awaitLatest makes the latest time the one that waits, with what has to be taken before.
func (m *Memory) awaitLatest() {
	m.inStep.waitingMS, m.inStep.objects, m.inStep.verdicts = m.inStepMS, m.dirty.pushed, m.verdicts.dirty.pushed
}

// advanceInStep moves the time that the edge may be told, in the batch that is being taken.
func (m *Memory) advanceInStep(drained bool) {
	c := &m.inStep
	switch {
	case drained:
		c.tellableMS, c.waitingMS = m.inStepMS, 0
	case c.waitingMS != 0 && len(m.superseded) == 0 && m.dirty.popped >= c.objects && m.verdicts.dirty.popped >= c.verdicts:
		c.tellableMS, c.waitingMS = c.waitingMS, 0
		if m.inStepMS != c.tellableMS {
			m.awaitLatest()
		}
	}
}

// Take writes the next batch over dst, a buffer of the caller's: the bodies and buckets
// that changed, then the state. It counts as sent from now on, so the caller must
// deliver it and call [Memory.Acked], or call [Memory.Reset].
func (m *Memory) Take(dst []byte) ([]byte, Taken) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.batch++
	b := batch{bytes: wire.BeginBatch(dst[:0], m.epoch, m.replaces)}
	t := Taken{Takeover: m.replaces != m.epoch}
	// The edge must know of slots before they are filled, and of permission names before
	// verdicts that have their bits.
	if t.Takeover || m.taken != m.stateToSend() {
		m.takeState(&b, now)
	}
	m.replaces = m.epoch
	if m.takeSuperseded(&b) {
		m.takeDirty(&b)
	}
	t.Drained = len(m.superseded) == 0 && m.dirty.len() == 0 && m.verdicts.dirty.len() == 0
	m.advanceInStep(t.Drained)
	m.updateComplete()
	if t.Drained {
		m.takeBlanks(&b, now)
	}
	m.takeState(&b, now)
	_, due := m.slots.nextBlank(now)
	t.Renew = m.permissions.due(now)
	t.Ops, t.More = b.ops, !t.Drained || due || len(m.blanks) > 0
	return b.bytes, t
}

// takeDirty adds buckets that have changed, those of verdicts first: but for a batch behind one that
// had no room left for any object, as a body over the bound finds none while verdicts keep changing.
func (m *Memory) takeDirty(b *batch) {
	if m.crowdedOut {
		m.takeDirtyObjects(b)
	}
	for b.ops < maxVerdictOps {
		index, found := m.verdicts.dirty.front()
		if !found || !m.takeVerdicts(b, index) {
			break
		}
		m.verdicts.dirty.pop()
	}
	if m.crowdedOut {
		m.crowdedOut = false
		return
	}
	before := b.records
	m.takeDirtyObjects(b)
	m.crowdedOut = m.dirty.len() > 0 && b.records == before //mutant:TestBodyOverTheBoundIsNotCrowdedOut false
}

func (m *Memory) takeDirtyObjects(b *batch) {
	for {
		index, found := m.dirty.front()
		if !found || !m.takeBucket(b, index) {
			break
		}
		m.dirty.pop()
	}
}

// Acked says that the edge has applied all batches taken so far.
func (m *Memory) Acked() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, slot := range m.freed {
		m.slots.release(slot)
	}
	m.freed = m.freed[:0]
	m.acked, m.ackedBatch = m.taken, m.batch
	close(m.ackedMore)
	m.ackedMore = make(chan struct{})
}

// Reset begins a new epoch, of which the edge holds nothing, and makes everything
// dirty. before is the state that the memory holds, nil if it holds none: what lies
// there and is not used again will be blanked. Verdicts are dropped, because their
// digests were made with the old epoch's key.
func (m *Memory) Reset(before *wire.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin()
	m.permissions.renew(time.Now())
	m.taken, m.freed, m.crowdedOut = sentState{}, nil, false
	// What is written from now on is at least as new as what the image holds now.
	m.inStep = inStepTimes{tellableMS: m.inStepMS}
	var earlier wire.State
	if before != nil {
		earlier = *before
	}
	m.replaces = earlier.Epoch
	filled := min(earlier.BodySlots, maxTable)
	// Our own empty buckets are written as well: what a bucket costs the proxy is spent at
	// once, and no traffic can make its memory grow by keys any more.
	objects := min(earlier.ObjectBuckets, maxTable)
	verdicts := min(earlier.VerdictBuckets, maxTable)
	m.superseded = []indexRange{
		indexRange{wire.RegionVerdicts, 0, verdicts}, //mutant:TestNewEpochHidesOldVersions indexRange{}
		indexRange{wire.RegionObjects, 0, objects},   //mutant:TestNewEpochHidesOldVersions indexRange{}
	}
	m.blanks = []indexRange{
		{wire.RegionObjects, objects, max(objects, uint32(len(m.buckets)))},
		{wire.RegionVerdicts, verdicts, max(verdicts, uint32(len(m.verdicts.buckets)))},
	}
	m.slots.restart(filled)
	m.dirty.clear()
	clear(m.buckets)
	m.resetVerdicts()
	for _, e := range m.objects {
		for i := range e.bodies {
			e.bodies[i].slot, e.bodies[i].written = m.slots.take(), false
		}
		m.place(e)
	}
	m.notify()
}

func (m *Memory) stateToSend() sentState {
	return sentState{m.epoch, len(m.permissions.names), len(m.slots.filled), len(m.superseded) > 0, m.verdicts.devices.complete}
}

// AwaitObject waits while the edge may still find an older version of the object at key
// than the image has, or returns ctx's error. Who answers for the edge calls it before
// they give the image's version away: else the next reader may find the older one.
func (m *Memory) AwaitObject(ctx context.Context, key string) error {
	return m.await(ctx, func() bool { return m.current(key) })
}

// AwaitTakeover waits while a worker of the edge may still go by records of an earlier epoch
// although this one has begun there, or returns ctx's error.
func (m *Memory) AwaitTakeover(ctx context.Context) error { return m.await(ctx, m.takenOver) }

// await waits until the edge has acknowledged what makes done true; mu is held while that runs.
func (m *Memory) await(ctx context.Context, done func() bool) error {
	for {
		m.mu.Lock()
		over, more := done(), m.ackedMore
		m.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// current reports whether nobody can find an older version of the object at key. A bucket
// that is not in the edge's memory yet holds no version.
func (m *Memory) current(key string) bool {
	if m.taken.epoch != m.epoch {
		return true // nothing of this epoch was sent, so nobody knows more than the old one says
	}
	if !m.takenOver() {
		return false
	}
	index, _ := m.keys.Place(key, uint32(len(m.buckets)))
	b := &m.buckets[index]
	return b.batch <= m.ackedBatch && !(b.listing && m.dirty.queued[index])
}

// takenOver reports whether no worker looks in an earlier epoch's buckets any more, or all still do.
func (m *Memory) takenOver() bool {
	return m.taken.epoch != m.epoch || m.acked.epoch == m.epoch && !m.acked.superseded
}

// Await waits until the edge holds a state of the current epoch that names all the
// permissions in bits, and returns that epoch; or the current epoch and ctx's error.
func (m *Memory) Await(ctx context.Context, bits uint64) (epoch uint64, err error) {
	err = m.await(ctx, func() bool {
		epoch = m.epoch
		return m.acked.epoch == epoch &&
			bits>>m.acked.permissions == 0 //mutant:TestAwait true
	})
	return epoch, err
}
