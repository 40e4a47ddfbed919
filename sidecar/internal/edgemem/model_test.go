package edgemem_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
)

// TestModel makes random changes to a target with one to three edges, and to the memories of the edges, which get
// batches at different times, or none for a while. Between any two operations each object of the epoch is found whole,
// in a version that exists and is not older than before, or not, if it is purged; what is put after a purge is found
// until it changes; a verdict has the permission names that it was put with; at rest each memory equals the target.
func TestModel(t *testing.T) {
	seeds := uint64(16)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel(t, rand.New(rand.NewPCG(seed, 1)))
				for range 400 {
					m.step()
				}
				m.finish()
			})
		})
	}
}

const (
	modelKeys   = 24
	modelShards = contract.Shards(3)
)

// model is a target, and what the target should have.
type model struct {
	*testing.T
	r      *rand.Rand
	target *edgemem.Memory
	edges  []*modelEdge
	size   int // of bodies, approximately

	want    map[int]uint64    // versions that the target should have
	last    [modelKeys]uint64 // last versions assigned
	device  [modelKeys]bool   // is listed
	names   [modelKeys]int    // number of the permission names of the last verdict
	crowded bool              // a device was not listed
	purging []*modelPurge     // that have not ended
}

// modelEdge is an edge with its memory, and what the memory should have.
type modelEdge struct {
	*model
	edge
	memory   *edgememtest.Memory
	detached bool

	seen    [modelKeys]uint64 // versions that the reader saw
	gone    [modelKeys]uint64 // newest version whose deletion was acknowledged
	kept    [modelKeys]uint64 // version that the memory has until it changes; 0: none
	named   [modelKeys]int    // number of the permission names that the reader saw
	listed  [modelKeys]bool   // in the list, and the memory must have it when the list is complete
	purging []*edgePurge      // that the memory may know
	checked map[*byte]bool    // first bytes of bodies: the memory never changes one in place
}

func newModel(t *testing.T, r *rand.Rand) *model {
	m := &model{
		T: t, r: r, target: edgemem.New(edgemem.Config{Objects: 1 + r.IntN(modelKeys), Verdicts: 1 + r.IntN(64),
			Shards: modelShards}),
		size: []int{10, 1500, 20000}[r.IntN(3)], want: map[int]uint64{},
	}
	for range 1 + r.IntN(3) {
		e := &modelEdge{model: m, edge: edge{m.target, m.target.AddEdge()}, memory: edgememtest.NewMemory(),
			checked: map[*byte]bool{}}
		e.Reset(nil)
		e.memory.AfterOp = e.read
		m.edges = append(m.edges, e)
	}
	m.target.SetDevicesComplete()
	return m
}

func (m *model) key(i int) string { return fmt.Sprintf("/k/%d", i) }

// read looks everything up, as a reader might do between any two operations.
func (m *modelEdge) read() {
	for i := range modelKeys {
		f, err := m.memory.LockedObject(m.key(i))
		if errors.Is(err, wire.ErrNotFound) && !errors.Is(err, edgememtest.ErrTorn) {
			if m.kept[i] != 0 && !m.purged(func(p *edgePurge) bool { return m.kept[i] <= p.of[i] }) {
				m.Fatalf("%q: version %d isn't found, and nothing purges it", m.key(i), m.kept[i])
			}
			continue
		}
		if err == nil && !m.checked[&f.Bodies[0][0]] {
			m.checked[&f.Bodies[0][0]] = true
			err = check(f, m.key(i), m.size)
		}
		if err == nil && (f.Version < m.seen[i] || f.Version <= m.gone[i]) {
			err = fmt.Errorf("%q: version %d after %d, deleted up to %d", m.key(i), f.Version, m.seen[i], m.gone[i])
		}
		if err == nil && m.purged(func(p *edgePurge) bool { return p.acked && p.tagged(i) && f.Version <= p.of[i] }) {
			err = fmt.Errorf("%q: version %d is being purged", m.key(i), f.Version)
		}
		if err != nil {
			m.Fatal(err)
		}
		m.seen[i] = f.Version
	}
	m.readDevices()
}

