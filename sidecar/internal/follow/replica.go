package follow

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// Replicas finds replicas of the master.
type Replicas interface {
	// Pick returns a client of a single replica, which the caller closes. Each call may return another replica.
	Pick(ctx context.Context) (*redis.Client, error)
}

// The kinds of records that a Follower follows if devices and objects have a Follower each.
const (
	deviceKinds = string(contract.KindCredential)
	objectKinds = string(contract.KindObject) + string(contract.KindPurge)
)

// Tests shorten these.
var (
	// maxBehind is how long a replica may be behind before another one is picked.
	maxBehind = 10 * time.Second
	// delayShown is how long a replica may be behind before operators see it.
	delayShown = 3 * time.Second
)

// replicaState is the state of a Follower of objects at a replica. The replica doesn't know how far the master is, nor
// whether the replica is still the master's. So the Follower of the devices, which asks the master every second, also
// asks for the end of the objects' chain: objects are in step as of the question once they have that write. Only the
// goroutine of Run uses the fields, except for ends and client.
type replicaState struct {
	master   *fetcher      // asks the master about the objects' shard
	ends     chan chainEnd // has the newest end; capacity 1
	end      chainEnd      // the oldest end that the Follower has not reached; zero: none
	ours     uint64        // the Follower's seq at oursAt
	oursAt   time.Time
	server   string                       // address of the replica
	client   atomic.Pointer[redis.Client] // of the replica; nil: none is followed
	linkDown bool                         // of the replica, to its master
}

// chainEnd is the last write of a shard at the master.
type chainEnd struct {
	dataEpoch string
	seq       uint64
	digest    string    // "": unknown
	at        time.Time // before the master was asked
}

// follows reports whether records of a kind are followed.
func (s *shard) follows(kind byte) bool {
	for i := range len(s.kinds) {
		if s.kinds[i] == kind {
			return true
		}
	}
	return s.kinds == ""
}

// describe names what is followed.
func (s *shard) describe() string {
	switch s.kinds {
	case deviceKinds:
		return fmt.Sprint("devices of shard ", s.Shard)
	case objectKinds:
		return fmt.Sprint("objects of shard ", s.Shard)
	}
	return fmt.Sprint("shard ", s.Shard)
}

// unfollowed is a sink of records that a Follower doesn't follow.
type unfollowed[T any] struct{}

func (unfollowed[T]) Apply(T)               {}
func (unfollowed[T]) Remove(string)         {}
func (unfollowed[T]) BeginResync()          {}
func (unfollowed[T]) Unapplied() []string   { return nil }
func (unfollowed[T]) EndResync()            {}
func (unfollowed[T]) Confirm(T) bool        { return false }
func (unfollowed[T]) Grow(int)              {}
func (unfollowed[T]) Doubt(string)          {}
func (unfollowed[T]) Announce(T)            {}
func (unfollowed[T]) ApplyMalformed(string) {}

// dropUnfollowed removes the sinks of records that are not followed.
func (s *shard) dropUnfollowed() {
	if !s.follows(contract.KindCredential) {
		s.Credentials = unfollowed[contract.Credential]{}
	}
	if !s.follows(contract.KindObject) {
		s.Objects, s.Purges = unfollowed[contract.Object]{}, unfollowed[contract.Purge]{}
	}
}

// foreignError means that a server's data is not a part of the master's history.
type foreignError struct{ server, why string }

// Error names the server and the fix.
func (e *foreignError) Error() string {
	return fmt.Sprintf("redis %s is not followed: %s; redis.read must name replicas of the master of redis.url", e.server,
		e.why)
}

// behindError means that a replica lacks writes.
type behindError struct {
	server   string
	ours     uint64
	want     uint64
	linkDown bool
}

// Error says how far the replica is behind.
func (e *behindError) Error() string {
	text := fmt.Sprintf("replica %s is behind: it is at write %d, and has to be at %d", e.server, e.ours, e.want)
	if e.linkDown {
		text += "; its link to its master is down"
	}
	return text
}

