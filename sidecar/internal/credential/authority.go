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

// Authority is a service that decides about devices without a record in Redis. Its methods are safe for concurrent use.
type Authority interface {
	// Ask returns the service's answer by the end of ctx, or an error if the service gave none. The error contains no
	// secret. familiar: the device authenticated from the same network before.
	Ask(ctx context.Context, id, secret string, familiar bool) (Answer, error)
}

// ErrFailed means that the service, or the way to the service, failed to answer. The credential may be the cause.
var ErrFailed = errors.New("the call of the authority failed")

// Answer is the answer of an authority to a credential.
type Answer struct {
	ID    string // of the device; "" if the service doesn't say it
	Allow bool
	// The following fields are set for an allow only.
	Permissions []string          // names (limits.ValidPermission), at most limits.MaxPermissions, each once
	TTL         time.Duration     // how long the allow counts; 0, or more than AllowTTL: AllowTTL
	NotAfter    time.Time         // when the device's access ends; zero: never
	Labels      map[string]string // contract.CheckLabel, at most contract.MaxLabels
}

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
	// maxFailedCalls bounds the list of recently failed calls. If another call is answered within blameWithin, the
	// failed calls' credentials, not the service, may be the cause.
	maxFailedCalls = 64
	blameWithin    = time.Second
)

// answers has the authority's allows that the edge may hold, and the state for ending these allows. Callers of its
// methods hold the verifier's lock.
type answers struct {
	limit      int // maximum number
	devices    map[string]*authorityDevice
	order      list.List // of *answer, the oldest first
	running    map[string]int
	searchedAt time.Time      // last search of endExpiredAnswers
	ownCalls   map[uint64]int // running calls for unknown secrets from a device's own network, by pair
	// generation is the generation of devices without a record. The number changes when running calls may get outdated
	// answers.
	generation uint64
	// invalidations is a digest of the tombstones that invalidate several devices; tombstones has them by id.
	invalidations uint64
	tombstones    map[string]*record
	// doubtNonce, until doubtEnds, changes the digest: an invalidation may not be known yet, so answers that other
	// sidecars shared must not count.
	doubtNonce  uint64
	doubtEnds   time.Time
	failedCalls []failedCall // the newest last
}

// failedCall is an attempt, without its secret, whose call failed.
type failedCall struct {
	attempt
	at time.Time
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
	permissions uint64
	labels      map[string]string
	freshUntil  time.Time // until then the authority is not called
	ends        time.Time // of the verdict
	notAfter    time.Time
	session     string // identifies the answer in this process; "": the answer has ended
	element     *list.Element
}

func newAnswers(limit int) answers {
	return answers{limit: max(limit, 1), devices: make(map[string]*authorityDevice), running: make(map[string]int),
		ownCalls: make(map[uint64]int), invalidations: digestInvalidations(nil), tombstones: make(map[string]*record)}
}

// authorityDecides reports whether the authority decides about a device whose record is refused because of why.
func (v *Verifier) authorityDecides(id string, why Reason) bool {
	return v.Authority != nil && (why == reasonUnknown || why == reasonDeleted) && !contract.IsInvalidation(id)
}

// authorityGeneration returns the generation of a device without a record; r is its tombstone or nil. mu is held.
func (v *Verifier) authorityGeneration(r *record) uint64 {
	if r == nil {
		return v.answers.generation
	}
	return max(r.generation, v.answers.generation)
}

// restartCalls makes running calls start over; mu is held.
func (v *Verifier) restartCalls() {
	v.generation++
	v.answers.generation = v.generation
}

// currentTombstone returns the tombstone of the attempt's device, or nil; false if the attempt must start over. mu is
// held.
func (v *Verifier) currentTombstone(a *attempt) (*record, bool) {
	_, why := v.findAdmissible(a.id, time.Now())
	if !v.authorityDecides(a.id, why) {
		return nil, false
	}
	r := v.records[a.id]
	return r, v.authorityGeneration(r) == a.generation
}

