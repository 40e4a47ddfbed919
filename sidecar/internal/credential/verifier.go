// Package credential verifies credentials of devices. It runs bcrypt, which stands for all schemes that are slow on
// purpose, as seldom as possible: once for each stored hash and right secret, in one of the sidecars that share
// verdicts; never for a device that must be refused anyway; and never for a wrong secret once the right one is known.
//
// # Revocation
//
// Every applied record gets a new generation. A verification reads record and generation under the lock, runs bcrypt
// without it, and takes the lock again to store the verdict and to answer; if the generation has changed, it starts
// over. The verdicts of a device are dropped in the critical section in which its new record takes effect. So a
// verification that is running when a device is revoked can neither store nor answer allow. A record in doubt keeps its
// generation, but no verification can store or answer anything meanwhile.
package credential

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/shrink"
)

const (
	// retryAfter is sent to a device that can't be verified now, suspectAfter if its source has failed lately. Both are
	// shorter than keepFor, within which the device must try again.
	retryAfter   = time.Second
	suspectAfter = 5 * time.Second
	// pinJitter is the maximum fraction by which a pin is shorter than PinTTL.
	pinJitter = 0.25
	// ownFor is how long the edge itself refuses wrong secrets of a device from where it authenticated before.
	ownThrottle = time.Second
	// maxRestarts bounds how often a verification starts over after a change of the record.
	maxRestarts = 8
)

// Memory stores verdicts and the list of devices, and assigns bits to permission names.
type Memory interface {
	// PutVerdict stores a verdict; only: no other secret of the device is right.
	PutVerdict(device, secret string, v wire.Verdict, only bool)
	PutSession(device, session string, v wire.Verdict)
	// PutAnswer stores an authority's allow, and keeps it after its end, for verdict_grace, until the time given if there
	// is room.
	PutAnswer(device, secret string, v wire.Verdict, until time.Time)
	DropVerdicts(device string)
	// PutDevice lists a device that may authenticate; isNew: it never did. DropDevice removes it.
	PutDevice(device string, isNew bool) error
	DropDevice(device string)
	// SetDevicesComplete records that all other devices are unknown.
	SetDevicesComplete()
	// Permissions may fail with an error that has a method Later, which returns true if a retry soon may succeed. Call
	// ReleasePermissions once for each successful call, when the record is gone.
	Permissions(names []string) (uint64, error)
	ReleasePermissions(bits uint64)
}

// Config has the lifetimes of verdicts and the bounds of bcrypt.
type Config struct {
	Workers  int           // concurrent runs of bcrypt
	Queue    int           // verifications that may wait for a worker
	Wait     time.Duration // how long a caller waits; the verification continues without it
	MaxCost  int           // of bcrypt; higher costs, and other schemes that take longer, are refused
	AllowTTL time.Duration // ± 10 %
	DenyTTL  time.Duration
	PinTTL   time.Duration // maximum time for which a matched secret needs no bcrypt; 0: none
	Limits
	// Compare is [passhash.Compare]. There are at most as many concurrent calls as Workers. With a pace the run uses
	// only spare CPU; it pauses, and doesn't count towards Workers, while the last value of pace was true. Without
	// Compare it runs in this process.
	Compare func(hash, secret string, pace <-chan bool) error
	Peppers []contract.Pepper // of gh1; other records of gh1 are refused
	Upgrade func(Upgrade)     // is called with what should be gh1 of the first pepper, and must not block; nil: not
	Shards  contract.Shards   // each has its own full resyncs
	Fleet   Fleet             // other sidecars; nil: nothing is shared
	Known   Known             // nil: nothing is stored across restarts
	Seen    Seen              // nil: nobody wants to know
	// Authority decides about devices without a record; nil: they are unknown. At most MostAnswers of its allows are held.
	Authority  Authority
	MaxAnswers int
	// Registered reports whether Redis has a record of a device, and no tombstone. Then the device is read again. It is
	// asked before the authority is; nil: all that Redis has was applied.
	Registered func(ctx context.Context, id string) (bool, error)
}

