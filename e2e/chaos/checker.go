package chaos

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// Limits are the bounds that the checker applies.
type Limits struct {
	// MaxStaleness is the edge's, and Slack how much older an answer may be.
	MaxStaleness, Slack time.Duration
	// Converge is how soon after a fault, or without a fault after an acknowledgement, the edge must have every write.
	Converge time.Duration
	// Hold is how long cached answers must continue after Redis has become unreachable.
	Hold time.Duration
	// Announced is how soon a write that the sidecar's subscription announces counts, however slowly Redis answers: an
	// old secret is refused by then, though the new secret may still be unknown. 0: the write may wait for Redis's
	// answers.
	Announced time.Duration
}

// Answer is the kind of a read's answer.
type Answer uint8

// The answers.
const (
	Hit         Answer = iota // from the edge: a version
	Miss                      // from the upstream: the edge has no such object
	Stale                     // from the upstream: the edge may not be in step
	Bypass                    // from the upstream for another reason
	WrongBody                 // from the edge, but nothing that was published under the key
	Unavailable               // no answer, or one with an error status
	Refused                   // of a device: 401
	Unverified                // of a device: 503, its credential can't be verified
	answers                   // their number
)

// Read is one request and its answer. Times are since the start of the run.
type Read struct {
	Key        int
	Start, End time.Duration
	// EdgeIndex is the index of the edge.
	EdgeIndex int
	// Process numbers the Envoy process that answered; 0: uncertain.
	Process int
	// Era numbers the periods in which Redis lost nothing. BetweenEras: the era is uncertain, so an older version may
	// follow.
	Era         int
	BetweenEras bool
	// Refilling: the edge's memory may have been emptied and not yet refilled, so a miss has no meaning.
	Refilling bool
	// Trapped: perhaps no VM could answer.
	Trapped bool
	Answer  Answer
	Version uint64 // of a hit; of a device: the version of its secret
	Token   bool   // the device sent a token
	// Newest: the device sent its newest secret, from its own address. Wrong secrets come from another address, where the
	// sidecar also throttles a former secret that a loss of Redis makes valid again.
	Newest bool
	Detail string // Cache-Status, or the error
}

// Violation is a result that must never happen.
type Violation struct {
	Rule string
	Key  int
	At   time.Duration
	Text string
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s: %s at %.3f s: %s", v.Rule, v.keyName(), v.At.Seconds(), v.Text)
}

func (v Violation) keyName() string {
	switch {
	case v.Rule == wrongCount:
		return counterKey
	case v.Rule == wroteAfterLoss:
		return "redis"
	case strings.HasPrefix(v.Rule, authorityRulePrefix):
		return authorityDeviceID(v.Key)
	case strings.HasPrefix(v.Rule, importRulePrefix):
		return importedID(v.Key)
	case strings.HasPrefix(v.Rule, deviceRulePrefix):
		return deviceID(v.Key)
	}
	return pathOf(v.Key)
}

// wroteAfterLoss: a sidecar has written to the emptied Redis, so that all sidecars believe the loss.
const wroteAfterLoss = "wrote after a loss"

// deviceRulePrefix begins the names of the rules about devices.
const deviceRulePrefix = "device: "

// Checker records writes and judges reads. It is safe for concurrent use.
type Checker struct {
	limits     Limits
	starvation *starvation // of the machine: what it explains is no violation of a bound

	mu        sync.Mutex // protects all below
	histories []history
	seen      [maxEdges][]seen // by key
	lost      []int            // by key: consecutive answers that should have been hits
	faults    []fault
	// by device: consecutive 503s of a credential that should be verifiable
	unverified []int
	oldest     time.Duration
	inert      int // answers of an uncertain edge
}

// routeTimeout is the timeout of envoy.yaml's route. An Envoy that is paused for longer, as beside a slow failover,
// ends its requests with a 504 when it goes on.
const routeTimeout = 15 * time.Second

// maxEdges is the maximum number of edges.
const maxEdges = 4

