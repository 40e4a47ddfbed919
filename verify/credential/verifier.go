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
//
// # Parts
//
// A credential goes through [Verifier.Verify] from top to bottom: the device's record or an authority's answer may know
// the verdict, limits may refuse the attempt, and otherwise one flight for all callers runs bcrypt (hash.go) or calls
// the authority (authority.go), and concludes with a verdict. Tokens have a shorter way (session.go).
//
// [Devices] has the lock for all that must change in one step: records, answers and verdicts. [Throttle], calls, pool,
// flights and runs have locks of their own. While the pool's lock is held, Devices' lock is taken, never the other way
// round. checklocks checks which function needs which lock.
package credential

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

const (
	// A device that can't be verified now gets retryAfter; if its source has failed lately, suspectAfter. Both are
	// shorter than flightLife, within which the device must try again.
	retryAfter   = time.Second
	suspectAfter = 5 * time.Second
	// ownThrottle is how long the edge refuses a device's wrong secrets from a source at which the device
	// authenticated.
	ownThrottle = time.Second
	// maxRestarts bounds how often a verification starts over after a change of the record.
	maxRestarts = 8
)

// Memory stores verdicts and the list of devices.
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

// Result is the answer to a verification.
type Result struct {
	Outcome     wire.Outcome
	Reason      Reason // a label of metrics; not sent to the device
	Permissions string // allow: names in byte order, joined by commas
	RetryAfter  time.Duration
	ThrottleFor time.Duration // how long the edge itself refuses this source's new devices, [wire.VerifyResponse]
	Session     string        // allow: identifies the authenticating record in a token
	NotAfter    time.Time     // allow: when the device's access ends; zero: never
	ByAuthority bool          // allow: the authority decided, and only this process knows Session
}

// Refused reports whether the credential was wrong, or its source was over a limit.
func (r Result) Refused() bool { return r.Outcome == wire.Deny || r.Reason == reasonLimited }

// Verifier decides about an edge's credentials. It is safe for concurrent use.
type Verifier struct {
	*Config
	*Devices
	metrics  *metrics.Metrics
	log      *slog.Logger
	secret   [32]byte // random key for digests of secrets, of this process
	pool     *pool
	runs     *runs
	asking   *flights  // verifications by the authority, which has no queue of an edge
	verdicts *verdicts // +checklocks:Devices.mu
	edges    *edges
	edgeState
}

// New returns a Verifier that knows no device and answers unavailable until [Shard.EndResync].
func New(c Config, edge Memory, m *metrics.Metrics, log *slog.Logger) *Verifier {
	initReasons(m)
	sharing := c.Fleet != nil
	if !sharing {
		c.Fleet = noFleet{}
	}
	if c.Known == nil {
		c.Known = noKnown{}
	}
	if c.Seen == nil {
		c.Seen = noSeen{}
	}
	if c.Compare == nil {
		c.Compare = func(hash, secret string, _ <-chan bool) error {
			return passhash.Compare(hash, secret)
		}
	}
	s := newSources(c.Known.Key())
	v := &Verifier{
		Config: &c, Devices: newDevices(&c, edge, s, m, log), metrics: m, log: log,
		pool: newPool(c.Workers, c.Queue, m), runs: &runs{all: make(map[string]*run)}, asking: newFlights(),
		verdicts: &verdicts{config: &c, memory: edge, metrics: m}, edges: &edges{sharing: sharing},
	}
	rand.Read(v.secret[:]) // never fails
	v.edgeState = v.newEdgeState()
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
	wasRight    bool     // the authority allowed the secret before
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
	if r, known := v.findVerdict(&a); known {
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, v.Wait)
	defer cancel()
	for range maxRestarts {
		// All callers of an edge with the same secret and the same hashes share a flight. A wrong secret has another
		// digest, so its callers never get the answer for the right secret.
		key := a.flightKey()
		flights := v.flights
		if a.byAuthority {
			flights = v.asking
		}
		f := flights.join(ctx, key)
		if f == nil {
			if r, limited := v.limitAttempt(ctx, &a); limited {
				return r
			}
			a := a // findVerdict changes the caller's attempt
			f = flights.start(ctx, key, func(ctx context.Context, f *flight) Result {
				wanted := func() bool { return f.isWanted() && v.isCurrent(&a) }
				if a.byAuthority {
					return v.verifyByAuthority(ctx, a, wanted)
				}
				return v.verifyByHash(ctx, a, wanted)
			})
		}
		select {
		case <-f.done:
			if f.result.Reason != reasonUnsure && v.isCurrent(&a) {
				return v.delaySuspect(&a, f.result)
			}
		case <-ctx.Done():
			return v.delaySuspect(&a, unavailable(reasonTimeout))
		}
		if r, known := v.findVerdict(&a); known {
			return r
		}
	}
	return unavailable(reasonTimeout)
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

// findVerdict returns the answer and true if bcrypt and the authority needn't decide about the attempt. Otherwise it
// sets what the attempt needs for them.
func (v *Verifier) findVerdict(a *attempt) (Result, bool) {
	r, known := v.settle(a)
	if a.isFreeGuess {
		v.blameSource(a) // without the lock
	}
	return r, known
}

// settle is findVerdict under the lock.
func (v *Verifier) settle(a *attempt) (Result, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	r, why := v.findAdmissible(a.id, now)
	a.byAuthority, a.toTry, a.wrong, a.isFreeGuess = v.authorityDecides(a.id, why), nil, false, false
	switch {
	case a.byAuthority:
		return v.settleByAnswer(a, now)
	case why != "":
		return v.verdicts.refuse(a, v.records.all[a.id], now, why), true
	}
	return v.settleByRecord(a, r, now)
}

// limitAttempt returns the answer to an attempt beyond a limit; false: bcrypt or the authority may decide. The limit of
// a source is for attempts that cost bcrypt. Other sidecars often know a good device behind a NAT; at this sidecar, the
// device may have authenticated before.
func (v *Verifier) limitAttempt(ctx context.Context, a *attempt) (r Result, limited bool) {
	if r, limited = v.limitGuess(a); limited {
		return r, true
	}
	wait := v.sourceDelay(a)
	if wait == 0 {
		return Result{}, false
	}
	if r, found := v.findShared(ctx, a); found {
		return r, true
	}
	return v.refuseSource(a, wait), true
}

// findShared looks for a shared verdict on an attempt beyond the limit of its source.
func (v *Verifier) findShared(ctx context.Context, a *attempt) (r Result, found bool) {
	if !v.admitLookup(a) {
		return Result{}, false
	}
	if a.byAuthority {
		v.countCall(a.id, 1)
		defer v.countCall(a.id, -1)
	}
	c, ok := v.newQuestion(a)
	if !ok {
		return Result{}, false
	}
	m := v.findInFleet(ctx, c)
	if m == nil {
		v.countGuess(a) // or the lookups would be guesses without a limit
		return Result{}, false
	}
	return v.conclude(a, m, reasonShared), true
}

// conclude stores match m, nil for none, and returns the answer for the attempt. reason names the finder of m.
func (v *Verifier) conclude(a *attempt, m *Match, reason Reason) Result {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	r, ok := v.findJudged(a, now)
	switch {
	case !ok:
		return unavailable(reasonUnsure) // no caller uses this answer: callers start over
	case a.byAuthority:
		return v.concludeByAuthority(a, r, m, now, reason)
	}
	return v.concludeByHash(a, r, m, now, reason)
}
