// Package credential verifies credentials of devices. It avoids runs of bcrypt (here: any scheme that is slow on
// purpose): bcrypt runs once for each stored hash and right secret, in a single sidecar of those that share verdicts;
// never for a device that must be refused anyway; never for a wrong secret once the right secret is known.
//
// # Revocation
//
// Every applied record gets a new generation. A verification reads record and generation under the lock, runs bcrypt
// without the lock, and takes the lock again to store the verdict and to answer; if the generation has changed, the
// verification starts over. The critical section that puts a new record into effect also drops the device's verdicts.
// So a verification that is running when a device is revoked can neither store nor answer allow. A record in doubt
// keeps its generation, but no verification can store or answer anything meanwhile.
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
	// A device that can't be verified now gets retryAfter; if its source has failed lately, suspectAfter. Both are
	// shorter than flightLife, within which the device must try again.
	retryAfter   = time.Second
	suspectAfter = 5 * time.Second
	// pinJitter is the maximum fraction by which a pin is shorter than PinTTL.
	pinJitter = 0.25
	// ownThrottle is how long the edge refuses a device's wrong secrets from a source at which the device
	// authenticated.
	ownThrottle = time.Second
	// maxRestarts bounds how often a verification starts over after a change of the record.
	maxRestarts = 8
)

// Memory stores verdicts and the list of devices, and assigns bits to permission names.
type Memory interface {
	// PutVerdict stores a verdict; only: the device has no other right secret.
	PutVerdict(device, secret string, v wire.Verdict, only bool)
	PutSession(device, session string, v wire.Verdict)
	// PutAnswer stores an authority's allow. If there is room, the edge keeps the expired verdict until the given time,
	// for verdict_grace.
	PutAnswer(device, secret string, v wire.Verdict, until time.Time)
	DropVerdicts(device string)
	// PutDevice lists a device that may authenticate; isNew: the device never authenticated. DropDevice removes the
	// device from the list.
	PutDevice(device string, isNew bool) error
	DropDevice(device string)
	// SetDevicesComplete records that devices outside the list are unknown.
	SetDevicesComplete()
	// Permissions assigns a bit to each name. If an early retry may succeed, the error has a method Later that returns
	// true. Call ReleasePermissions once for each successful call, when the record is gone.
	Permissions(names []string) (uint64, error)
	ReleasePermissions(bits uint64)
}

// Config has the lifetimes of verdicts and the bounds of bcrypt.
type Config struct {
	Workers  int           // concurrent runs of bcrypt
	Queue    int           // verifications that wait for a worker
	Wait     time.Duration // how long a caller waits; the verification continues afterwards
	MaxCost  int           // of bcrypt; higher costs, and slower schemes, are refused
	AllowTTL time.Duration // ± 10 %
	DenyTTL  time.Duration
	PinTTL   time.Duration // maximum time for which a matched secret needs no bcrypt; 0: never
	Limits
	// Compare is [passhash.Compare], with at most Workers concurrent calls. A run with a pace uses only spare CPU;
	// while the last value of pace is true, the run pauses and doesn't count towards Workers. nil: bcrypt runs in this
	// process.
	Compare func(hash, secret string, pace <-chan bool) error
	Peppers []contract.Pepper // of gh1; records with an unknown pepper are refused
	Upgrade func(Upgrade)     // gets secrets whose hash should be gh1 of the first pepper; must not block; nil: none
	Shards  contract.Shards   // each shard has its own full resyncs
	Fleet   Fleet             // the other sidecars; nil: nothing is shared
	Known   Known             // nil: nothing is stored across restarts
	Seen    Seen              // nil: results are not reported
	// Authority decides about devices without a record; nil: such devices are unknown. MaxAnswers bounds the stored
	// allows.
	Authority  Authority
	MaxAnswers int
	// Registered reports whether Redis has a record of a device, and no tombstone; if so, the follower reads the record
	// again. Registered is called before the authority; nil: everything in Redis was applied.
	Registered func(ctx context.Context, id string) (bool, error)
}