// seen is the reads of a key through one edge.
type seen struct {
	process, era int
	floor
}

// fault is a period in which something was broken.
type fault struct {
	begin, end time.Duration // end 0: it goes on
	redisDown  bool          // and nothing else
	clock      bool          // a clock is wrong:
	redisClock bool          // only that of Redis, and nothing else
	onlySlow   time.Duration // since then only answers of Redis are slow; 0: something else is broken
}

// NewChecker returns a checker of keys without writes.
func NewChecker(keys int, limits Limits) *Checker {
	c := &Checker{limits: limits, histories: make([]history, keys), lost: make([]int, keys), unverified: make([]int, keys)}
	for i := range c.seen {
		c.seen[i] = make([]seen, keys)
	}
	return c
}

// NewestKind returns the kind of the last write to key that may have happened, and false if there is none.
func (c *Checker) NewestKind(key int) (Kind, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.histories[key].newestKind()
}

// WasRegistered reports whether a device was certainly registered before a version was written.
func (c *Checker) WasRegistered(device int, version uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.histories[device].wasRegistered(version)
}

// SecretVersion returns the version of a device's newest secret, or with former of the secret before; 0 if there is
// none. newest: no later version exists.
func (c *Checker) SecretVersion(device int, former bool) (version uint64, newest bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &c.histories[device]
	last := uint64(len(h.writes))
	for v := last; v > 0; v-- {
		switch {
		case h.writes[v-1].kind != Put:
		case former:
			former = false
		default:
			return v, v == last
		}
	}
	return 0, false
}

// VersionWithPermission returns a device's newest version whose permission is number modulo, 0 if there is none.
func (c *Checker) VersionWithPermission(device int, modulo uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	writes := c.histories[device].writes
	for v := uint64(len(writes)); v > 0; v-- {
		if v%permissionNames == modulo && writes[v-1].kind == Put && writes[v-1].outcome != Failed {
			return v
		}
	}
	return 0
}

// Begin records a write before it is sent and returns its version. Other writes of the key may be under way.
func (c *Checker) Begin(key int, kind Kind, at time.Duration) uint64 {
	return c.BeginFor(key, kind, at, 0)
}

// BeginFor is Begin for a value that is valid for a time, 0 for ever.
func (c *Checker) BeginFor(key int, kind Kind, at, life time.Duration) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.histories[key].beginWrite(kind, at, life)
}

// BeginRotation is Begin for a new secret of a device; the former secret stays valid for an overlap.
func (c *Checker) BeginRotation(device int, at, overlap time.Duration) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &c.histories[device]
	version := h.beginWrite(Put, at, 0)
	h.writes[version-1].overlap = overlap
	return version
}

// End records the outcome of a write.
func (c *Checker) End(key int, version uint64, outcome Outcome, at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &c.histories[key]
	if h.endWrite(version, outcome, at); at < h.purgedUntil && h.writes[version-1].kind == Put && outcome != Failed {
		purge := h.beginWrite(Delete, at, 0)
		h.writes[purge-1].soft = true
		h.endWrite(purge, Unknown, at)
	}
}

// MayBeOvertaken reports whether a newer write than version has begun and may be in force by at.
func (c *Checker) MayBeOvertaken(key int, version uint64, at time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.histories[key].mayBeOvertaken(version, at)
}

// RecordEmptied records that all written keys are gone by at. No write was under way.
func (c *Checker) RecordEmptied(at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.histories {
		if h := &c.histories[key]; len(h.writes) > 0 {
			h.endWrite(h.beginWrite(Delete, at, 0), Acked, at)
		}
	}
}

// BeginRevoking begins a revocation of every device that may be registered, and returns the versions by device.
func (c *Checker) BeginRevoking(at time.Duration) map[int]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	versions := map[int]uint64{}
	for key := range c.histories {
		if kind, found := c.histories[key].newestKind(); found && kind == Put {
			versions[key] = c.histories[key].beginWrite(Delete, at, 0)
		}
	}
	return versions
}