// Seen learns what became of verifications, for operators. It is called under a lock.
type Seen interface {
	// Allowed: the device authenticated; old: with a secret that ends, or a token for it.
	Allowed(device string, old bool)
	// Failed: its secret was wrong; from is the client's address, "" if unknown.
	Failed(device, from string)
}

type noSeen struct{}

func (noSeen) Allowed(string, bool)  {}
func (noSeen) Failed(string, string) {}

// Limits bound wrong secrets; 0 means no limit.
type Limits struct {
	DeviceFailures int           // of one source for one device, within Window
	SourceFailures int           // of one source for all devices, within Window; beyond it, none costs bcrypt
	Window         time.Duration // each Window/limit forgives one
}

// Result is the answer to a verification.
type Result struct {
	Outcome     wire.Outcome
	Reason      Reason // what decided, a label of metrics; the device doesn't learn it
	Permissions uint64 // allow: a bit per name
	RetryAfter  time.Duration
	ThrottleFor time.Duration // how long the edge refuses others from this source by itself, see [wire.VerifyResponse]
	Session     string        // allow: identifies in a token the record that authenticated the device
	NotAfter    time.Time     // allow: when that ends; zero: never
	ByAuthority bool          // allow: an authority decided, and Session is of this process only
}

// Refused reports whether the credential was wrong, or its source beyond a limit.
func (r Result) Refused() bool { return r.Outcome == wire.Deny || r.Reason == reasonLimited }

// Verifier is safe for concurrent use.
type Verifier struct {
	Config
	memory    Memory
	metrics   *metrics.Metrics
	log       *slog.Logger
	recordLog rate.Sometimes // bounds the log of refused records
	secret    [32]byte       // keys the digests of secrets; random, of this process
	sources   sources
	pool      *pool
	flights   flights

	byPair, bySource *failures
	failureNames     failureNames
	lookups          *failures // of sources beyond a limit in the fleet's verdicts; nil: nothing is shared

	mu             sync.Mutex // protects all below; held while the edge is called
	records        map[string]*record
	size           shrink.Map[string, *record] // of records
	live           int                         // records that are not tombstones
	tombstones     []tombstone                 // in the order of their arrival
	generation     uint64                      // last assigned
	resyncs        []uint64                    // by shard: number of full resyncs
	denies         denyFilter
	answers        answers
	restored       bool                // sources of earlier processes are not needed any more
	waitingForBits map[string]struct{} // devices whose permission names have no bit
	retryScheduled bool                // a retry is scheduled
	listError      error               // why the edge doesn't list all devices; nil: it does
	synced         []bool              // by shard: all records were read once, so a device without one is unknown
}

// New returns a Verifier that knows no device and answers unavailable until [Shard.EndResync].
func New(c Config, edge Memory, m *metrics.Metrics, log *slog.Logger) *Verifier {
	if c.Known == nil {
		c.Known = noKnown{}
	}
	if c.Seen == nil {
		c.Seen = noSeen{}
	}
	v := &Verifier{
		Config: c, memory: edge, metrics: m, log: log, recordLog: rate.Sometimes{First: 100, Interval: time.Second},
		sources: newSources(c.Known.Key()), pool: newPool(c.Workers, c.Queue, m),
		flights: flights{all: make(map[string]*flight)},
		byPair:  newFailures(c.DeviceFailures, c.Window), bySource: newFailures(c.SourceFailures, c.Window),
		records: make(map[string]*record), waitingForBits: make(map[string]struct{}),
		resyncs: make([]uint64, c.Shards.Count()), synced: make([]bool, c.Shards.Count()), answers: newAnswers(c.MaxAnswers),
	}
	rand.Read(v.secret[:]) // never fails
	if v.Compare == nil {
		v.Compare = func(hash, secret string, _ <-chan bool) error {
			return passhash.Compare(hash, secret)
		}
	}
	if v.Fleet == nil {
		v.Fleet = noFleet{}
	} else {
		v.lookups = newFailures(maxLookups, time.Second)
	}
	return v
}

// digest is a digest of a device and a secret, valid in this process only.
type digest [sha256.Size]byte

