package follow_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/internal/snapshot"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
)

const snapshotApplied = "the snapshot was applied"

// origin is a Redis with a snapshot.
type origin struct {
	server   *redistest.Server // nil: a Cluster
	client   redis.UniversalClient
	keyspace contract.Keyspace
	publish  *publish.Publisher
	path     string
}

func newOrigin(t *testing.T, client redis.UniversalClient, k contract.Keyspace) *origin {
	t.Helper()
	return &origin{nil, client, k, publish.New(client, publish.Shards(k.Count()), publish.Namespace(k.Namespace)),
		filepath.Join(t.TempDir(), "snapshot")}
}

// fill writes objects from first on, and a device and a purge for each ten of them.
func (o *origin) fill(t *testing.T, first, count int) {
	t.Helper()
	for i := first; i < first+count; i++ {
		o.put(t, fmt.Sprint("/", i), fmt.Sprint("t", i%7))
		if i%10 == 0 {
			o.putDevice(t, fmt.Sprint("d", i))
			_, err := o.publish.Purge(t.Context(), publish.Purge{Tag: fmt.Sprint("t", i)})
			require.NoError(t, err)
		}
	}
}

func (o *origin) put(t *testing.T, key string, tags ...string) {
	t.Helper()
	_, err := o.publish.Put(t.Context(), publish.Object{Key: key, Body: []byte(key), ContentType: "image/png", Tags: tags})
	require.NoError(t, err)
}

func (o *origin) delete(t *testing.T, key string) {
	t.Helper()
	_, err := o.publish.Delete(t.Context(), key, 0)
	require.NoError(t, err)
}

func (o *origin) putDevice(t *testing.T, id string) {
	t.Helper()
	_, err := o.publish.PutDevice(t.Context(), publish.Device{ID: id, Secret: "s", Cost: 4})
	require.NoError(t, err)
}

func (o *origin) write(t *testing.T) snapshot.Written {
	t.Helper()
	w, err := snapshot.Write(t.Context(), o.client, o.keyspace, o.path)
	require.NoError(t, err)
	return w
}

// follow starts a group, "": without a snapshot, and waits until it has everything.
func (o *origin) follow(t *testing.T, source string) *group {
	t.Helper()
	var client redis.UniversalClient
	switch of := o.client.(type) {
	case *redis.Client:
		client = redis.NewClient(of.Options())
	case *redis.ClusterClient:
		client = redis.NewClusterClient(of.Options())
	}
	g := followFor(t, client, o.keyspace, follow.Config{Snapshot: source})
	g.awaitSynced(t)
	return g
}

func (g *group) countSnapshots(t *testing.T, result string) float64 {
	t.Helper()
	return metricstest.Value(t, g.metrics, "gatehouse_snapshots_total", "result", result)
}

// equals fails the test unless both groups have the same records.
func (g *group) equals(t *testing.T, want *group) {
	t.Helper()
	for i := range want.objects {
		for kind, of := range map[string]func(*group) *sink{"objects": func(g *group) *sink { return g.objects[i] },
			"devices": func(g *group) *sink { return g.credentials[i] }, "purges": func(g *group) *sink { return g.purges[i] }} {
			if got, want := of(g).all(), of(want).all(); !maps.Equal(got, want) {
				t.Errorf("%s of shard %d: got %v, want %v", kind, i, got, want)
			}
		}
	}
}

// all returns the versions of all records.
func (s *sink) all() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.versions)
}

