package edgemem

import (
	"fmt"
	"slices"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/shrink"
)

// meanDevices is the maximum average number of devices in a bucket of verdicts: with more, each lookup would read more
// bytes of devices than of verdicts.
const meanDevices = 16

// devices is the state of the list of registered devices in the buckets. With this list the edge refuses unknown
// devices by itself. The list survives a new epoch.
type devices struct {
	count      int
	overflowed bool // some devices are not in the list
	known      bool // all devices that may authenticate were put
	// complete: the edge may learn that the list is complete. True once the queue has popped the first after elements.
	complete bool
	after    uint64
}

// deviceEntry is a device in a bucket of verdicts.
type deviceEntry struct {
	device string
	tag    uint64
	isNew  bool // never authenticated
	// onlyVerdict is the verdict on the device's only right secret, while the bucket has that verdict: the entry is
	// closed. One write adds or removes both.
	onlyVerdict *verdict
}

// DevicesError reports more devices than the edge can list.
type DevicesError struct {
	// Most is the maximum number.
	Most int
}

// Error names the limit and the fix.
func (e *DevicesError) Error() string {
	return fmt.Sprintf("the edge can list %d devices only, so each other one costs a call: set --memory.verdicts to at "+
		"least a quarter of the number of devices, and restart the sidecar", e.Most)
}

// PutDevice lists a device that may authenticate. isNew: the device never authenticated; [Memory.PutVerdict] clears
// isNew with the first allow. If there are more devices than memory.verdicts allows, PutDevice does not list the device
// and returns a [DevicesError], and the edge's list is no longer complete.
func (m *Memory) PutDevice(id string, isNew bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &m.verdicts.devices
	if _, at := m.findDevice(id); at >= 0 {
		return nil
	}
	if most := meanDevices * len(m.verdicts.buckets); d.count >= most {
		d.overflowed, d.complete = true, false
		m.wakePusher()
		return &DevicesError{most}
	}
	m.addDevice(id, isNew)
	d.count++
	m.wakePusher()
	return nil
}

// DropDevice removes a device from the list.
func (m *Memory) DropDevice(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if index, at := m.findDevice(id); at >= 0 {
		k := &m.verdicts.buckets[index]
		k.devices = shrink.Slice(slices.Delete(k.devices, at, at+1))
		m.verdicts.devices.count--
		m.verdicts.dirty.push(index)
		m.wakePusher()
	}
}

// findDevice returns a device's bucket and the index of the device's entry, -1 if the device is not listed.
func (m *Memory) findDevice(id string) (bucket uint32, at int) {
	bucket, _ = m.keys.Device(id, uint32(len(m.verdicts.buckets)))
	return bucket, slices.IndexFunc(m.verdicts.buckets[bucket].devices, func(other deviceEntry) bool {
		return other.device == id
	})
}

// SetDevicesComplete records that all devices that may authenticate were put. Once the edge lists all of them, the edge
// refuses unknown devices.
func (m *Memory) SetDevicesComplete() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.verdicts.devices.known {
		m.verdicts.devices.known = true
		m.deferComplete()
		m.wakePusher()
	}
}

// deferComplete delays complete until everything in the queue was taken.
func (m *Memory) deferComplete() {
	d := &m.verdicts.devices
	d.complete, d.after = false, m.verdicts.dirty.pushed
}

// updateComplete sets complete for the batch under construction.
func (m *Memory) updateComplete() {
	d := &m.verdicts.devices
	d.complete = d.known && !d.overflowed && m.verdicts.dirty.popped >= d.after
}

// addDevice adds a device to a bucket in this epoch.
func (m *Memory) addDevice(id string, isNew bool) {
	index, tag := m.keys.Device(id, uint32(len(m.verdicts.buckets)))
	k := &m.verdicts.buckets[index]
	k.devices = append(k.devices, deviceEntry{device: id, tag: tag, isNew: isNew})
	m.verdicts.dirty.push(index)
}

// markAuthenticated clears isNew of a listed device.
func (k *verdictBucket) markAuthenticated(device string) {
	for i := range k.devices {
		if k.devices[i].device == device {
			k.devices[i].isNew = false
		}
	}
}

// closeEntry closes the entry of v's device, if listed: v is the verdict on the device's only right secret.
func (k *verdictBucket) closeEntry(v *verdict) {
	for i := range k.devices {
		if k.devices[i].device == v.device {
			k.devices[i].onlyVerdict = v
		}
	}
}

// reopenEntry opens the entry closed by v, if any.
func (k *verdictBucket) reopenEntry(v *verdict) {
	for i := range k.devices {
		if k.devices[i].onlyVerdict == v {
			k.devices[i].onlyVerdict = nil
		}
	}
}

func (k *verdictBucket) recordSize() int {
	return bucketSize + verdictSize*len(k.verdicts) + deviceSize*len(k.devices)
}

// appendVerdicts appends the record of a bucket to dst.
func (m *Memory) appendVerdicts(dst []byte, k *verdictBucket) []byte {
	s := &m.verdicts.scratch
	s.verdicts, s.devices = s.verdicts[:0], s.devices[:0]
	for _, v := range k.verdicts {
		s.verdicts = append(s.verdicts, v.Verdict)
	}
	for i := range k.devices {
		s.devices = append(s.devices, wire.Device{Tag: k.devices[i].tag, Closed: k.devices[i].onlyVerdict != nil,
			New: k.devices[i].isNew})
	}
	return wire.AppendVerdicts(dst, m.epoch, s.verdicts, s.devices)
}
