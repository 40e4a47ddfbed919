package follow

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// grantTimeout is how long a device's old record may count after an event has announced a new record, while the new
// record is read. Reading may take longer, up to callTimeout, if Redis is distant. Tests change it.
var grantTimeout = time.Second

// maxRereads bounds the devices to read again individually. Beyond the bound, everything is read again.
const maxRereads = 1 << 16

// deviceReads reads the devices that events name, and the devices that are in doubt: every writer of objects could
// invent an event, so only a device's record counts. Only the goroutine of the Follower may use it.
type deviceReads struct {
	*shard
	*applier
	*fetcher
	*tracker
	inbox   *inbox          // of the current subscription
	readers *sync.WaitGroup // of the current subscription
	rereads rereads
	grants  grants
}

// rereads has the devices and purges that the next catch-up reads in any case.
type rereads struct {
	members    map[contract.Member]bool
	arrived    map[contract.Member]bool // with an event since the running read began; nil: no running read
	overflowed bool                     // members would exceed maxRereads: the next catch-up reads everything
}

// grants has the devices to read after events, see applyDevice. True: an event counts only after the read.
type grants struct {
	waiting    map[contract.Member]bool
	reading    map[contract.Member]bool // devices whose pending answer is valid; nil: no running round
	rounds     uint64                   // number of rounds begun
	deadline   <-chan time.Time         // for doubtLateGrants; nil: no running round
	inStep     position                 // in step as of inStep.at once round inStep.seq has ended; seq 0: none
	replies    chan grantReplies        // of the current subscription
	registered chan contract.Member     // of [Group.Registered]
}

// deniesDevice reports whether a device's record authenticates nobody: the record is unreadable, deleted or disabled.
func deniesDevice(fields map[string]string) bool {
	c, err := contract.ParseCredential(fields)
	return err != nil || c.Deleted || c.Disabled
}

// applyDevice applies a device's event from the follower's chain. A denial counts at once, until the record was read; a
// grant counts only after the record was read. Every writer of objects could invent the event.
func (d *deviceReads) applyDevice(e *contract.Event) {
	if !deniesDevice(e.Fields) {
		d.queueRead(e.Member, true)
		return
	}
	if c, err := contract.ParseCredential(e.Fields); err == nil {
		c.ID = e.Member.ID
		d.Credentials.Announce(c)
	} else {
		d.applyRecord(e.Member, e.Fields)
	}
	d.queueRead(e.Member, false)
}

// queueRead schedules a read of a device's record; live: an event counts only after the read.
func (d *deviceReads) queueRead(m contract.Member, live bool) {
	delete(d.grants.reading, m) // a pending answer may be older than the event
	d.grants.waiting[m] = live
}

// queueRegistered schedules a read of a device's record for [Group.Registered]. If an event waits for the record, the
// event still waits.
func (d *deviceReads) queueRegistered(m contract.Member) {
	if _, waits := d.grants.waiting[m]; !waits {
		d.grants.waiting[m] = false
	}
}

// doubtIfDenied handles an event that is not accepted: if the event denies a device, or is unreadable, the device is in
// doubt until its record was read.
func (d *deviceReads) doubtIfDenied(e *contract.Event, unreadable bool) {
	if e.Member.Kind == contract.KindCredential && d.follows(e.Member.Kind) &&
		d.Keyspace.Belongs(e.Member, d.Shard) == nil && (unreadable || deniesDevice(e.Fields)) {
		d.doubtDevice(e.Member)
	}
}

// doubtDevice puts a device in doubt until its record was read again.
func (d *deviceReads) doubtDevice(m contract.Member) {
	delete(d.grants.reading, m)
	delete(d.grants.waiting, m)
	d.Credentials.Doubt(m.ID)
	d.addReread(m)
}

// addReread has the next catch-up read a device, even if the log does not list the device as changed.
func (d *deviceReads) addReread(m contract.Member) {
	if d.rereads.members[m] = true; len(d.rereads.members) > maxRereads {
		d.rereads.members = map[contract.Member]bool{} // an empty map keeps its memory
		d.rereads.overflowed = true
	}
}

// queueRereads schedules single reads of the devices and purges whose events arrived too late for the catch-up. Another
// catch-up would meet the next events, and so on, and the edge would not be in step meanwhile.
func (d *deviceReads) queueRereads() {
	for m := range d.rereads.members {
		d.queueRegistered(m)
	}
	clear(d.rereads.members)
}

// needsReread reports whether a catch-up must read devices that the log may not list.
func (d *deviceReads) needsReread() bool { return len(d.rereads.members) > 0 || d.rereads.overflowed }

// grantReplies has the replies to a round of reads.
type grantReplies struct {
	members  []contract.Member
	replies  []*redis.MapStringStringCmd
	catchups uint64 // when the round began
	err      error
}