// TestStartFromSnapshot: a start from a snapshot equals a full read, also with writes, deletions, purges and trims
// since. Devices come from Redis.
func TestStartFromSnapshot(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(*testing.T) redis.UniversalClient{
		"server": func(t *testing.T) redis.UniversalClient { return redistest.StartServer(t).Client(t) },
		"cluster": func(t *testing.T) redis.UniversalClient {
			client, err := redisurl.Connect(redistest.StartCluster(t).URL)
			require.NoError(t, err)
			t.Cleanup(func() { client.Close() })
			return client
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOrigin(t, connect(t), contract.Keyspace{Namespace: "shop", Shards: 3})
			o.fill(t, 0, 50)
			o.put(t, "/before")
			o.delete(t, "/before")
			w := o.write(t)
			if w.Objects != 50 || w.Devices != 5 || w.Purges != 15 {
				t.Errorf("got %+v, want 50 objects, 5 devices and 15 purges", w)
			}
			equal := func() {
				t.Helper()
				g := o.follow(t, o.path)
				if got := g.countSnapshots(t, "applied"); got != 3 || g.fullResyncs() != 0 {
					t.Errorf("got %v parts of the snapshot applied and %d full resyncs, want 3 and none:\n%s", got,
						g.fullResyncs(), g.log.String())
				}
				g.equals(t, o.follow(t, ""))
				of := o.keyspace.Of("/live")
				version := g.objects[of].version("/live")
				o.put(t, "/live")
				await.Until(t, "an event", func() bool { return g.objects[of].version("/live") > version })
			}
			equal()
			o.fill(t, 40, 30)
			for i := range 20 {
				o.delete(t, fmt.Sprint("/", i))
			}
			_, err := o.publish.DeleteDevice(t.Context(), "d0", true)
			require.NoError(t, err)
			_, err = o.publish.RevokeDevice(t.Context(), "d10")
			require.NoError(t, err)
			_, err = o.publish.Purge(t.Context(), publish.Purge{Tag: "t3"})
			require.NoError(t, err)
			equal()
			if server, is := o.client.(*redis.Client); is {
				require.NoError(t, server.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
			}
			of := o.keyspace.KeysOf("/before")
			require.NoError(t, o.client.Del(t.Context(), of.ObjectKey("/before")).Err()) // as when a tombstone expires
			trimmed, err := o.publish.Trim(t.Context())
			require.NoError(t, err)
			floor := o.client.HGet(t.Context(), of.ChainKey(), contract.ChainFloor).Val()
			if trimmed.Removed != 1 || floor == "" {
				t.Errorf("got %+v and floor %q, want an entry removed", trimmed, floor)
			}
			equal()
		})
	}
}