// BeginPurge begins a purge of all keys that match of, and returns the versions by key, 0 for keys without an object. A
// purge counts as a write of each key with an object, though Redis stores no version of it.
func (c *Checker) BeginPurge(of func(key int) bool, soft bool, at time.Duration) map[int]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	versions := map[int]uint64{}
	for key := range c.histories {
		h := &c.histories[key]
		if !of(key) {
			continue
		}
		versions[key] = 0 // it has no object, but another one may come before a purge of unknown outcome
		if h.mayHaveObject() {
			versions[key] = h.beginWrite(Delete, at, 0)
			h.writes[versions[key]-1].soft = soft
		}
	}
	return versions
}

// latePurge is how long a purge of unknown outcome may still happen: longer than any fault.
const latePurge = 20 * time.Second

// EndPurge records the outcome of a purge. Unlike a deletion, a purge doesn't refuse a late write of an earlier
// version: after a write of unknown outcome the purge's outcome is unknown, too, and no later write refuses the purge.
func (c *Checker) EndPurge(versions map[int]uint64, outcome Outcome, at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, version := range versions {
		h, outcome := &c.histories[key], outcome
		if outcome == Unknown {
			h.purgedUntil = at + latePurge
		}
		if version == 0 {
			continue
		}
		if h.hasUncertain(version) {
			outcome = Unknown
		}
		h.endWrite(version, outcome, at)
	}
}

// ForgetAcks revokes all acknowledgements from since on, because Redis may have lost the writes. It returns the keys of
// these writes.
func (c *Checker) ForgetAcks(since time.Duration) (keys []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.histories {
		if c.histories[key].forgetAcks(since) {
			keys = append(keys, key)
		}
	}
	return keys
}

// AckedSince returns, by key, the newest version acknowledged from since on.
func (c *Checker) AckedSince(since time.Duration) map[int]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	acked := map[int]uint64{}
	for key := range c.histories {
		if acks := c.histories[key].acks; len(acks) > 0 && acks[len(acks)-1].at >= since {
			acked[key] = acks[len(acks)-1].version
		}
	}
	return acked
}

// BeginFault records the beginning of a fault. redisDown: the fault breaks only Redis, or the link to Redis.
func (c *Checker) BeginFault(at time.Duration, redisDown bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fault{begin: at, redisDown: redisDown})
	clear(c.lost)
}

// ClockStepped records that the last fault steps a clock. onlyRedis: the fault steps Redis's clock and does nothing
// else.
func (c *Checker) ClockStepped(onlyRedis bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := &c.faults[len(c.faults)-1]
	last.clock, last.redisClock = true, onlyRedis
}

// OnlySlow records that from since on the last fault only makes Redis's answers slow.
func (c *Checker) OnlySlow(since time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[len(c.faults)-1].onlySlow = since
}

// EndFault records the end of the last fault.
func (c *Checker) EndFault(at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[len(c.faults)-1].end = at
}

// TargetsAt returns, by key, the newest versions acknowledged at t.
func (c *Checker) TargetsAt(t time.Duration) []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	targets := make([]uint64, len(c.histories))
	for i := range targets {
		targets[i] = c.histories[i].ackedAt(t)
	}
	return targets
}

// HasReached reports whether r shows that target, a version of r's key, is in force.
func (c *Checker) HasReached(target uint64, r Read) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.Answer {
	case Hit:
		return c.histories[r.Key].hasReached(target, r.Version, r.End)
	case Miss:
		return c.histories[r.Key].hasReached(target, 0, r.End)
	case Stale:
		return c.histories[r.Key].mayHaveExpired(target, r.End)
	}
	return false
}

