package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// position is where Redis is, or was.
type position struct {
	epoch    string
	seq      uint64
	history  history
	at       time.Time // before Redis was asked
	catchups uint64    // how many we had made by then
	ours     uint64    // our seq by then
	policy   string    // of Redis, for what it evicts; "" if it doesn't tell
	err      error

	chained bool          // Redis lets its chain be read
	head    contract.Link // of the chain; zero: there is none
	link    contract.Link // ours; the digest is "" where it isn't known
	stored  contract.Link // in the chain, at our place in the ring; zero: none
	floor   uint64
	unsure  []unsureEvent   // that Redis was asked of
	links   []contract.Link // at their places
}

// digest is that of the write at seq, "" where that was of format 1.
func (p *position) digest() string {
	if p.head.Seq == p.seq {
		return p.head.Digest
	}
	return ""
}

// has reports whether Redis has the write that is our last one, and with it all before.
func (p *position) has() bool { return p.link.Digest != "" && p.stored == p.link }

// differs reports whether Redis has another write at our number.
func (p *position) differs() bool {
	return p.link.Digest != "" && p.stored.Seq == p.link.Seq && p.stored.Digest != p.link.Digest
}

// momentAgo is for how long a history that was seen says what goes on from it. It must be far less than
// Redis's repl-backlog-ttl, an hour by default, after which a promoted replica no longer tells that it is one.
const momentAgo = time.Minute

// history is the process of a server and the line of its data: another one may have lost writes
// although its seq is higher than ours. The zero value where it can't be known.
type history struct {
	run, line string
	// own says that the line was begun by this process and goes on from no other server's.
	own bool
}

// same reports whether h is known, which was seen at any time before.
func (h history) same(known history) bool { return h.run == known.run && h.line == known.line }

// continues reports whether h is known, seen a moment ago, or what has become of it without a loss: Redis
// begins another line when a first replica comes, and again when the last one has been gone for long. A replica
// that is promoted begins one, too, but says whose its own goes on from, until it has been a master for as long.
func (h history) continues(known history) bool {
	return h.same(known) ||
		h.own && //mutant:TestDemotedAndPromoted true
			h.run == known.run && h.run != ""
}

// continues reports whether p is of the history that is known, or of one that goes on from it.
func (s *Subscriber) continues(p position) bool {
	return p.history.same(s.history) || p.at.Sub(s.historyAt) < momentAgo && p.history.continues(s.history)
}

// goesOn reports whether what Redis has goes on from what we have: by the chain, and where that doesn't tell by
// the server.
func (s *Subscriber) goesOn(p position, reason catchUpReason) bool {
	return p.has() || //mutant:TestRestartWithoutLoss false
		!p.differs() && (p.history.same(s.history) || reason != onConnected && s.continues(p))
}

// replicaError refuses to read from a server.
type replicaError struct{ server, role, master string }

// Error names the server and the ways out.
func (e *replicaError) Error() string {
	return fmt.Sprintf("redis %s is a replica (role %s, of %s), which may be behind: "+
		"point redis.url at the master, or let the sentinels name it, redis+sentinel://host:26379/MASTER", e.server, e.role, e.master)
}

// refusal reports whether err is for an operator to change, not for time to heal.
func refusal(err error) bool {
	_, replica := errors.AsType[*replicaError](err)
	_, shards := errors.AsType[*contract.ShardsError](err)
	return replica || shards
}

// master is the client of the server that has the shard. On a Cluster all of a catch-up
// goes to one server: if that is the wrong one meanwhile, it says so.
func (s *Subscriber) master(ctx context.Context) (*redis.Client, error) {
	switch client := s.client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		node, err := client.MasterForKey(ctx, s.keys.SeqKey())
		if err != nil {
			return nil, fmt.Errorf("find the master of %s: %w", s.keys.SeqKey(), err)
		}
		return node, nil
	}
	return nil, fmt.Errorf("%T is no client of one server or a Cluster", s.client)
}

// server is what is asked: a client of a server, or one connection to it.
type server struct {
	redis.Cmdable
	address string // where the client connects to, "" if others tell it
}

// unsent is the error of a pipeline that never reached the server, such as one of the login: none
// of its commands has it, and what they seem to say is nothing.
func unsent(commands []redis.Cmder, err error) error {
	if slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Err() != nil }) { //mutant:TestLoginRefused true
		return nil
	}
	return err
}

// position asks the master; asked has our number, and the events to ask of. A Redis that was never written
// to has no epoch and no seq.
func (s *Subscriber) position(ctx context.Context, master server, asked position) (position, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for {
		p, err := s.readPosition(ctx, master, asked)
		withheld, is := errors.AsType[*withheldError](err)
		switch {
		case !is:
			return p, err
		case withheld.chain:
			s.noChain.Store(true)
			s.board.chainOnce.Do(func() {
				s.log.Warn("no permission to read the chain of redis: forged events and lost writes may go unnoticed; permit HMGET (+hmget)", "error", withheld.error)
			})
		default:
			s.noInfo.Store(true)
			s.board.infoOnce.Do(func() {
				s.log.Warn("no permission to read the role and history of redis: a replica, or a failover to an older one, may go unnoticed; permit INFO (+info)", "error", withheld.error)
			})
		}
	}
}

