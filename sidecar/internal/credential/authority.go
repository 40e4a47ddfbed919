package credential

import (
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/tracing"
)

// Authority is a service that decides about devices without a record in Redis. It is safe for concurrent use.
type Authority interface {
	// Ask returns the service's answer by the end of ctx. An error means that there is none; it contains no secret.
	// familiar: the device authenticated from the same network before.
	Ask(ctx context.Context, id, secret string, familiar bool) (Answer, error)
}

// ErrFailed is of a call that the service, or the way to it, failed to answer. Its credential may be why.
var ErrFailed = errors.New("the call of the authority failed")

// Answer is what an authority says about a credential.
type Answer struct {
	ID    string // of the device; "" if the service doesn't say it
	Allow bool
	// The rest is of an allow only.
	Permissions []string          // names (limits.ValidPermission), at most limits.MaxPermissions, each once
	TTL         time.Duration     // how long it counts; 0, or more than AllowTTL: as long as other verdicts
	NotAfter    time.Time         // when the device's access ends; zero: never
	Labels      map[string]string // contract.CheckLabel, at most contract.MaxLabels
}

const (
	// graceLife is how long the edge's memory keeps an allow verdict of an authority after its end, for verdict_grace.
	graceLife = 24 * time.Hour
	// heldLife is how long an answer is held after its end: longer than any copy of its verdict.
	heldLife = graceLife + time.Minute
	// maxOfDevice bounds the answers that are held for one device, each for another secret.
	maxOfDevice = 4
	// maxShared bounds how long other sidecars use an answer: less than a tombstone lives, see Question.Invalidated.
	maxShared = time.Hour
	// maxFailing bounds the calls that failed lately, blameWithin the time until another one's answer shows that their
	// credentials, not the service, may be why.
	maxFailing  = 64
	blameWithin = time.Second
)

// answers has the allows of the authority: those that the edge may have, and what is needed to end them. The methods'
// callers hold the verifier's lock.
type answers struct {
	most     int // maximum number
	devices  map[string]*asked
	order    list.List // of *answer, the oldest first
	calls    map[string]int
	searched time.Time      // when endExpired last did
	own      map[uint64]int // calls about unknown secrets of devices from their own network, by pair
	// era is the generation of devices without a record. It changes when calls that run may get outdated answers.
	era uint64
	// group identifies the invalidations of several devices, and has the tombstones that these are, by id.
	group      uint64
	tombstones map[string]*record
	// doubt, until it ends, is part of what identifies them: an invalidation may not be known yet, so what other sidecars
	// have shared counts no more.
	doubt     uint64
	doubtEnds time.Time
	failing   []failing // the newest last
}

// failing is an attempt, without its secret, whose call failed.
type failing struct {
	attempt
	at time.Time
}

// asked is a device that the authority allowed.
type asked struct {
	answers []*answer // the newest last, at most maxOfDevice
	sources []source  // as those of a record
}

// answer is an allow of the authority for one secret.
type answer struct {
	device      string
	digest      digest
	permissions uint64
	labels      map[string]string
	until       time.Time // needs no call until then
	ends        time.Time // of the verdict
	notAfter    time.Time
	session     string // identifies the answer in this process; "": it has ended
	at          *list.Element
}

func newAnswers(most int) answers {
	return answers{most: max(most, 1), devices: make(map[string]*asked), calls: make(map[string]int),
		own: make(map[uint64]int), group: groupOf(nil), tombstones: make(map[string]*record)}
}

// asks reports whether the authority decides about a device whose record is refused because of why.
func (v *Verifier) asks(id string, why Reason) bool {
	return v.Authority != nil && (why == isUnknown || why == isDeleted) && !contract.IsInvalidation(id)
}

// eraOf returns the generation of a device without a record, r is its tombstone or nil. mu is held.
func (v *Verifier) eraOf(r *record) uint64 {
	if r == nil {
		return v.answers.era
	}
	return max(r.generation, v.answers.era)
}