func (v *Verifier) digestSecret(id, secret string) digest {
	mac := hmac.New(sha256.New, v.secret[:])
	mac.Write([]byte{byte(len(id))})
	mac.Write([]byte(id))
	mac.Write([]byte(secret))
	return digest(mac.Sum(nil))
}

// attempt is one credential or token session to verify, against one generation of the device's record.
type attempt struct {
	id, secret  string
	session     string // of a token; "" for a credential
	source      source
	from        string // the client's address
	digest      digest
	generation  uint64
	familiar    bool     // the device authenticated from source before
	toTry       []string // hashes that need bcrypt
	wrong       bool     // the device has another secret that is right
	byAuthority bool     // the authority decides
	isFreeGuess bool     // it was wrong, without bcrypt, and not before: its source is to blame
}

// Verify decides whether device id may authenticate with secret, and stores the verdict for the edge. from is the
// client's address, "" if unknown. It returns when ctx ends or after the configured time; the verification continues.
func (v *Verifier) Verify(ctx context.Context, id, secret, from string) Result {
	r := v.verifyCredential(ctx, id, secret, from)
	v.metrics.Verifications.WithLabelValues(r.Outcome.String(), string(r.Reason)).Inc()
	return r
}

func (v *Verifier) verifyCredential(ctx context.Context, id, secret, from string) Result {
	if !limits.ValidDeviceID(id) || secret == "" || len(secret) > limits.MaxSecret || strings.IndexByte(secret, 0) >= 0 {
		// No verdict: the edge refuses these by itself, and they may have no digest.
		return Result{Outcome: wire.Deny, Reason: reasonMalformed}
	}
	a := attempt{id: id, secret: secret, source: v.sources.sourceOf(from), from: from, digest: v.digestSecret(id, secret)}
	if r, done := v.decideAndBlame(&a); done {
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, v.Wait)
	defer cancel()
	for range maxRestarts {
		// The same secret against the same hashes: one run for all callers. A wrong secret has another digest, so it
		// never gets the answer for a right one.
		key := a.flightKey()
		f := v.flights.join(ctx, key)
		if f == nil {
			if wait := v.guessDelay(&a); wait > 0 {
				return v.refuseGuess(&a, wait)
			}
			if wait := v.sourceDelay(&a); wait > 0 {
				if r, found := v.findShared(ctx, &a); found {
					return r
				}
				return Result{Outcome: wire.Unavailable, Reason: reasonLimited, RetryAfter: max(wait, retryAfter),
					ThrottleFor: v.throttleFor(&a, v.bySource.retryAfter(uint64(a.source)))}
			}
			f = v.flights.start(ctx, key, func(ctx context.Context, f *flight) Result {
				if a.byAuthority {
					return v.consultAuthority(ctx, a, f)
				}
				return v.verifyHash(ctx, a, f)
			})
		}
		select {
		case <-f.done:
			if f.result.Reason != reasonUnsure && v.isCurrent(&a) {
				return v.answerTo(&a, f.result)
			}
		case <-ctx.Done():
			return v.answerTo(&a, unavailable(reasonTimeout))
		}
		if r, done := v.decideAndBlame(&a); done {
			return r
		}
	}
	return unavailable(reasonTimeout)
}

// decideAndBlame is decide, and lists who guessed.
func (v *Verifier) decideAndBlame(a *attempt) (Result, bool) {
	r, done := v.decideWithoutBcrypt(a)
	if a.isFreeGuess {
		v.blameSource(a) // without the lock: the queue takes it
	}
	return r, done
}

// answerTo returns the answer for the attempt: a source that has failed lately gets a longer Retry-After.
func (v *Verifier) answerTo(a *attempt, r Result) Result {
	if (r.Outcome == wire.Unavailable || r.Outcome == wire.Away) && !a.familiar && v.isSuspect(a) {
		r.Outcome, r.RetryAfter, r.ThrottleFor = wire.Unavailable, suspectAfter, v.throttleFor(a, suspectAfter)
	}
	return r
}

