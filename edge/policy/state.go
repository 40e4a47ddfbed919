package policy

import (
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// edgeState is the newest state, and the conclusions from its times.
type edgeState struct {
	wire.State // Epoch 0: none yet
	config     *Config
	readMS     int64 // when the state was read, unix ms
	// distrusted has the times of a state that was read before the clock was set back, or times in the future at the
	// read. Their age is unknown, even when the clock has reached them.
	distrusted struct{ heartbeatMS, inStepMS int64 }
}

// setState sets a state, read at nowMS, unix ms.
func (s *edgeState) setState(nowMS int64, read wire.State) {
	setBack := nowMS < s.readMS
	s.State, s.readMS = read, nowMS
	if setBack || s.HeartbeatMS > nowMS+sameClockMS {
		s.distrusted.heartbeatMS = s.HeartbeatMS
	}
	if setBack || s.InStepMS > nowMS+sameClockMS {
		s.distrusted.inStepMS = s.InStepMS
	}
}

// findVerdict looks up a credential in its device's bucket.
func (s *edgeState) findVerdict(id string, d *wire.Digest, mem Memory) (wire.Verdict, wire.CredentialStatus, error) {
	bucket, tag := s.Keys.Device(id, s.VerdictBuckets)
	return wire.FindVerdict(mem.Record(wire.RegionVerdicts, bucket), s.Epoch, d, tag)
}

// isRefuted reports whether shared memory shows, by this status, a wrong credential; for a token, another right secret
// of the device doesn't matter. Without heartbeats of the sidecar, isRefuted returns false: otherwise the edge would
// refuse new devices and secrets for ever.
func (s *edgeState) isRefuted(nowMS int64, cred *Credential, status wire.CredentialStatus) bool {
	return s.hasHeartbeat(nowMS) && (status == wire.Closed && cred.Session == "" || status == wire.Unregistered &&
		s.DevicesComplete)
}

// hasHeartbeat reports whether the last heartbeat of the sidecar was within max_staleness.
func (s *edgeState) hasHeartbeat(nowMS int64) bool {
	return s.HeartbeatMS != s.distrusted.heartbeatMS && s.isWithin(nowMS, s.HeartbeatMS, s.config.MaxStaleness)
}

// isInStep reports whether the edge was in step with Redis at most limit ago.
func (s *edgeState) isInStep(nowMS int64, limit time.Duration) bool {
	return s.InStepMS != s.distrusted.inStepMS && s.isWithin(nowMS, s.InStepMS, limit)
}

// mayAllow reports whether any device may be authenticated. With max_auth_staleness, the edge must have been in step
// with Redis lately: without Redis, the edge misses revocations.
func (s *edgeState) mayAllow(nowMS int64) bool {
	return s.config.MaxAuthStaleness == 0 || s.isInStep(nowMS, s.config.MaxAuthStaleness)
}

// sameClockMS bounds how far the sidecar's time may be ahead of the proxy's; both use the same clock.
const sameClockMS = 1000

// isWithin reports whether t, a time of the state, is at most limit ago; times are unix ms. A time in the future is
// from before the clock was set back, and so are both times if the state was read later than now: they may have any
// age.
func (s *edgeState) isWithin(nowMS, t int64, limit time.Duration) bool {
	age := nowMS - t
	return nowMS >= s.readMS && -sameClockMS <= age && age <= limit.Milliseconds()
}

// isInGrace reports whether a verdict found with a status counts within verdict_grace.
func (s *edgeState) isInGrace(nowMS int64, status wire.CredentialStatus, v *wire.Verdict) bool {
	return status == wire.Found && v.Outcome == wire.Allow && nowMS < v.ExpiresMS+s.config.VerdictGrace.Milliseconds() &&
		(v.NotAfterMS == 0 || nowMS < v.NotAfterMS)
}
