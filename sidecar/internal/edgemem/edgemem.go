// Package edgemem is the target state of the shared memory of edges, and tracks which parts each edge lacks. The
// package owns placement: the bucket of an object, the slot of a body. All edges have the same placement; what an edge
// has of it, and the edge's epoch, is the edge's own. Readers and the transport of batches are independent of the
// package.
//
// # Order of writes
//
// A body is written before the bucket that names the body. A slot that a bucket still names is never written: the
// bodies of a new version go to other slots, and a slot that no bucket names any more is free only after the edge
// acknowledged the batch with the new bucket; with several edges, after all did. So between any two operations a reader
// finds one whole version of each object or nothing. A reader with an older copy of a bucket finds a slot with another
// stamp, which is a miss.
//
// The edge's workers read the state periodically, not for each request, so in a new epoch some workers still use the
// old one. Before any bucket of the new epoch is written, all buckets of the old epoch are blanked, verdicts first.
// Otherwise a worker could serve a version after another worker has served a newer version, or authenticate a device
// that was revoked while no sidecar ran. The state declares the list of devices complete only after the last device's
// entry.
package edgemem

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// meanEntries is the average number of entries in a bucket of a table filled to the configured size.
const meanEntries = 4

// maxTable bounds table sizes, ours and another sidecar's.
const maxTable = 1 << 24

// Config sets the sizes of the tables, which are fixed while the sidecar runs.
type Config struct {
	// Objects is the number of objects that the table is sized for. More fit, but make lookups slower.
	Objects int
	// Verdicts is the maximum number of allow verdicts, and of deny verdicts. Devices are limited to four times as
	// many.
	Verdicts int
	// Shards is the number of shards of Redis, each with its own order of writes.
	Shards contract.Shards
	// Propagation observes in seconds how long writes take, see [Memory.ApplyLive]; nil: nothing does.
	Propagation prometheus.Observer
}

// Memory is what all edges should have. It is safe for concurrent use. The methods of Memory and [Edge] lock it, and
// wake the pushers; the parts do the work.
type Memory struct {
	mu    sync.Mutex
	parts // +checklocks:mu
}

// parts are the parts of a memory, which one lock guards: a batch must be consistent over all of them.
type parts struct {
	keys        wire.Keys // placement
	objects     objectTable
	verdicts    verdictTable
	purges      purges
	edges       attached
	all         []*outbox // of all edges, attached or not
	propagation prometheus.Observer
	inStepMS    int64  // when the memory last had everything of Redis, unix ms
	changes     uint64 // number of changes, see wakeIf
}

// New returns an empty memory without edges.
func New(c Config) *Memory {
	m := &Memory{}
	p := &m.parts
	rand.Read(p.keys.Placement[:]) // never fails
	rand.Read(p.keys.Credential[:])
	p.objects = newObjectTable(&p.keys, &p.edges, tableSize(c.Objects), c.Shards)
	p.verdicts = newVerdictTable(&p.keys, &p.edges, tableSize(c.Verdicts), max(c.Verdicts, 1))
	p.purges.running = make(map[purgeID]map[int]*shardPurge)
	if p.propagation = c.Propagation; p.propagation == nil {
		p.propagation = prometheus.ObserverFunc(func(float64) {})
	}
	return m
}

func tableSize(entries int) int {
	return min(max((entries+meanEntries-1)/meanEntries, 1), maxTable)
}

// drawEpoch returns a random epoch, never 0.
func drawEpoch() (epoch uint64) {
	var b [8]byte
	for epoch == 0 {
		rand.Read(b[:]) // never fails
		epoch = binary.LittleEndian.Uint64(b[:])
	}
	return epoch
}

// wakeIf wakes the pushers if something has changed.
// +checklocks:m.mu
func (m *Memory) wakeIf(changed bool) {
	if !changed {
		return
	}
	m.changes++
	for _, o := range m.all {
		select {
		case o.wake <- struct{}{}:
		default: // the channel has a value already
		}
	}
}

// SetInStep records that at t, a time before the call, the memory had everything of Redis.
func (m *Memory) SetInStep(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inStepMS = t.UnixMilli()
	for _, o := range m.edges {
		o.setInStep()
	}
}