// throttleFor returns how long the edge need not ask about new devices from the attempt's source, since bcrypt would
// not run for most of them. With shared verdicts it is short: another sidecar may know a device.
func (v *Verifier) throttleFor(a *attempt, most time.Duration) time.Duration {
	if v.lookups != nil {
		return min(most, v.lookups.retryAfter(uint64(a.source)))
	}
	return most
}

// flightKey distinguishes attempts that must not share an answer.
func (a *attempt) flightKey() string {
	b := make([]byte, 0, 8+len(a.digest)+len(a.id))
	for shift := 0; shift < 64; shift += 8 {
		b = append(b, byte(a.generation>>shift))
	}
	return string(append(append(b, a.digest[:]...), a.id...))
}

func unavailable(reason Reason) Result {
	return Result{Outcome: wire.Unavailable, Reason: reason, RetryAfter: retryAfter}
}

// isCurrent reports whether the attempt's record is still the device's, and not in doubt.
func (v *Verifier) isCurrent(a *attempt) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a.byAuthority {
		_, ok := v.currentTombstone(a)
		return ok
	}
	r := v.currentRecord(a.id, time.Now())
	return r != nil && r.generation == a.generation && r.refusal == ""
}

// decideWithoutBcrypt returns the answer if it needs no bcrypt. Otherwise it sets a.toTry.
func (v *Verifier) decideWithoutBcrypt(a *attempt) (Result, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	r, why := v.findAdmissible(a.id, now)
	if v.authorityDecides(a.id, why) {
		if !utf8.ValidString(a.secret) { // JSON has no others, and would make several the same
			a.byAuthority, a.isFreeGuess = false, false
			return v.deny(a, now, reasonMalformed), true
		}
		return v.tryStoredAnswer(a, now)
	}
	a.byAuthority = false
	if why != "" {
		return v.answerInadmissible(a, now, why), true
	}
	a.generation, a.toTry, a.wrong, a.isFreeGuess = r.generation, nil, false, false
	a.familiar = slices.Contains(r.sources, a.source)
	if contract.Mistyped(a.secret) {
		return v.deny(a, now, reasonMalformed), true
	}
	for i := range r.hashes {
		h := &r.hashes[i]
		switch {
		case h.pepper != nil:
			if !h.pepper.Matches(h.text, a.secret) {
				continue
			}
			// No limit: nobody can guess a generated secret.
			h.resolved, h.digest = true, a.digest
			v.recordSource(r, a.id, a.source)
			return v.allow(a, r, r.isOldHash(h.text), now, reasonGH1), true
		case !h.resolved:
			a.toTry = append(a.toTry, h.text)
		case !hmac.Equal(h.digest[:], a.digest[:]):
			a.wrong = true // the right secret for this hash is another one
		default:
			a.toTry, a.wrong = []string{h.text}, false
			if !now.Before(h.pinnedUntil) {
				return Result{}, false
			}
			if wait := v.guessDelay(a); wait > 0 {
				return v.refuseGuess(a, wait), true
			}
			v.recordSource(r, a.id, a.source)
			v.offerUpgrade(a, r, h.text)
			return v.allow(a, r, r.isOldHash(h.text), now, reasonPin), true
		}
	}
	for i := range r.refuted {
		if hmac.Equal(r.refuted[i][:], a.digest[:]) {
			return v.denyWrong(a, r, now, reasonRefuted), true
		}
	}
	if len(a.toTry) > 0 {
		return Result{}, false
	}
	return v.denyResolved(a, r, now), true
}

// denyResolved counts and answers a secret that is wrong, because all right ones are known or gh1; mu is held.
func (v *Verifier) denyResolved(a *attempt, r *record, now time.Time) Result {
	// Nobody can guess a secret of gh1, so the limit of the device would only keep the device out.
	guessable := slices.ContainsFunc(r.hashes, func(h hash) bool { return h.pepper == nil })
	wait := time.Duration(0)
	if guessable {
		if wait = v.guessDelay(a); wait > 0 && !a.familiar {
			return v.refuseGuess(a, wait) // and doesn't remember the secret: its refusal would tell that it is wrong
		}
		v.countGuess(a)
	}
	r.addRefuted(a.digest)
	a.isFreeGuess = true
	denied := v.denyWrong(a, r, now, reasonResolved)
	if !guessable || a.familiar || v.DeviceFailures == 0 {
		denied.ThrottleFor = ownThrottle
	}
	if wait > 0 {
		v.metrics.Guesses.WithLabelValues(ownNetwork).Inc()
	}
	return denied
}