// outdate makes running calls start over; mu is held.
func (v *Verifier) outdate() {
	v.generation++
	v.answers.era = v.generation
}

// standing returns the record of the attempt's device, nil or a tombstone; false if the attempt must start over. mu is
// held.
func (v *Verifier) standing(a *attempt) (*record, bool) {
	_, why := v.admissible(a.id, time.Now())
	if !v.asks(a.id, why) {
		return nil, false
	}
	r := v.records[a.id]
	return r, v.eraOf(r) == a.generation
}

// remembered prepares an attempt for a call of the authority. It returns the answer if one is known that needs none. mu
// is held.
func (v *Verifier) remembered(a *attempt, now time.Time) (Result, bool) {
	if slices.Contains(v.synced, false) { // an invalidation may be in a shard that was not read yet
		return unavailable(isStarting), true
	}
	a.asks, a.generation, a.toTry, a.wrong, a.guess = true, v.eraOf(v.records[a.id]), nil, false, false
	d := v.answers.devices[a.id]
	a.familiar = d != nil && slices.Contains(d.sources, a.source)
	x := d.of(a.digest)
	if x == nil || !now.Before(x.until) {
		return Result{}, false
	}
	if wait := v.guesses(a); wait > 0 {
		return v.guessed(a, wait), true
	}
	if !a.familiar && a.source != 0 && v.byPair.full(v.sources.pair(a.id, a.source)) {
		return unavailable(isOverloaded), true // as a wrong one, which gets no place now
	}
	return v.allowAsked(a, x, byPin), true
}

// askedQuestion is question for an attempt that the authority decides; mu is held.
func (v *Verifier) askedQuestion(a *attempt) (*Question, bool) {
	r, ok := v.standing(a)
	if !ok {
		return nil, false
	}
	c := &Question{Device: a.id, Secret: a.secret, Authority: true, Invalidated: v.answers.group, Takes: v.askTime()}
	if time.Now().Before(v.answers.doubtEnds) {
		c.Invalidated ^= v.answers.doubt
	}
	if r != nil {
		c.Version, c.PublishedMS = r.version, r.writtenMS
	}
	return c, true
}

// askTime is how long the authority may take, less than a caller waits.
func (v *Verifier) askTime() time.Duration { return v.Wait - v.Wait/10 }

// consult asks the authority, unless another sidecar has done so or is doing it, and returns the answer. Like hash, it
// is the work of one flight.
func (v *Verifier) consult(ctx context.Context, a attempt, f *flight) Result {
	v.calling(a.id, 1) // before the question: from now on, an invalidation changes the era
	defer v.calling(a.id, -1)
	again := a
	if r, done := v.settle(&again); done { // another flight has ended since the attempt was decided
		return r
	}
	leave, ok := v.place(&again)
	if !ok {
		return unavailable(isOverloaded)
	}
	defer leave()
	c, ok := v.question(&a)
	if !ok || !v.confirm(ctx, &a) {
		return unavailable(isUnsure) // no caller uses this answer: they start over
	}
	ctx, cancel := context.WithTimeout(ctx, c.Takes)
	defer cancel()
	if m := v.Fleet.Find(ctx, c); m != nil {
		return v.conclude(&a, m, byFleet)
	}
	wanted := func() bool { return f.wanted() && v.current(&a) }
	for {
		shared, end := v.Fleet.Begin(ctx, c)
		switch {
		case shared != nil:
			return v.conclude(&a, shared, byFleet)
		case end != nil:
			return v.ask(ctx, &a, end)
		}
		if m := v.Fleet.Await(ctx, c, wanted); m != nil {
			return v.conclude(&a, m, byFleet)
		}
		switch {
		case ctx.Err() != nil:
			return away()
		case !wanted():
			return unavailable(isUnsure)
		}
	}
}

