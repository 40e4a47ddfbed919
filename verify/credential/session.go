package credential

import (
	"crypto/hmac"
	"strconv"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// sessionID identifies a write of a device's record in tokens, by version and publish time. The version is not enough,
// because versions start over when Redis loses data. old: the device authenticated with a secret that an overlap ends.
func (r *record) sessionID(old bool) string {
	b := strconv.AppendUint(make([]byte, 0, limits.MaxSession), r.version, 10)
	b = strconv.AppendInt(append(b, '-'), r.publishedMS, 10)
	if old {
		b = append(b, "-o"...)
	}
	return string(b)
}

// hasSession reports whether a token of this session still counts, and whether the token's secret ends with an overlap.
func (r *record) hasSession(session string) (old, ok bool) {
	if hmac.Equal([]byte(r.sessionID(false)), []byte(session)) {
		return false, true
	}
	return true, r.hasOverlap() && hmac.Equal([]byte(r.sessionID(true)), []byte(session))
}

// VerifySession decides whether device id may still authenticate with a token that was issued for the record that
// session identifies, and stores the verdict for the edge. The proxy has validated the token itself. The token needs no
// bcrypt: it proves that the secret was right for this record, and every change of the record changes the record's
// session. So the token has the record's permissions.
func (v *Verifier) VerifySession(id, session string) Result {
	r := v.verifySession(id, session)
	v.metrics.Verifications.WithLabelValues(r.Outcome.String(), string(r.Reason)).Inc()
	return r
}

func (v *Verifier) verifySession(id, session string) Result {
	if !limits.ValidDeviceID(id) || session == "" || len(session) > limits.MaxSession {
		return Result{Outcome: wire.Deny, Reason: reasonMalformed}
	}
	// A secret contains no NUL, so no secret has this digest.
	a := attempt{id: id, session: session, digest: v.digestSecret(id, "\x00"+session)}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	r, why := v.findAdmissible(id, now)
	if why != "" {
		return v.verdicts.refuse(&a, v.records.all[id], now, why)
	}
	old, ok := r.hasSession(session)
	if !ok {
		return v.verdicts.deny(&a, r, now, reasonSession)
	}
	return v.verdicts.allow(&a, r, old, now, reasonSession)
}

// SessionValid reports whether the record that session identifies is current and can authenticate the device.
func (d *Devices) SessionValid(id, session string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, why := d.findAdmissible(id, time.Now())
	if d.config.authorityDecides(id, why) {
		return d.answers.hasSession(id, session)
	}
	if why != "" {
		return false
	}
	_, ok := r.hasSession(session)
	return ok
}
