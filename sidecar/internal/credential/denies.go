package credential

import (
	"encoding/binary"
	"time"
)

// Bounds of stored denies. Each costs the edge two writes, now and when it expires.
const (
	denyPlaces = 1 << 16 // credentials denied lately, 8 bytes each
	denyRate   = 500     // most that are stored in a second
)

// denies decides which deny verdicts the edge is given: not the first for a credential
// that was denied without bcrypt, because in a flood none comes twice, and not more than
// denyRate in a second. What isn't given is asked again, which costs a call and no bcrypt.
// It is not safe for concurrent use.
type denies struct {
	lately []uint64 // by digest; made when first needed
	spent  time.Time
}

// denyFate is what becomes of a deny verdict, as metrics show it.
type denyFate string

// The fates. Only what is stored goes to the edge.
const (
	denyStored  denyFate = "stored"
	denyFirst   denyFate = "first"
	denyLimited denyFate = "limited"
)

// judge says what becomes of a deny verdict.
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
