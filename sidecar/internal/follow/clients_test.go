package follow_test

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/testbed/link"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

var keys contract.Keys

// sink compares versions like cache and verifier.
type sink struct {
	mu         sync.Mutex
	versions   map[string]uint64 // of existing records
	known      map[string]uint64 // also of tombstones
	ever       map[string]uint64 // the highest of each id
	removed    int
	seen       map[string]bool // in the running resync
	resyncs    int
	applied    int
	confirmed  int
	backwards  int
	beforeNext func() // called once, before the next record is applied or confirmed
	onPut      func(id string, version uint64)
	kept       int // by the last resync, 0 during a resync
}

func newSink() *sink {
	return &sink{versions: map[string]uint64{}, known: map[string]uint64{}, ever: map[string]uint64{}}
}

func (s *sink) hook() {
	s.mu.Lock()
	hook := s.beforeNext
	s.beforeNext = nil
	s.mu.Unlock()
	if hook != nil {
		hook()
	}
}

func (s *sink) put(id string, version uint64, deleted bool) {
	s.hook()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied++
	s.ever[id] = max(s.ever[id], version)
	if s.seen != nil {
		s.seen[id] = true
	} else if version < s.known[id] || version == s.known[id] && !deleted { // a trim's tombstone keeps the version
		s.backwards++
		return
	}
	s.known[id] = version
	if s.versions[id] = version; deleted {
		delete(s.versions, id)
	}
	if s.onPut != nil {
		s.onPut(id, version)
	}
}

func (s *sink) confirm(id string, version uint64, deleted bool) bool {
	s.hook()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, held := s.versions[id]; s.known[id] != version || held == deleted {
		return false
	}
	s.confirmed++
	s.seen[id] = true
	return true
}

func (s *sink) Remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.versions, id)
	delete(s.known, id)
	s.removed++
}

// keptBy returns how many records the resync with the given number kept, 0 before its end.
func (s *sink) keptBy(resync int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resyncs != resync {
		return 0
	}
	return s.kept
}

// begun returns how many resyncs have begun.
func (s *sink) begun() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resyncs
}

// Doubt counts as a removal: the record counts for nothing.
func (s *sink) Doubt(id string)          { s.Remove(id) }
func (s *sink) ApplyMalformed(id string) { s.Remove(id) }

// removals returns the number of removals.
func (s *sink) removals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removed
}

// highest returns the highest version of id ever applied.
func (s *sink) highest(id string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ever[id]
}

func (s *sink) BeginResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resyncs++
	s.seen, s.kept = map[string]bool{}, 0
}

func (s *sink) Unapplied() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id := range s.known {
		if !s.seen[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s *sink) EndResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.versions, func(id string, _ uint64) bool { return !s.seen[id] })
	maps.DeleteFunc(s.known, func(id string, _ uint64) bool { return !s.seen[id] })
	s.seen = nil
	s.kept = len(s.versions)
}

func (s *sink) version(id string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions[id]
}

func (s *sink) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.versions)
}

type objects struct{ *sink }

func (o objects) Apply(r contract.Object) { o.put(r.Key, r.Version, r.Deleted) }

func (objects) Grow(int)                         {}
func (o objects) Confirm(r contract.Object) bool { return o.confirm(r.Key, r.Version, r.Deleted) }

type credentials struct{ *sink }

func (c credentials) Apply(r contract.Credential) { c.put(r.ID, r.Version, r.Deleted) }

// Announce applies a record after which any version is newer.
func (c credentials) Announce(r contract.Credential) {
	c.Apply(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, r.ID)
}

type purges struct{ *sink }

func (p purges) Apply(r contract.Purge) { p.put(r.ID, r.Version, r.Deleted) }

type clock struct {
	mu   sync.Mutex
	at   time.Time
	live []time.Time // the times of writes that were applied live
}

func (c *clock) SetInStep(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = t
}

func (c *clock) ApplyLive(published time.Time, apply func()) {
	c.mu.Lock()
	c.live = append(c.live, published)
	c.mu.Unlock()
	apply()
}

// applied returns the times of the writes that were applied live.
func (c *clock) applied() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.live)
}

func (c *clock) inStep() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// server is a Redis behind a proxy that can cut connections.
type server struct {
	*redis.Client // direct
	publish       *publish.Publisher
	line          *link.Link
}

