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

// grantTimeout is how long a device's old record may count after an event has announced a new record, while the new
// record is read. Reading may take longer, up to callTimeout, if Redis is distant.
const grantTimeout = time.Second

// deniesDevice reports whether a device's record authenticates nobody: the record is unreadable, deleted or disabled.
func deniesDevice(fields map[string]string) bool {
	c, err := contract.ParseCredential(fields)
	return err != nil || c.Deleted || c.Disabled
}

// applyDevice applies a device's event from the follower's chain. A denial counts at once, until the record was read; a
// grant counts only after the record was read. Every writer of objects could invent the event.
func (f *Follower) applyDevice(e *contract.Event) {
	if !deniesDevice(e.Fields) {
		f.queueRead(e.Member, true)
		return
	}
	if c, err := contract.ParseCredential(e.Fields); err == nil {
		c.ID = e.Member.ID
		f.Credentials.Announce(c)
	} else {
		f.applyRecord(e.Member, e.Fields)
	}
	f.queueRead(e.Member, false)
}

// queueRead schedules a read of a device's record; live: an event counts only after the read.
func (f *Follower) queueRead(m contract.Member, live bool) {
	delete(f.grants.reading, m) // a pending answer may be older than the event
	f.grants.waiting[m] = live
}

// queueRegistered schedules a read of a device's record for [Group.Registered]. If an event waits for the record, the
// event still waits.
func (f *Follower) queueRegistered(m contract.Member) {
	if _, waits := f.grants.waiting[m]; !waits {
		f.grants.waiting[m] = false
	}
}

// doubtIfDenied handles an event that is not accepted: if the event denies a device, or is unreadable, the device is in
// doubt until its record was read.
func (f *Follower) doubtIfDenied(e *contract.Event, unreadable bool) {
	if e.Member.Kind == contract.KindCredential && f.Keyspace.Belongs(e.Member, f.Shard) == nil &&
		(unreadable || deniesDevice(e.Fields)) {
		f.doubtDevice(e.Member)
	}
}

// doubtDevice puts a device in doubt until its record was read again.
func (f *Follower) doubtDevice(m contract.Member) {
	delete(f.grants.reading, m)
	delete(f.grants.waiting, m)
	f.Credentials.Doubt(m.ID)
	f.addReread(m)
}

// addReread has the next catch-up read a device, even if the log does not list the device as changed.
func (f *Follower) addReread(m contract.Member) {
	if f.rereads.members[m] = true; len(f.rereads.members) > maxRereads {
		f.rereads.members = map[contract.Member]bool{} // an empty map keeps its memory
		f.rereads.overflowed = true
	}
}

// needsReread reports whether a catch-up must read devices that the log may not list.
func (f *Follower) needsReread() bool { return len(f.rereads.members) > 0 || f.rereads.overflowed }

// grantReplies has the replies to a round of reads.
type grantReplies struct {
	members  []contract.Member
	replies  []*redis.MapStringStringCmd
	catchups uint64 // when the round began
	err      error
}

// readGrants starts reading all waiting devices, a page per pipeline, unless a round is running.
func (f *Follower) readGrants(ctx context.Context) {
	if f.grants.reading != nil || len(f.grants.waiting) == 0 {
		return
	}
	f.grants.reading, f.grants.waiting = f.grants.waiting, map[contract.Member]bool{}
	f.grants.rounds++
	g := grantReplies{members: slices.Collect(maps.Keys(f.grants.reading)), catchups: f.catchups}
	f.grants.deadline = time.After(grantTimeout)
	after := f.applied.Load() // the connection may be to another server than the subscription
	f.readers.Go(func() {
		for page := range slices.Chunk(g.members, pageSize) {
			var replies []*redis.MapStringStringCmd
			if replies, g.err = f.readGrantPage(ctx, page, after); g.err != nil {
				break
			}
			g.replies = append(g.replies, replies...)
		}
		f.grants.replies <- g
	})
}

// readGrantPage reads devices from a server that has the write after.
func (f *Follower) readGrantPage(ctx context.Context, members []contract.Member,
	after *contract.Link) ([]*redis.MapStringStringCmd, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // for both calls, with the client's attempts
	defer cancel()
	client, err := f.findMaster(ctx)
	if err != nil {
		return nil, err
	}
	master := f.withTimeout(client, callTimeout)
	records, err := f.fetchSizes(ctx, master, members)
	if err != nil {
		return nil, err
	}
	return f.fetchRecords(ctx, master, records, callTimeout, after, false)
}

// doubtLateGrants puts devices in doubt whose records were not read in time: an event may also have invalidated an old
// secret.
func (f *Follower) doubtLateGrants() {
	for _, granted := range []map[contract.Member]bool{f.grants.waiting, f.grants.reading} {
		for m, live := range granted {
			if live {
				f.Credentials.Doubt(m.ID)
			}
		}
	}
	f.grants.deadline = time.After(grantTimeout) // for devices in waiting
}