var errNoReplica = errors.New("no replica is followed at the moment")

var errNoInfo = errors.New(
	"the user of redis.url may not run INFO at a replica, which tells a replica from a master: permit +info")

// checkRole returns an error if the server isn't what the fetcher reads, a replica or a master; role is the error of
// parseInfo.
func (f *fetcher) checkRole(info, server string, role error) (linkDown bool, err error) {
	replica, is := errors.AsType[*replicaError](role)
	switch {
	case !f.replicas:
		return false, role
	case info == "":
		return false, errNoInfo
	case !is:
		return false, &foreignError{server, "it is a master, because it was promoted or never was a replica"}
	}
	return replica.linkDown, nil
}

// askEnd adds to the pipeline the question for the end of the objects' chain, for readPosition, and returns the
// function that returns the answer.
func (f *fetcher) askEnd(ctx context.Context, pipe redis.Pipeliner) func(at time.Time) (chainEnd, error) {
	if f.endKeys == nil {
		return func(time.Time) (chainEnd, error) { return chainEnd{}, nil }
	}
	epoch, seq := pipe.Get(ctx, f.endKeys.DataEpochKey()), pipe.Get(ctx, f.endKeys.SeqKey())
	head := pipe.HMGet(ctx, f.endKeys.ChainKey(), contract.ChainHead)
	return func(at time.Time) (chainEnd, error) {
		number, err := seq.Uint64()
		if err := errors.Join(epoch.Err(), err); err != nil && !errors.Is(err, redis.Nil) {
			return chainEnd{}, err
		}
		end := chainEnd{dataEpoch: epoch.Val(), seq: number, at: at}
		if values := head.Val(); len(values) > 0 { // otherwise HMGET is not permitted
			if link := parseLink(values[0]); link.Seq >= number { // greater: written to after the first reply
				end.seq, end.digest = link.Seq, link.Digest
			}
		}
		return end, nil
	}
}

// putEnd replaces the end that waits. Only one goroutine may call it at a time.
func (r *replicaState) putEnd(end chainEnd) {
	select {
	case <-r.ends:
	default:
	}
	select {
	case r.ends <- end:
	default: // the Follower has returned its own, see reportInStep
	}
}

// pickReplica picks the replica of a subscription.
func (f *Follower) pickReplica(ctx context.Context) (*redis.Client, error) {
	replica, err := f.Replicas.Pick(ctx)
	if err != nil {
		return nil, err
	}
	f.metrics.ObserveRedis(replica)
	f.client = replica
	f.replica.end = chainEnd{}
	f.replica.client.Store(replica)
	if address := serverAddress(replica); address != f.replica.server {
		f.replica.server = address
		f.log.Info("objects are read from a replica", "server", address)
	}
	return replica, nil
}

// closeReplica ends the use of a replica.
func (f *Follower) closeReplica(replica *redis.Client) {
	f.replica.client.Store(nil)
	replica.Close()
}

// Replica returns a client of the replica from which a shard's objects are read, while the replica is followed.
func (g *Group) Replica(shard int) (*redis.Client, error) {
	if replica := g.followers[shard].replica.client.Load(); replica != nil {
		return replica, nil
	}
	return nil, errNoReplica
}

// compareEnd reports the objects in step if the Follower has the end of the chain at the master. Otherwise the end, or
// an earlier one, waits until the Follower has it.
func (f *Follower) compareEnd(end chainEnd) error {
	r := &f.replica
	if r.end.at.IsZero() {
		r.end = end
	}
	for {
		reached, err := f.judgeEnd(r.end)
		if err != nil {
			return err
		}
		if !reached {
			break
		}
		last := r.end.at
		if r.end = (chainEnd{}); !end.at.After(last) {
			return nil
		}
		r.end = end
	}
	if time.Since(r.end.at) > maxBehind {
		return f.behind(r.end.seq)
	}
	return nil
}