// Seen receives the results of verifications, for operators. Its methods are called under a lock.
type Seen interface {
	// Allowed: the device authenticated; old: with a secret that an overlap ends, or a token for such a secret.
	Allowed(device string, old bool)
	// Failed: the device's secret was wrong; from is the client's address, "" if unknown.
	Failed(device, from string)
}

type noSeen struct{}

func (noSeen) Allowed(string, bool)  {}
func (noSeen) Failed(string, string) {}

// Limits bound wrong secrets; 0 means no limit.
type Limits struct {
	DeviceFailures int           // from a single source for a single device, within Window
	SourceFailures int           // from a single source for all devices, within Window; beyond it, bcrypt doesn't run
	Window         time.Duration // a failure is forgiven every Window/limit
}

// Result is the answer to a verification.
type Result struct {
	Outcome     wire.Outcome
	Reason      Reason // a label of metrics; not sent to the device
	Permissions uint64 // allow: a bit per name
	RetryAfter  time.Duration
	ThrottleFor time.Duration // how long the edge itself refuses this source's new devices, [wire.VerifyResponse]
	Session     string        // allow: identifies the authenticating record in a token
	NotAfter    time.Time     // allow: when the device's access ends; zero: never
	ByAuthority bool          // allow: the authority decided, and only this process knows Session
}

// Refused reports whether the credential was wrong, or its source was over a limit.
func (r Result) Refused() bool { return r.Outcome == wire.Deny || r.Reason == reasonLimited }