// TestSnapshotIsRefused: a snapshot that is not exactly what Redis has registered, or that Redis can't continue, is
// refused by name, and nothing of it is applied.
func TestSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	const unknown, foreign, old = "redis doesn't know its SHA-256", "it is foreign: ", "it is too old: "
	change := func(from, to string) func(*testing.T, *origin) {
		return func(t *testing.T, o *origin) {
			t.Helper()
			content := o.read(t)
			if bytes.Count(content, []byte(from)) == 0 || len(from) != len(to) {
				t.Fatalf("no %q to change to %q", from, to)
			}
			o.replace(t, bytes.Replace(content, []byte(from), []byte(to), 1))
		}
	}
	cut := func(bytes int) func(*testing.T, *origin) {
		return func(t *testing.T, o *origin) { content := o.read(t); o.replace(t, content[:len(content)-bytes]) }
	}
	otherRedis := func(t *testing.T, o *origin) {
		*o = origin{client: redistest.StartServer(t).Client(t), keyspace: o.keyspace, path: o.path}
		o.publish = publish.New(o.client)
		o.fill(t, 0, 12)
	}
	for name, test := range map[string]struct {
		change func(*testing.T, *origin)
		want   string
	}{
		"magic":              {change("gatehouse snapshot 1", "gatehouse snapshot 2"), "it is no snapshot of this version"},
		"another file":       {func(t *testing.T, o *origin) { o.replace(t, []byte("{}")) }, "it is no snapshot"},
		"no file":            {func(t *testing.T, o *origin) { require.NoError(t, os.Remove(o.path)) }, "no such file"},
		"an object":          {change("image/png", "text/html"), unknown},
		"a body":             {change("\x04body\x02/1", "\x04body\x02/2"), unknown},
		"a version":          {change("\x07version\x011", "\x07version\x019"), unknown},
		"a device":           {change("\x04c:d0", "\x04c:d1"), unknown},
		"a length":           {change("\x04o:/1", "\x03o:/1"), unknown},
		"the contents":       {change(`"begin":`, `"bEgin":`), unknown},
		"the epoch":          {change(`"data_epoch":"`, `"data_epock":"`), foreign + "of data epoch"},
		"the namespace":      {change(`"namespace":""`, `"namespace":{}`), "it is damaged"},
		"their length":       {changeLength, "it is damaged"},
		"the end":            {change("snapshot end", "snapshot End"), "it is truncated"},
		"records swapped":    {swapRecords, unknown},
		"a byte less":        {cut(1), "it is truncated"},
		"no end":             {cut(23), "it is truncated"},
		"no contents":        {cut(200), "it is truncated"},
		"half":               {func(t *testing.T, o *origin) { cut(len(o.read(t))/2)(t, o) }, "it is truncated"},
		"only the first":     {func(t *testing.T, o *origin) { cut(len(o.read(t))-21)(t, o) }, "it is truncated"},
		"nothing":            {func(t *testing.T, o *origin) { o.replace(t, nil) }, "it is no snapshot"},
		"another Redis":      {otherRedis, foreign + "of data epoch"},
		"another namespace":  {writeOf(contract.Keyspace{Namespace: "shop"}), foreign + "of namespace"},
		"other shards":       {writeOf(contract.Keyspace{Shards: 2}), foreign + "of 2 shards"},
		"lost writes":        {func(t *testing.T, o *origin) { o.loseLast(t) }, foreign + "redis is at write"},
		"another write":      {func(t *testing.T, o *origin) { o.rewrite(t) }, foreign + "redis has another write"},
		"trimmed":            {func(t *testing.T, o *origin) { o.raiseFloor(t) }, old + "of write"},
		"a day old":          {func(t *testing.T, o *origin) { o.age(t) }, old + "23h"},
		"many newer":         {func(t *testing.T, o *origin) { o.writeMany(t) }, unknown},
		"registration lost":  {func(t *testing.T, o *origin) { o.remove(t, o.keys().SnapshotsKey()) }, unknown},
		"registration taken": {func(t *testing.T, o *origin) { o.set(t, o.keys().SnapshotsKey(), "1") }, "WRONGTYPE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartServer(t)
			o := newOrigin(t, server.Client(t), contract.Keyspace{})
			o.server = server
			o.fill(t, 0, 12)
			o.write(t)
			test.change(t, o)
			g := o.follow(t, o.path)
			log := g.log.String()
			if !strings.Contains(log, "the snapshot is not used") || !strings.Contains(log, test.want) ||
				strings.Contains(log, snapshotApplied) {
				t.Errorf("got no refusal with %q:\n%s", test.want, log)
			}
			if got := g.countSnapshots(t, "refused"); got != 1 {
				t.Errorf("got %v refusals counted, want 1", got)
			}
			want := o.follow(t, "")
			g.equals(t, want)
			if got, want := g.objects[0].applied, want.objects[0].applied; got != want || g.fullResyncs() != 1 {
				t.Errorf("got %d objects applied in %d full resyncs, want %d in one", got, g.fullResyncs(), want)
			}
		})
	}
}

func (o *origin) keys() contract.Keys { return o.keyspace.Keys(0) }

func (o *origin) read(t *testing.T) []byte {
	t.Helper()
	content, err := os.ReadFile(o.path)
	require.NoError(t, err)
	return content
}

func (o *origin) replace(t *testing.T, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(o.path, content, 0o600))
}

func (o *origin) set(t *testing.T, key, value string) {
	t.Helper()
	require.NoError(t, o.client.Set(t.Context(), key, value, 0).Err())
}

func (o *origin) remove(t *testing.T, key string) {
	t.Helper()
	require.NoError(t, o.client.Del(t.Context(), key).Err())
}

// writeOf returns a function that replaces the snapshot by one of another keyspace of the same server.
func writeOf(k contract.Keyspace) func(*testing.T, *origin) {
	return func(t *testing.T, o *origin) {
		t.Helper()
		shards := o.client.Get(t.Context(), k.ShardsKey()).Val()
		o.remove(t, k.ShardsKey())
		_, err := snapshot.Write(t.Context(), o.client, k, o.path)
		require.NoError(t, err)
		if shards != "" {
			o.set(t, k.ShardsKey(), shards)
		}
	}
}

