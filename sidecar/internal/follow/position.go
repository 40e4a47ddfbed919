package follow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// position is the position of Redis at a time.
type position struct {
	dataEpoch string
	seq       uint64
	history   history
	at        time.Time // before Redis was asked
	catchups  uint64    // number of the follower's catch-ups by then
	ours      uint64    // the follower's seq by then
	vitals    vitals    // of the server
	err       error

	chained bool          // Redis permits reading its chain
	head    contract.Link // last link of the server's chain; zero: none
	link    contract.Link // the follower's last link; the digest is "" if unknown
	stored  contract.Link // Redis's link at the number of link; zero: none
	floor   uint64
	needs   string          // see contract.ChainNeeds
	last    uint64          // highest number in the log; 0: the log is empty
	lost    uint64          // the log was lost, and is complete from this number on; 0: not lost
	unsure  []unsureEvent   // events to check with Redis
	links   []contract.Link // Redis's links at the numbers of unsure
}

// digestAtSeq returns the digest of the write at seq, "" if the chain doesn't have the digest.
func (p *position) digestAtSeq() string {
	if p.head.Seq == p.seq {
		return p.head.Digest
	}
	return ""
}

// vitals has a server's memory and clock; zero if the server doesn't report them.
type vitals struct {
	policy    string        // maxmemory-policy
	used, max uint64        // bytes; max 0: no limit
	unsaved   string        // the save that failed last; "": none
	clock     time.Time     // at the time of the reply
	ahead     time.Duration // of clock, see clockAhead
	warned    bool          // ahead was logged
}

// fillRatio returns the used part of the memory limit, 0 without a limit.
func (v vitals) fillRatio() float64 {
	if v.max == 0 {
		return 0
	}
	return float64(v.used) / float64(v.max)
}

// clockAhead returns how far a clock that was read between begin and end is certainly ahead of this machine's; below 0:
// the clock is behind.
func clockAhead(clock, begin, end time.Time) time.Duration {
	switch {
	case clock.IsZero():
		return 0
	case clock.After(end):
		return clock.Sub(end)
	default:
		return min(clock.Sub(begin), 0)
	}
}

// hasOurWrite reports whether Redis has the follower's last write, and so all earlier writes.
func (p *position) hasOurWrite() bool { return p.link.Digest != "" && p.stored == p.link }

// hasOtherWrite reports whether Redis has another write at the number of the follower's last write.
func (p *position) hasOtherWrite() bool {
	return p.link.Digest != "" && p.stored.Seq == p.link.Seq && p.stored.Digest != p.link.Digest
}

// maxHistoryAge is the maximum age of a stored history that a new history may continue. The age must be far less than
// Redis's repl-backlog-ttl, an hour by default, after which a promoted replica no longer reports its former master.
const maxHistoryAge = time.Minute

// history identifies a server's process and its replication history: another process may have lost writes although its
// seq is higher than the follower's. The zero value means unknown.
type history struct {
	runID, replicationID string
	// own: this process began the replication history, and did not continue another server's.
	own bool
}

// isSame reports whether h equals known, however old known is.
func (h history) isSame(known history) bool {
	return h.runID == known.runID && h.replicationID == known.replicationID
}

// continues reports whether h equals known, which is at most maxHistoryAge old, or continues known without a loss.
// Redis starts a new replication ID when a first replica connects, and when the last replica has been disconnected for
// long. A promoted replica starts a new ID, too, but reports the former ID until repl-backlog-ttl has passed.
func (h history) continues(known history) bool {
	return h.isSame(known) || h.own && h.runID == known.runID && h.runID != ""
}

// continuesHistory reports whether p's history is or continues the follower's.
func (f *Follower) continuesHistory(p position) bool {
	return p.history.isSame(f.history) || p.at.Sub(f.historyAt) < maxHistoryAge && p.history.continues(f.history)
}

// setHistory records p's history. historyAt has no monotonic time, which stands still while the machine is suspended.
func (f *Follower) setHistory(p position) {
	f.history, f.historyAt = p.history, p.at.Round(0)
}

