package credential

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/tracing"
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

// authorityDecides reports whether the authority decides about a device whose record is refused because of why.
func (c *Config) authorityDecides(id string, why Reason) bool {
	return c.Authority != nil && (why == reasonUnknown || why == reasonDeleted) && !contract.IsInvalidation(id)
}

// settleByAnswer settles an attempt that the authority decides.
// +checklocks:v.Devices.mu
func (v *Verifier) settleByAnswer(a *attempt, now time.Time) (Result, bool) {
	tombstone := v.records.all[a.id]
	if !utf8.ValidString(a.secret) { // JSON has only valid UTF-8: distinct secrets would become equal
		return v.verdicts.deny(a, tombstone, now, reasonMalformed), true
	}
	if !v.allSynced() { // a shard that was not read yet may have an invalidation
		return unavailable(reasonStarting), true
	}
	d := v.answers.devices[a.id]
	x := d.findAnswer(a.digest)
	a.generation, a.wasRight = v.answers.generationOf(tombstone), x != nil
	a.familiar = d != nil && slices.Contains(d.sources, a.source)
	if x == nil || !now.Before(x.freshUntil) {
		return Result{}, false
	}
	if r, limited := v.limitGuess(a); limited {
		return r, true
	}
	if !a.familiar && a.source != 0 && v.byPair.isFull(v.pairKey(a)) {
		return unavailable(reasonOverload), true // as for a wrong secret, whose call would not be admitted
	}
	return v.verdicts.allowByAnswer(a, x, reasonPin), true
}

// authorityTimeout is how long the authority may take, less than a caller waits.
func (c *Config) authorityTimeout() time.Duration { return c.Wait - c.Wait/10 }

// countCall counts the running calls about a device.
func (v *Verifier) countCall(id string, more int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.answers.running[id] += more; v.answers.running[id] == 0 {
		delete(v.answers.running, id)
	}
}

// verifyByAuthority returns the authority's answer, or the answer that another sidecar got or is getting. Like
// verifyByHash, it is the work of a flight.
func (v *Verifier) verifyByAuthority(ctx context.Context, a attempt, wanted func() bool) Result {
	v.countCall(a.id, 1) // before the question: from now on, an invalidation changes the generation
	defer v.countCall(a.id, -1)
	again := a
	if r, known := v.findVerdict(&again); known { // another flight has ended since the attempt was decided
		return r
	}
	leave, ok := v.calls.reserveCall(&again)
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
	if m := v.findInFleet(ctx, c); m != nil {
		return v.conclude(&a, m, reasonShared)
	}
	for {
		shared, end := v.Fleet.Begin(ctx, c)
		switch {
		case shared != nil:
			return v.conclude(&a, shared, reasonShared)
		case end != nil:
			return v.callAuthority(ctx, &a, end)
		}
		if m := v.Fleet.Await(ctx, c, wanted); m != nil {
			return v.conclude(&a, m, reasonShared)
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
	r := v.records.all[a.id]
	return r == nil || !r.doubted
}

// authorityAway is the answer without an authority: within verdict_grace, the edge may use an expired verdict.
func authorityAway() Result {
	return Result{Outcome: wire.Away, Reason: reasonNoAuthority, RetryAfter: retryAfter}
}

// callAuthority calls the authority, and ends the claim of [Fleet.Begin] with the result.
func (v *Verifier) callAuthority(ctx context.Context, a *attempt, end func(*Match)) Result {
	leave, ok := v.slots.acquire(ctx, a.familiar)
	if !ok {
		end(nil)
		return authorityAway()
	}
	defer leave()
	spanned, span := tracing.StartChild(ctx, "authority")
	reply, err := v.Authority.Ask(spanned, a.id, a.secret, a.familiar)
	span.End()
	if err != nil {
		end(nil)
		v.calls.addFailed(a, err)
		if v.hasOtherAnswers(a) {
			v.countGuess(a)
		}
		return authorityAway()
	}
	v.calls.blameFailed()
	var m *Match
	if reply.Allow {
		m = v.matchAnswer(&reply)
	} else {
		v.countFailure(a)
	}
	r := v.conclude(a, m, reasonAuthority)
	if r.Outcome != wire.Allow {
		m = nil
	}
	end(m)
	return r
}

// hasOtherAnswers reports whether the device has right secrets, and the authority never found the attempt's secret
// right. verdict_grace lets the device in with its right secrets: unless such secrets count as guesses, nothing limits
// guesses while the authority is away.
func (v *Verifier) hasOtherAnswers(a *attempt) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.answers.devices[a.id]
	return known != nil && known.findAnswer(a.digest) == nil
}

// matchAnswer returns the match for an allow. The authority is called again after two thirds of the match's life.
func (c *Config) matchAnswer(reply *Answer) *Match {
	now := time.Now()
	life := c.allowLife()
	if reply.TTL > 0 {
		life = min(life, reply.TTL)
	}
	return &Match{Until: now.Add(min(life*2/3, maxShareTime)), Authority: &AuthorityAllow{
		Permissions: reply.Permissions, Ends: now.Add(life), NotAfter: reply.NotAfter, Labels: reply.Labels,
	}}
}

// concludeByAuthority is conclude for a device that the authority decides about; r is its tombstone or nil.
// +checklocks:v.Devices.mu
func (v *Verifier) concludeByAuthority(a *attempt, r *record, m *Match, now time.Time, reason Reason) Result {
	if m == nil || m.Authority == nil || !m.Authority.NotAfter.IsZero() && !now.Before(m.Authority.NotAfter) {
		if d := v.answers.devices[a.id]; d.findAnswer(a.digest) != nil {
			v.answers.endAnswers(a.id) // the secret was right before
		}
		if m != nil {
			reason = reasonExpired
		}
		return v.verdicts.deny(a, r, now, reason)
	}
	latest := now.Add(v.AllowTTL + v.AllowTTL/10) // another sidecar may have another AllowTTL or clock
	x := &storedAnswer{device: a.id, digest: a.digest, permissions: joinNames(m.Authority.Permissions),
		labels: m.Authority.Labels, freshUntil: earlier(m.Until, latest), ends: earlier(m.Authority.Ends, latest),
		notAfter: m.Authority.NotAfter, session: "a" + strconv.FormatUint(v.generation.Add(1), 10)}
	if !x.notAfter.IsZero() {
		x.freshUntil = earlier(x.freshUntil, x.notAfter)
	}
	v.answers.storeAnswer(a, x, now)
	if a.source != 0 {
		v.names.dropName(v.pairKey(a)) // no limit applies any more
	}
	return v.verdicts.allowByAnswer(a, x, reason)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