// confirm reports whether the authority may decide: Redis has no record of the device. Events and the log may hide one,
// as whoever writes objects also writes these. If Redis doesn't tell, what was read from it counts, but no event.
func (v *Verifier) confirm(ctx context.Context, a *attempt) bool {
	if v.Registered == nil {
		return true
	}
	registered, err := v.Registered(ctx, a.id)
	if err == nil {
		return !registered
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.records[a.id]
	return r == nil || !r.doubted
}

// place bounds the running calls: were all of them about wrong secrets, no limit would be exceeded. From the device's
// own network a secret that was right needs no place, so that guesses can't keep the device out.
func (v *Verifier) place(a *attempt) (leave func(), ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := &v.answers
	pair := v.sources.pair(a.id, a.source)
	switch {
	case a.familiar && t.devices[a.id].of(a.digest) != nil:
		return func() {}, true
	case a.familiar:
		if t.own[pair] >= maxPerDevice {
			return nil, false
		}
		t.own[pair]++
		return func() {
			v.mu.Lock()
			defer v.mu.Unlock()
			if t.own[pair]--; t.own[pair] == 0 {
				delete(t.own, pair)
			}
		}, true
	case a.source == 0:
		return func() {}, true
	case !v.byPair.begin(pair):
		return nil, false
	case !v.bySource.begin(uint64(a.source)):
		v.byPair.end(pair)
		return nil, false
	}
	return func() {
		v.byPair.end(pair)
		v.bySource.end(uint64(a.source))
	}, true
}

// away is the answer while the authority gives none: the edge may use an expired verdict, within verdict_grace.
func away() Result {
	return Result{Outcome: wire.Away, Reason: noAuthority, RetryAfter: retryAfter}
}

// ask asks the authority, and ends what the fleet began.
func (v *Verifier) ask(ctx context.Context, a *attempt, end func(*Match)) Result {
	spanned, span := tracing.Child(ctx, "authority")
	said, err := v.Authority.Ask(spanned, a.id, a.secret, a.familiar)
	span.End()
	if err != nil {
		end(nil)
		v.unanswered(a, err)
		return away()
	}
	v.blameFailing()
	var m *Match
	if said.Allow {
		m = v.agreed(&said)
	} else {
		v.failed(a)
	}
	r := v.conclude(a, m, byAuthority)
	if r.Outcome != wire.Allow {
		m = nil
	}
	end(m)
	return r
}

// unanswered counts a secret that is none of those that the authority found right, while verdict_grace lets the device
// in with these: otherwise nothing would limit guesses while the authority is away.
func (v *Verifier) unanswered(a *attempt, err error) {
	v.mu.Lock()
	t := &v.answers
	d := t.devices[a.id]
	guess := d != nil && d.of(a.digest) == nil
	if !a.familiar && errors.Is(err, ErrFailed) {
		if len(t.failing) == maxFailing {
			t.failing = slices.Delete(t.failing, 0, 1)
		}
		t.failing = append(t.failing, failing{attempt{id: a.id, source: a.source, from: a.from}, time.Now()})
	}
	v.mu.Unlock()
	if guess {
		v.count(a)
	}
}

// blameFailing counts the calls that failed just before another one was answered for their sources, as guesses: one
// client's must not keep new devices out. While the service is down, nobody is to blame.
func (v *Verifier) blameFailing() {
	v.mu.Lock()
	lately := v.answers.failing
	v.answers.failing = nil
	v.mu.Unlock()
	for i := range lately {
		if time.Since(lately[i].at) < blameWithin {
			v.blame(&lately[i].attempt)
		}
	}
}

// agreed returns the match that an allow is. The authority is asked again after two thirds of its life.
func (v *Verifier) agreed(said *Answer) *Match {
	now := time.Now()
	life := v.life()
	if said.TTL > 0 {
		life = min(life, said.TTL)
	}
	return &Match{Until: now.Add(min(life*2/3, maxShared)), Said: &Said{
		Permissions: said.Permissions, Ends: now.Add(life), NotAfter: said.NotAfter, Labels: said.Labels,
	}}
}

// concludeAsked is conclude for an attempt that the authority decides; mu is held.
func (v *Verifier) concludeAsked(a *attempt, m *Match, now time.Time, reason Reason) Result {
	if _, ok := v.standing(a); !ok {
		return unavailable(isUnsure) // no caller uses this answer: they start over
	}
	if m == nil || m.Said == nil || !m.Said.NotAfter.IsZero() && !now.Before(m.Said.NotAfter) {
		if d := v.answers.devices[a.id]; d.of(a.digest) != nil {
			v.endAnswers(a.id) // it was right before
		}
		if m != nil {
			reason = isExpired
		}
		return v.deny(a, now, reason)
	}
	bits, err := v.bits(m.Said.Permissions)
	if err != nil {
		v.tell.Do(func() { v.log.Warn("an answer of the authority can't be used", "device", a.id, "error", err) })
		return away()
	}
	v.generation++
	most := now.Add(v.AllowTTL + v.AllowTTL/10) // another sidecar may have another setting, or another clock
	x := &answer{device: a.id, digest: a.digest, permissions: bits, labels: m.Said.Labels, until: earlier(m.Until, most),
		ends: earlier(m.Said.Ends, most), notAfter: m.Said.NotAfter, session: "a" + strconv.FormatUint(v.generation, 10)}
	if !x.notAfter.IsZero() {
		x.until = earlier(x.until, x.notAfter)
	}
	v.keep(a, x, now)
	return v.allowAsked(a, x, reason)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// allowAsked stores the verdict and returns the answer; mu is held.
func (v *Verifier) allowAsked(a *attempt, x *answer, reason Reason) Result {
	verdict := allowUntil(x.ends, x.until, x.notAfter, x.permissions)
	v.memory.PutAnswer(a.id, a.secret, verdict, x.ends.Add(graceLife))
	return Result{Outcome: wire.Allow, Reason: reason, Permissions: x.permissions, Session: x.session,
		NotAfter: x.notAfter, Asked: true}
}

// of returns the answer for a secret, nil for none; d may be nil.
func (d *asked) of(secret digest) *answer {
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

// keep holds an answer instead of the one before for the same secret; mu is held.
func (v *Verifier) keep(a *attempt, x *answer, now time.Time) {
	t := &v.answers
	for first := t.order.Front(); first != nil; first = t.order.Front() {
		oldest := first.Value.(*answer)
		if t.order.Len() >= t.most {
			v.endAnswers(oldest.device)
		} else if now.Before(oldest.ends.Add(heldLife)) {
			break
		}
		v.forgetAnswer(oldest)
	}
	d := t.devices[a.id]
	if d == nil {
		d = new(asked)
		t.devices[a.id] = d
	}
	before := d.of(a.digest)
	switch {
	case before != nil && before.permissions != x.permissions, before == nil && len(d.answers) == maxOfDevice:
		v.endAnswers(a.id)
	}
	d.answers = append(d.answers, x)
	x.at = t.order.PushBack(x)
	switch {
	case before != nil:
		v.forgetAnswer(before)
	case len(d.answers) > maxOfDevice:
		v.forgetAnswer(d.answers[0])
	}
	if a.source != 0 {
		d.sources = remember(d.sources, a.source, maxSources)
		v.named.drop(v.sources.pair(a.id, a.source))
	}
}

// forgetAnswer forgets an answer that has ended or is replaced; mu is held.
func (v *Verifier) forgetAnswer(x *answer) {
	v.end(x)
	v.answers.order.Remove(x.at)
	d := v.answers.devices[x.device]
	d.answers = slices.DeleteFunc(d.answers, func(other *answer) bool { return other == x })
	if len(d.answers) == 0 {
		delete(v.answers.devices, x.device)
	}
}

// end makes an answer count no more, once the edge hasn't its verdict. It stays: the device authenticated before. mu is
// held.
func (v *Verifier) end(x *answer) {
	if x.permissions != 0 {
		v.memory.ReleasePermissions(x.permissions)
	}
	x.permissions, x.labels, x.until, x.session = 0, nil, time.Time{}, ""
}

// endAnswers ends what the authority said about a device, at the edge, too; mu is held.
func (v *Verifier) endAnswers(id string) {
	v.memory.DropVerdicts(id)
	v.endHeld(id)
}

// endHeld is endAnswers after the verdicts were dropped; mu is held.
func (v *Verifier) endHeld(id string) {
	if d := v.answers.devices[id]; d != nil {
		for _, x := range d.answers {
			v.end(x)
		}
	}
}

// endExpired ends the answers that have expired and have bits, which verdict_grace loses. It reports whether there were
// any, and searches once in retryEvery: there may be very many. mu is held.
func (v *Verifier) endExpired(now time.Time) (found bool) {
	if now.Sub(v.answers.searched) < retryEvery {
		return false
	}
	v.answers.searched = now
	for at := v.answers.order.Front(); at != nil; at = at.Next() {
		if x := at.Value.(*answer); x.permissions != 0 && !now.Before(x.ends) {
			v.endAnswers(x.device)
			found = true
		}
	}
	return found
}

// calling counts the running calls about a device.
func (v *Verifier) calling(id string, more int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.answers.calls[id] += more; v.answers.calls[id] == 0 {
		delete(v.answers.calls, id)
	}
}

// invalidate ends the answers that a change of the device's record from before to after, nil for none, outdates; mu is
// held. replace has dropped the verdicts of the device itself.
func (v *Verifier) invalidate(id string, after *record) {
	if v.Authority == nil {
		return
	}
	v.endHeld(id)
	if after == nil && v.answers.calls[id] > 0 {
		v.outdate()
	}
	if !contract.IsInvalidation(id) {
		return
	}
	delete(v.answers.tombstones, id)
	if after != nil && after.tombstone {
		v.answers.tombstones[id] = after
		v.endGroup(id)
	}
	v.answers.group = groupOf(v.answers.tombstones)
}

// endGroup ends the answers of all devices that an invalidation names, and running calls: nobody knows yet what the
// answer to these will be. mu is held.
func (v *Verifier) endGroup(invalidation string) {
	v.outdate()
	for id, d := range v.answers.devices {
		if slices.ContainsFunc(d.answers, func(x *answer) bool {
			return x.session != "" && contract.Invalidates(invalidation, x.labels)
		}) {
			v.endAnswers(id)
		}
	}
}

// groupOf returns a number that changes with each invalidation of several devices, the same in all sidecars.
func groupOf(tombstones map[string]*record) uint64 {
	sum := sha256.New()
	for _, id := range slices.Sorted(maps.Keys(tombstones)) {
		b := binary.BigEndian.AppendUint64([]byte{byte(len(id))}, tombstones[id].version)
		sum.Write(append(binary.BigEndian.AppendUint64(b, uint64(tombstones[id].writtenMS)), id...))
	}
	return binary.BigEndian.Uint64(sum.Sum(nil))
}

// doubtAsked ends what the authority said about a device, or about those that an invalidation names: Redis may have
// another record. mu is held.
func (v *Verifier) doubtAsked(id string) {
	if v.Authority == nil {
		return
	}
	v.answers.doubt, v.answers.doubtEnds = mathrand.Uint64(), time.Now().Add(maxShared)
	if contract.IsInvalidation(id) {
		v.endGroup(id)
		return
	}
	v.endAnswers(id)
	if v.answers.calls[id] > 0 {
		v.outdate()
	}
}

// askedValid reports whether the answer that session identifies still counts; mu is held.
func (v *Verifier) askedValid(id, session string) bool {
	d := v.answers.devices[id]
	return d != nil && session != "" &&
		slices.ContainsFunc(d.answers, func(x *answer) bool { return x.session == session })
}