// readDevices checks that an entry is closed only beside the verdict that closed the entry, and that a complete list in
// the state has all devices.
func (m *modelEdge) readDevices() {
	state, found := m.memory.LockedState()
	for i := range modelKeys {
		if !found {
			return
		}
		verdict, right := m.memory.LockedCredentialBy(&state, m.key(i), "secret")
		if right == wire.Found {
			m.readNames(i, verdict.Permissions)
		}
		_, wrong := m.memory.LockedCredentialBy(&state, m.key(i), "wrong")
		if wrong == wire.Closed && right != wire.Found {
			m.Fatalf("%q: closed, and the right secret's status is %d", m.key(i), right)
		}
		if state.DevicesComplete && m.listed[i] && wrong != wire.Registered && wrong != wire.New && wrong != wire.Closed {
			m.Fatalf("%q: status %d although the state says that all devices are listed", m.key(i), wrong)
		}
	}
}

// modelNames returns permission names, short or long.
func modelNames(i, number int) string {
	return strings.Repeat(fmt.Sprintf("%d:%d,", i, number), 1+(i+number)%14)
}

// readNames checks a verdict's permission names.
func (m *modelEdge) readNames(i int, names string) {
	number := m.named[i]
	_, after, _ := strings.Cut(names, ":")
	_, _ = fmt.Sscan(after, &number)
	if number < m.named[i] || number > m.names[i] || names != modelNames(i, number) {
		m.Fatalf("%q: permissions %q after number %d", m.key(i), names, m.named[i])
	}
	m.named[i] = number
}

// step changes the target, the memory or the time, or delivers a batch.
func (m *model) step() {
	i := m.r.IntN(modelKeys)
	expires := time.Now().Add(time.Second).UnixMilli()
	e := m.edges[m.r.IntN(len(m.edges))]
	switch m.r.IntN(14 + len(m.edges)) {
	case 0, 1, 2, 3:
		m.put(i)
	case 4:
		m.delete(i)
	case 13:
		m.purge()
	case 5:
		outcome := wire.Outcome(1 + m.r.IntN(2))
		m.names[i]++
		m.target.PutVerdict(m.key(i), "secret", wire.Verdict{Outcome: outcome, ExpiresMS: expires,
			Permissions: modelNames(i, m.names[i])}, outcome == wire.Allow)
	case 6:
		m.target.DropVerdicts(m.key(i))
	case 7:
		if m.r.IntN(4) == 0 {
			m.target.DropDevice(m.key(i))
			m.device[i] = false
			for _, e := range m.edges {
				e.listed[i] = false
			}
		} else if m.target.PutDevice(m.key(i), m.r.IntN(2) == 0) != nil {
			m.crowded = true
		} else {
			m.device[i] = true
		}
	case 8:
		time.Sleep(time.Duration(m.r.IntN(800)) * time.Millisecond)
	case 9:
		if m.r.IntN(10) == 0 {
			e.memory.Forget()
			e.kept = [modelKeys]uint64{}
		}
	default:
		e.deliver()
	}
}

// changed records that the object changes, at each edge at a time of its own.
func (m *model) changed(i int) {
	for _, e := range m.edges {
		e.kept[i] = 0
	}
}

// deliver applies a batch to the memory; sometimes the batch or its answer is lost.
func (m *modelEdge) deliver() {
	batch, taken := m.TakeBatch(nil)
	if len(batch) > 320<<10 || taken.Ops > 514 {
		m.Fatalf("batch of %d bytes, %d operations", len(batch), taken.Ops)
	}
	fate := m.r.IntN(12)
	if fate == 0 {
		m.Detach()
		m.detached = true
		for range m.r.IntN(20) {
			m.stepOthers()
		}
		m.reset()
		return
	}
	status, answer := m.memory.Apply(batch)
	if status != http.StatusOK && status != http.StatusConflict {
		m.Fatalf("apply: %d %s", status, answer)
	}
	if status == http.StatusConflict || fate == 1 {
		m.reset()
		return
	}
	m.MarkAcked()
	for _, p := range m.purging {
		p.acked = true
	}
	if !taken.Drained {
		return
	}
	m.listed = m.device
	for i := range modelKeys {
		if m.kept[i] = m.want[i]; m.want[i] == 0 {
			m.gone[i] = m.last[i]
		}
	}
	m.purging = slices.DeleteFunc(m.purging, func(p *edgePurge) bool { return p.ended })
}

func (m *model) put(i int) {
	m.last[i]++
	m.want[i] = m.last[i]
	m.changed(i)
	o := object(m.key(i), m.last[i], m.size)
	o.Tags = []string{modelTags[i%len(modelTags)]}
	m.target.PutObject(&o)
}

func (m *model) delete(i int) {
	delete(m.want, i)
	m.changed(i)
	m.target.DeleteObject(m.key(i))
}

var modelTags = []string{"red", "green", "blue"}

