package credential

import (
	"crypto/hmac"
	"strconv"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/edge/wire/limits"
)

// session returns an identifier of one write of a device's record, for tokens: version and publish time. The version is
// not enough, because versions start over when Redis loses data.
func (r *record) session() string {
	b := strconv.AppendUint(make([]byte, 0, limits.MaxSession), r.version, 10)
	return string(strconv.AppendInt(append(b, '-'), r.publishedMS, 10))
}

// VerifySession decides whether device id may still authenticate with a token that was issued for the record that
// session identifies, and stores the verdict for the edge. The proxy has validated the token itself. It needs no
// bcrypt: the token proves that the secret was right for this record, and every change of the record changes its
// session. So the record's permissions are the token's, too.
func (v *Verifier) VerifySession(id, session string) Result {
	r := v.verifySession(id, session)
	v.metrics.Verifications.WithLabelValues(r.Outcome.String(), string(r.Reason)).Inc()
	return r
}

// SessionValid reports whether the record that session identifies is current and can authenticate the device.
func (v *Verifier) SessionValid(id, session string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	r, why := v.admissible(id, time.Now())
	return why == "" && r.session() == session
}

func (v *Verifier) verifySession(id, session string) Result {
	if !limits.ValidDeviceID(id) || session == "" || len(session) > limits.MaxSession {
		return Result{Outcome: wire.Deny, Reason: isMalformed}
	}
	// A secret contains no NUL, so none has this digest.
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
