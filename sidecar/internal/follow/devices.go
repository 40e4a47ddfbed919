package follow

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// grantTimeout is how long a device's old record may count while the new one is read that an event has announced.
// Reading may take longer, up to callTimeout, if Redis is distant.
const grantTimeout = time.Second

// takesAway reports whether a device's record authenticates nobody: it is unreadable, deleted or disabled.
func takesAway(fields map[string]string) bool {
	c, err := contract.ParseCredential(fields)
	return err != nil || c.Deleted || c.Disabled
}

// applyDevice applies a device's event from our chain. What it takes away counts at once, until the record was read;
// what it grants counts once the record was read. Whoever may write objects could invent the event.
func (f *Follower) applyDevice(e *contract.Event) {
	if !takesAway(e.Fields) {
		f.readDevice(e.Member, true)
		return
	}
	if c, err := contract.ParseCredential(e.Fields); err == nil {
		c.ID = e.Member.ID
		f.Credentials.Announce(c)
	} else {
		f.apply(e.Member, e.Fields)
	}
	f.readDevice(e.Member, false)
}

// readDevice reads a device's record soon; live: so that an event counts.
func (f *Follower) readDevice(m contract.Member, live bool) {
	delete(f.grants.reading, m) // a pending answer may be older than the event
	f.grants.waiting[m] = live
}

// readAsked reads a device's record soon because of [Group.Registered]. An event that waits for the record still does.
func (f *Follower) readAsked(m contract.Member) {
	if _, waits := f.grants.waiting[m]; !waits {
		f.grants.waiting[m] = false
	}
}

// distrusted handles an event that is not accepted: if it revokes a device, or is unreadable, the device is in doubt
// until its record was read.
func (f *Follower) distrusted(e *contract.Event, unreadable bool) {
	if e.Member.Kind == contract.KindCredential && f.Keyspace.Belongs(e.Member, f.Shard) == nil &&
		(unreadable || takesAway(e.Fields)) {
		f.takeAway(e.Member)
	}
}

// takeAway puts a device in doubt until its record was read again.
func (f *Follower) takeAway(m contract.Member) {
	delete(f.grants.reading, m)
	delete(f.grants.waiting, m)
	f.Credentials.Doubt(m.ID)
	f.readAgain(m)
}

// readAgain adds a device to those that the next catch-up reads, even if the log does not list it as changed.
func (f *Follower) readAgain(m contract.Member) {
	if f.rereads.devices[m] = true; len(f.rereads.devices) > maxAgain {
		f.rereads.devices = map[contract.Member]bool{} // an empty map keeps its memory
		f.rereads.unlisted = true
	}
}

// doubtful reports whether a catch-up must read devices that the log may not list.
func (f *Follower) doubtful() bool { return len(f.rereads.devices) > 0 || f.rereads.unlisted }

// granted has the replies to one round of reads.
type granted struct {
	members  []contract.Member
	replies  []*redis.MapStringStringCmd
	catchups uint64 // when the round began
	err      error
}

// readGranted starts reading all waiting devices, a page per pipeline, unless a round is running.
func (f *Follower) readGranted(ctx context.Context) {
	if f.grants.reading != nil || len(f.grants.waiting) == 0 {
		return
	}
	f.grants.reading, f.grants.waiting = f.grants.waiting, map[contract.Member]bool{}
	f.grants.rounds++
	g := granted{members: slices.Collect(maps.Keys(f.grants.reading)), catchups: f.catchups}
	f.grants.late = time.After(grantTimeout)
	after := f.applied.Load() // the connection may be to another server than the events'
	f.running.Go(func() {
		for page := range slices.Chunk(g.members, pageSize) {
			var replies []*redis.MapStringStringCmd
			if replies, g.err = f.readPage(ctx, page, after); g.err != nil {
				break
			}
			g.replies = append(g.replies, replies...)
		}
		f.grants.answers <- g
	})
}

// readPage reads devices from a server that has the write after.
func (f *Follower) readPage(ctx context.Context, members []contract.Member,
	after *contract.Link) ([]*redis.MapStringStringCmd, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // for both calls, with the client's attempts
	defer cancel()
	client, err := f.master(ctx)
	if err != nil {
		return nil, err
	}
	master := f.withTimeout(client, callTimeout)
	records, err := f.weigh(ctx, master, members)
	if err != nil {
		return nil, err
	}
	return f.fetch(ctx, master, records, callTimeout, after, false)
}

// doubtGranted puts devices in doubt whose records were not read in time: an event may also have invalidated an old
// secret.
func (f *Follower) doubtGranted() {
	for _, granted := range []map[contract.Member]bool{f.grants.waiting, f.grants.reading} {
		for m, live := range granted {
			if live {
				f.Credentials.Doubt(m.ID)
			}
		}
	}
	f.grants.late = time.After(grantTimeout) // for those that wait behind them
}

