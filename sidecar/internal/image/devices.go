package image

import (
	"fmt"
	"slices"

	"github.com/gatehouse/gatehouse/wire"
)

// meanMarks is how many devices a bucket of verdicts has marks of on average, at most: more
// would make each lookup read more than a device's own verdicts are worth.
const meanMarks = 16

// devices are the marks of registered devices, by which the edge tells what it can refuse
// by itself. They outlive an epoch.
type devices struct {
	marked  int
	crowded bool // some have no mark
	known   bool // all that may come in were put
	// complete says that the edge may be told so: what had to be written was popped when the
	// queue's count was after.
	complete bool
	after    uint64
}

// mark is of one device, in its bucket.
type mark struct {
	device string
	tag    uint64
	isNew  bool // never let in
	// only is the verdict of the device's only right secret while the bucket has it: the mark
	// is closed. So mark and verdict come and go by one write.
	only *verdict
}

// DevicesError says that there are more devices than the edge can have marks of.
type DevicesError struct {
	// Most is how many it can have.
	Most int
}

// Error names the limit and the way out.
func (e *DevicesError) Error() string {
	return fmt.Sprintf("the edge can know of %d devices only, so it asks about each unknown one: set --memory.verdicts to at least a quarter of the number of devices, and restart the sidecar", e.Most)
}

// PutDevice marks a device that may come in; isNew says that it never did, which is so until
// [Image.PutVerdict] allows it. Beyond the number that memory.verdicts allows it is an error,
// and the device has no mark; nor is the edge told any more that it knows all.
func (m *Image) PutDevice(id string, isNew bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &m.verdicts.devices
	if _, at := m.findMark(id); at >= 0 {
		return nil
	}
	if most := meanMarks * len(m.verdicts.buckets); d.marked >= most {
		d.crowded, d.complete = true, false
		m.notify()
		return &DevicesError{most}
	}
	m.placeMark(id, isNew)
	d.marked++
	m.notify()
	return nil
}

// DropDevice takes the mark of a device away, if it has one.
func (m *Image) DropDevice(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if index, at := m.findMark(id); at >= 0 {
		k := &m.verdicts.buckets[index]
		k.marks = slices.Delete(k.marks, at, at+1)
		m.verdicts.devices.marked--
		m.verdicts.dirty.push(index)
		m.notify()
	}
}

// findMark is where the mark of a device is: in which bucket, and where in it, -1 for nowhere.
func (m *Image) findMark(id string) (bucket uint32, at int) {
	bucket, _ = m.keys.Device(id, uint32(len(m.verdicts.buckets)))
	return bucket, slices.IndexFunc(m.verdicts.buckets[bucket].marks, func(other mark) bool { return other.device == id })
}

// SetDevicesComplete records that all devices that may come in were put. The edge is told
// when it has their marks: one without a mark is unknown from then on.
func (m *Image) SetDevicesComplete() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.verdicts.devices.known {
		m.verdicts.devices.known = true
		m.awaitMarks()
		m.notify()
	}
}

// awaitMarks says that the edge is to be told only when all that waits now was written.
func (m *Image) awaitMarks() {
	d := &m.verdicts.devices
	d.complete, d.after = false, m.verdicts.dirty.pushed
}

// settleMarks finds out whether the edge may be told, in the batch that is being taken.
func (m *Image) settleMarks() {
	d := &m.verdicts.devices
	d.complete = d.known &&
		!d.crowded && //mutant:TestCrowded true
		m.verdicts.dirty.popped >= d.after //mutant:TestCompleteComesBehindTheMarks true
}

// placeMark puts a device's mark into its bucket of this epoch.
func (m *Image) placeMark(id string, isNew bool) {
	index, tag := m.keys.Device(id, uint32(len(m.verdicts.buckets)))
	k := &m.verdicts.buckets[index]
	k.marks = append(k.marks, mark{device: id, tag: tag, isNew: isNew})
	m.verdicts.dirty.push(index)
}

// meet says that a device was let in, if it has a mark.
func (k *verdictBucket) meet(device string) {
	for i := range k.marks {
		if k.marks[i].device == device {
			k.marks[i].isNew = false
		}
	}
}

// close closes the mark of v's device, if it has one: v is of its only right secret.
func (k *verdictBucket) close(v *verdict) {
	for i := range k.marks {
		if k.marks[i].device == v.device {
			k.marks[i].only = v
		}
	}
}

// open opens the mark that v closed, if it did.
func (k *verdictBucket) open(v *verdict) {
	for i := range k.marks {
		if k.marks[i].only == v { //mutant:TestCredentialStatus false
			k.marks[i].only = nil
		}
	}
}

func (k *verdictBucket) size() int {
	return bucketSize + verdictSize*len(k.verdicts) + deviceSize*len(k.marks)
}

// appendVerdicts appends the record of a bucket.
func (m *Image) appendVerdicts(dst []byte, k *verdictBucket) []byte {
	s := &m.verdicts.scratch
	s.verdicts, s.marks = s.verdicts[:0], s.marks[:0]
	for _, v := range k.verdicts {
		s.verdicts = append(s.verdicts, v.Verdict)
	}
	for i := range k.marks {
		s.marks = append(s.marks, wire.Device{Tag: k.marks[i].tag, Closed: k.marks[i].only != nil, New: k.marks[i].isNew})
	}
	return wire.AppendVerdicts(dst, m.epoch, s.verdicts, s.marks)
}
