package credential

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

// Devices has the records of devices, as Redis has them, and the answers of an authority. A new record takes effect,
// and the verdicts about the earlier record end, in a single step under the lock. It is safe for concurrent use.
type Devices struct {
	config  *Config
	memory  Memory
	metrics *metrics.Metrics
	log     *slog.Logger
	reader  *recordReader
	sources *sources
	// generation is the last number that a record, or the answers, got as generation.
	generation *atomic.Uint64

	mu      sync.Mutex   // held during calls of memory
	records records      // +checklocks:mu
	shards  []shardState // +checklocks:mu
	// +checklocks:mu
	listError error   // why the edge can't list all devices; nil: the list is complete
	answers   answers // +checklocks:mu
}

func newDevices(c *Config, edge Memory, s *sources, m *metrics.Metrics, log *slog.Logger) *Devices {
	generation := new(atomic.Uint64)
	return &Devices{
		config: c, memory: edge, metrics: m, log: log, sources: s, reader: newRecordReader(c, m, log),
		generation: generation, answers: newAnswers(edge, c.MaxAnswers, generation),
		records: records{all: make(map[string]*record)}, shards: make([]shardState, c.Shards.Count()),
	}
}

// Apply makes c the record of its device, if c is newer than the known record, and drops the device's verdicts. A
// running verification starts over.
func (d *Devices) Apply(c contract.Credential) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.apply(c)
}

// Doubt disables the device's record until the record is applied again or removed: Redis may have another record. Until
// then, a device that could authenticate is neither allowed nor refused. If the same record is applied, bcrypt's
// results count again: otherwise each message of a publisher could cost a run.
func (d *Devices) Doubt(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch r := d.records.all[id]; {
	case r.mayAuthenticate():
		r.refusal = reasonUnsure
		d.memory.DropVerdicts(id)
	case r != nil && d.config.Authority != nil:
		r.doubted = true // the authority could decide about an unknown device
	case r != nil:
		d.replaceRecord(id, nil)
	}
	if d.config.Authority != nil {
		d.answers.doubtAnswers(id)
	}
}

// Announce applies c, from an event that deletes or disables its device, until the record in Redis is applied, in any
// version, or removed. Every writer of objects can forge the event. So c must not outlive the record, and an authority
// decides only once Redis has no record, see [Verifier.confirmNoRecord].
func (d *Devices) Announce(c contract.Credential) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.apply(c)
	if r := d.records.all[c.ID]; r != nil && !r.mayAuthenticate() {
		r.doubted = true
	}
}

// ApplyMalformed refuses the device: its record in Redis can't be read.
func (d *Devices) ApplyMalformed(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	shard := d.config.Shards.Of(id)
	resync := d.shards[shard].resync
	switch {
	case d.config.Authority != nil: // the authority would decide about an unknown device
		d.replaceRecord(id, &record{shard: shard, resync: resync, refusal: reasonRefusedRecord, doubted: true})
	case d.records.all[id] != nil:
		d.replaceRecord(id, nil)
	}
}

// Remove makes the device unknown: Redis has no record.
func (d *Devices) Remove(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.records.all[id] != nil {
		d.replaceRecord(id, nil)
	}
}

// apply is Apply under the lock.
// +checklocks:d.mu
func (d *Devices) apply(c contract.Credential) {
	for _, id := range d.records.takeExpired(time.Now()) {
		d.replaceRecord(id, nil)
	}
	d.records.fit()
	shard := d.config.Shards.Of(c.ID)
	before := d.currentRecord(c.ID, time.Now())
	resync := d.shards[shard].resync
	if before != nil && before.resync == resync && !before.mayBeExpired(time.Now()) && !before.isOlderThan(&c) {
		return
	}
	r := &record{version: c.Version, shard: shard, resync: resync, tombstone: c.Deleted,
		publishedMS: c.PublishedMS, writtenMS: c.PublishedMS}
	if r.tombstone { // a time in the future would delay the removal of this and later tombstones
		r.publishedMS = min(r.publishedMS, time.Now().UnixMilli())
	}
	r.refusal = d.reader.fillRecord(r, &c)
	if before != nil && before.version == c.Version && before.isSameWrite(r) {
		before.doubted = false
		before.resync, before.refusal = resync, r.refusal // in this resync, and without doubt
		return
	}
	d.replaceRecord(c.ID, r)
}