// mayLackDeletions reports whether Redis may have forgotten deletions since the follower's position: their entries in
// the log were removed, or their tombstones have expired, and records written since may have lower versions than the
// follower's.
func (f *Follower) mayLackDeletions(p position) bool {
	return f.seq < p.floor || f.synced && p.at.Sub(f.historyAt) > contract.TombstoneLife-time.Hour
}

// hasAllWrites reports whether Redis has all of the follower's writes: by the chain, or with an unknown chain by the
// server.
func (f *Follower) hasAllWrites(p position, reason catchUpReason) bool {
	return p.hasOurWrite() ||
		!p.hasOtherWrite() && (p.history.isSame(f.history) || reason != catchUpConnected && f.continuesHistory(p))
}

// replicaError is the refusal to read from a replica.
type replicaError struct{ server, role, master string }

// Error names the server and the fixes.
func (e *replicaError) Error() string {
	return fmt.Sprintf("redis %s is a replica (role %s, of %s), which may be behind: "+
		"point redis.url at the master, or let the sentinels name it, redis+sentinel://host:26379/MASTER",
		e.server, e.role, e.master)
}

// needsOperator reports whether only an operator can fix the cause of err.
func needsOperator(err error) bool {
	_, replica := errors.AsType[*replicaError](err)
	_, shards := errors.AsType[*contract.ShardsError](err)
	_, empty := errors.AsType[emptyError](err)
	_, needs := errors.AsType[*contract.NeedsError](err)
	return replica || shards || empty || needs
}

// findMaster returns a client of the server that has the shard. In a Cluster the whole catch-up uses a single server,
// which reports an error if it doesn't have the shard.
func (f *Follower) findMaster(ctx context.Context) (*redis.Client, error) {
	switch client := f.client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		node, err := client.MasterForKey(ctx, f.keys.SeqKey())
		if err != nil {
			return nil, fmt.Errorf("find the master of %s: %w", f.keys.SeqKey(), err)
		}
		return node, nil
	}
	return nil, fmt.Errorf("client %T: want one of a server or of a Cluster", f.client)
}

// ownConnection returns a client with a single connection of its own. The connection is new: an old connection may be
// to a server that had the name before, and could undo newer writes.
func (f *Follower) ownConnection(client *redis.Client) *redis.Client {
	options := *client.Options()
	options.PoolSize, options.MaxRetries = 1, -1 // Options has 0 for -1
	options.ReadTimeout, options.WriteTimeout = recordsTimeout, recordsTimeout
	options.PushNotificationProcessor = nil // each client has its own processor
	// The client's notification settings change while it connects.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	own := redis.NewClient(&options)
	f.metrics.ObserveRedis(own)
	return own
}

// withTimeout returns client with another timeout. go-redis drops the client's hooks, so ObserveRedis adds them again.
func (f *Follower) withTimeout(client *redis.Client, timeout time.Duration) *redis.Client {
	client = client.WithTimeout(timeout)
	f.metrics.ObserveRedis(client)
	return client
}

// server is a client of a server, or a single connection to a server.
type server struct {
	redis.Cmdable
	address string // address of the connection, "" if sentinels determine it
}

// Unsent returns err if the pipeline never reached the server, for example after a failed login: no command has the
// error, and all results are invalid.
func Unsent(commands []redis.Cmder, err error) error {
	if slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Err() != nil }) {
		return nil
	}
	return err
}