// applyGrants applies the replies of a round.
func (f *Follower) applyGrants(g grantReplies) error {
	reading := f.grants.reading
	f.grants.reading, f.grants.deadline = nil, nil
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
	if f.grants.inStep.seq != 0 && f.grants.rounds >= f.grants.inStep.seq {
		f.board.setInStep(f.Shard, f.grants.inStep.at)
		f.grants.inStep = position{}
	}
	return nil
}

// abandonSubscription ends a subscription: devices with events whose records were not read are in doubt until the next
// catch-up has read them.
func (f *Follower) abandonSubscription() {
	payloads, _, _ := f.inbox.take()
	f.lookAhead(payloads, f.dataEpoch)
	f.rereadGrants()
	f.doubtUnreadDevices()
	f.grants.waiting = map[contract.Member]bool{}
	f.grants.reading, f.grants.deadline, f.grants.inStep = nil, nil, position{}
}

// doubtUnreadDevices puts devices in doubt whose records were not read after an event.
func (f *Follower) doubtUnreadDevices() {
	for m := range f.rereads.members {
		if m.Kind == contract.KindCredential {
			f.Credentials.Doubt(m.ID)
		}
	}
}

// rereadGrants has the next catch-up read devices with unread grants: their answers wait until the catch-up is over.
func (f *Follower) rereadGrants() {
	for _, granted := range []map[contract.Member]bool{f.grants.waiting, f.grants.reading} {
		for m := range granted {
			f.addReread(m)
		}
	}
}

// setInStep reports the shard in step as of t, once all grants received by now were read.
func (f *Follower) setInStep(t time.Time) {
	switch {
	case f.rereads.reason != "": // until Redis was read
	case len(f.grants.waiting) > 0 && f.grants.inStep.seq == 0:
		f.grants.inStep = position{seq: f.grants.rounds + 1, at: t}
	case f.grants.reading != nil && f.grants.inStep.seq == 0:
		f.grants.inStep = position{seq: f.grants.rounds, at: t}
	case len(f.grants.waiting) == 0 && f.grants.reading == nil:
		f.board.setInStep(f.Shard, t)
	}
}

// lookAhead handles events of devices and purges in payloads before their turn: denials count at once, and all other
// devices' and purges' records are read again.
func (f *Follower) lookAhead(payloads []string, epoch string) {
	for _, payload := range payloads {
		e, err := contract.ParseEvent(payload)
		if e.Member.Kind != contract.KindCredential && e.Member.Kind != contract.KindPurge || e.DataEpoch != epoch ||
			f.Keyspace.Belongs(e.Member, f.Shard) != nil {
			continue
		}
		if f.rereads.arrived != nil {
			f.rereads.arrived[e.Member] = true
		}
		if f.doubtIfDenied(&e, err != nil); err == nil {
			f.addReread(e.Member)
		}
	}
}

// applyUrgent applies events of devices and purges that arrive while records are read. Reading may take minutes, and
// neither a revocation nor a new device may wait so long. applyUrgent applies revocations at once, then reads the
// records of the devices, a pipeline per call. Later, the events are applied once more in their order.
func (f *Follower) applyUrgent(ctx context.Context, master server, epoch string) error {
	f.lookAhead(f.inbox.peekUnseen(), epoch)
	members := make([]contract.Member, 0, min(len(f.rereads.members), pipelineSize))
	for m := range f.rereads.members {
		if len(members) == pipelineSize {
			break
		}
		members = append(members, m)
	}
	if len(members) == 0 {
		return nil
	}
	records, err := f.fetchSizes(ctx, master, members)
	if err != nil {
		return err
	}
	if err := f.readRecords(ctx, master, records); err != nil {
		return err
	}
	if len(f.rereads.members) == 0 {
		f.rereads.members = map[contract.Member]bool{}
	}
	return nil
}

// lookAheadHook calls lookAhead while a call on the connection of a catch-up waits for Redis, which may take seconds. A
// device whose new record an event has announced is in doubt if the record isn't read in time: the event may have
// invalidated an old secret. Only the goroutine of the Follower may use the hook.
type lookAheadHook struct {
	*Follower
	epoch    string           // of Redis
	busy     bool             // a call is waiting; calls may be nested
	deadline <-chan time.Time // fires when a device's unread event is grantTimeout old; nil: no such event
}

// DialHook implements [redis.Hook].
func (*lookAheadHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (w *lookAheadHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return w.watchCall(func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (w *lookAheadHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return w.watchCall(func() error { return next(ctx, cmds) })
	}
}

func (w *lookAheadHook) watchCall(call func() error) error {
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
		case <-w.inbox.wake:
			defer w.inbox.notify() // take has not read the events yet
			w.lookAhead(w.inbox.peekUnseen(), w.epoch)
			if w.deadline == nil && len(w.rereads.members) > 0 {
				w.deadline = time.After(grantTimeout)
			}
		case <-w.deadline:
			w.deadline = nil
			w.doubtUnreadDevices()
		}
	}
}