// modelPurge is a purge of a tag in a shard.
type modelPurge struct {
	tag, shard int
	end        func()
	keys       []int             // still to remove
	of         [modelKeys]uint64 // versions in the shard at the beginning; the purge may hide each: tags share bits
	ended      bool
}

// edgePurge is a purge at an edge.
type edgePurge struct {
	*modelPurge
	acked bool // the edge knows the purge
}

func (p *modelPurge) tagged(i int) bool { return i%len(modelTags) == p.tag }

// purged reports whether does is true for a purge under way.
func (m *modelEdge) purged(does func(p *edgePurge) bool) bool {
	return slices.ContainsFunc(m.purging, does)
}

// purge begins a purge in a shard, or removes an object of a running purge, or ends a purge. From a purge's first batch
// on, the edge must find none of the purge's objects.
func (m *model) purge() {
	tag, shard := m.r.IntN(len(modelTags)), m.r.IntN(int(modelShards))
	at := slices.IndexFunc(m.purging, func(p *modelPurge) bool { return p.tag == tag && p.shard == shard && !p.ended })
	if at < 0 {
		p := &modelPurge{tag: tag, shard: shard, end: m.target.BeginPurge(shard, "#"+modelTags[tag], false)}
		for i, version := range m.want {
			if modelShards.Of(m.key(i)) != shard {
				continue
			}
			if p.of[i] = version; p.tagged(i) {
				p.keys = append(p.keys, i)
			}
		}
		m.purging = append(m.purging, p)
		for _, e := range m.edges {
			e.purging = append(e.purging, &edgePurge{modelPurge: p})
		}
		return
	}
	m.purging[at].step(m)
}

// step removes an object or ends the purge.
func (p *modelPurge) step(m *model) {
	if len(p.keys) == 0 {
		p.end()
		p.ended = true
		return
	}
	i := p.keys[0]
	if p.keys = p.keys[1:]; m.want[i] == p.of[i] {
		m.delete(i)
	}
}

// finish pushes everything, and compares.
func (m *model) finish() {
	for _, p := range m.purging {
		for !p.ended {
			p.step(m)
		}
	}
	for _, e := range m.edges {
		quiesce(m.T, e.edge, e.memory)
	}
	for _, e := range m.edges { // a body that all have released is free only now
		quiesce(m.T, e.edge, e.memory)
		e.compare()
	}
}

// compare compares the edge's memory with the target.
func (m *modelEdge) compare() {
	if state, _ := m.memory.State(); state.Epoch != m.Epoch() {
		m.Errorf("the memory is of epoch %x, want %x", state.Epoch, m.Epoch())
	}
	if state, _ := m.memory.State(); state.DevicesComplete == m.crowded {
		m.Errorf("got complete %v at the end, want %v", state.DevicesComplete, !m.crowded)
	}
	live := 0
	for i := range modelKeys {
		f, err := m.memory.Object(m.key(i))
		version, found := m.want[i]
		if found != (err == nil) || f.Version != version {
			m.Errorf("%q: found version %d, %v; want %d", m.key(i), f.Version, err, version)
		}
		for _, b := range f.Bodies {
			live += len(b)
		}
	}
	// There may only be entries, the state and padding besides.
	if records, excess := m.memory.Size(); excess > live+modelKeys*300+500 {
		m.Errorf("%d bytes in %d records for %d live ones: free slots or old buckets were not blanked", excess, records, live)
	}
}

func (m *modelEdge) reset() {
	reset(m.edge, m.memory)
	m.detached = false
	m.kept = [modelKeys]uint64{}
	m.listed = m.device
}

// stepOthers changes the target, or delivers a batch to an edge that is attached.
func (m *model) stepOthers() {
	switch other := m.edges[m.r.IntN(len(m.edges))]; {
	case m.r.IntN(2) == 0:
		i := m.r.IntN(modelKeys)
		if m.r.IntN(3) == 0 {
			m.delete(i)
			return
		}
		m.put(i)
	case !other.detached:
		other.deliver()
	}
}

// reset does what the pusher does after a failure.
func reset(m edge, memory *edgememtest.Memory) {
	if state, found := memory.State(); found {
		m.Reset(&state)
		return
	}
	m.Reset(nil)
}

// quiesce pushes without failures until nothing is left, blanks included.
func quiesce(t *testing.T, m edge, memory *edgememtest.Memory) {
	t.Helper()
	batch, _ := m.TakeBatch(nil)
	if status, _ := memory.Apply(batch); status != http.StatusOK {
		reset(m, memory)
	} else {
		m.MarkAcked()
	}
	push(t, m, memory)
	time.Sleep(2 * time.Second)
	push(t, m, memory)
}
