package credential

import (
	"container/list"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

const (
	// graceLife is how long the edge's memory keeps an authority's expired allow, for verdict_grace.
	graceLife = 24 * time.Hour
	// answerLife is how long an expired answer stays stored: longer than any copy of its verdict.
	answerLife = graceLife + time.Minute
	// maxDeviceAnswers bounds the stored answers for a device, each for another secret.
	maxDeviceAnswers = 4
	// maxShareTime bounds how long other sidecars use an answer: less than a tombstone lives, see
	// Question.Invalidations.
	maxShareTime = time.Hour
)

// answers has an authority's allows, and ends their verdicts at the edge. [Devices]' lock guards the answers.
type answers struct {
	memory  Memory
	limit   int // maximum number
	devices map[string]*authorityDevice
	order   list.List // of *storedAnswer, the oldest first
	running map[string]int
	// generation is the generation of devices without a record. The number changes when running calls may get outdated
	// answers.
	generation uint64
	last       *atomic.Uint64 // Devices.generation
	// invalidations is a digest of the tombstones that invalidate several devices; tombstones has them by id.
	invalidations uint64
	tombstones    map[string]*record
	// doubtNonce, until doubtEnds, changes the digest: an invalidation may not be known yet, so answers that other
	// sidecars shared must not count.
	doubtNonce uint64
	doubtEnds  time.Time
}

// authorityDevice is a device that the authority allowed.
type authorityDevice struct {
	answers []*storedAnswer // the newest last, at most maxDeviceAnswers
	sources []source        // see record.sources
}

// storedAnswer is an allow of the authority for a single secret.
type storedAnswer struct {
	device      string
	digest      digest
	permissions string // as of a record
	labels      map[string]string
	freshUntil  time.Time // until then the authority is not called
	ends        time.Time // of the verdict
	notAfter    time.Time
	session     string // identifies the answer in this process; "": the answer has ended
	element     *list.Element
}

func newAnswers(memory Memory, limit int, last *atomic.Uint64) answers {
	return answers{memory: memory, limit: max(limit, 1), devices: make(map[string]*authorityDevice),
		running: make(map[string]int), last: last,
		invalidations: digestInvalidations(nil), tombstones: make(map[string]*record)}
}

// restartCalls makes running calls start over.
func (t *answers) restartCalls() { t.generation = t.last.Add(1) }

// generationOf returns the generation of a device without a record; r is its tombstone or nil.
func (t *answers) generationOf(r *record) uint64 {
	if r == nil {
		return t.generation
	}
	return max(r.generation, t.generation)
}

// newQuestion returns the question for an attempt that the authority decides; r is the device's tombstone or nil.
func (t *answers) newQuestion(a *attempt, r *record, timeout time.Duration) *Question {
	c := &Question{Device: a.id, Secret: a.secret, Authority: true, Invalidations: t.invalidations, Timeout: timeout}
	if time.Now().Before(t.doubtEnds) {
		c.Invalidations ^= t.doubtNonce
	}
	if r != nil {
		c.Version, c.PublishedMS = r.version, r.writtenMS
	}
	return c
}

// findAnswer returns the answer for a secret, nil for none; d may be nil.
func (d *authorityDevice) findAnswer(secret digest) *storedAnswer {
	if d == nil {
		return nil
	}
	for _, x := range d.answers {
		if hmac.Equal(x.digest[:], secret[:]) {
			return x
		}
	}
	return nil
}

// storeAnswer stores an answer, and forgets the earlier answer for the same secret.
func (t *answers) storeAnswer(a *attempt, x *storedAnswer, now time.Time) {
	for first := t.order.Front(); first != nil; first = t.order.Front() {
		oldest := first.Value.(*storedAnswer)
		if t.order.Len() >= t.limit {
			t.endAnswers(oldest.device)
		} else if now.Before(oldest.ends.Add(answerLife)) {
			break
		}
		t.forgetAnswer(oldest)
	}
	d := t.devices[a.id]
	if d == nil {
		d = new(authorityDevice)
		t.devices[a.id] = d
	}
	before := d.findAnswer(a.digest)
	switch {
	case before != nil && before.permissions != x.permissions, before == nil && len(d.answers) == maxDeviceAnswers:
		t.endAnswers(a.id)
	}
	d.answers = append(d.answers, x)
	x.element = t.order.PushBack(x)
	switch {
	case before != nil:
		t.forgetAnswer(before)
	case len(d.answers) > maxDeviceAnswers:
		t.forgetAnswer(d.answers[0])
	}
	if a.source != 0 {
		d.sources = appendRecent(d.sources, a.source, maxSources)
	}
}

// forgetAnswer forgets an answer that has ended or is replaced.
func (t *answers) forgetAnswer(x *storedAnswer) {
	t.endAnswer(x)
	t.order.Remove(x.element)
	d := t.devices[x.device]
	d.answers = slices.DeleteFunc(d.answers, func(other *storedAnswer) bool { return other == x })
	if len(d.answers) == 0 {
		delete(t.devices, x.device)
	}
}

// endAnswer invalidates an answer whose verdict was dropped at the edge. The answer stays stored as proof that the
// device authenticated before.
func (t *answers) endAnswer(x *storedAnswer) {
	x.permissions, x.labels, x.freshUntil, x.session = "", nil, time.Time{}, ""
}

// endAnswers ends all answers for a device, also at the edge.
func (t *answers) endAnswers(id string) {
	t.memory.DropVerdicts(id)
	t.endStoredAnswers(id)
}

// endStoredAnswers is endAnswers after the verdicts were dropped.
func (t *answers) endStoredAnswers(id string) {
	if d := t.devices[id]; d != nil {
		for _, x := range d.answers {
			t.endAnswer(x)
		}
	}
}

// invalidateAnswers ends the answers that a change of the device's record to after, nil for none, outdates. The
// verdicts of the device itself were dropped.
func (t *answers) invalidateAnswers(id string, after *record) {
	t.endStoredAnswers(id)
	if after == nil && t.running[id] > 0 {
		t.restartCalls()
	}
	if !contract.IsInvalidation(id) {
		return
	}
	delete(t.tombstones, id)
	if after != nil && after.tombstone {
		t.tombstones[id] = after
		t.endInvalidated(id)
	}
	t.invalidations = digestInvalidations(t.tombstones)
}

// endInvalidated ends the answers of all devices that an invalidation names. It restarts running calls, since their
// answers may have labels that the invalidation names.
func (t *answers) endInvalidated(invalidation string) {
	t.restartCalls()
	for id, d := range t.devices {
		if slices.ContainsFunc(d.answers, func(x *storedAnswer) bool {
			return x.session != "" && contract.Invalidates(invalidation, x.labels)
		}) {
			t.endAnswers(id)
		}
	}
}

// digestInvalidations returns a digest of the invalidations of several devices, the same in all sidecars.
func digestInvalidations(tombstones map[string]*record) uint64 {
	sum := sha256.New()
	for _, id := range slices.Sorted(maps.Keys(tombstones)) {
		b := binary.BigEndian.AppendUint64([]byte{byte(len(id))}, tombstones[id].version)
		sum.Write(append(binary.BigEndian.AppendUint64(b, uint64(tombstones[id].writtenMS)), id...))
	}
	return binary.BigEndian.Uint64(sum.Sum(nil))
}

// doubtAnswers ends the answers for a device, or for all devices that an invalidation names: Redis may have another
// record.
func (t *answers) doubtAnswers(id string) {
	t.doubtNonce, t.doubtEnds = mathrand.Uint64(), time.Now().Add(maxShareTime)
	if contract.IsInvalidation(id) {
		t.endInvalidated(id)
		return
	}
	t.endAnswers(id)
	if t.running[id] > 0 {
		t.restartCalls()
	}
}

// hasSession reports whether session identifies an answer that has not ended.
func (t *answers) hasSession(id, session string) bool {
	d := t.devices[id]
	return d != nil && session != "" &&
		slices.ContainsFunc(d.answers, func(x *storedAnswer) bool { return x.session == session })
}
