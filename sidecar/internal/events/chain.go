package events

import (
	"context"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

const (
	// recentLinks is how many of the last links are known without asking Redis.
	recentLinks = 1024
	// maxUnsure bounds the earlier events of which Redis is asked once a second.
	maxUnsure = 1000
	// rereadEvery and rereadBurst bound the catch-ups that events ask for, which may be forged.
	rereadEvery = 250 * time.Millisecond
	rereadBurst = 4
	// maxAgain bounds the devices that are read again one by one. Where there are more, all are.
	maxAgain = 1 << 16
)

// chain is what is known of a shard's chain. See [contract.Link].
type chain struct {
	// digest is of the last event applied; "" if that was of format 1, or there was none.
	digest string
	// known says that digest is: Redis lets the chain be read.
	known bool
	// begun says that the shard has one. Then an event of format 1 is no longer believed.
	begun  bool
	recent [recentLinks]contract.Link
}

// set makes the write of this number, with this digest, the last one.
func (c *chain) set(seq uint64, digest string) {
	c.digest = strings.Clone(digest) // of a payload
	if digest != "" {
		c.begun = true
		c.recent[seq%recentLinks] = contract.Link{Seq: seq, Digest: c.digest}
	}
}

// standing is what an event is to a position.
type standing int

const (
	follows      standing = iota // it is the next one
	known                        // it was had before
	unsure                       // it is an earlier one of which only Redis can tell whether it was had
	missing                      // it is a later one
	otherEpoch                   // it is of another data epoch
	otherHistory                 // its number is the next or an earlier one, of another write
	unchained                    // it is of a writer before format 2, or of nobody: the shard has a chain
)

// breakOf is what an event that is not believed counts as.
var breakOf = map[standing]metrics.BreakReason{otherHistory: metrics.BreakDigest, unchained: metrics.BreakFormat}

// judge compares an event, and the payload that it was read from, with our position.
func (s *Subscriber) judge(e *contract.Event, payload string) standing {
	link := s.chain.recent[e.Seq%recentLinks]
	switch {
	case e.Epoch != s.epoch:
		return otherEpoch
	case e.Digest == "" && s.chain.begun: //mutant:TestForgedFormat1 false
		return unchained
	case e.Seq > s.seq+1: //mutant:TestHole false
		return missing
	case e.Seq == s.seq+1:
		if e.Digest != "" && s.chain.known &&
			!contract.Follows(s.chain.digest, payload) { //mutant:TestForgedNext false
			return otherHistory
		}
		return follows
	case e.Digest == "":
		return known
	case link.Seq != e.Seq:
		return unsure
	case link.Digest != e.Digest: //mutant:TestForgedNumber false
		return otherHistory
	}
	return known
}

// mistrust counts and logs an event that is not of our history, and has Redis read: it was forged, or
// Redis has lost writes that we have.
func (s *Subscriber) mistrust(ctx context.Context, e *contract.Event, reason metrics.BreakReason) error {
	s.metrics.Breaks.WithLabelValues(string(reason)).Inc()
	s.board.breaks.Do(func() {
		s.log.Warn("an event is not of the history that redis had: it is not believed, and redis is read", "reason", string(reason),
			"member", e.Member.String(), "event_seq", e.Seq, "seq", s.seq)
	})
	return s.reread(ctx, onChain)
}

// reread catches up now, or when that is due again: forged events could ask for it at any rate.
func (s *Subscriber) reread(ctx context.Context, reason catchUpReason) error {
	s.doubt = reason
	if s.rereading || s.later() {
		return nil
	}
	return s.catchUp(ctx, reason)
}

// later reports whether rereadDue will be called when another catch-up is due, or that it is.
func (s *Subscriber) later() bool {
	delay := s.rereads.Reserve().Delay()
	if delay == 0 { //mutant:TestFloodOfForgedEvents true
		return false
	}
	s.rereading = true
	s.due.Reset(delay)
	return true
}

// rereadDue is called when it is.
func (s *Subscriber) rereadDue(ctx context.Context) error {
	s.rereading = false
	switch {
	case s.doubt != "":
		return s.catchUp(ctx, s.doubt)
	case len(s.again) > 0:
		return s.catchUp(ctx, onChain)
	}
	return nil
}

// unsureEvent is an earlier event of which Redis is asked.
type unsureEvent struct {
	event contract.Event // without its fields
	takes bool           // it takes something away
}

// askLater has Redis be asked whether it had the event, with the next comparison.
func (s *Subscriber) askLater(e *contract.Event) {
	if len(s.unsure) < maxUnsure { // what was read since is Redis's in any case: this is to tell of it
		s.unsure = append(s.unsure, unsureEvent{contract.Event{Seq: e.Seq, Digest: strings.Clone(e.Digest), Member: e.Member}, takesAway(e.Fields)})
	}
}

// sure is the answer: links of the same numbers, where Redis has them still.
func (s *Subscriber) sure(ctx context.Context, asked []unsureEvent, links []contract.Link) error {
	for i, u := range asked {
		if links[i].Seq == u.event.Seq && links[i].Digest != u.event.Digest { //mutant:TestForgedOld false
			if u.takes {
				s.takeAway(u.event.Member)
			}
			if err := s.mistrust(ctx, &u.event, metrics.BreakDigest); err != nil {
				return err
			}
		}
	}
	return nil
}
