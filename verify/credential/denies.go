package credential

import (
	"encoding/binary"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of stored denies. Each costs the edge two writes: now, and at its expiry.
const (
	denySlots = 1 << 16 // recently denied credentials, 8 bytes each
	denyRate  = 500     // maximum number stored per second
)

// denyFilter decides which deny verdicts are stored at the edge: at most denyRate per second, and not the first deny
// without bcrypt for a credential, because a flood shows each credential once. A denied credential without a stored
// verdict costs a call when it returns, but no bcrypt. denyFilter is not safe for concurrent use.
type denyFilter struct {
	recent []uint64 // tags of digests; made on first use
	stored *rate.Limiter
}

// denyFate says whether, and why, a deny verdict is stored; a label of metrics.
type denyFate string

// Only stored verdicts go to the edge.
const (
	denyStored  denyFate = "stored"
	denyFirst   denyFate = "first"
	denyLimited denyFate = "limited"
)

// decideFate decides the fate of a deny verdict; costly: bcrypt or the authority has just run.
func (s *denyFilter) decideFate(d digest, now time.Time, costly bool) denyFate {
	if s.recent == nil {
		s.recent, s.stored = make([]uint64, denySlots), rate.NewLimiter(denyRate, denyRate)
	}
	tag := binary.LittleEndian.Uint64(d[:])
	place := &s.recent[binary.LittleEndian.Uint64(d[8:])%denySlots]
	again := *place == tag
	*place = tag
	if !again && !costly {
		return denyFirst
	}
	if !s.stored.AllowN(now, 1) {
		return denyLimited
	}
	return denyStored
}
