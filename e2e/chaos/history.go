package chaos

import (
	"slices"
	"sort"
	"time"
)

// Kind is the kind of a write.
type Kind uint8

// The kinds.
const (
	Put Kind = iota
	Delete
)

// String returns the kind's name.
func (k Kind) String() string { return [...]string{"put", "delete"}[k] }

// Outcome is what the writer knows about a write.
type Outcome uint8

// The outcomes.
const (
	// Unknown: the write is under way, or its acknowledgement was lost. The write may have happened, or may happen until
	// a later write is acknowledged.
	Unknown Outcome = iota
	// Acked: the write happened.
	Acked
	// Failed: the write was never sent, or was refused because Redis had a newer version.
	Failed
)

// String returns the outcome's name.
func (o Outcome) String() string {
	return [...]string{"of unknown outcome", "acknowledged", "not sent"}[o]
}

// history is all writes of one key. The versions of writes are 1, 2, 3 and so on. Concurrent writes may arrive at Redis
// in any order, but Redis refuses a write that arrives after a greater version, so an acknowledgement means that the
// key has at least the acknowledged version. Times are since the start of the run.
type history struct {
	writes []write // by version-1
	acks   []ack   // ascending in both
	// purgedUntil: until this time a purge of unknown outcome may happen, also after later writes.
	purgedUntil time.Duration
}

type write struct {
	kind    Kind
	begun   time.Duration
	ended   time.Duration // 0: it is under way
	outcome Outcome
	// life is how long the written value is valid: the ttl of an object, or the time until a device's not-after. 0: for
	// ever. By a clock that is ahead the life may end at any time, so the value may be absent.
	life time.Duration
	// overlap is how long the former secret stays valid beside the new secret, if the write is a rotation.
	overlap time.Duration
	// soft: the write is a soft purge, after which the edge's object counts as expired.
	soft bool
}

type ack struct {
	version uint64
	at      time.Duration
}

// beginWrite records a write before it is sent, and returns its version.
func (h *history) beginWrite(kind Kind, at, life time.Duration) uint64 {
	h.writes = append(h.writes, write{kind: kind, begun: at, life: life})
	return uint64(len(h.writes))
}

// endWrite records the outcome of a write. An acknowledgement after the acknowledgement of a newer version adds nothing
// to acks.
func (h *history) endWrite(version uint64, outcome Outcome, at time.Duration) {
	h.writes[version-1].outcome, h.writes[version-1].ended = outcome, at
	if last := len(h.acks); outcome == Acked && (last == 0 || h.acks[last-1].version < version) {
		h.acks = append(h.acks, ack{version, at})
	}
}

// forgetAcks makes the outcome of all writes acknowledged from since on unknown, and reports whether there were any.
func (h *history) forgetAcks(since time.Duration) bool {
	last := len(h.acks)
	for last > 0 && h.acks[last-1].at >= since {
		last--
		h.writes[h.acks[last].version-1].outcome = Unknown
	}
	taken := last < len(h.acks)
	h.acks = h.acks[:last]
	return taken
}

// hasUncertain reports whether a write before version may still happen: neither that write nor a later one was
// acknowledged.
func (h *history) hasUncertain(version uint64) bool {
	from := uint64(0)
	if last := len(h.acks); last > 0 {
		from = h.acks[last-1].version
	}
	return slices.ContainsFunc(h.writes[from:version-1], func(w write) bool { return w.outcome == Unknown })
}

// newestKind returns the kind of the last write that may have happened, and false if there is none.
func (h *history) newestKind() (Kind, bool) {
	for _, w := range slices.Backward(h.writes) {
		if w.outcome != Failed {
			return w.kind, true
		}
	}
	return Put, false
}