// JudgeRead judges one answer.
func (c *Checker) JudgeRead(r Read) []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []Violation
	report := func(rule, format string, args ...any) {
		found = append(found, Violation{rule, r.Key, r.End, fmt.Sprintf(format, args...)})
	}
	if r.Process == 0 {
		c.inert++
	}
	switch r.Answer {
	case Hit:
		c.judgeHit(&r, report)
	case Miss, Stale, Bypass:
		c.judgeMiss(&r, report)
	case WrongBody:
		report("wrong body", "%s", r.Detail)
	case Unavailable:
		timedOut := r.End-r.Start >= routeTimeout && !isQuiet(c.faults, r.Start, r.End)
		if r.Process != 0 && !r.Trapped && !timedOut {
			report("error", "%s", r.Detail)
		}
	case Refused:
		c.judgeRefusal(&r, report)
	case Unverified:
		if r.Newest && r.Process != 0 && c.wasGood(&r) && c.isQuietFor(r.Start, r.End) &&
			!c.starvation.isHeavy(r.Start-c.limits.Converge, r.End) {
			// A single 503 may be due to a slow machine: an overloaded sidecar answers 503.
			if c.unverified[r.Key]++; c.unverified[r.Key] == 2 {
				report("not verified", "version %d, asked for at %.3f s, and once before; nothing was broken",
					r.Version, r.Start.Seconds())
			}
		}
	}
	if r.Answer != Unverified {
		c.unverified[r.Key] = 0
	}
	if r.Answer < Refused && r.EdgeIndex == 0 { // the other edge has its own link
		c.requireHit(&r, report)
	}
	return found
}

// judgeHit compares the version of a hit with the versions published and seen.
func (c *Checker) judgeHit(r *Read, report func(rule, format string, args ...any)) {
	h := &c.histories[r.Key]
	if !h.mayBePublished(r.Version, r.End) {
		report("wrong body", "version %d was never published", r.Version)
		return
	}
	if w := &h.writes[r.Version-1]; w.life > 0 && w.outcome == Acked && c.mustHaveEnded(w, r) {
		report("expired", "version %d, asked for at %.3f s, was written by %.3f s for %v", r.Version,
			r.Start.Seconds(), w.ended.Seconds(), w.life)
	}
	rotation := h.nextRotation(r.Version)
	if rotation != nil && c.clockWrong(rotation.begun, r.End) {
		return // the overlap may end at any time
	}
	if rotation != nil && rotation.outcome == Acked && c.hasSettled(rotation.ended, r.Start) &&
		r.Start > rotation.ended+rotation.overlap+c.limits.Slack {
		report("outlived its overlap", "version %d, asked for at %.3f s, was replaced by %.3f s with an overlap of %v",
			r.Version, r.Start.Seconds(), rotation.ended.Seconds(), rotation.overlap)
	}
	age := h.ageAt(r.Version, r.Start)
	c.oldest = max(c.oldest, age)
	switch newest := h.ackedAt(r.Start); {
	case age > c.limits.MaxStaleness+c.limits.Slack:
		report("too old", "version %d was replaced %.3f s before the request at %.3f s, by now %d is acknowledged; "+
			"max_staleness is %v",
			r.Version, age.Seconds(), r.Start.Seconds(), newest, c.limits.MaxStaleness)
	case c.limits.Announced > 0 && r.EdgeIndex == 0 && c.starvation.hasPassed(r.Start-age, r.Start, c.limits.Announced) &&
		c.wasAnnounced(r.Start-age):
		report("late", "version %d was replaced %.3f s before the request at %.3f s; only answers of Redis were slow",
			r.Version, age.Seconds(), r.Start.Seconds())
	case c.starvation.hasPassed(r.Start-age, r.Start, c.limits.Converge) && c.isQuietFor(r.Start, r.Start):
		report("late",
			"version %d was replaced %.3f s before the request at %.3f s, by now %d is acknowledged; nothing was broken",
			r.Version, age.Seconds(), r.Start.Seconds(), newest)
	}
	if r.Process == 0 || r.BetweenEras {
		return
	}
	f := c.floorOf(r)
	if seen := f.lastBefore(r.Start); seen.gone && r.Version < seen.version {
		report("came back", "version %d, asked for at %.3f s; at %.3f s it was seen to be gone", r.Version,
			r.Start.Seconds(), seen.end.Seconds())
	} else if r.Version < seen.version && (rotation == nil || seen.version > r.Version+1) {
		report("backwards", "version %d, asked for at %.3f s; version %d was seen at %.3f s", r.Version,
			r.Start.Seconds(), seen.version, seen.end.Seconds())
	}
	f.addStep(step{end: r.End, version: r.Version})
}