// judgeEnd reports whether the Follower has a write that was the last one at the master.
func (f *Follower) judgeEnd(end chainEnd) (reached bool, err error) {
	digest := f.digestAt(end.seq)
	switch {
	case end.dataEpoch != f.dataEpoch || f.seq < end.seq:
		return false, nil
	case end.seq < f.replica.ours && end.at.After(f.replica.oursAt):
		return false, &foreignError{f.replica.server, fmt.Sprintf("it had write %d before the master had, which is at %d",
			f.replica.ours, end.seq)}
	case end.digest != "" && digest != "" && end.digest != digest:
		return false, &foreignError{f.replica.server, fmt.Sprintf("the master has another write %d", end.seq)}
	case end.digest == digest || end.digest == "":
		if f.schedule.reason == "" && len(f.grants.waiting) == 0 && f.grants.reading == nil {
			f.endFirstSync()
			f.board.setInStep(f.slot, end.at)
		}
	} // otherwise the follower no longer knows the digest
	return true, nil
}

// digestAt returns the digest of an applied write, "" if the digest is not known any more.
func (t *tracker) digestAt(seq uint64) string {
	if link := t.chain.recent[seq%recentLinks]; link.Seq == seq {
		return link.Digest
	}
	if t.seq == seq && t.chain.readable {
		return t.chain.digest
	}
	return ""
}

// behind returns the error that the replica lacks the write seq.
func (f *Follower) behind(seq uint64) error {
	return &behindError{f.replica.server, f.seq, seq, f.replica.linkDown}
}

// findDelay returns an error if the replica has been behind for long enough to tell operators.
func (f *Follower) findDelay() error {
	if end := f.replica.end; !end.at.IsZero() && time.Since(end.at) > delayShown {
		return f.behind(end.seq)
	}
	return nil
}

// judgeReplica returns an error unless p, the position of a replica, is a position of the master's history, and not
// behind the follower's. The master's chain decides: a position with the same number and digest has everything before
// in common. While the master doesn't answer, a replica with the follower's last write is followed, and not in step.
func (f *Follower) judgeReplica(ctx context.Context, p position) error {
	f.replica.linkDown = p.linkDown
	at := f.replica.server
	var master position
	client, err := f.replica.master.findServer(ctx)
	if err == nil {
		asked := position{seq: p.seq, unsure: []unsureEvent{{event: contract.Event{Seq: f.seq}}}}
		master, err = f.replica.master.readPosition(ctx, server{client, serverAddress(client)}, asked)
	}
	switch {
	case err != nil && p.hasOurWrite():
		f.log.Warn("the replica can't be compared with the master: objects are not in step until then", "error", err)
		return nil
	case err != nil:
		return fmt.Errorf("compare the replica with the master: %w", err)
	case p.dataEpoch != master.dataEpoch && (p.dataEpoch != "" || p.hasWrites()):
		return &foreignError{at, "the master has another data epoch"}
	case p.seq > master.seq: // the master was asked later
		return &foreignError{at, fmt.Sprintf("it has write %d, and the master only %d", p.seq, master.seq)}
	case p.dataEpoch != master.dataEpoch: // the replica's first synchronization
		return &behindError{at, p.seq, master.seq, p.linkDown}
	}
	digest := p.digestAtSeq()
	if stored := master.stored; digest != "" && stored.Digest != digest {
		if stored.Seq == p.seq {
			return &foreignError{at, fmt.Sprintf("the master has another write %d", p.seq)}
		}
		return &behindError{at, p.seq, master.seq, p.linkDown} // by more than the chain has
	}
	ours := contract.Link{Seq: f.seq, Digest: f.chain.digest}
	if p.dataEpoch == f.dataEpoch && p.seq < f.seq && f.seq <= master.seq &&
		(ours.Digest == "" || len(master.links) == 0 || master.links[0] == ours) {
		return &behindError{at, p.seq, f.seq, p.linkDown}
	}
	return nil
}
