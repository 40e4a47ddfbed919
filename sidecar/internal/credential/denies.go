package credential

import (
	"encoding/binary"
	"time"
)

// Bounds of stored denies. Each costs the edge two writes, now and when it expires.
const (
	denyPlaces = 1 << 16 // recently denied credentials, 8 bytes each
	denyRate   = 500     // maximum number stored per second
)

// denies decides which deny verdicts are stored at the edge: not the first for a credential that was denied without
// bcrypt, because a flood shows each credential once, and at most denyRate per second. A denied credential without a
// stored verdict costs a call when it comes again, but no bcrypt. It is not safe for concurrent use.
type denies struct {
	lately []uint64 // by digest; made when first needed
	spent  time.Time
}

// denyFate is the result for a deny verdict, a label of metrics.
type denyFate string

// The fates. Only stored verdicts go to the edge.
const (
	denyStored  denyFate = "stored"
	denyFirst   denyFate = "first"
	denyLimited denyFate = "limited"
)

// judge decides the fate of a deny verdict.
func (s *denies) judge(d digest, now time.Time, costly bool) denyFate {
	if s.lately == nil {
		s.lately = make([]uint64, denyPlaces)
	}
	tag := binary.LittleEndian.Uint64(d[:])
	place := &s.lately[binary.LittleEndian.Uint64(d[8:])%denyPlaces]
	again := *place == tag
	*place = tag
	if !again && !costly {
		return denyFirst
	}
	const each = time.Second / denyRate
	if s.spent.Before(now.Add(-time.Second)) {
		s.spent = now.Add(-time.Second)
	}
	if s.spent.Add(each).After(now) {
		return denyLimited
	}
	s.spent = s.spent.Add(each)
	return denyStored
}