// finish applies the replies of a round.
func (f *Follower) finish(g granted) error {
	reading := f.grants.reading
	f.grants.reading, f.grants.late = nil, nil
	if g.err == nil && g.catchups != f.catchups {
		maps.Copy(f.grants.waiting, reading) // a full resync may have reset versions since
		return nil
	}
	for i := 0; g.err == nil && i < len(g.members); i++ {
		m := g.members[i]
		apply := func() { g.err = f.applyReply(m, g.replies[i]) }
		switch live, valid := reading[m]; {
		case live:
			f.applyLive(g.replies[i].Val(), apply)
		case valid:
			apply()
		}
	}
	if g.err != nil {
		maps.Copy(f.grants.waiting, reading)
		return fmt.Errorf("read what events say of %d devices: %w", len(g.members), g.err)
	}
	if f.grants.held.seq != 0 && f.grants.rounds >= f.grants.held.seq {
		f.board.setInStep(f.Shard, f.grants.held.at)
		f.grants.held = position{}
	}
	return nil
}

// abandon ends a subscription: devices of which it told something that was not read are in doubt until the next
// catch-up has read them.
func (f *Follower) abandon() {
	payloads, _, _ := f.in.take()
	f.lookAhead(payloads, f.dataEpoch)
	f.readGrantedAgain()
	f.doubtUnread()
	f.grants.waiting = map[contract.Member]bool{}
	f.grants.reading, f.grants.late, f.grants.held = nil, nil, position{}
}

// doubtUnread puts devices in doubt of which an event was told that no read has followed.
func (f *Follower) doubtUnread() {
	for m := range f.rereads.devices {
		if m.Kind == contract.KindCredential {
			f.Credentials.Doubt(m.ID)
		}
	}
}

// readGrantedAgain has the next catch-up read devices with unread grants: their answers wait until it is over.
func (f *Follower) readGrantedAgain() {
	for _, granted := range []map[contract.Member]bool{f.grants.waiting, f.grants.reading} {
		for m := range granted {
			f.readAgain(m)
		}
	}
}

// setInStep reports the shard in step as of t, once the grants received by now were read.
func (f *Follower) setInStep(t time.Time) {
	switch {
	case f.rereads.reason != "": // until Redis was read
	case len(f.grants.waiting) > 0 && f.grants.held.seq == 0:
		f.grants.held = position{seq: f.grants.rounds + 1, at: t}
	case f.grants.reading != nil && f.grants.held.seq == 0:
		f.grants.held = position{seq: f.grants.rounds, at: t}
	case len(f.grants.waiting) == 0 && f.grants.reading == nil:
		f.board.setInStep(f.Shard, t)
	}
}

// lookAhead looks for events of devices and purges in payloads before their turn: what revokes a device has an effect
// at once, and the others' records are read again.
func (f *Follower) lookAhead(payloads []string, epoch string) {
	for _, payload := range payloads {
		e, err := contract.ParseEvent(payload)
		if e.Member.Kind != contract.KindCredential && e.Member.Kind != contract.KindPurge || e.DataEpoch != epoch ||
			f.Keyspace.Belongs(e.Member, f.Shard) != nil {
			continue
		}
		if f.rereads.late != nil {
			f.rereads.late[e.Member] = true
		}
		if f.distrusted(&e, err != nil); err == nil {
			f.readAgain(e.Member)
		}
	}
}

// applyMeanwhile applies events of devices and purges that arrive while records are read. That may take minutes, and
// neither a revocation nor a new device may wait so long. It applies revocations at once, then reads the records of
// the devices, one pipeline per call. The events are applied once more in their order later.
func (f *Follower) applyMeanwhile(ctx context.Context, master server, epoch string) error {
	f.lookAhead(f.in.unseen(), epoch)
	members := make([]contract.Member, 0, min(len(f.rereads.devices), pipelineSize))
	for m := range f.rereads.devices {
		if len(members) == pipelineSize {
			break
		}
		members = append(members, m)
	}
	if len(members) == 0 {
		return nil
	}
	records, err := f.weigh(ctx, master, members)
	if err != nil {
		return err
	}
	if err := f.readRecords(ctx, master, records); err != nil {
		return err
	}
	if len(f.rereads.devices) == 0 {
		f.rereads.devices = map[contract.Member]bool{}
	}
	return nil
}

// watchful is a hook for the connection of a catch-up: while a call waits for Redis, which may take seconds, it looks
// ahead. Devices of which an event has announced another record are in doubt if that isn't read in time: the event may
// have invalidated an old secret. It is for the goroutine of its Follower.
type watchful struct {
	*Follower
	epoch string           // of Redis
	busy  bool             // a call waits, which may have others within
	late  <-chan time.Time // an unread event of a device is grantTimeout old; nil: there was none
}

// DialHook implements [redis.Hook].
func (*watchful) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (w *watchful) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return w.watch(func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (w *watchful) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return w.watch(func() error { return next(ctx, cmds) })
	}
}

func (w *watchful) watch(call func() error) error {
	if w.busy {
		return call()
	}
	w.busy = true
	defer func() { w.busy = false }()
	answer := make(chan error, 1)
	go func() { answer <- call() }()
	for {
		select {
		case err := <-answer:
			return err
		case <-w.in.wake:
			defer w.in.notify() // take has not read the events yet
			w.lookAhead(w.in.unseen(), w.epoch)
			if w.late == nil && len(w.rereads.devices) > 0 {
				w.late = time.After(grantTimeout)
			}
		case <-w.late:
			w.late = nil
			w.doubtUnread()
		}
	}
}
