package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

const (
	// callTimeout bounds a call to Redis.
	callTimeout = 20 * time.Second
	// pageSize is the number of members of the log per read.
	pageSize = 1000
	// pipelineSize and pipelineBytes bound the records per read.
	pipelineSize  = 250
	pipelineBytes = 8 << 20
)

// Written describes a written snapshot.
type Written struct {
	SHA256                   string
	Bytes                    int64
	Objects, Purges, Devices int
}

// Write writes a snapshot to a path, or to a URL: http, https or s3. Before it can be read there, Redis has its
// SHA-256.
func Write(ctx context.Context, client redis.UniversalClient, k contract.Keyspace,
	destination string) (Written, error) {
	d, err := openDestination(destination)
	if err != nil {
		return Written{}, err
	}
	defer d.discard()
	w, err := create(ctx, client, k, d.file)
	if err != nil {
		return Written{}, err
	}
	if err := d.publish(ctx, w.Bytes); err != nil {
		return w, &StoreError{err}
	}
	return w, nil
}

// create writes a snapshot, and registers it. A shard is registered over the connection over which it was read: a
// server that has the registration has all that was read, also after a failover.
func create(ctx context.Context, client redis.UniversalClient, k contract.Keyspace, to io.Writer) (Written, error) {
	var w Written
	e, contents := newEncoder(to), Contents{Namespace: k.Namespace}
	var readers []*reader
	for i := range k.Count() {
		r, err := newReader(ctx, client, k, i)
		if err != nil {
			return w, err
		}
		defer r.close()
		before := w.Objects
		r.Begin = e.size
		if err := r.copyTo(ctx, e, &w); err != nil {
			return w, fmt.Errorf("shard %d: %w", i, err)
		}
		r.End, r.Objects = e.size, w.Objects-before
		readers, contents.Shards = append(readers, r), append(contents.Shards, r.Shard)
	}
	var err error
	if w.SHA256, err = e.end(contents); err != nil {
		return w, err
	}
	w.Bytes = e.size
	for i, r := range readers {
		if err := r.register(ctx, w.SHA256); err != nil {
			return w, fmt.Errorf("shard %d: %w", i, err)
		}
	}
	return w, nil
}

// reader reads a shard.
type reader struct {
	Shard
	keyspace contract.Keyspace
	shard    int
	keys     contract.Keys
	client   *redis.Client
	conn     *redis.Conn
}

func newReader(ctx context.Context, client redis.UniversalClient, k contract.Keyspace, shard int) (*reader, error) {
	r := &reader{keyspace: k, shard: shard, keys: k.Keys(shard)}
	server, err := redisurl.FindMaster(ctx, client, r.keys.SeqKey())
	if err != nil {
		return nil, err
	}
	r.client = redisurl.OwnConnection(server, callTimeout)
	r.conn = r.client.Conn()
	return r, nil
}

func (r *reader) close() {
	r.conn.Close()
	r.client.Close()
}

var (
	errLost = errors.New("redis has lost keys of the shard; gatehousectl status tells which")
	errGone = errors.New("redis lost data while it was read: run it again")
)

// copyTo writes the records of the shard, as of a position that it reads first.
func (r *reader) copyTo(ctx context.Context, e *encoder, w *Written) error {
	if err := r.readPosition(ctx); err != nil || r.DataEpoch == "" {
		return err
	}
	if err := r.copyKinds(ctx, e, w, contract.KindPurge, contract.KindCredential); err != nil {
		return err
	}
	return r.copyKinds(ctx, e, w, contract.KindObject)
}

// readPosition reads the position; an empty shard has none.
func (r *reader) readPosition(ctx context.Context) error {
	pipe := r.conn.Pipeline()
	now := pipe.Time(ctx)
	epoch, seq := pipe.Get(ctx, r.keys.DataEpochKey()), pipe.Get(ctx, r.keys.SeqKey())
	chain := pipe.HMGet(ctx, r.keys.ChainKey(), contract.ChainHead, contract.ChainFloor, contract.ChainNeeds,
		contract.ChainLost)
	last := pipe.ZRangeWithScores(ctx, r.keys.LogKey(), -1, -1)
	shards := redis.NewStringCmd(ctx)
	if r.shard == 0 { // in a Cluster, the others may be at other servers
		shards = pipe.Get(ctx, r.keyspace.ShardsKey())
	}
	if err := redisurl.ExecPipeline(ctx, pipe); err != nil {
		return err
	}
	if err := r.keyspace.Agree(shards.Val()); err != nil {
		return err
	}
	texts := make([]string, 4)
	for i, value := range chain.Val() {
		texts[i], _ = value.(string)
	}
	if err := contract.CheckNeeds(r.keys.ChainKey(), texts[2]); err != nil {
		return err
	}
	number, err := seq.Uint64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	floor, _ := strconv.ParseUint(texts[1], 10, 64)
	switch {
	case epoch.Val() == "" && number == 0 && len(last.Val()) == 0:
		return nil
	case epoch.Val() == "", number == 0, texts[3] != "", len(last.Val()) == 0 && floor < number:
		return errLost
	}
	r.DataEpoch, r.Seq, r.TakenMS = epoch.Val(), number, now.Val().UnixMilli()
	if head, err := contract.ParseLink(texts[0]); err == nil && head.Seq >= number { // greater: written to meanwhile
		r.Seq, r.Digest = head.Seq, head.Digest
	}
	return nil
}