// tryStoredAnswer prepares an attempt for a call of the authority, or returns the stored answer, true. mu is held.
func (v *Verifier) tryStoredAnswer(a *attempt, now time.Time) (Result, bool) {
	if slices.Contains(v.synced, false) { // a shard that was not read yet may have an invalidation
		return unavailable(reasonStarting), true
	}
	a.byAuthority, a.generation = true, v.authorityGeneration(v.records[a.id])
	a.toTry, a.wrong, a.isFreeGuess = nil, false, false
	d := v.answers.devices[a.id]
	a.familiar = d != nil && slices.Contains(d.sources, a.source)
	x := d.findAnswer(a.digest)
	if x == nil || !now.Before(x.freshUntil) {
		return Result{}, false
	}
	if wait := v.guessDelay(a); wait > 0 {
		return v.refuseGuess(a, wait), true
	}
	if !a.familiar && a.source != 0 && v.byPair.isFull(v.sources.pairKey(a.id, a.source)) {
		return unavailable(reasonOverload), true // as for a wrong secret, whose call would not be admitted
	}
	return v.allowByAuthority(a, x, reasonPin), true
}

// authorityQuestion is newQuestion for an attempt that the authority decides; mu is held.
func (v *Verifier) authorityQuestion(a *attempt) (*Question, bool) {
	r, ok := v.currentTombstone(a)
	if !ok {
		return nil, false
	}
	c := &Question{Device: a.id, Secret: a.secret, Authority: true, Invalidations: v.answers.invalidations,
		Timeout: v.authorityTimeout()}
	if time.Now().Before(v.answers.doubtEnds) {
		c.Invalidations ^= v.answers.doubtNonce
	}
	if r != nil {
		c.Version, c.PublishedMS = r.version, r.writtenMS
	}
	return c, true
}

// authorityTimeout is how long the authority may take, less than a caller waits.
func (v *Verifier) authorityTimeout() time.Duration { return v.Wait - v.Wait/10 }

