package credential

import (
	"encoding/binary"
	"time"
)

// Bounds of stored denies. Each costs the edge two writes, now and when it expires.
const (
	denySlots = 1 << 16 // recently denied credentials, 8 bytes each
	denyRate  = 500     // maximum number stored per second
)

// denyFilter decides which deny verdicts are stored at the edge: not the first for a credential that was denied without
// bcrypt, because a flood shows each credential once, and at most denyRate per second. A denied credential without a
// stored verdict costs a call when it comes again, but no bcrypt. It is not safe for concurrent use.
type denyFilter struct {
	recent []uint64 // by digest; made when first needed
	tat    time.Time
}

// denyFate is the result for a deny verdict, a label of metrics.
type denyFate string

// The fates. Only stored verdicts go to the edge.
const (
	denyStored  denyFate = "stored"
	denyFirst   denyFate = "first"
	denyLimited denyFate = "limited"
)

// decideFate decides the fate of a deny verdict.
func (s *denyFilter) decideFate(d digest, now time.Time, costly bool) denyFate {
	if s.recent == nil {
		s.recent = make([]uint64, denySlots)
	}
	tag := binary.LittleEndian.Uint64(d[:])
	place := &s.recent[binary.LittleEndian.Uint64(d[8:])%denySlots]
	again := *place == tag
	*place = tag
	if !again && !costly {
		return denyFirst
	}
	const each = time.Second / denyRate
	if s.tat.Before(now.Add(-time.Second)) {
		s.tat = now.Add(-time.Second)
	}
	if s.tat.Add(each).After(now) {
		return denyLimited
	}
	s.tat = s.tat.Add(each)
	return denyStored
}