// Verifier is safe for concurrent use.
type Verifier struct {
	Config
	memory    Memory
	metrics   *metrics.Metrics
	log       *slog.Logger
	recordLog rate.Sometimes // bounds the log of refused records
	secret    [32]byte       // random key for digests of secrets, of this process
	sources   sources
	pool      *pool
	flights   flights

	byPair, bySource *failures
	failureNames     failureNames
	lookups          *failures // lookups of shared verdicts, by sources over their limit; nil: nothing is shared

	mu             sync.Mutex // protects all fields below; held during calls of memory
	records        map[string]*record
	size           shrink.Map[string, *record] // of records
	live           int                         // number of records, without tombstones
	tombstones     []tombstone                 // in the order of their arrival
	generation     uint64                      // last assigned
	resyncs        []uint64                    // by shard: number of full resyncs
	denies         denyFilter
	answers        answers
	restored       bool                // sources of earlier processes are not needed any more
	waitingForBits map[string]struct{} // devices whose permission names lack bits
	retryScheduled bool                // a retry is scheduled
	listError      error               // why the edge can't list all devices; nil: the list is complete
	synced         []bool              // by shard: all records were read once, so devices without a record are unknown
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

// digest is the digest of a device and a secret, valid in this process only.
type digest [sha256.Size]byte

func (v *Verifier) digestSecret(id, secret string) digest {
	mac := hmac.New(sha256.New, v.secret[:])
	mac.Write([]byte{byte(len(id))})
	mac.Write([]byte(id))
	mac.Write([]byte(secret))
	return digest(mac.Sum(nil))
}

// attempt is a credential or token session to verify, against a single generation of the device's record.
type attempt struct {
	id, secret  string
	session     string // of a token; "" for a credential
	source      source
	from        string // the client's address
	digest      digest
	generation  uint64
	familiar    bool     // the device authenticated from source before
	toTry       []string // hashes for which bcrypt must run
	wrong       bool     // the device's right secret is known and differs
	byAuthority bool     // the authority decides
	isFreeGuess bool     // a new wrong secret, refused without bcrypt: blames the source
}

// Verify decides whether device id may authenticate with secret, and stores the verdict for the edge. from is the
// client's address, "" if unknown. Verify returns when ctx ends or after Config.Wait; the verification continues.
func (v *Verifier) Verify(ctx context.Context, id, secret, from string) Result {
	r := v.verifyCredential(ctx, id, secret, from)
	v.metrics.Verifications.WithLabelValues(r.Outcome.String(), string(r.Reason)).Inc()
	return r
}

func (v *Verifier) verifyCredential(ctx context.Context, id, secret, from string) Result {
	if !limits.ValidDeviceID(id) || secret == "" || len(secret) > limits.MaxSecret || strings.IndexByte(secret, 0) >= 0 {
		// No verdict: the edge refuses malformed credentials without a call, and some have no digest.
		return Result{Outcome: wire.Deny, Reason: reasonMalformed}
	}
	a := attempt{id: id, secret: secret, source: v.sources.sourceOf(from), from: from, digest: v.digestSecret(id, secret)}
	if r, done := v.decideAndBlame(&a); done {
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, v.Wait)
	defer cancel()
	for range maxRestarts {
		// All callers with the same secret and the same hashes share a run. A wrong secret has another digest, so its
		// callers never get the answer for the right secret.
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

// decideAndBlame calls decideWithoutBcrypt and blames the source of a free guess.
func (v *Verifier) decideAndBlame(a *attempt) (Result, bool) {
	r, done := v.decideWithoutBcrypt(a)
	if a.isFreeGuess {
		v.blameSource(a) // without mu: the pool takes its own lock
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

// throttleFor returns how long the edge can refuse new devices from the attempt's source without a call, because bcrypt
// would not run for most of these devices. With shared verdicts the time is short: another sidecar may know a device.
func (v *Verifier) throttleFor(a *attempt, limit time.Duration) time.Duration {
	if v.lookups != nil {
		return min(limit, v.lookups.retryAfter(uint64(a.source)))
	}
	return limit
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

// decideWithoutBcrypt returns the answer and true, or sets a.toTry and returns false: bcrypt or the authority must
// decide.
func (v *Verifier) decideWithoutBcrypt(a *attempt) (Result, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	r, why := v.findAdmissible(a.id, now)
	if v.authorityDecides(a.id, why) {
		if !utf8.ValidString(a.secret) { // JSON has only valid UTF-8: distinct secrets would become equal
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
			a.wrong = true // another secret matches this hash
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

// denyResolved counts and denies a wrong secret of a device whose right secrets are all known or gh1; mu is held.
func (v *Verifier) denyResolved(a *attempt, r *record, now time.Time) Result {
	// Nobody can guess a secret of gh1: a limit would only lock the device out.
	guessable := slices.ContainsFunc(r.hashes, func(h hash) bool { return h.pepper == nil })
	wait := time.Duration(0)
	if guessable {
		if wait = v.guessDelay(a); wait > 0 && !a.familiar {
			return v.refuseGuess(a, wait) // not stored as refuted: a deny would reveal the wrong secret
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

// findAdmissible returns the record of a device that may authenticate, or the reason for a refusal; mu is held.
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

// denyWrong denies a wrong secret of a device with a record. If the secret was right until an overlap ended, the reason
// says so; mu is held.
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

// allow stores the verdict and returns the answer; old: the secret, or the token's secret, ends with an overlap. mu is
// held.
func (v *Verifier) allow(a *attempt, r *record, old bool, now time.Time, reason Reason) Result {
	life, end := v.allowLife(), r.accessEnd(old)
	verdict := newAllowVerdict(now.Add(life), now.Add(life*2/3), end, r.permissions)
	// The secret matched the only hash, so every other secret is wrong.
	only := len(r.hashes) == 1
	v.storeVerdict(a, verdict, only)
	v.Seen.Allowed(a.id, old)
	return Result{Outcome: wire.Allow, Reason: reason, Permissions: r.permissions, Session: r.sessionID(old),
		NotAfter: end}
}

// allowLife returns how long an allow counts. Jitter spreads the expiry of devices that authenticated at the same time.
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

// deny returns the answer, and stores the verdict if denyFilter decides so. mu is held.
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