// consultAuthority returns the authority's answer, or the answer that another sidecar got or is getting. Like
// verifyHash, consultAuthority is the work of a flight.
func (v *Verifier) consultAuthority(ctx context.Context, a attempt, f *flight) Result {
	v.countCall(a.id, 1) // before the question: from now on, an invalidation changes the generation
	defer v.countCall(a.id, -1)
	again := a
	if r, done := v.decideAndBlame(&again); done { // another flight has ended since the attempt was decided
		return r
	}
	leave, ok := v.reserveAuthorityCall(&again)
	if !ok {
		return unavailable(reasonOverload)
	}
	defer leave()
	c, ok := v.newQuestion(&a)
	if !ok || !v.confirmNoRecord(ctx, &a) {
		return unavailable(reasonUnsure) // no caller uses this answer: callers start over
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if m := v.Fleet.Find(ctx, c); m != nil {
		return v.concludeAttempt(&a, m, reasonShared)
	}
	wanted := func() bool { return f.isWanted() && v.isCurrent(&a) }
	for {
		shared, end := v.Fleet.Begin(ctx, c)
		switch {
		case shared != nil:
			return v.concludeAttempt(&a, shared, reasonShared)
		case end != nil:
			return v.callAuthority(ctx, &a, end)
		}
		if m := v.Fleet.Await(ctx, c, wanted); m != nil {
			return v.concludeAttempt(&a, m, reasonShared)
		}
		switch {
		case ctx.Err() != nil:
			return authorityAway()
		case !wanted():
			return unavailable(reasonUnsure)
		}
	}
}

// confirmNoRecord reports whether Redis has no record of the device, so the authority may decide. Events and the log
// may hide a record, since writers of objects can also write events and the log. If Redis doesn't answer, records that
// were read from Redis count, but events don't.
func (v *Verifier) confirmNoRecord(ctx context.Context, a *attempt) bool {
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

// reserveAuthorityCall admits a call only if, should all running calls have wrong secrets, the failure limits still
// hold. A secret that was right needs no reservation at the device's own network, so guesses can't lock the device out.
func (v *Verifier) reserveAuthorityCall(a *attempt) (leave func(), ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := &v.answers
	pair := v.sources.pairKey(a.id, a.source)
	switch {
	case a.familiar && t.devices[a.id].findAnswer(a.digest) != nil:
		return func() {}, true
	case a.familiar:
		if t.ownCalls[pair] >= maxPerDevice {
			return nil, false
		}
		t.ownCalls[pair]++
		return func() {
			v.mu.Lock()
			defer v.mu.Unlock()
			if t.ownCalls[pair]--; t.ownCalls[pair] == 0 {
				delete(t.ownCalls, pair)
			}
		}, true
	case a.source == 0:
		return func() {}, true
	case !v.byPair.beginAttempt(pair):
		return nil, false
	case !v.bySource.beginAttempt(uint64(a.source)):
		v.byPair.endAttempt(pair)
		return nil, false
	}
	return func() {
		v.byPair.endAttempt(pair)
		v.bySource.endAttempt(uint64(a.source))
	}, true
}

// authorityAway is the answer without an authority: within verdict_grace, the edge may use an expired verdict.
func authorityAway() Result {
	return Result{Outcome: wire.Away, Reason: reasonNoAuthority, RetryAfter: retryAfter}
}

// callAuthority calls the authority, and ends the claim of [Fleet.Begin] with the result.
func (v *Verifier) callAuthority(ctx context.Context, a *attempt, end func(*Match)) Result {
	spanned, span := tracing.StartChild(ctx, "authority")
	reply, err := v.Authority.Ask(spanned, a.id, a.secret, a.familiar)
	span.End()
	if err != nil {
		end(nil)
		v.countUnanswered(a, err)
		return authorityAway()
	}
	v.blameFailedCalls()
	var m *Match
	if reply.Allow {
		m = v.matchAnswer(&reply)
	} else {
		v.countFailure(a)
	}
	r := v.concludeAttempt(a, m, reasonAuthority)
	if r.Outcome != wire.Allow {
		m = nil
	}
	end(m)
	return r
}

// countUnanswered counts a secret that the authority never found right, if the device has right secrets. verdict_grace
// lets the device in with its right secrets: otherwise nothing would limit guesses while the authority is away.
func (v *Verifier) countUnanswered(a *attempt, err error) {
	v.mu.Lock()
	t := &v.answers
	d := t.devices[a.id]
	guess := d != nil && d.findAnswer(a.digest) == nil
	if !a.familiar && errors.Is(err, ErrFailed) {
		if len(t.failedCalls) == maxFailedCalls {
			t.failedCalls = slices.Delete(t.failedCalls, 0, 1)
		}
		t.failedCalls = append(t.failedCalls, failedCall{attempt{id: a.id, source: a.source, from: a.from}, time.Now()})
	}
	v.mu.Unlock()
	if guess {
		v.countGuess(a)
	}
}

// blameFailedCalls runs when a call was answered. It counts the calls that failed just before as guesses of their
// sources: a single client's failures must not keep new devices out. While the service is down, nobody is blamed.
func (v *Verifier) blameFailedCalls() {
	v.mu.Lock()
	lately := v.answers.failedCalls
	v.answers.failedCalls = nil
	v.mu.Unlock()
	for i := range lately {
		if time.Since(lately[i].at) < blameWithin {
			v.blameSource(&lately[i].attempt)
		}
	}
}

// matchAnswer returns the match for an allow. The authority is called again after two thirds of the match's life.
func (v *Verifier) matchAnswer(reply *Answer) *Match {
	now := time.Now()
	life := v.allowLife()
	if reply.TTL > 0 {
		life = min(life, reply.TTL)
	}
	return &Match{Until: now.Add(min(life*2/3, maxShareTime)), Authority: &AuthorityAllow{
		Permissions: reply.Permissions, Ends: now.Add(life), NotAfter: reply.NotAfter, Labels: reply.Labels,
	}}
}

// concludeAuthority is concludeAttempt for an attempt that the authority decides; mu is held.
func (v *Verifier) concludeAuthority(a *attempt, m *Match, now time.Time, reason Reason) Result {
	if _, ok := v.currentTombstone(a); !ok {
		return unavailable(reasonUnsure) // no caller uses this answer: callers start over
	}
	if m == nil || m.Authority == nil || !m.Authority.NotAfter.IsZero() && !now.Before(m.Authority.NotAfter) {
		if d := v.answers.devices[a.id]; d.findAnswer(a.digest) != nil {
			v.endAnswers(a.id) // the secret was right before
		}
		if m != nil {
			reason = reasonExpired
		}
		return v.deny(a, now, reason)
	}
	bits, err := v.acquireBits(m.Authority.Permissions)
	if err != nil {
		v.recordLog.Do(func() { v.log.Warn("an answer of the authority can't be used", "device", a.id, "error", err) })
		return authorityAway()
	}
	v.generation++
	latest := now.Add(v.AllowTTL + v.AllowTTL/10) // another sidecar may have another AllowTTL or clock
	x := &storedAnswer{device: a.id, digest: a.digest, permissions: bits, labels: m.Authority.Labels,
		freshUntil: earlier(m.Until, latest), ends: earlier(m.Authority.Ends, latest), notAfter: m.Authority.NotAfter,
		session: "a" + strconv.FormatUint(v.generation, 10)}
	if !x.notAfter.IsZero() {
		x.freshUntil = earlier(x.freshUntil, x.notAfter)
	}
	v.storeAnswer(a, x, now)
	return v.allowByAuthority(a, x, reason)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// allowByAuthority stores the verdict and returns the answer; mu is held.
func (v *Verifier) allowByAuthority(a *attempt, x *storedAnswer, reason Reason) Result {
	verdict := newAllowVerdict(x.ends, x.freshUntil, x.notAfter, x.permissions)
	v.memory.PutAnswer(a.id, a.secret, verdict, x.ends.Add(graceLife))
	return Result{Outcome: wire.Allow, Reason: reason, Permissions: x.permissions, Session: x.session,
		NotAfter: x.notAfter, ByAuthority: true}
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

// storeAnswer stores an answer, and forgets the earlier answer for the same secret; mu is held.
func (v *Verifier) storeAnswer(a *attempt, x *storedAnswer, now time.Time) {
	t := &v.answers
	for first := t.order.Front(); first != nil; first = t.order.Front() {
		oldest := first.Value.(*storedAnswer)
		if t.order.Len() >= t.limit {
			v.endAnswers(oldest.device)
		} else if now.Before(oldest.ends.Add(answerLife)) {
			break
		}
		v.forgetAnswer(oldest)
	}
	d := t.devices[a.id]
	if d == nil {
		d = new(authorityDevice)
		t.devices[a.id] = d
	}
	before := d.findAnswer(a.digest)
	switch {
	case before != nil && before.permissions != x.permissions, before == nil && len(d.answers) == maxDeviceAnswers:
		v.endAnswers(a.id)
	}
	d.answers = append(d.answers, x)
	x.element = t.order.PushBack(x)
	switch {
	case before != nil:
		v.forgetAnswer(before)
	case len(d.answers) > maxDeviceAnswers:
		v.forgetAnswer(d.answers[0])
	}
	if a.source != 0 {
		d.sources = appendRecent(d.sources, a.source, maxSources)
		v.failureNames.dropName(v.sources.pairKey(a.id, a.source))
	}
}

// forgetAnswer forgets an answer that has ended or is replaced; mu is held.
func (v *Verifier) forgetAnswer(x *storedAnswer) {
	v.endAnswer(x)
	v.answers.order.Remove(x.element)
	d := v.answers.devices[x.device]
	d.answers = slices.DeleteFunc(d.answers, func(other *storedAnswer) bool { return other == x })
	if len(d.answers) == 0 {
		delete(v.answers.devices, x.device)
	}
}

// endAnswer invalidates an answer whose verdict was dropped at the edge. The answer stays stored as proof that the
// device authenticated before. mu is held.
func (v *Verifier) endAnswer(x *storedAnswer) {
	if x.permissions != 0 {
		v.memory.ReleasePermissions(x.permissions)
	}
	x.permissions, x.labels, x.freshUntil, x.session = 0, nil, time.Time{}, ""
}

// endAnswers ends all answers for a device, also at the edge; mu is held.
func (v *Verifier) endAnswers(id string) {
	v.memory.DropVerdicts(id)
	v.endStoredAnswers(id)
}

// endStoredAnswers is endAnswers after the verdicts were dropped; mu is held.
func (v *Verifier) endStoredAnswers(id string) {
	if d := v.answers.devices[id]; d != nil {
		for _, x := range d.answers {
			v.endAnswer(x)
		}
	}
}

// endExpiredAnswers ends expired answers that occupy permission bits; verdict_grace loses these answers. It reports
// whether it found any. Since a search may be long, it searches at most once in retryEvery. mu is held.
func (v *Verifier) endExpiredAnswers(now time.Time) (found bool) {
	if now.Sub(v.answers.searchedAt) < retryEvery {
		return false
	}
	v.answers.searchedAt = now
	for at := v.answers.order.Front(); at != nil; at = at.Next() {
		if x := at.Value.(*storedAnswer); x.permissions != 0 && !now.Before(x.ends) {
			v.endAnswers(x.device)
			found = true
		}
	}
	return found
}

// countCall counts the running calls about a device.
func (v *Verifier) countCall(id string, more int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.answers.running[id] += more; v.answers.running[id] == 0 {
		delete(v.answers.running, id)
	}
}

// invalidateAnswers ends the answers that a change of the device's record to after, nil for none, outdates; mu is held.
// replaceRecord has dropped the verdicts of the device itself.
func (v *Verifier) invalidateAnswers(id string, after *record) {
	if v.Authority == nil {
		return
	}
	v.endStoredAnswers(id)
	if after == nil && v.answers.running[id] > 0 {
		v.restartCalls()
	}
	if !contract.IsInvalidation(id) {
		return
	}
	delete(v.answers.tombstones, id)
	if after != nil && after.tombstone {
		v.answers.tombstones[id] = after
		v.endInvalidated(id)
	}
	v.answers.invalidations = digestInvalidations(v.answers.tombstones)
}

// endInvalidated ends the answers of all devices that an invalidation names. It restarts running calls, since their
// answers may have labels that the invalidation names. mu is held.
func (v *Verifier) endInvalidated(invalidation string) {
	v.restartCalls()
	for id, d := range v.answers.devices {
		if slices.ContainsFunc(d.answers, func(x *storedAnswer) bool {
			return x.session != "" && contract.Invalidates(invalidation, x.labels)
		}) {
			v.endAnswers(id)
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
// record. mu is held.
func (v *Verifier) doubtAnswers(id string) {
	if v.Authority == nil {
		return
	}
	v.answers.doubtNonce, v.answers.doubtEnds = mathrand.Uint64(), time.Now().Add(maxShareTime)
	if contract.IsInvalidation(id) {
		v.endInvalidated(id)
		return
	}
	v.endAnswers(id)
	if v.answers.running[id] > 0 {
		v.restartCalls()
	}
}

// isAnswerSession reports whether session identifies an answer that has not ended; mu is held.
func (v *Verifier) isAnswerSession(id, session string) bool {
	d := v.answers.devices[id]
	return d != nil && session != "" &&
		slices.ContainsFunc(d.answers, func(x *storedAnswer) bool { return x.session == session })
}