// swapRecords swaps two records of one length.
func swapRecords(t *testing.T, o *origin) {
	t.Helper()
	content := o.read(t)
	at := regexp.MustCompile(`\x04o:/[1-9]`).FindAllIndex(content, 2)
	length := at[1][0] - at[0][0] // with the length before the next
	a, b := content[at[0][0]-1:at[0][0]-1+length], content[at[1][0]-1:at[1][0]-1+length]
	swapped := bytes.Clone(a)
	copy(a, b)
	copy(b, swapped)
	o.replace(t, content)
}

// rewrite gives Redis another write with the number of the snapshot's last one.
func (o *origin) rewrite(t *testing.T) {
	t.Helper()
	seq := o.client.Get(t.Context(), o.keys().SeqKey()).Val()
	number, err := strconv.ParseUint(seq, 10, 64)
	require.NoError(t, err)
	other := contract.Link{Seq: number, Digest: strings.Repeat("0", 40)}
	require.NoError(t, o.client.HSet(t.Context(), o.keys().ChainKey(), contract.ChainField(number), other.String()).Err())
}

// loseLast has Redis lose the snapshot's last write.
func (o *origin) loseLast(t *testing.T) {
	t.Helper()
	require.NoError(t, o.client.Save(t.Context()).Err())
	o.put(t, "/lost")
	o.write(t)
	o.server.Kill()
	o.server.Restart()
}

// changeLength changes the length of the contents.
func changeLength(t *testing.T, o *origin) {
	t.Helper()
	content := o.read(t)
	content[bytes.LastIndex(content, []byte("\ngatehouse"))-4] = 1
	o.replace(t, content)
}

// raiseFloor writes, and trims what the snapshot doesn't have.
func (o *origin) raiseFloor(t *testing.T) {
	t.Helper()
	o.put(t, "/new")
	seq := o.client.Get(t.Context(), o.keys().SeqKey()).Val()
	require.NoError(t, o.client.HSet(t.Context(), o.keys().ChainKey(), contract.ChainFloor, seq).Err())
}

// age makes the snapshot a day older, and registers it.
func (o *origin) age(t *testing.T) {
	t.Helper()
	taken := regexp.MustCompile(`"taken_ms":([0-9]+)`)
	content := taken.ReplaceAllFunc(o.read(t), func(text []byte) []byte {
		ms, err := strconv.ParseInt(string(taken.FindSubmatch(text)[1]), 10, 64)
		require.NoError(t, err)
		return fmt.Appendf(nil, `"taken_ms":%d`, ms-snapshot.MaxAge.Milliseconds()-1000)
	})
	o.replace(t, content)
	o.register(t)
}

// register registers the file as it is.
func (o *origin) register(t *testing.T) {
	t.Helper()
	sum := sha256.Sum256(o.read(t))
	require.NoError(t, o.client.HSet(t.Context(), o.keys().SnapshotsKey(), hex.EncodeToString(sum[:]), 1).Err())
}

// writeMany writes so many newer snapshots that this one is forgotten.
func (o *origin) writeMany(t *testing.T) {
	t.Helper()
	first := o.read(t)
	for range 16 {
		<-time.After(2 * time.Millisecond) // so that it is newer by the clock
		o.write(t)
	}
	o.replace(t, first)
	if got := o.client.HLen(t.Context(), o.keys().SnapshotsKey()).Val(); got != 16 {
		t.Errorf("got %d snapshots registered, want 16", got)
	}
}

// TestSnapshotBeyondTheChain: after more writes than the chain remembers, the registration proves that Redis has the
// snapshot's history.
func TestSnapshotBeyondTheChain(t *testing.T) {
	t.Parallel()
	o := newOrigin(t, redistest.StartServer(t).Client(t), contract.Keyspace{})
	o.fill(t, 0, 12)
	o.write(t)
	number, err := o.client.Get(t.Context(), o.keys().SeqKey()).Uint64()
	require.NoError(t, err)
	o.fill(t, 10, 3)
	require.NoError(t, o.client.HDel(t.Context(), o.keys().ChainKey(), contract.ChainField(number)).Err())
	g := o.follow(t, o.path)
	if !strings.Contains(g.log.String(), snapshotApplied) || g.fullResyncs() != 0 {
		t.Errorf("got a full resync:\n%s", g.log.String())
	}
	g.equals(t, o.follow(t, ""))
}

