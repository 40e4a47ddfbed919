package image

import (
	"fmt"
	"slices"

	"github.com/gatehouse/gatehouse/wire"
)

// meanDevices is how many devices a bucket of verdicts lists on average, at most: more
// would make each lookup read more than a device's own verdicts are worth.
const meanDevices = 16

// devices says how many registered devices the buckets list. By them the edge tells what it can refuse
// by itself. They outlive an epoch.
type devices struct {
	count   int
	crowded bool // some are not listed
	known   bool // all that may come in were put
	// complete says that the edge may be told so: what had to be written was popped when the
	// queue's count was after.
	complete bool
	after    uint64
}

// deviceEntry is of one device, in its bucket.
type deviceEntry struct {
	device string
	tag    uint64
	isNew  bool // never let in
	// only is the verdict of the device's only right secret while the bucket has it: the entry
	// is closed. So entry and verdict come and go by one write.
	only *verdict
}

// DevicesError says that there are more devices than the edge can list.
type DevicesError struct {
	// Most is how many it can have.
	Most int
}

// Error names the limit and the way out.
func (e *DevicesError) Error() string {
	return fmt.Sprintf("the edge can know of %d devices only, so it asks about each unknown one: set --memory.verdicts to at least a quarter of the number of devices, and restart the sidecar", e.Most)
}

// PutDevice lists a device that may come in; isNew says that it never did, which is so until
// [Memory.PutVerdict] allows it. Beyond the number that memory.verdicts allows it is an error,
// and the device is not listed; nor is the edge told any more that it knows all.
func (m *Memory) PutDevice(id string, isNew bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &m.verdicts.devices
	if _, at := m.findDevice(id); at >= 0 {
		return nil
	}
	if most := meanDevices * len(m.verdicts.buckets); d.count >= most {
		d.crowded, d.complete = true, false
		m.notify()
		return &DevicesError{most}
	}
	m.placeDevice(id, isNew)
	d.count++
	m.notify()
	return nil
}

// DropDevice removes a device from the list.
func (m *Memory) DropDevice(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if index, at := m.findDevice(id); at >= 0 {
		k := &m.verdicts.buckets[index]
		k.devices = slices.Delete(k.devices, at, at+1)
		m.verdicts.devices.count--
		m.verdicts.dirty.push(index)
		m.notify()
	}
}

// findDevice returns the bucket of a device and its entry's index there, -1 if it is not listed.
func (m *Memory) findDevice(id string) (bucket uint32, at int) {
	bucket, _ = m.keys.Device(id, uint32(len(m.verdicts.buckets)))
	return bucket, slices.IndexFunc(m.verdicts.buckets[bucket].devices, func(other deviceEntry) bool { return other.device == id })
}

// SetDevicesComplete records that all devices that may come in were put. The edge is told
// when it lists them all: any other device is unknown from then on.
func (m *Memory) SetDevicesComplete() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.verdicts.devices.known {
		m.verdicts.devices.known = true
		m.deferComplete()
		m.notify()
	}
}

// deferComplete has the edge told only when all that waits now was written.
func (m *Memory) deferComplete() {
	d := &m.verdicts.devices
	d.complete, d.after = false, m.verdicts.dirty.pushed
}

// updateComplete records whether the edge may be told in the batch that is being taken.
func (m *Memory) updateComplete() {
	d := &m.verdicts.devices
	d.complete = d.known &&
		!d.crowded && //mutant:TestCrowded true
		m.verdicts.dirty.popped >= d.after //mutant:TestCompleteComesBehindTheDevices true
}

// placeDevice lists a device in its bucket of this epoch.
func (m *Memory) placeDevice(id string, isNew bool) {
	index, tag := m.keys.Device(id, uint32(len(m.verdicts.buckets)))
	k := &m.verdicts.buckets[index]
	k.devices = append(k.devices, deviceEntry{device: id, tag: tag, isNew: isNew})
	m.verdicts.dirty.push(index)
}

// meet records that a device was let in, if it is listed.
func (k *verdictBucket) meet(device string) {
	for i := range k.devices {
		if k.devices[i].device == device {
			k.devices[i].isNew = false
		}
	}
}

// close closes the entry of v's device, if it is listed: v is of its only right secret.
func (k *verdictBucket) close(v *verdict) {
	for i := range k.devices {
		if k.devices[i].device == v.device {
			k.devices[i].only = v
		}
	}
}

// open opens the entry that v closed, if it did.
func (k *verdictBucket) open(v *verdict) {
	for i := range k.devices {
		if k.devices[i].only == v { //mutant:TestCredentialStatus false
			k.devices[i].only = nil
		}
	}
}

func (k *verdictBucket) size() int {
	return bucketSize + verdictSize*len(k.verdicts) + deviceSize*len(k.devices)
}

// appendVerdicts appends the record of a bucket.
func (m *Memory) appendVerdicts(dst []byte, k *verdictBucket) []byte {
	s := &m.verdicts.scratch
	s.verdicts, s.devices = s.verdicts[:0], s.devices[:0]
	for _, v := range k.verdicts {
		s.verdicts = append(s.verdicts, v.Verdict)
	}
	for i := range k.devices {
		s.devices = append(s.devices, wire.Device{Tag: k.devices[i].tag, Closed: k.devices[i].only != nil, New: k.devices[i].isNew})
	}
	return wire.AppendVerdicts(dst, m.epoch, s.verdicts, s.devices)
}