// mayHaveObject reports whether the key may have an object. A soft purge leaves the object, a purge of unknown outcome
// perhaps.
func (h *history) mayHaveObject() bool {
	for _, w := range slices.Backward(h.writes) {
		switch {
		case w.outcome == Failed:
		case w.kind == Put:
			return true
		case w.outcome == Acked && !w.soft:
			return false
		}
	}
	return false
}

// wasRegistered reports whether the key certainly had a value before a version was written: the last write that may
// have happened is an acknowledged put, which Redis hasn't lost.
func (h *history) wasRegistered(version uint64) bool {
	for _, w := range slices.Backward(h.writes[:version-1]) {
		if w.outcome != Failed {
			return w.kind == Put && w.outcome == Acked
		}
	}
	return false
}

// mayBePublished reports whether an answer that ended at t can have the body of version.
func (h *history) mayBePublished(version uint64, t time.Duration) bool {
	if version < 1 || version > uint64(len(h.writes)) {
		return false
	}
	w := h.writes[version-1]
	return w.kind == Put && w.outcome != Failed && w.begun <= t
}

// ackedAt returns the newest version acknowledged at t, 0 if there is none.
func (h *history) ackedAt(t time.Duration) uint64 {
	i := sort.Search(len(h.acks), func(i int) bool { return h.acks[i].at > t })
	if i == 0 {
		return 0
	}
	return h.acks[i-1].version
}

// ackOf returns when version was acknowledged, and false if version was not acknowledged.
func (h *history) ackOf(version uint64) (time.Duration, bool) {
	i := sort.Search(len(h.acks), func(i int) bool { return h.acks[i].version >= version })
	if i == len(h.acks) || h.acks[i].version != version {
		return 0, false
	}
	return h.acks[i].at, true
}

// mayBeOvertaken reports whether a newer write may have ended version by t.
func (h *history) mayBeOvertaken(version uint64, t time.Duration) bool {
	for i, w := range h.writes[version:] {
		if i == 0 {
			w.begun += w.overlap
		}
		if w.outcome != Failed && w.begun <= t {
			return true
		}
	}
	return false
}

// nextRotation returns the write after version if it keeps version's secret valid for an overlap, else nil.
func (h *history) nextRotation(version uint64) *write {
	if version < uint64(len(h.writes)) && h.writes[version].overlap > 0 {
		return &h.writes[version]
	}
	return nil
}

// ageAt returns the age at t of an answer with version: the time since a newer version was acknowledged, or since the
// newer version's overlap ended. The age is negative if there is no newer version.
func (h *history) ageAt(version uint64, t time.Duration) time.Duration {
	i := sort.Search(len(h.acks), func(i int) bool { return h.acks[i].version > version })
	if i == len(h.acks) {
		return -1
	}
	ended := h.acks[i].at + h.writes[h.acks[i].version-1].overlap
	if i++; i < len(h.acks) { // a further rotation ends the oldest secret
		ended = min(ended, h.acks[i].at)
	}
	return t - ended
}

// mayBeAbsent reports whether the key may have no object at t, if version from or a later one is in force.
func (h *history) mayBeAbsent(from uint64, t time.Duration) bool {
	if from == 0 {
		return true
	}
	for _, w := range h.writes[from-1:] {
		if (w.kind == Delete || w.life > 0) && w.outcome != Failed && w.begun <= t {
			return true
		}
	}
	return false
}

// mayHaveExpired reports whether the key's value at t may be past its life, if version from or a later version is in
// force.
func (h *history) mayHaveExpired(from uint64, t time.Duration) bool {
	return slices.ContainsFunc(h.writes[max(from, 1)-1:], func(w write) bool {
		return (w.life > 0 || w.soft) && w.outcome != Failed && w.begun <= t
	})
}

// hasReached reports whether an answer that ended at t shows that the write target is in force. version is the
// answer's, 0 if the answer has no object.
func (h *history) hasReached(target, version uint64, t time.Duration) bool {
	if version != 0 {
		return version >= target
	}
	return h.mayBeAbsent(target, t)
}
