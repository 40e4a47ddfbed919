package follow

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

const (
	// recentLinks is how many recent links the follower stores, for comparison without a call to Redis.
	recentLinks = 1024
	// maxUnsure bounds the earlier events to check with Redis, once a second.
	maxUnsure = 1000
	// rereadEvery and rereadBurst bound the rate of catch-ups that events cause, because events may be forged.
	rereadEvery = 250 * time.Millisecond
	rereadBurst = 4
	// maxRereads bounds the devices to read again individually. Beyond the bound, everything is read again.
	maxRereads = 1 << 16
)

// chain is the follower's knowledge of a shard's chain. See [contract.Link].
type chain struct {
	// digest is the digest of the last applied event; "" if no event was applied, or the chain doesn't have the digest.
	digest string
	// readable: Redis permits reading the chain, so digest is right.
	readable bool
	recent   [recentLinks]contract.Link
}

// addLink records the last applied write: its number and digest.
func (c *chain) addLink(seq uint64, digest string) {
	c.digest = strings.Clone(digest) // not a part of the payload, which would stay in memory
	if digest != "" {
		c.recent[seq%recentLinks] = contract.Link{Seq: seq, Digest: c.digest}
	}
}

// standing is an event's relation to the follower's position.
type standing int

const (
	follows        standing = iota // the next event
	applied                        // an earlier event, applied
	unsure                         // an earlier event; only Redis knows whether it was applied
	gap                            // a later event
	otherDataEpoch                 // from another data epoch
	otherHistory                   // the event's number belongs to another write
)

// judgeEvent compares an event and its payload with the follower's position.
func (f *Follower) judgeEvent(e *contract.Event, payload string) standing {
	link := f.chain.recent[e.Seq%recentLinks]
	switch {
	case e.DataEpoch != f.dataEpoch:
		return otherDataEpoch
	case e.Seq > f.seq+1:
		return gap
	case e.Seq == f.seq+1:
		if f.chain.readable && !contract.Follows(f.chain.digest, payload) {
			return otherHistory
		}
		return follows
	case link.Seq != e.Seq:
		return unsure
	case link.Digest != e.Digest:
		return otherHistory
	}
	return applied
}

// rejectEvent counts and logs an event that is not in the chain, and starts a catch-up: the event was forged, or Redis
// has lost writes.
func (f *Follower) rejectEvent(ctx context.Context, e *contract.Event) error {
	const reason = string(metrics.BreakDigest)
	f.metrics.Breaks.WithLabelValues(reason).Inc()
	f.board.breaksLog.Do(func() {
		f.log.Warn("an event is not of the history that redis had: it is rejected, and redis is read", "reason", reason,
			"member", e.Member.String(), "event_seq", e.Seq, "seq", f.seq)
	})
	return f.requestCatchUp(ctx, catchUpChain)
}

// requestCatchUp catches up now, or later after many catch-ups: forged events could cause catch-ups at any rate.
func (f *Follower) requestCatchUp(ctx context.Context, reason catchUpReason) error {
	f.rereads.reason = reason
	if !f.rereads.scheduled && f.rereads.limiter.Allow() {
		return f.catchUp(ctx, reason)
	}
	f.scheduleCatchUp()
	return nil
}

// scheduleCatchUp starts the timer for runDueCatchUp, for when the rate limit permits a catch-up.
func (f *Follower) scheduleCatchUp() {
	if f.rereads.scheduled {
		return
	}
	f.rereads.scheduled = true
	f.rereads.timer.Reset(f.rereads.limiter.Reserve().Delay())
}

// runDueCatchUp runs the scheduled catch-up, if a catch-up is still necessary.
func (f *Follower) runDueCatchUp(ctx context.Context) error {
	f.rereads.scheduled = false
	if f.rereads.reason == "" && !f.needsReread() {
		return nil
	}
	return f.catchUp(ctx, cmp.Or(f.rereads.reason, catchUpChain))
}

// unsureEvent is an earlier event to check with Redis.
type unsureEvent struct {
	event  contract.Event // without fields
	denies bool           // the event removes or restricts a device
}

// addUnsure adds the event to the list that the next comparison checks with Redis.
func (f *Follower) addUnsure(e *contract.Event) {
	if len(f.rereads.unsure) < maxUnsure { // further events are only not reported: the data was read from Redis
		f.rereads.unsure = append(f.rereads.unsure,
			unsureEvent{contract.Event{Seq: e.Seq, Digest: strings.Clone(e.Digest), Member: e.Member}, deniesDevice(e.Fields)})
	}
}

// checkUnsure checks asked against Redis's links of the same numbers, as far as Redis still has links. Without
// permission to read the chain, links is empty.
func (f *Follower) checkUnsure(ctx context.Context, asked []unsureEvent, links []contract.Link) error {
	for i, link := range links {
		if u := asked[i]; link.Seq == u.event.Seq && link.Digest != u.event.Digest {
			if u.denies {
				f.doubtDevice(u.event.Member)
			}
			if err := f.rejectEvent(ctx, &u.event); err != nil {
				return err
			}
		}
	}
	return nil
}
