package edgemem

import (
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// View reads the memory in the edge's way, to explain its answers: the state that the edge acknowledged last, and the
// records of the target state. It is for one goroutine.
type View struct {
	m      *Memory
	bucket uint32 // last bucket of objects that was read, whose bodies Body returns
}

// View returns a View.
func (m *Memory) View() *View { return &View{m: m} }

// State returns the state that the edge acknowledged last; its Epoch is 0 before there is one.
func (v *View) State() wire.State {
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	s := v.m.ackedState
	s.Permissions = slices.Clone(s.Permissions)
	return s
}

// Record returns the record at a place of the target state, nil if there is no such place.
func (v *View) Record(region wire.Region, index uint32) []byte {
	m := v.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case region == wire.RegionObjects && int(index) < len(m.buckets):
		v.bucket = index
		return m.buckets[index].append(nil, m.epoch)
	case region == wire.RegionVerdicts && int(index) < len(m.verdicts.buckets):
		return m.appendVerdicts(nil, &m.verdicts.buckets[index])
	}
	return nil
}

// Body returns the bytes of a variant in the bucket that was read last, nil if it has another body by now. They belong
// to the memory.
func (v *View) Body(at wire.Variant) []byte {
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	for _, e := range v.m.buckets[v.bucket].entries {
		for i, body := range e.bodies {
			if body.stamp == at.Stamp {
				return e.Bodies[i].Bytes
			}
		}
	}
	return nil
}

// ObjectAt describes the object at a canonical key.
type ObjectAt struct {
	Version     uint64
	PublishedMS int64
	// Pending: the edge has not acknowledged this version, or the object's removal, yet.
	Pending bool
	// Headers are the publisher's.
	Headers contract.Headers
}

// Object returns what the edge has at a canonical key, or will have; version 0 is no object.
func (m *Memory) Object(key string) (at ObjectAt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.objects[key]; e != nil {
		at.Version, at.PublishedMS, at.Headers = e.Version, e.PublishedMS, e.Headers
	}
	index, _ := m.keys.Place(key, uint32(len(m.buckets)))
	at.Pending = m.acked.epoch != m.epoch || m.dirty.queued[index] || m.buckets[index].batch > m.ackedBatch
	return at
}

// DeviceAt describes a device.
type DeviceAt struct {
	Listed bool // the edge knows that it is registered
	New    bool // it never authenticated
	Allows int
	Denies int
}

// Device returns what the edge has about a device, or will have.
func (m *Memory) Device(id string) (at DeviceAt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	index, entry := m.findDevice(id)
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