// wasAnnounced reports whether the sidecar's subscription announced the write acknowledged at a time, although Redis
// answered slowly: the subscription was restored by then.
func (c *Checker) wasAnnounced(at time.Duration) bool {
	i := slices.IndexFunc(c.faults, func(f fault) bool { return f.end == 0 || f.end >= at })
	return i >= 0 && c.faults[i].onlySlow > 0 && at > c.faults[i].onlySlow+c.limits.Slack
}

// judgeMiss reports a violation if the edge should have answered from its memory. A miss shows that an object seen
// before is gone, or was replaced by an object whose body was no longer readable: the miss ends all versions seen
// before.
func (c *Checker) judgeMiss(r *Read, report func(rule, format string, args ...any)) {
	if r.Process == 0 || r.Refilling || r.BetweenEras || r.Answer != Miss &&
		(!c.isQuietFor(r.Start, r.End) || c.starvation.isHeavy(r.Start-c.limits.MaxStaleness, r.End)) {
		return
	}
	h, f := &c.histories[r.Key], c.floorOf(r)
	seen := f.lastBefore(r.Start)
	has := uint64(0) // the version that the edge had, or must have by now
	if acked := h.ackedAt(r.Start); acked > 0 {
		if at, _ := h.ackOf(acked); c.hasSettled(at, r.Start) {
			has = acked
		}
	}
	if !seen.gone {
		has = max(has, seen.version)
	}
	switch {
	case has > 0 && h.writes[has-1].kind == Put && h.writes[has-1].life == 0 && !h.mayBeOvertaken(has, r.End):
		report("missed", "%q, asked for at %.3f s; the edge had version %d, and nothing was written since",
			r.Detail, r.Start.Seconds(), has)
	case r.Answer == Miss && seen.version > 0 && !seen.gone && h.writes[seen.version-1].life == 0:
		f.addStep(step{end: r.End, version: seen.version + 1, gone: true})
	}
}

// judgeRefusal compares a 401 with the writes, and records that a secret accepted before is no longer valid. Tokens are
// also refused while Envoy has no keys, which Envoy fetches from the sidecar.
func (c *Checker) judgeRefusal(r *Read, report func(rule, format string, args ...any)) {
	if c.wasGood(r) && (!r.Token || c.isQuietFor(r.Start, r.End)) {
		report("good one refused", "version %d, shown at %.3f s, is in force and nothing was broken when it came",
			r.Version, r.Start.Seconds())
	}
	if r.Process == 0 || r.Token || r.BetweenEras {
		return
	}
	f := c.floorOf(r)
	if seen := f.lastBefore(r.Start); seen.version == r.Version && !seen.gone &&
		c.histories[r.Key].mayBeOvertaken(r.Version, r.End) {
		f.addStep(step{end: r.End, version: r.Version + 1, gone: true})
	}
}

// wasGood reports whether the edge had the request's secret, and no write that ends the secret has begun.
func (c *Checker) wasGood(r *Read) bool {
	h := &c.histories[r.Key]
	at, found := h.ackOf(r.Version)
	rotation := h.nextRotation(r.Version)
	return found && h.writes[r.Version-1].life == 0 && c.hasSettled(at, r.Start) && !h.mayBeOvertaken(r.Version, r.End) &&
		(rotation == nil || !c.clockWrong(rotation.begun, r.End))
}

// clockWrong reports whether a clock other than Redis's may have been wrong between two times.
func (c *Checker) clockWrong(from, to time.Duration) bool {
	return slices.ContainsFunc(c.faults, func(f fault) bool {
		return f.clock && !f.redisClock && f.begin <= to && (f.end == 0 || f.end >= from)
	})
}

