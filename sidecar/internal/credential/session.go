package credential

import (
	"crypto/hmac"
	"strconv"
	"time"

	"github.com/gatehouse/gatehouse/wire"
)

// session names one writing of a device's record, for tokens: version and publish time. A
// version alone would do as long as Redis never loses data: then versions start over.
func (r *record) session() string {
	b := strconv.AppendUint(make([]byte, 0, wire.MaxSession), r.version, 10)
	return string(strconv.AppendInt(append(b, '-'), r.publishedMS, 10))
}

// VerifySession decides whether device id may still come in with a token that was given
// out for the record that session names, and stores the verdict for the edge. The proxy
// has validated the token itself. bcrypt doesn't run: the token says that the secret was
// right for this record, and every change of the record makes another session of it. So
// the record's permissions are those of the token, too.
func (v *Verifier) VerifySession(id, session string) Result {
	r := v.verifySession(id, session)
	v.metrics.Verifications.WithLabelValues(r.Outcome.String(), string(r.Reason)).Inc()
	return r
}

// SessionValid reports whether the device's record is still the one that a session names, and lets it in.
func (v *Verifier) SessionValid(id, session string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	r, why := v.admissible(id, time.Now())
	return why == "" &&
		r.session() == session //mutant:TestSessionEnds true
}

func (v *Verifier) verifySession(id, session string) Result {
	if !wire.ValidDeviceID(id) || session == "" || len(session) > wire.MaxSession {
		return Result{Outcome: wire.Deny, Reason: isMalformed}
	}
	// A secret has no NUL in it, so that none has this digest.
	a := attempt{id: id, session: session, digest: v.digest(id, "\x00"+session)}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	r, why := v.admissible(id, now)
	switch {
	case why != "":
		return v.refused(&a, now, why)
	case !hmac.Equal([]byte(r.session()), []byte(session)):
		return v.deny(&a, now, bySession)
	}
	return v.allow(&a, r, now, bySession)
}
