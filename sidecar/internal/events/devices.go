package events

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// grantTimeout bounds how long what an event gives a device may not be known.
const grantTimeout = time.Second

// takesAway reports whether the record of a device lets nobody in. One that can't be read doesn't either.
func takesAway(fields map[string]string) bool {
	c, err := contract.ParseCredential(fields)
	return err != nil || c.Deleted || c.Disabled
}

// applyDevice applies an event of a device that is of our history. What it takes away counts at once; what
// it grants is believed when Redis has said so: who may publish could make a device up.
func (s *Subscriber) applyDevice(e *contract.Event) {
	delete(s.reading, e.Member) // its answer may be of before the event
	if takesAway(e.Fields) {    //mutant:TestForgedGrant true
		delete(s.waiting, e.Member)
		s.apply(e.Member, e.Fields)
		return
	}
	s.waiting[e.Member] = true
}

// distrusted is applied of an event that is not believed: what it takes away from a device counts all the
// same, until Redis was read.
func (s *Subscriber) distrusted(e *contract.Event, unreadable bool) {
	if e.Member.Kind == contract.KindCredential && s.Shards.Belongs(e.Member, s.Shard) == nil && (unreadable || takesAway(e.Fields)) {
		s.takeAway(e.Member)
	}
}

// takeAway makes a device unknown until its record was read again.
func (s *Subscriber) takeAway(m contract.Member) {
	delete(s.reading, m)
	delete(s.waiting, m)
	s.Credentials.Remove(m.ID) //mutant:TestForgedTakeaway deleted
	s.readAgain(m)
}

// readAgain has the next catch-up read a device, though its place in the log may not say so.
func (s *Subscriber) readAgain(m contract.Member) {
	if s.again[m] = true; len(s.again) > maxAgain {
		clear(s.again)
		s.synced = false // everything is read
	}
}

// granted are the replies to a round of reading.
type granted struct {
	members  []contract.Member
	replies  []*redis.MapStringStringCmd
	catchups uint64 // when it began
	err      error
}

// readGranted begins to read all devices that wait, unless a round is under way.
func (s *Subscriber) readGranted(ctx context.Context) {
	if s.reading != nil || len(s.waiting) == 0 {
		return
	}
	s.reading, s.waiting = s.waiting, map[contract.Member]bool{}
	s.rounds++
	g := granted{members: slices.Collect(maps.Keys(s.reading)), catchups: s.catchups}
	s.running.Go(func() {
		var client *redis.Client
		if client, g.err = s.master(ctx); g.err == nil {
			g.replies, g.err = s.fetch(ctx, client.WithTimeout(grantTimeout), g.members, grantTimeout)
		}
		s.grants <- g
	})
}

// finish applies what was read.
func (s *Subscriber) finish(g granted) error {
	reading := s.reading
	s.reading = nil
	if g.err == nil && g.catchups != s.catchups {
		maps.Copy(s.waiting, reading) // versions may have started over since
		return nil
	}
	for i := 0; g.err == nil && i < len(g.members); i++ {
		if m := g.members[i]; reading[m] { //mutant:TestAnswerOfBefore true
			g.err = s.applyReply(m, g.replies[i])
		}
	}
	if g.err != nil {
		maps.Copy(s.waiting, reading)
		return fmt.Errorf("read what events say of %d devices: %w", len(g.members), g.err)
	}
	if s.held.seq != 0 && s.rounds >= s.held.seq {
		s.board.setInStep(s.Shard, s.held.at)
		s.held = position{}
	}
	return nil
}

// abandon ends a session: what was granted and not read isn't known, and neither is what it took away, such as
// an old secret.
func (s *Subscriber) abandon() {
	maps.Copy(s.waiting, s.reading)
	for m := range s.waiting {
		s.Credentials.Remove(m.ID) //mutant:TestGrantThatCantBeRead deleted
		s.readAgain(m)
	}
	clear(s.waiting)
	s.reading, s.held = nil, position{}
}

// setInStep says that we are in step as of t, as soon as no device waits.
func (s *Subscriber) setInStep(t time.Time) {
	switch {
	case s.doubt != "": // until Redis was read
	case len(s.waiting) > 0 && s.held.seq == 0:
		s.held = position{seq: s.rounds + 1, at: t}
	case s.reading != nil && s.held.seq == 0:
		s.held = position{seq: s.rounds, at: t}
	case len(s.waiting) == 0 && s.reading == nil:
		s.board.setInStep(s.Shard, t)
	}
}

// applyMeanwhile looks at what has come of devices while records are read, for that may take minutes, and
// neither a revocation nor a new device must wait so long. What is taken away counts at once; then
// the records are read, some at a time. The events have their turn again later.
func (s *Subscriber) applyMeanwhile(ctx context.Context, master server, epoch string) error {
	for _, payload := range s.in.unseen() {
		e, err := contract.ParseEvent(payload)
		if e.Member.Kind != contract.KindCredential || e.Epoch != epoch || s.Shards.Belongs(e.Member, s.Shard) != nil {
			continue
		}
		if s.distrusted(&e, err != nil); err == nil {
			s.readAgain(e.Member)
		}
	}
	members := make([]contract.Member, 0, min(len(s.again), pipelineSize))
	for m := range s.again {
		if len(members) == pipelineSize {
			break
		}
		members = append(members, m)
	}
	if len(members) == 0 {
		return nil
	}
	if err := s.readRecords(ctx, master, members); err != nil {
		return err
	}
	for _, m := range members {
		delete(s.again, m)
	}
	return nil
}
