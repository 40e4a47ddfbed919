package edgemem

import (
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// View reads an edge's memory as the edge does, to explain the edge's answers: the state that the edge acknowledged
// last, and the records of the target state. A View belongs to one goroutine.
type View struct {
	e      *Edge
	bucket uint32 // the bucket of objects read last, for Body
}

// View returns a View of the edge.
func (e *Edge) View() *View { return &View{e: e} }

// View returns a View of an edge that is attached, if there is one.
func (m *Memory) View() *View {
	m.mu.Lock()
	defer m.mu.Unlock()
	shown := m.newOutbox() // for a memory without edges
	for _, o := range m.all {
		if shown = o; o.attached {
			break
		}
	}
	return &View{e: &Edge{m: m, outbox: shown}}
}

// State returns the state that the edge acknowledged last; Epoch is 0 before the first acknowledgement.
func (v *View) State() wire.State {
	v.e.m.mu.Lock()
	defer v.e.m.mu.Unlock()
	return v.e.outbox.ackedState
}

// Record returns a record of the target state, nil if the index is out of range.
func (v *View) Record(region wire.Region, index uint32) []byte {
	m := v.e.m
	v.e.m.mu.Lock()
	defer v.e.m.mu.Unlock()
	epoch := v.e.outbox.epoch
	switch {
	case region == wire.RegionObjects && int(index) < len(m.objects.buckets):
		v.bucket = index
		return m.objects.buckets[index].appendRecord(nil, epoch)
	case region == wire.RegionVerdicts && int(index) < len(m.verdicts.buckets):
		return m.verdicts.appendRecord(nil, &m.verdicts.buckets[index], epoch)
	}
	return nil
}

// Body returns the bytes of a variant in the bucket that was read last, nil if the body was replaced meanwhile. The
// bytes belong to the memory.
func (v *View) Body(at wire.Variant) []byte {
	v.e.m.mu.Lock()
	defer v.e.m.mu.Unlock()
	for _, e := range v.e.m.objects.buckets[v.bucket].entries {
		for i, body := range e.bodies {
			if body.stamp == at.Stamp {
				return e.Bodies[i].Bytes
			}
		}
	}
	return nil
}

// ObjectInfo describes the object at a canonical key.
type ObjectInfo struct {
	Version     uint64
	PublishedMS int64
	// Pending: an edge has not acknowledged this version, or the object's removal, yet.
	Pending bool
	// Headers are the publisher's.
	Headers contract.Headers
}

// DescribeObject returns what the edge has at a canonical key, or will have; version 0 is no object.
func (m *Memory) DescribeObject(key string) (at ObjectInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.objects.entries[key]; e != nil {
		at.Version, at.PublishedMS, at.Headers = e.Version, e.PublishedMS, e.Headers
	}
	for _, o := range m.all {
		at.Pending = at.Pending || o.lacksNewest(key)
	}
	return at
}

// DeviceInfo describes a device.
type DeviceInfo struct {
	Listed bool // the edge knows that it is registered
	New    bool // it never authenticated
	Allows int
	Denies int
}

// DescribeDevice returns what the edge has about a device, or will have.
func (m *Memory) DescribeDevice(id string) (at DeviceInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	index, entry := m.verdicts.findDevice(id)
	k := &m.verdicts.buckets[index]
	if entry >= 0 {
		at.Listed, at.New = true, k.devices[entry].isNew
	}
	now := time.Now().UnixMilli()
	for _, v := range k.verdicts {
		switch {
		case v.device != id || v.ExpiresMS <= now:
		case v.Outcome == wire.Allow:
			at.Allows++
		default:
			at.Denies++
		}
	}
	return at
}