// copyKinds writes the records of some kinds, in the order of the log. Of devices, only the ids.
func (r *reader) copyKinds(ctx context.Context, e *encoder, w *Written, kinds ...byte) error {
	for from := uint64(0); from < r.Seq; {
		page, err := r.conn.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: r.keys.LogKey(), Start: "(" + strconv.FormatUint(from, 10), Stop: strconv.FormatUint(r.Seq, 10),
			ByScore: true, Count: pageSize,
		}).Result()
		if err != nil {
			return err
		}
		var members []contract.Member
		for _, z := range page {
			from = uint64(z.Score)
			text, _ := z.Member.(string)
			m, err := contract.ParseMember(text)
			switch {
			case err != nil || !slices.Contains(kinds, m.Kind) || r.keyspace.Belongs(m, r.shard) != nil:
			case m.Kind == contract.KindCredential:
				e.add(m, nil)
				w.Devices++
			default:
				members = append(members, m)
			}
		}
		if err := r.copyRecords(ctx, e, w, members); err != nil || len(page) < pageSize {
			return err
		}
	}
	return nil
}

// copyRecords writes the records of members, except those that are gone or too large.
func (r *reader) copyRecords(ctx context.Context, e *encoder, w *Written, members []contract.Member) error {
	pipe := r.conn.Pipeline()
	sizes := make([]*redis.IntCmd, len(members))
	for i, m := range members {
		sizes[i] = pipe.MemoryUsage(ctx, r.keys.RecordKey(m), 0)
	}
	if err := redisurl.ExecPipeline(ctx, pipe); err != nil {
		return err
	}
	for at := 0; at < len(members); {
		pipe, bytes := r.conn.Pipeline(), int64(0)
		records := map[int]*redis.MapStringStringCmd{}
		for ; at < len(members) && len(records) < pipelineSize; at++ {
			size, m := sizes[at].Val(), members[at]
			if size == 0 || m.CheckMemory(size) != nil {
				continue
			}
			if bytes += size; bytes > pipelineBytes && len(records) > 0 {
				break
			}
			records[at] = pipe.HGetAll(ctx, r.keys.RecordKey(m))
		}
		if err := redisurl.ExecPipeline(ctx, pipe); err != nil {
			return err
		}
		for _, i := range slices.Sorted(maps.Keys(records)) {
			fields := records[i].Val()
			switch {
			case len(fields) == 0: // deleted meanwhile, or no hash
				continue
			case members[i].Kind == contract.KindPurge:
				w.Purges++
			case fields[contract.FieldDeleted] == "":
				w.Objects++
			}
			e.add(members[i], fields)
		}
	}
	return nil
}

// register makes the snapshot valid, unless Redis has lost what was read, and forgets old ones.
func (r *reader) register(ctx context.Context, sum string) error {
	if r.DataEpoch == "" {
		return nil
	}
	pipe := r.conn.Pipeline()
	epoch, seq := pipe.Get(ctx, r.keys.DataEpochKey()), pipe.Get(ctx, r.keys.SeqKey())
	chain := pipe.HMGet(ctx, r.keys.ChainKey(), contract.ChainField(r.Seq), contract.ChainLost)
	if err := redisurl.ExecPipeline(ctx, pipe); err != nil {
		return err
	}
	number, _ := seq.Uint64()
	stored, _ := chain.Val()[0].(string)
	link, _ := contract.ParseLink(stored)
	if epoch.Val() != r.DataEpoch || number < r.Seq || chain.Val()[1] != nil ||
		r.Digest != "" && link.Seq == r.Seq && link.Digest != r.Digest {
		return errGone
	}
	key := r.keys.SnapshotsKey()
	if err := r.conn.HSet(ctx, key, sum, r.TakenMS).Err(); err != nil {
		return err
	}
	all, err := r.conn.HGetAll(ctx, key).Result()
	if err != nil || len(all) <= maxRegistered {
		return err
	}
	taken := func(sum string) int64 {
		ms, _ := strconv.ParseInt(all[sum], 10, 64)
		return ms
	}
	sums := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return cmp.Compare(taken(b), taken(a)) })
	return r.conn.HDel(ctx, key, sums[maxRegistered:]...).Err()
}
