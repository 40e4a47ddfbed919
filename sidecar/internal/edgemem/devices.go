package edgemem

import (
	"fmt"
	"slices"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/shrink"
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
	isChanged, err := m.verdicts.putDevice(id, isNew)
	m.wakeIf(isChanged)
	return err
}

// putDevice is [Memory.PutDevice], and reports whether anything changed.
func (t *verdictTable) putDevice(id string, isNew bool) (isChanged bool, err error) {
	d := &t.devices
	if _, at := t.findDevice(id); at >= 0 {
		return false, nil
	}
	if most := meanDevices * len(t.buckets); d.count >= most {
		d.overflowed = true
		return true, &DevicesError{most}
	}
	t.addDevice(id, isNew)
	d.count++
	return true, nil
}

// DropDevice removes a device from the list.
func (m *Memory) DropDevice(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wakeIf(m.verdicts.dropDevice(id))
}

// dropDevice removes a device from the list and reports whether the device was listed.
func (t *verdictTable) dropDevice(id string) bool {
	index, at := t.findDevice(id)
	if at < 0 {
		return false
	}
	k := &t.buckets[index]
	k.devices = shrink.Slice(slices.Delete(k.devices, at, at+1))
	t.devices.count--
	t.queueBucket(index)
	return true
}

// findDevice returns a device's bucket and the index of the device's entry, -1 if the device is not listed.
func (t *verdictTable) findDevice(id string) (bucket uint32, at int) {
	bucket = t.findBucket(id)
	return bucket, slices.IndexFunc(t.buckets[bucket].devices, func(other deviceEntry) bool {
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
		for _, o := range m.edges {
			o.deferComplete()
		}
		m.wakeIf(true)
	}
}

// deferComplete delays complete until everything in the queue was taken.
func (o *outbox) deferComplete() { o.devices = listProgress{after: o.dirtyVerdicts.pushed} }

// updateComplete sets complete for the batch under construction.
func (o *outbox) updateComplete() {
	o.devices.complete = o.verdicts.devices.known && o.dirtyVerdicts.popped >= o.devices.after
}

// listProgress is how far an edge has the list of devices.
type listProgress struct {
	// complete: the edge may learn that the list is complete, unless the list has overflowed. True once the queue of
	// verdicts has popped the first after elements.
	complete bool
	after    uint64
}

// addDevice adds a device to its bucket.
func (t *verdictTable) addDevice(id string, isNew bool) {
	index, tag := t.keys.Device(id, uint32(len(t.buckets)))
	k := &t.buckets[index]
	k.devices = append(k.devices, deviceEntry{device: id, tag: tag, isNew: isNew})
	t.queueBucket(index)
}

// findEntry returns the entry of a device, nil if the device is not listed.
func (k *verdictBucket) findEntry(device string) *deviceEntry {
	for i := range k.devices {
		if k.devices[i].device == device {
			return &k.devices[i]
		}
	}
	return nil
}

func (k *verdictBucket) recordSize() int {
	size := bucketSize + verdictSize*len(k.verdicts) + deviceSize*len(k.devices)
	for _, v := range k.verdicts {
		size += len(v.Permissions)
	}
	return size
}

// appendRecord appends the record of a bucket to dst.
func (t *verdictTable) appendRecord(dst []byte, k *verdictBucket, epoch uint64) []byte {
	scratch := &t.scratch
	scratch.verdicts, scratch.devices = scratch.verdicts[:0], scratch.devices[:0]
	for _, v := range k.verdicts {
		scratch.verdicts = append(scratch.verdicts, v.Verdict)
	}
	for i := range k.devices {
		scratch.devices = append(scratch.devices, wire.Device{Tag: k.devices[i].tag, Closed: k.devices[i].onlyVerdict != nil,
			New: k.devices[i].isNew})
	}
	return wire.AppendVerdicts(dst, epoch, scratch.verdicts, scratch.devices)
}