// replaceRecord stores r, nil for none, as the device's record.
// +checklocks:d.mu
func (d *Devices) replaceRecord(id string, r *record) {
	before := d.records.all[id]
	if before != nil && before.ends != nil {
		before.ends.Stop()
	}
	if r != nil {
		r.generation = d.generation.Add(1)
		if before != nil {
			r.sources = before.sources // a new secret does not make a device new
			r.inheritResults(before)
		} else {
			// nor does a restart
			r.sources = d.restoreSources(id)
		}
		d.scheduleOverlapEnd(id, r)
	}
	d.records.put(id, r)
	d.memory.DropVerdicts(id)
	if d.config.Authority != nil {
		d.answers.invalidateAnswers(id, r)
	}
	d.updateDeviceList(id, before, r)
	d.metrics.Credentials.Set(float64(d.records.live))
}

// updateDeviceList lists the device at the edge, or removes it, if its right to authenticate has changed.
// +checklocks:d.mu
func (d *Devices) updateDeviceList(id string, before, after *record) {
	was, is := before.mayAuthenticate(), after.mayAuthenticate()
	switch {
	case was && !is:
		d.memory.DropDevice(id)
	case is && !was:
		if err := d.memory.PutDevice(id, len(after.sources) == 0); err != nil && d.listError == nil {
			d.listError = err
			d.warnUnlisted()
		}
	}
}

// warnUnlisted logs that the edge can't list all devices, once all records were read and their number is known.
// +checklocks:d.mu
func (d *Devices) warnUnlisted() {
	if d.listError != nil && d.allSynced() {
		d.log.Warn("the edge can't list all devices: each unknown one costs a call",
			"devices", d.records.live, "error", d.listError)
	}
}

// currentRecord returns the device's record, nil for none. If the overlap is over, it drops the old secrets with the
// device's verdicts, and running verifications start over.
// +checklocks:d.mu
func (d *Devices) currentRecord(id string, now time.Time) *record {
	r := d.records.all[id]
	if r == nil || !r.hasOverlap() || now.Before(r.oldUntil) {
		return r
	}
	for _, old := range r.hashes[1:] {
		if old.resolved {
			r.ended = append(r.ended, old.digest)
		}
	}
	r.hashes = r.hashes[:1:1]
	r.generation = d.generation.Add(1)
	d.memory.DropVerdicts(id)
	return r
}

// scheduleOverlapEnd calls currentRecord when old secrets end, so the edge drops their verdicts even if its own clock
// is behind.
// +checklocks:d.mu
func (d *Devices) scheduleOverlapEnd(id string, r *record) {
	if !r.hasOverlap() {
		return
	}
	r.ends = time.AfterFunc(time.Until(r.oldUntil), func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.currentRecord(id, time.Now()) == r {
			d.scheduleOverlapEnd(id, r) // only if the clock was set back
		}
	})
}

// findAdmissible returns the record of a device that may authenticate, or the reason for a refusal.
// +checklocks:d.mu
func (d *Devices) findAdmissible(id string, now time.Time) (r *record, why Reason) {
	r = d.currentRecord(id, now)
	switch {
	case !d.shards[d.config.Shards.Of(id)].synced:
		return nil, reasonStarting
	case r == nil:
		return nil, reasonUnknown
	case r.refusal != "":
		return nil, r.refusal
	case !r.notAfter.IsZero() && !now.Before(r.notAfter):
		return nil, reasonExpired
	}
	return r, ""
}

// findJudged returns the record that the attempt is judged by: if the authority decides, the device's tombstone or nil.
// It returns false if the attempt must start over.
// +checklocks:d.mu
func (d *Devices) findJudged(a *attempt, now time.Time) (r *record, ok bool) {
	r = d.currentRecord(a.id, now)
	if !a.byAuthority {
		return r, r != nil && r.generation == a.generation
	}
	_, why := d.findAdmissible(a.id, now)
	return r, d.config.authorityDecides(a.id, why) && d.answers.generationOf(r) == a.generation
}

// isCurrent reports whether the attempt needn't start over, and its record is not in doubt.
func (d *Devices) isCurrent(a *attempt) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.findJudged(a, time.Now())
	return ok && (a.byAuthority || r.refusal == "")
}