// readGrants starts reading all waiting devices, a page per pipeline, unless a round is running.
func (d *deviceReads) readGrants(ctx context.Context) {
	if d.grants.reading != nil || len(d.grants.waiting) == 0 {
		return
	}
	d.grants.reading, d.grants.waiting = d.grants.waiting, map[contract.Member]bool{}
	d.grants.rounds++
	g := grantReplies{members: slices.Collect(maps.Keys(d.grants.reading)), catchups: d.catchups}
	d.grants.deadline = time.After(grantTimeout)
	after := d.applied.Load() // the connection may be to another server than the subscription
	d.readers.Go(func() {
		for page := range slices.Chunk(g.members, pageSize) {
			var replies []*redis.MapStringStringCmd
			if replies, g.err = d.readGrantPage(ctx, page, after); g.err != nil {
				break
			}
			g.replies = append(g.replies, replies...)
		}
		d.grants.replies <- g
	})
}

// readGrantPage reads devices from a server that has the write after.
func (d *deviceReads) readGrantPage(ctx context.Context, members []contract.Member,
	after *contract.Link) ([]*redis.MapStringStringCmd, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // for both calls, with the client's attempts
	defer cancel()
	client, err := d.findServer(ctx)
	if err != nil {
		return nil, err
	}
	master := d.withTimeout(client, callTimeout)
	records, err := d.fetchSizes(ctx, master, members)
	if err != nil {
		return nil, err
	}
	return d.fetchRecords(ctx, master, records, callTimeout, after, false)
}

// doubtLateGrants puts devices in doubt whose records were not read in time: an event may also have invalidated an old
// secret.
func (d *deviceReads) doubtLateGrants() {
	for _, granted := range []map[contract.Member]bool{d.grants.waiting, d.grants.reading} {
		for m, live := range granted {
			if live {
				d.Credentials.Doubt(m.ID)
			}
		}
	}
	d.grants.deadline = time.After(grantTimeout) // for devices in waiting
}

// applyGrants applies the replies of a round.
func (d *deviceReads) applyGrants(g grantReplies) error {
	reading := d.grants.reading
	d.grants.reading, d.grants.deadline = nil, nil
	if g.err == nil && g.catchups != d.catchups {
		maps.Copy(d.grants.waiting, reading) // a full resync may have reset versions since
		return nil
	}
	for i := 0; g.err == nil && i < len(g.members); i++ {
		m := g.members[i]
		apply := func() { g.err = d.applyReply(m, g.replies[i]) }
		switch live, valid := reading[m]; {
		case live:
			d.applyLive(g.replies[i].Val(), apply)
		case valid:
			apply()
		}
	}
	if g.err != nil {
		maps.Copy(d.grants.waiting, reading)
		return fmt.Errorf("read what events say of %d devices: %w", len(g.members), g.err)
	}
	if d.grants.inStep.seq != 0 && d.grants.rounds >= d.grants.inStep.seq {
		d.board.setInStep(d.slot, d.grants.inStep.at)
		d.grants.inStep = position{}
	}
	return nil
}

// abandonSubscription ends a subscription: devices with events whose records were not read are in doubt until the next
// catch-up has read them.
func (d *deviceReads) abandonSubscription() {
	payloads, _, _ := d.inbox.take()
	d.lookAhead(payloads, d.dataEpoch)
	d.rereadGrants()
	d.doubtUnreadDevices()
	d.grants.waiting = map[contract.Member]bool{}
	d.grants.reading, d.grants.deadline, d.grants.inStep = nil, nil, position{}
}

// doubtUnreadDevices puts devices in doubt whose records were not read after an event.
func (d *deviceReads) doubtUnreadDevices() {
	for m := range d.rereads.members {
		if m.Kind == contract.KindCredential {
			d.Credentials.Doubt(m.ID)
		}
	}
}

// rereadGrants has the next catch-up read devices with unread grants: their answers wait until the catch-up is over.
func (d *deviceReads) rereadGrants() {
	for _, granted := range []map[contract.Member]bool{d.grants.waiting, d.grants.reading} {
		for m := range granted {
			d.addReread(m)
		}
	}
}

// lookAhead handles events of devices and purges in payloads before their turn: denials count at once, and all other
// devices' and purges' records are read again.
func (d *deviceReads) lookAhead(payloads []string, epoch string) {
	for _, payload := range payloads {
		e, err := contract.ParseEvent(payload)
		if e.Member.Kind != contract.KindCredential && e.Member.Kind != contract.KindPurge || e.DataEpoch != epoch ||
			!d.follows(e.Member.Kind) || d.Keyspace.Belongs(e.Member, d.Shard) != nil {
			continue
		}
		if d.rereads.arrived != nil {
			d.rereads.arrived[e.Member] = true
		}
		if d.doubtIfDenied(&e, err != nil); err == nil {
			d.addReread(e.Member)
		}
	}
}

// lookAheadHook calls lookAhead while a call on the connection of a catch-up waits for Redis, which may take seconds. A
// device whose new record an event has announced is in doubt if the record isn't read in time: the event may have
// invalidated an old secret. Only the goroutine of the Follower may use the hook.
type lookAheadHook struct {
	*deviceReads
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