// TestSnapshotThenCut: the connection breaks while devices are read after the snapshot was applied. The next attempt
// goes on from there.
func TestSnapshotThenCut(t *testing.T) {
	t.Parallel()
	s := serverAt(t, redistest.StartServer(t).Address)
	o := newOrigin(t, s.Client, contract.Keyspace{})
	o.fill(t, 0, 50)
	o.write(t)
	o.fill(t, 50, 20)
	s.line.Cut()
	client := redis.NewClient(&redis.Options{Addr: s.line.Address(), MaxRetries: -1})
	g := followFor(t, client, o.keyspace, follow.Config{Snapshot: o.path})
	var cut atomic.Bool
	g.credentials[0].mu.Lock()
	g.credentials[0].beforeNext = func() {
		s.line.Cut()
		cut.Store(true)
	}
	g.credentials[0].mu.Unlock()
	s.heal(t)
	await.Until(t, "the cut", cut.Load)
	if !strings.Contains(g.log.String(), snapshotApplied) {
		t.Errorf("devices were read before the snapshot was applied:\n%s", g.log.String())
	}
	s.heal(t)
	g.awaitSynced(t)
	g.equals(t, o.follow(t, ""))
	if g.fullResyncs() != 0 {
		t.Errorf("got a full resync:\n%s", g.log.String())
	}
}

// TestSnapshotAtAReplica: objects and purges of the snapshot continue at a replica, devices at the master.
func TestSnapshotAtAReplica(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	replica, _ := startReplica(t, master)
	o := newOrigin(t, s.Client, contract.Keyspace{Shards: 1})
	o.fill(t, 0, 30)
	o.write(t)
	o.fill(t, 25, 10)
	await.Until(t, "the replica", func() bool {
		seq := o.keys().SeqKey()
		return replica.Client(t).Get(t.Context(), seq).Val() == o.client.Get(t.Context(), seq).Val()
	})
	var p pick
	p.Store(replica)
	g := followFor(t, redis.NewClient(&redis.Options{Addr: master.Address}), o.keyspace,
		follow.Config{Snapshot: o.path, Replicas: &p})
	g.awaitSynced(t)
	g.awaitInStep(t)
	if got := strings.Count(g.log.String(), snapshotApplied); got != 2 || g.fullResyncs() != 0 {
		t.Errorf("got %d parts applied and %d full resyncs, want 2 and none:\n%s", got, g.fullResyncs(), g.log.String())
	}
	g.equals(t, o.follow(t, ""))
	o.put(t, "/live")
	await.Until(t, "an event", func() bool { return g.version("/live") == 1 })
}

// TestSnapshotOfAnEmptyRedis: an empty shard has no part of a snapshot.
func TestSnapshotOfAnEmptyRedis(t *testing.T) {
	t.Parallel()
	o := newOrigin(t, redistest.StartServer(t).Client(t), contract.Keyspace{Shards: 2})
	o.write(t)
	if n := o.client.DBSize(context.Background()).Val(); n != 0 {
		t.Errorf("got %d keys, want none", n)
	}
	o.fill(t, 0, 10)
	g := o.follow(t, o.path)
	if got := strings.Count(g.log.String(), "it is foreign: of data epoch"); got != 2 {
		t.Errorf("got %d refusals, want 2:\n%s", got, g.log.String())
	}
	g.equals(t, o.follow(t, ""))
}

// TestStartBytes: the memory that a start from a snapshot will take is known until the start is over.
func TestStartBytes(t *testing.T) {
	t.Parallel()
	s := serverAt(t, redistest.StartServer(t).Address)
	o := newOrigin(t, s.Client, contract.Keyspace{})
	o.fill(t, 0, 10)
	w := o.write(t)
	s.line.Cut()
	g := followFor(t, redis.NewClient(&redis.Options{Addr: s.line.Address(), MaxRetries: -1}), o.keyspace,
		follow.Config{Snapshot: o.path})
	await.Until(t, "the size of the snapshot", func() bool { return g.StartBytes() > w.Bytes })
	s.heal(t)
	g.awaitSynced(t)
	await.Until(t, "the end of the start", func() bool { return g.StartBytes() == 0 })
}