// newLine returns a link to an address.
func newLine(t *testing.T, to string) *link.Link {
	t.Helper()
	l, err := link.New("127.0.0.1:0", to)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

// heal ends the cut of the server's line.
func (s server) heal(t *testing.T) {
	t.Helper()
	require.NoError(t, s.line.Heal())
}

func (s server) put(t *testing.T, key string) uint64 {
	t.Helper()
	r, err := s.publish.Put(context.WithoutCancel(t.Context()),
		publish.Object{Key: key, Body: []byte(key), ContentType: "image/png"}) // is not compressed
	require.NoError(t, err)
	return r.Version
}

// accept accepts the loss of an empty Redis.
func (s server) accept(t *testing.T) {
	t.Helper()
	if _, err := s.publish.AcceptLoss(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (s server) do(t *testing.T, args ...any) {
	t.Helper()
	if err := s.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// announce publishes an event with the next number like a writer, at once, without writing the record: a follower that
// finds the number without the event would catch up.
func (s server) announce(t *testing.T, k contract.Keys, e contract.Event) {
	t.Helper()
	seq, err := s.Get(t.Context(), k.SeqKey()).Uint64()
	require.NoError(t, err)
	e.DataEpoch, e.Seq = s.Get(t.Context(), k.DataEpochKey()).Val(), seq+1
	e = s.chained(t, k, e)
	link := contract.Link{Seq: e.Seq, Digest: e.Digest}.String()
	const atOnce = "redis.call('INCR', KEYS[1]) redis.call('HSET', KEYS[2], 'head', ARGV[1], ARGV[2], ARGV[1]) " +
		"return redis.call('PUBLISH', ARGV[3], ARGV[4])" // users without MULTI may use EVAL
	s.do(t, "EVAL", atOnce, 2, k.SeqKey(), k.ChainKey(), link, contract.ChainField(e.Seq), k.EventsChannel(),
		string(contract.AppendEvent(nil, e)))
}

// chained returns e with its digest after the chain's head.
func (s server) chained(t *testing.T, k contract.Keys, e contract.Event) contract.Event {
	t.Helper()
	head, err := contract.ParseLink(s.HGet(t.Context(), k.ChainKey(), contract.ChainHead).Val())
	if err == nil && head.Seq != e.Seq-1 {
		head.Digest = ""
	}
	e.Digest = strings.Repeat("0", 40)
	if e.Digest, err = contract.Digest(head.Digest, string(contract.AppendEvent(nil, e))); err != nil {
		t.Fatal(err)
	}
	return e
}

type follower struct {
	*follow.Follower
	objects, credentials *sink
	clock                *clock
	metrics              *metrics.Metrics
	log                  *logbuffer.Buffer
	stop                 func()
}

func start(t *testing.T, s server) *follower {
	t.Helper()
	return followBy(t, &redis.Options{Addr: s.line.Address(), MaxRetries: -1, DialTimeout: time.Second})
}

// followBy returns a follower whose client has the given options.
func followBy(t *testing.T, options *redis.Options) *follower {
	t.Helper()
	return followWith(t, redis.NewClient(options))
}

// followWith returns a follower with a client, and closes the client at the end.
func followWith(t *testing.T, client *redis.Client) *follower {
	t.Helper()
	f := &follower{objects: newSink(), credentials: newSink(), clock: new(clock), metrics: metrics.New(),
		log: new(logbuffer.Buffer)}
	f.Follower = follow.New(follow.Config{
		Objects: objects{f.objects}, Credentials: credentials{f.credentials}, Purges: purges{newSink()}, Clock: f.clock,
	}, client, f.metrics, slog.New(slog.NewTextHandler(f.log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	f.stop = func() {
		cancel()
		wg.Wait()
		client.Close()
		if f.objects.backwards > 0 && t.Failed() {
			t.Logf("%d versions were not newer", f.objects.backwards)
		}
	}
	t.Cleanup(f.stop)
	return f
}

func (f *follower) count(t *testing.T, name string, labels ...string) float64 {
	return metricstest.Value(t, f.metrics, name, labels...)
}

func miniredisServer(t *testing.T) server { return serverAt(t, expiring(t).Addr()) }

func serverAt(t *testing.T, addr string) server {
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return server{client, publish.New(client, publish.Shards(1)), newLine(t, addr)}
}

// expiring returns a miniredis whose keys expire by the clock, like a released lease.
func expiring(t *testing.T) *miniredis.Miniredis {
	m := miniredis.RunT(t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() {
		const every = 20 * time.Millisecond
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				m.FastForward(every)
			}
		}
	})
	return m
}

// sized returns whole, or short in the short form of the tests.
func sized(whole, short int) int {
	if testing.Short() {
		return short
	}
	return whole
}

// onBoth runs test against a miniredis and a redis-server.
func onBoth(t *testing.T, test func(t *testing.T, s server)) {
	for name, from := range map[string]func(t *testing.T) string{
		"miniredis":    func(t *testing.T) string { return expiring(t).Addr() },
		"redis-server": func(t *testing.T) string { return strings.TrimPrefix(redistest.Start(t), "redis://") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // tests mostly wait
			test(t, serverAt(t, from(t)))
		})
	}
}