// findAdmissible returns the record of a device that may authenticate, or why it may not; mu is held.
func (v *Verifier) findAdmissible(id string, now time.Time) (r *record, why Reason) {
	r = v.currentRecord(id, now)
	switch {
	case !v.synced[v.Shards.Of(id)]:
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

// answerInadmissible returns the answer for a device that is not admissible; mu is held.
func (v *Verifier) answerInadmissible(a *attempt, now time.Time, why Reason) Result {
	if why.NotYet() {
		return unavailable(why)
	}
	return v.deny(a, now, why)
}

// denyWrong returns the answer to a wrong secret of a device with a record, with another reason if it was right until an
// overlap ended; mu is held.
func (v *Verifier) denyWrong(a *attempt, r *record, now time.Time, reason Reason) Result {
	v.Seen.Failed(a.id, a.from)
	denied := v.deny(a, now, reason)
	for i := range r.ended {
		if hmac.Equal(r.ended[i][:], a.digest[:]) {
			denied.Reason, r.refused.Reason = reasonOldSecret, reasonOldSecret
		}
	}
	return denied
}

// allow stores the verdict and returns the answer; old: the secret, or that of the token, is one that ends. mu is held.
func (v *Verifier) allow(a *attempt, r *record, old bool, now time.Time, reason Reason) Result {
	life, end := v.allowLife(), r.accessEnd(old)
	verdict := newAllowVerdict(now.Add(life), now.Add(life*2/3), end, r.permissions)
	// The secret matched the only hash, so no other secret is right.
	only := len(r.hashes) == 1
	v.storeVerdict(a, verdict, only)
	v.Seen.Allowed(a.id, old)
	return Result{Outcome: wire.Allow, Reason: reason, Permissions: r.permissions, Session: r.sessionID(old),
		NotAfter: end}
}

// allowLife returns how long an allow counts, with jitter: devices that authenticated at the same time don't expire at the
// same time.
func (v *Verifier) allowLife() time.Duration {
	return time.Duration(float64(v.AllowTTL) * (0.9 + 0.2*mathrand.Float64()))
}

// newAllowVerdict returns the verdict for the edge; notAfter is when the device's access ends, zero for never.
func newAllowVerdict(expires, refreshAfter, notAfter time.Time, permissions uint64) wire.Verdict {
	verdict := wire.Verdict{Outcome: wire.Allow, Permissions: permissions, ExpiresMS: expires.UnixMilli(),
		RefreshAfterMS: refreshAfter.UnixMilli()}
	if !notAfter.IsZero() {
		verdict.NotAfterMS = min(notAfter.UnixMilli(), 1<<48-1)
		verdict.ExpiresMS = min(verdict.ExpiresMS, verdict.NotAfterMS)
	}
	return verdict
}

// deny returns the answer, and stores the verdict if denies decides so. mu is held.
func (v *Verifier) deny(a *attempt, now time.Time, reason Reason) Result {
	if r := v.records[a.id]; r != nil {
		r.refused = &Refused{Reason: reason, At: now, From: strings.Clone(a.from)} // without the rest of the call
	}
	fate := v.denies.decideFate(a.digest, now, reason == reasonBcrypt || reason == reasonAuthority)
	v.metrics.Denies.WithLabelValues(string(fate)).Inc()
	if fate == denyStored {
		v.storeVerdict(a, wire.Verdict{Outcome: wire.Deny, ExpiresMS: now.Add(v.DenyTTL).UnixMilli()}, false)
	}
	return Result{Outcome: wire.Deny, Reason: reason}
}

func (v *Verifier) storeVerdict(a *attempt, verdict wire.Verdict, only bool) {
	if a.session != "" {
		v.memory.PutSession(a.id, a.session, verdict)
		return
	}
	v.memory.PutVerdict(a.id, a.secret, verdict, only)
}