// readPosition reads Redis's position; asked has the follower's number, and the events to check. An empty Redis has no
// epoch and no seq.
func (f *Follower) readPosition(ctx context.Context, master server, asked position) (position, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for {
		p, err := f.readStablePosition(ctx, master, asked)
		withheld, is := errors.AsType[*withheldError](err)
		switch {
		case !is:
			return p, err
		case withheld.chain:
			f.withheld.chain.Store(true)
			f.board.chainOnce.Do(func() {
				f.log.Warn("no permission to read the chain of redis: forged events and lost writes may go unnoticed; permit "+
					"HMGET (+hmget)", "error", withheld.error)
			})
		case redis.HasErrorPrefix(withheld.error, "wrong number of arguments"): // miniredis; Redis knows several sections
			f.withheld.info.Store(true)
			f.board.infoOnce.Do(func() {
				f.log.Info("this server can't tell its role and history: a replica, or a failover to an older one, may go "+
					"unnoticed", "error", withheld.error)
			})
		default:
			f.withheld.info.Store(true)
			f.board.infoOnce.Do(func() {
				f.log.Warn("no permission to read the role and history of redis: a replica, or a failover to an older one, may "+
					"go unnoticed; permit INFO (+info)", "error", withheld.error)
			})
		}
	}
}

// withheldError means that Redis refuses INFO, or reading its chain.
type withheldError struct {
	error
	chain bool
}

// readStablePosition reads epoch and sequence number before and after everything else, until both readings are equal,
// so the results belong together. A transaction would do the same, but Redis refuses transactions when its memory is
// full.
func (f *Follower) readStablePosition(ctx context.Context, master server, asked position) (p position, err error) {
	for {
		p, moved, err := f.tryReadPosition(ctx, master, asked)
		if err != nil || !moved {
			return p, err
		}
	}
}

// tryReadPosition reads the position; moved: Redis was written to meanwhile.
func (f *Follower) tryReadPosition(ctx context.Context, master server,
	asked position) (p position, moved bool, err error) {
	p.at = time.Now()
	pipe := master.Pipeline()
	epoch, seq := pipe.Get(ctx, f.keys.DataEpochKey()), pipe.Get(ctx, f.keys.SeqKey())
	asks := []redis.Cmder{epoch, seq}
	last := pipe.ZRangeWithScores(ctx, f.keys.LogKey(), -1, -1)
	asks = append(asks, last)
	shards, info, links := redis.NewStringCmd(ctx), redis.NewStringCmd(ctx), redis.NewSliceCmd(ctx)
	if f.Shard == 0 {
		shards = pipe.Get(ctx, f.Keyspace.ShardsKey())
		asks = append(asks, shards)
	}
	if !f.withheld.info.Load() {
		info = pipe.Info(ctx, "server", "replication", "memory", "persistence")
		asks = append(asks, info)
	}
	if p.chained = !f.withheld.chain.Load(); p.chained {
		links = pipe.HMGet(ctx, f.keys.ChainKey(), chainFields(asked)...)
		asks = append(asks, links)
	}
	epochThen, seqThen := pipe.Get(ctx, f.keys.DataEpochKey()), pipe.Get(ctx, f.keys.SeqKey())
	asks = append(asks, epochThen, seqThen)
	if err := Unsent(pipe.Exec(ctx)); err != nil {
		return p, false, fmt.Errorf("read the position of redis: %w", err)
	}
	end := time.Now()
	switch {
	case isWithheld(info.Err(), epoch.Err()):
		return p, false, &withheldError{info.Err(), false}
	case isWithheld(links.Err(), epoch.Err()):
		return p, false, &withheldError{links.Err(), true}
	}
	for _, cmd := range asks {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return p, false, fmt.Errorf("read the position of redis: %w", err)
		}
	}
	if epoch.Val() != epochThen.Val() || seq.Val() != seqThen.Val() {
		return p, true, nil
	}
	if err := f.Keyspace.Agree(shards.Val()); err != nil {
		return p, false, err
	}
	if p.history, p.vitals, err = parseInfo(info.Val(), master.address); err != nil {
		return p, false, err
	}
	p.vitals.ahead = clockAhead(p.vitals.clock, p.at, end)
	p.setChain(links.Val())
	if err := contract.CheckNeeds(f.keys.ChainKey(), p.needs); err != nil {
		return p, false, err
	}
	if highest := last.Val(); len(highest) > 0 {
		p.last = uint64(highest[0].Score)
	}
	p.dataEpoch = epoch.Val()
	if p.dataEpoch != "" && !contract.ValidDataEpoch(p.dataEpoch) {
		return p, false, fmt.Errorf("%s holds %.80q, which is no data epoch: delete it, and the next write sets one",
			f.keys.DataEpochKey(), p.dataEpoch)
	}
	if text := seq.Val(); text != "" {
		if p.seq, err = strconv.ParseUint(text, 10, 64); err != nil {
			return p, false,
				fmt.Errorf("%s holds %.80q, which is no sequence number: delete all keys of the shard, and publish its records "+
					"again", f.keys.SeqKey(), text)
		}
	}
	if p.floor > p.seq {
		p.floor = 0 // not of an entry: of a number that Redis has lost, or that no script wrote
	}
	// The log is rightly empty if all entries were trimmed. Without permission to read the floor, nobody can tell.
	if p.last == 0 && (p.seq == 0 || p.chained && p.seq > p.floor) {
		p.lost = p.seq + 1
	}
	return p, false, nil
}

