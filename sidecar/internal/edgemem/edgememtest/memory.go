// Package edgememtest is an edge's memory for tests: it applies batches and looks up records as the edge does.
package edgememtest

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// Memory is the shared memory of a proxy, safe for concurrent use.
type Memory struct {
	// AfterOp, if set, is called between any two operations with the memory locked. AfterOp may call the methods whose
	// names begin with Locked.
	AfterOp func()

	mu      sync.Mutex
	records map[string][]byte
}

// NewMemory returns the memory of a freshly started proxy.
func NewMemory() *Memory { return &Memory{records: make(map[string][]byte)} }

// Apply implements POST /v1/apply, and returns the status and body of the response.
func (m *Memory) Apply(body []byte) (status int, answer []byte) {
	batch, err := wire.ParseBatch(body)
	if err != nil {
		return http.StatusBadRequest, []byte(err.Error())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if state, _ := m.LockedState(); state.Epoch != batch.Replaces {
		return http.StatusConflict, m.findRecord(wire.RegionState, 0)
	}
	for op := range batch.Ops() {
		m.records[recordKey(op.Region, op.Index)] = append([]byte(nil), op.Record...)
		if m.AfterOp != nil {
			m.AfterOp()
		}
	}
	return http.StatusOK, m.findRecord(wire.RegionState, 0)
}

func recordKey(region wire.Region, index uint32) string {
	return string(wire.AppendPlace(nil, region, index))
}

func (m *Memory) findRecord(region wire.Region, index uint32) []byte {
	return m.records[recordKey(region, index)]
}

// Forget empties the memory, like a restart of the proxy.
func (m *Memory) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.records)
}

// Size returns the number of records, and their bytes beyond the minimum.
func (m *Memory) Size() (records, excess int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, record := range m.records {
		excess += len(record) - wire.MinRecord
	}
	return len(m.records), excess
}

// State returns the state record.
func (m *Memory) State() (wire.State, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.LockedState()
}

// LockedState is State for AfterOp.
func (m *Memory) LockedState() (wire.State, bool) {
	record := m.findRecord(wire.RegionState, 0)
	if record == nil {
		return wire.State{}, false
	}
	state, err := wire.ParseState(record)
	if err != nil {
		panic(fmt.Sprintf("the memory holds a bad state: %v", err))
	}
	return state, true
}

// Found is an object with its bodies.
type Found struct {
	wire.Object
	Bodies [][]byte // in the order of Variants
}

// ErrTorn means that a body of an entry is missing.
var ErrTorn = errors.New("an entry names a body that does not exist")

// Object looks an object up as the edge does.
func (m *Memory) Object(key string) (Found, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.LockedObject(key)
}

// LockedObject is Object for AfterOp.
func (m *Memory) LockedObject(key string) (Found, error) {
	state, found := m.LockedState()
	if !found {
		return Found{}, wire.ErrNotFound
	}
	return m.LockedObjectBy(&state, key)
}

// LockedObjectBy is LockedObject for a worker with this state.
func (m *Memory) LockedObjectBy(state *wire.State, key string) (Found, error) {
	bucket, tag := state.Keys.Place(key, state.ObjectBuckets)
	o, err := wire.FindObject(m.findRecord(wire.RegionObjects, bucket), state.Epoch, tag, key)
	if errors.Is(err, wire.ErrEpoch) {
		err = wire.ErrNotFound
	}
	for _, p := range state.Purges {
		if err == nil && p.Concerns(&o) {
			if o.Stale = true; !p.Soft {
				err = wire.ErrNotFound
			}
		}
	}
	if err != nil {
		return Found{}, err
	}
	f := Found{Object: o}
	for _, v := range o.Variants() {
		body, err := wire.FindBody(m.findRecord(wire.RegionBodies, v.Slot), state.Epoch, v)
		if err != nil {
			return f, fmt.Errorf("%w: %q version %d, %s in slot %d: %w", ErrTorn, key, o.Version, v.Encoding, v.Slot, err)
		}
		f.Bodies = append(f.Bodies, body)
	}
	return f, nil
}

// Verdict looks a verdict up as the edge does, but also returns expired verdicts.
func (m *Memory) Verdict(device, secret string) (wire.Verdict, error) {
	return m.findVerdict(device, func(k *wire.Keys) wire.Digest { return k.Digest(device, secret) })
}

// Session looks up the verdict on a token's session in the same way.
func (m *Memory) Session(device, session string) (wire.Verdict, error) {
	return m.findVerdict(device, func(k *wire.Keys) wire.Digest { return k.SessionDigest(device, session) })
}

func (m *Memory) findVerdict(device string, digest func(*wire.Keys) wire.Digest) (wire.Verdict, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, found := m.LockedState()
	if !found {
		return wire.Verdict{}, wire.ErrNotFound
	}
	v, status := m.findCredential(&state, device, digest(&state.Keys))
	if status != wire.Found {
		return v, wire.ErrNotFound
	}
	return v, nil
}

// Status returns the status of a credential, and whether the list of devices is complete.
func (m *Memory) Status(device, secret string) (status wire.CredentialStatus, complete bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, found := m.LockedState()
	if !found {
		return wire.Unreadable, false
	}
	_, status = m.LockedCredentialBy(&state, device, secret)
	return status, state.DevicesComplete
}

// LockedCredentialBy returns, for AfterOp, the verdict and status that a worker with this state finds for a credential.
func (m *Memory) LockedCredentialBy(state *wire.State, device, secret string) (wire.Verdict, wire.CredentialStatus) {
	return m.findCredential(state, device, state.Keys.Digest(device, secret))
}

func (m *Memory) findCredential(state *wire.State, device string, d wire.Digest) (wire.Verdict, wire.CredentialStatus) {
	bucket, tag := state.Keys.Device(device, state.VerdictBuckets)
	v, status, err := wire.FindVerdict(m.findRecord(wire.RegionVerdicts, bucket), state.Epoch, &d, tag)
	if err != nil && !errors.Is(err, wire.ErrEpoch) && !errors.Is(err, wire.ErrNotFound) {
		panic(fmt.Sprintf("the memory holds a bad record: %v", err))
	}
	return v, status
}
