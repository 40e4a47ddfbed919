package follow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// fetcher asks the servers that have the shard, and is safe for concurrent use, except for batch.
type fetcher struct {
	*shard
	client   redis.UniversalClient // at a replica, of the current subscription
	replicas bool                  // reads replicas, not masters
	endKeys  *contract.Keys        // of objects whose end readPosition reads, too; nil: none
	withheld withheldCommands
	batch    int // number of records in a pipeline; only the goroutine of the Follower uses it
}

// withheldCommands says which commands the server refuses in this subscription.
type withheldCommands struct{ info, chain, memory atomic.Bool }

// findServer returns a client of the server that is followed. In a Cluster the whole catch-up uses a single server,
// which reports an error if it doesn't have the shard.
func (f *fetcher) findServer(ctx context.Context) (*redis.Client, error) {
	return redisurl.FindMaster(ctx, f.client, f.keys.SeqKey())
}

// ownConnection returns a client with a single connection of its own. The connection is new: an old connection could
// undo newer writes.
func (f *fetcher) ownConnection(client *redis.Client) *redis.Client {
	own := redisurl.OwnConnection(client, recordsTimeout)
	f.metrics.ObserveRedis(own)
	return own
}

// withTimeout returns client with another timeout. go-redis drops the client's hooks, so ObserveRedis adds them again.
func (f *fetcher) withTimeout(client *redis.Client, timeout time.Duration) *redis.Client {
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
func (f *fetcher) readPosition(ctx context.Context, server server, asked position) (position, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for {
		p, err := f.readStablePosition(ctx, server, asked)
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
func (f *fetcher) readStablePosition(ctx context.Context, server server, asked position) (p position, err error) {
	for {
		p, moved, err := f.tryReadPosition(ctx, server, asked)
		if err != nil || !moved {
			return p, err
		}
	}
}

// tryReadPosition reads the position; moved: Redis was written to meanwhile.
func (f *fetcher) tryReadPosition(ctx context.Context, server server,
	asked position) (p position, moved bool, err error) {
	p.at = time.Now()
	pipe := server.Pipeline()
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
	end := f.askEnd(ctx, pipe)
	epochThen, seqThen := pipe.Get(ctx, f.keys.DataEpochKey()), pipe.Get(ctx, f.keys.SeqKey())
	asks = append(asks, epochThen, seqThen)
	if err := Unsent(pipe.Exec(ctx)); err != nil {
		return p, false, fmt.Errorf("read the position of redis: %w", err)
	}
	answered := time.Now()
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
	p.history, p.vitals, err = parseInfo(info.Val(), server.address)
	if p.linkDown, err = f.checkRole(info.Val(), server.address, err); err != nil {
		return p, false, err
	}
	p.vitals.ahead = clockAhead(p.vitals.clock, p.at, answered)
	if p.end, err = end(p.at); err != nil {
		return p, false, fmt.Errorf("read the end of the objects' chain: %w", err)
	}
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

// parseInfo returns the server's history and vitals from INFO, zero if info is empty, and a *replicaError if the server
// is not a master.
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
		err = &replicaError{server, role, fields["master_host"] + ":" + fields["master_port"],
			fields["master_link_status"] != "up"}
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
	return history{fields["run_id"], fields["master_replid"], fields["master_replid2"] == none}, v, err
}

// serverAddress returns the address that the client connects to, "" if sentinels determine it.
func serverAddress(client *redis.Client) string {
	if address := client.Options().Addr; address != "FailoverClient" {
		return address
	}
	return ""
}

// sizedRecord is a record to read, with its memory in Redis.
type sizedRecord struct {
	contract.Member
	bytes  int64
	logged bool // the log has the record
}

// fetchSizes asks Redis for the memory of records. If Redis refuses, fetchSizes assumes the largest size within the
// limits.
func (f *fetcher) fetchSizes(ctx context.Context, server redis.Cmdable,
	members []contract.Member) ([]sizedRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	records := make([]sizedRecord, len(members))
	for i, m := range members {
		records[i] = sizedRecord{Member: m, bytes: contract.MaxMemory(m.Kind) / 2}
	}
	if len(members) == 0 || f.withheld.memory.Load() {
		return records, nil
	}
	pipe := server.Pipeline()
	replies := make([]*redis.IntCmd, len(members))
	for i, m := range members {
		replies[i] = pipe.MemoryUsage(ctx, f.keys.RecordKey(m), 0) // 0: all fields count, not samples
	}
	if err := Unsent(pipe.Exec(ctx)); err != nil {
		return nil, err
	}
	for i := range records {
		bytes, err := replies[i].Result()
		switch {
		case err == nil || errors.Is(err, redis.Nil):
			records[i].bytes = bytes
		case redisurl.Withheld(err):
			f.withheld.memory.Store(true)
			if redis.HasErrorPrefix(err, "NOPERM") {
				f.board.memoryOnce.Do(func() {
					f.log.Warn("no permission to ask for sizes: records are read a few at a time, and one without bounds can "+
						"exhaust the memory; permit MEMORY USAGE (+memory|usage)", "error", err)
				})
			}
			return records, nil
		default:
			return nil, err
		}
	}
	return records, nil
}

func (f *fetcher) readLogPage(ctx context.Context, server server, from, to uint64) ([]redis.Z, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return server.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: f.keys.LogKey(), Start: "(" + strconv.FormatUint(from, 10), Stop: strconv.FormatUint(to, 10),
		ByScore: true, Count: pageSize,
	}).Result()
}

// fetchRecords reads records in a pipeline, from a server that has the write after; nil: the server is known to have
// all writes. A record that is too large gets an error as its reply. If Redis is empty afterwards, and the loss was not
// accepted, absent records weren't deleted, so fetchRecords returns an error.
func (f *fetcher) fetchRecords(ctx context.Context, server redis.Cmdable, records []sizedRecord, timeout time.Duration,
	after *contract.Link, lossAccepted bool) ([]*redis.MapStringStringCmd, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pipe := server.Pipeline()
	var proof Proof
	if after != nil {
		proof = AskProof(ctx, pipe, f.keys, *after)
	}
	replies := make([]*redis.MapStringStringCmd, len(records))
	for i, r := range records {
		if err := r.CheckMemory(r.bytes); err != nil {
			replies[i] = redis.NewMapStringStringCmd(ctx)
			replies[i].SetErr(err)
			continue
		}
		replies[i] = pipe.HGetAll(ctx, f.keys.RecordKey(r.Member))
	}
	epoch, seq := pipe.Get(ctx, f.keys.DataEpochKey()), pipe.Get(ctx, f.keys.SeqKey())
	err := Unsent(pipe.Exec(ctx))
	if err == nil && !lossAccepted && errors.Is(epoch.Err(), redis.Nil) && errors.Is(seq.Err(), redis.Nil) {
		err = emptyError{}
	}
	if err == nil && after != nil {
		err = proof.Err()
	}
	return replies, err
}

// askRegistered asks a server that has the write after.
func (f *fetcher) askRegistered(ctx context.Context, id string, after contract.Link) (bool, error) {
	pipe := f.client.Pipeline()
	proof := AskProof(ctx, pipe, f.keys, after)
	record := pipe.HMGet(ctx, f.keys.CredentialKey(id), contract.FieldDeleted, contract.FieldVersion)
	if err := Unsent(pipe.Exec(ctx)); err != nil {
		return false, err
	}
	if err := proof.Err(); err != nil {
		return false, err
	}
	values, err := record.Result()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return true, nil // a malformed record
	case err != nil:
		return false, err
	}
	return values[0] == nil && values[1] != nil, nil
}