// chainFields returns the fields of the chain that setChain reads.
func chainFields(asked position) []string {
	fields := []string{contract.ChainHead, contract.ChainFloor, contract.ChainField(asked.seq), contract.ChainNeeds,
		contract.ChainLost}
	for _, u := range asked.unsure {
		fields = append(fields, contract.ChainField(u.event.Seq))
	}
	return fields
}

// setChain sets p from the values of [chainFields]. Like the writers, it treats an unreadable value as absent.
func (p *position) setChain(values []any) {
	if len(values) < 5 {
		return
	}
	p.head, p.stored = parseLink(values[0]), parseLink(values[2])
	p.needs, _ = values[3].(string)
	text, _ := values[1].(string)
	p.floor, _ = strconv.ParseUint(text, 10, 64)
	text, _ = values[4].(string)
	p.lost, _ = strconv.ParseUint(text, 10, 64)
	for _, value := range values[5:] {
		p.links = append(p.links, parseLink(value))
	}
}

// parseLink returns the link in a value of the chain; zero if the value has no readable link.
func parseLink(value any) contract.Link {
	text, _ := value.(string)
	link, _ := contract.ParseLink(text)
	return link
}

// isWithheld reports whether err is the server's refusal of a single command: an unknown command, or no permission.
// epoch is the error of a command that is never refused alone. A Cluster that moves the slot redirects only commands on
// moved keys: a redirection is no refusal.
func isWithheld(err, epoch error) bool {
	_, refused := errors.AsType[redis.Error](err)
	_, moved := redis.IsMovedError(err)
	_, asked := redis.IsAskError(err)
	return refused && !moved && !asked && (epoch == nil || errors.Is(epoch, redis.Nil))
}

// parseInfo returns the server's history and vitals from INFO, zero if info is empty, or an error if the server is not
// a master.
func parseInfo(info, server string) (h history, v vitals, err error) {
	if info == "" {
		return history{}, vitals{}, nil
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
		return history{}, vitals{}, &replicaError{server, role, fields["master_host"] + ":" + fields["master_port"]}
	}
	// A process that was demoted and promoted again has the same run ID, but another replication ID.
	const none = "0000000000000000000000000000000000000000"
	v.policy = fields["maxmemory_policy"]
	v.used, _ = strconv.ParseUint(fields["used_memory"], 10, 64)
	v.max, _ = strconv.ParseUint(fields["maxmemory"], 10, 64)
	for _, name := range []string{"rdb_last_bgsave_status", "aof_last_write_status"} {
		if status := fields[name]; status != "" && status != "ok" {
			v.unsaved = name + ":" + status
		}
	}
	if us, err := strconv.ParseInt(fields["server_time_usec"], 10, 64); err == nil {
		v.clock = time.UnixMicro(us)
	}
	return history{fields["run_id"], fields["master_replid"], fields["master_replid2"] == none}, v, nil
}

// serverAddress returns the address that the client connects to, "" if sentinels determine it.
func serverAddress(client *redis.Client) string {
	if address := client.Options().Addr; address != "FailoverClient" {
		return address
	}
	return ""
}
