package credential

import (
	"crypto/hmac"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

// verdicts makes the verdicts and stores them for the edge. [Devices]' lock guards it, so a change of a record drops
// all verdicts about the earlier record.
type verdicts struct {
	config  *Config
	memory  Memory
	metrics *metrics.Metrics
	denies  denyFilter
}

// allow stores the verdict and returns the answer; old: the secret, or the token's secret, ends with an overlap.
func (s *verdicts) allow(a *attempt, r *record, old bool, now time.Time, reason Reason) Result {
	life, end := s.config.allowLife(), r.accessEnd(old)
	verdict := newAllowVerdict(now.Add(life), now.Add(life*2/3), end, r.permissions)
	// The secret matched the only hash, so every other secret is wrong.
	only := len(r.hashes) == 1
	s.store(a, verdict, only)
	s.config.Seen.Allowed(a.id, old)
	return Result{Outcome: wire.Allow, Reason: reason, Permissions: r.permissions, Session: r.sessionID(old),
		NotAfter: end}
}

// allowByAnswer stores the verdict of an authority's allow and returns the answer.
func (s *verdicts) allowByAnswer(a *attempt, x *storedAnswer, reason Reason) Result {
	verdict := newAllowVerdict(x.ends, x.freshUntil, x.notAfter, x.permissions)
	s.memory.PutAnswer(a.id, a.secret, verdict, x.ends.Add(graceLife))
	return Result{Outcome: wire.Allow, Reason: reason, Permissions: x.permissions, Session: x.session,
		NotAfter: x.notAfter, ByAuthority: true}
}

// allowLife returns how long an allow counts. Jitter spreads the expiry of devices that authenticated at the same time.
func (c *Config) allowLife() time.Duration {
	return time.Duration(float64(c.AllowTTL) * (0.9 + 0.2*mathrand.Float64()))
}

// newAllowVerdict returns the verdict for the edge; notAfter is when the device's access ends, zero for never.
func newAllowVerdict(expires, refreshAfter, notAfter time.Time, permissions string) wire.Verdict {
	verdict := wire.Verdict{Outcome: wire.Allow, Permissions: permissions, ExpiresMS: expires.UnixMilli(),
		RefreshAfterMS: refreshAfter.UnixMilli()}
	if !notAfter.IsZero() {
		verdict.NotAfterMS = min(notAfter.UnixMilli(), 1<<48-1)
		verdict.ExpiresMS = min(verdict.ExpiresMS, verdict.NotAfterMS)
	}
	return verdict
}

// deny returns the answer, and stores the verdict if denyFilter decides so. r is the device's record, nil for none.
func (s *verdicts) deny(a *attempt, r *record, now time.Time, reason Reason) Result {
	if r != nil {
		r.refused = &Refused{Reason: reason, At: now, From: strings.Clone(a.from)} // without the rest of the call
	}
	fate := s.denies.decideFate(a.digest, now, reason == reasonBcrypt || reason == reasonAuthority)
	s.metrics.Denies.WithLabelValues(string(fate)).Inc()
	if fate == denyStored {
		s.store(a, wire.Verdict{Outcome: wire.Deny, ExpiresMS: now.Add(s.config.DenyTTL).UnixMilli()}, false)
	}
	return Result{Outcome: wire.Deny, Reason: reason}
}

// denyWrong denies a wrong secret of a device with a record. If the secret was right until an overlap ended, the reason
// says so.
func (s *verdicts) denyWrong(a *attempt, r *record, now time.Time, reason Reason) Result {
	s.config.Seen.Failed(a.id, a.from)
	denied := s.deny(a, r, now, reason)
	for i := range r.ended {
		if hmac.Equal(r.ended[i][:], a.digest[:]) {
			denied.Reason, r.refused.Reason = reasonOldSecret, reasonOldSecret
		}
	}
	return denied
}

// refuse returns the answer for a device that may not authenticate because of why.
func (s *verdicts) refuse(a *attempt, r *record, now time.Time, why Reason) Result {
	if why.NotYet() {
		return unavailable(why)
	}
	return s.deny(a, r, now, why)
}

func (s *verdicts) store(a *attempt, verdict wire.Verdict, only bool) {
	if a.session != "" {
		s.memory.PutSession(a.id, a.session, verdict)
		return
	}
	s.memory.PutVerdict(a.id, a.secret, verdict, only)
}