// hasSettled reports whether a write acknowledged at from has reached the edge by end: nothing was broken for long
// enough since from.
func (c *Checker) hasSettled(from, end time.Duration) bool {
	first := sort.Search(len(c.faults), func(i int) bool { return c.faults[i].end == 0 || c.faults[i].end >= from })
	for _, f := range c.faults[first:] {
		if f.begin > end || c.starvation.hasPassed(from, f.begin, c.limits.Converge) {
			break
		}
		if f.end == 0 {
			return false
		}
		from = f.end
	}
	return c.starvation.hasPassed(from, end, c.limits.Converge)
}

// requireHit requires hits after Redis has become unreachable, because a lost Redis must change nothing. A write under
// way can cause one answer without a hit, but not two in a row.
func (c *Checker) requireHit(r *Read, report func(rule, format string, args ...any)) {
	if len(c.faults) == 0 || r.Process == 0 || r.Refilling {
		return
	}
	now := c.faults[len(c.faults)-1]
	converged := c.starvation.timeBefore(now.begin, c.limits.Converge)
	hold := c.limits.Hold - c.starvation.between(now.begin-c.limits.Converge, r.End)
	if !now.redisDown || r.Start < now.begin || r.End > now.begin+hold || now.end != 0 && r.End > now.end ||
		!isQuiet(c.faults[:len(c.faults)-1], converged, now.begin) {
		return
	}
	h := &c.histories[r.Key]
	if r.Answer == Hit || h.mayBeAbsent(h.ackedAt(converged), r.End) {
		c.lost[r.Key] = 0
		return
	}
	if c.lost[r.Key]++; c.lost[r.Key] == 2 {
		report("lost", "%q, asked for at %.3f s, %.3f s after Redis had gone away", r.Detail, r.Start.Seconds(),
			(r.Start - now.begin).Seconds())
	}
}

// floorOf returns the versions seen through r's edge process, and forgets those of an earlier process.
func (c *Checker) floorOf(r *Read) *floor {
	s := &c.seen[r.EdgeIndex][r.Key]
	if s.process != r.Process || s.era != r.Era {
		*s = seen{process: r.Process, era: r.Era}
	}
	return &s.floor
}

// mustHaveEnded reports whether the life of w was over when r began: all clocks were right since the write, or only
// Redis's clock was wrong, and the sidecar has the write since it converged.
func (c *Checker) mustHaveEnded(w *write, r *Read) bool {
	end := w.ended + w.life + c.limits.Slack
	redisClock, other := false, false
	for _, f := range slices.Backward(c.faults) {
		switch {
		case f.begin > r.End || f.end != 0 && f.end < w.begun:
		case f.redisClock:
			redisClock = true
		case f.clock:
			return false
		default:
			other = true
		}
	}
	if redisClock {
		end += c.limits.Converge + c.starvation.between(w.ended, r.Start)
	}
	return r.Start > end && !(redisClock && other)
}

// isQuietFor reports whether nothing was broken from begin to end, and before that for as long as the parts need to
// converge.
func (c *Checker) isQuietFor(begin, end time.Duration) bool {
	return isQuiet(c.faults, c.starvation.timeBefore(begin, c.limits.Converge), end)
}

// isQuiet reports whether nothing was broken from begin to end.
func isQuiet(faults []fault, begin, end time.Duration) bool {
	for i := len(faults) - 1; i >= 0; i-- {
		if f := faults[i]; f.begin <= end && (f.end == 0 || f.end >= begin) {
			return false
		}
	}
	return true
}

// Summary summarizes the answers.
type Summary struct {
	// Oldest is the age of the oldest answer: the time from its replacement to the request.
	Oldest time.Duration
	// Inert counts answers whose Envoy process is uncertain.
	Inert int
}

// Summary summarizes all answers so far.
func (c *Checker) Summary() Summary {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Summary{c.oldest, c.inert}
}