// withheldError is what Redis says that withholds INFO, or its chain.
type withheldError struct {
	error
	chain bool
}

func (s *Subscriber) readPosition(ctx context.Context, master server, asked position) (p position, err error) {
	p.at = time.Now()
	// One transaction, so that the sequence number is of that epoch, chain and server.
	tx := master.TxPipeline()
	epoch, seq := tx.Get(ctx, s.keys.EpochKey()), tx.Get(ctx, s.keys.SeqKey())
	asks := []redis.Cmder{epoch, seq}
	shards, info, links := redis.NewStringCmd(ctx), redis.NewStringCmd(ctx), redis.NewSliceCmd(ctx)
	if s.Shard == 0 {
		shards = tx.Get(ctx, contract.ShardsKey)
		asks = append(asks, shards)
	}
	if !s.noInfo.Load() {
		info = tx.Info(ctx, "server", "replication", "memory")
		asks = append(asks, info)
	}
	if p.chained = !s.noChain.Load(); p.chained {
		links = tx.HMGet(ctx, s.keys.ChainKey(), chainFields(asked)...)
		asks = append(asks, links)
	}
	if err := unsent(tx.Exec(ctx)); err != nil {
		return p, fmt.Errorf("read the position of redis: %w", err)
	}
	switch {
	case withheld(info.Err(), epoch.Err()):
		return p, &withheldError{info.Err(), false}
	case withheld(links.Err(), epoch.Err()):
		return p, &withheldError{links.Err(), true}
	}
	for _, cmd := range asks {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return p, fmt.Errorf("read the position of redis: %w", err)
		}
	}
	if err := s.Shards.Agree(shards.Val()); err != nil {
		return p, err
	}
	if p.history, p.policy, err = parseInfo(info.Val(), master.address); err != nil {
		return p, err
	}
	p.setChain(links.Val())
	p.epoch = epoch.Val()
	if p.epoch != "" && !contract.ValidEpoch(p.epoch) {
		return p, fmt.Errorf("%s holds %.80q, which is no data epoch: delete it, and the next write sets one", s.keys.EpochKey(), p.epoch)
	}
	if text := seq.Val(); text != "" {
		if p.seq, err = strconv.ParseUint(text, 10, 64); err != nil {
			return p, fmt.Errorf("%s holds %.80q, which is no sequence number: delete all keys of the shard, and publish its records again", s.keys.SeqKey(), text)
		}
	}
	return p, nil
}

// chainFields are those of the chain that setChain takes.
func chainFields(asked position) []string {
	fields := []string{contract.ChainHead, contract.ChainFloor, contract.ChainField(asked.seq)}
	for _, u := range asked.unsure {
		fields = append(fields, contract.ChainField(u.event.Seq))
	}
	return fields
}

// setChain takes the values of [chainFields]. One that can't be read is as good as none, as it is for writers.
func (p *position) setChain(values []any) {
	if len(values) < 3 {
		return
	}
	link := func(value any) contract.Link {
		text, _ := value.(string)
		l, _ := contract.ParseLink(text)
		return l
	}
	p.head, p.stored = link(values[0]), link(values[2])
	text, _ := values[1].(string)
	p.floor, _ = strconv.ParseUint(text, 10, 64)
	for _, value := range values[3:] {
		p.links = append(p.links, link(value))
	}
}

// withheld reports whether the server refuses a command by this error, and that one only: it has no such
// command, or no permission for it. epoch is the error of one that it never refuses alone.
func withheld(err, epoch error) bool {
	_, refused := errors.AsType[redis.Error](err)
	refused = refused && !redis.HasErrorPrefix(err, "EXECABORT") // because of another command
	return refused && (epoch == nil || errors.Is(epoch, redis.Nil) || redis.HasErrorPrefix(epoch, "EXECABORT"))
}

// parseInfo reads what INFO says of the server, and its maxmemory-policy; the zero history for nothing. A
// server that is no master is refused.
func parseInfo(info, server string) (h history, policy string, err error) {
	if info == "" {
		return history{}, "", nil
	}
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	if role := fields["role"]; role != "master" {
		if server == "" {
			server = "at port " + fields["tcp_port"]
		}
		return history{}, "", &replicaError{server, role, fields["master_host"] + ":" + fields["master_port"]}
	}
	// A process that was demoted and promoted again is the same, its line of data is not.
	const none = "0000000000000000000000000000000000000000"
	return history{fields["run_id"], fields["master_replid"], fields["master_replid2"] == none}, fields["maxmemory_policy"], nil
}

// address is where the client connects to, "" if others tell it.
func address(client *redis.Client) string {
	if address := client.Options().Addr; address != "FailoverClient" {
		return address
	}
	return ""
}
