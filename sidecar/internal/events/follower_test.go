package events_test

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/e2e/redistest"
	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/events"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

var keys contract.Keys

const deadline = 30 * time.Second

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !condition(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", deadline, what)
		}
		<-time.After(time.Millisecond)
	}
}

// sink keeps versions as mirror and verifier do.
type sink struct {
	mu         sync.Mutex
	versions   map[string]uint64 // those that are there
	known      map[string]uint64 // also of tombstones
	ever       map[string]uint64 // the highest of each
	removed    int
	seen       map[string]bool // in the resync under way
	resyncs    int
	applied    int
	confirmed  int
	backwards  int
	beforeNext func() // called once, before the next record is applied or confirmed
	kept       int    // by the last resync, 0 while it is under way
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
	} else if version <= s.known[id] {
		s.backwards++
		return
	}
	s.known[id] = version
	if s.versions[id] = version; deleted {
		delete(s.versions, id)
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

// keptBy is how many the resync of that number kept, 0 before it has ended.
func (s *sink) keptBy(resync int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resyncs != resync {
		return 0
	}
	return s.kept
}

// removals is how often something was removed.
func (s *sink) removals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removed
}

// highest is the highest version of id that ever came.
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

func (s *sink) Unmet() []string {
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

func (o objects) Confirm(r contract.Object) bool { return o.confirm(r.Key, r.Version, r.Deleted) }

type credentials struct{ *sink }

func (c credentials) Apply(r contract.Credential) { c.put(r.ID, r.Version, r.Deleted) }

type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) SetInStep(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = t
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
	line          *line
}

// line forwards connections until it is cut.
type line struct {
	listener net.Listener
	to       string
	delay    time.Duration // one way; set before use

	mu   sync.Mutex
	open map[net.Conn]bool
	down bool
}

func newLine(t *testing.T, to string) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &line{listener: l, to: to, open: map[net.Conn]bool{}}
	t.Cleanup(func() { l.Close(); w.set(true) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.forward(c)
		}
	}()
	return w
}

func (w *line) forward(c net.Conn) {
	d, err := net.Dial("tcp", w.to)
	if err != nil {
		c.Close()
		return
	}
	w.mu.Lock()
	down := w.down
	w.open[c], w.open[d] = true, true
	w.mu.Unlock()
	if !down {
		go func() { w.copy(d, c); d.Close() }()
		w.copy(c, d)
	}
	c.Close()
	d.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, c)
	delete(w.open, d)
}

// set cuts all connections, and refuses new ones while down.
func (w *line) set(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
	for c := range w.open {
		c.Close()
	}
}

func (s server) put(t *testing.T, key string) uint64 {
	t.Helper()
	r, err := s.publish.Put(context.WithoutCancel(t.Context()), publish.Object{Key: key, Body: []byte(key), ContentType: "text/plain"})
	if err != nil {
		t.Fatal(err)
	}
	return r.Version
}

func (s server) do(t *testing.T, args ...any) {
	t.Helper()
	if err := s.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// announce publishes an event of the next number as a writer does, without its record.
func (s server) announce(t *testing.T, k contract.Keys, e contract.Event) {
	t.Helper()
	e.Epoch, e.Seq = s.Get(t.Context(), k.EpochKey()).Val(), uint64(s.Incr(t.Context(), k.SeqKey()).Val())
	e = s.chained(t, k, e)
	link := contract.Link{Seq: e.Seq, Digest: e.Digest}.String()
	s.do(t, "HSET", k.ChainKey(), contract.ChainHead, link, contract.ChainField(e.Seq), link)
	s.do(t, "PUBLISH", k.EventsChannel(), string(contract.AppendEvent(nil, e)))
}

// chained is e with the digest that it has behind the chain's head.
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
	*events.Subscriber
	objects, credentials *sink
	clock                *clock
	metrics              *metrics.Metrics
	log                  *lines
	stop                 func()
}

func follow(t *testing.T, s server) *follower {
	t.Helper()
	return followBy(t, &redis.Options{Addr: s.line.listener.Addr().String(), MaxRetries: -1, DialTimeout: time.Second})
}

// followBy is a follower whose client has these options.
func followBy(t *testing.T, options *redis.Options) *follower {
	t.Helper()
	f := &follower{objects: newSink(), credentials: newSink(), clock: new(clock), metrics: metrics.New(), log: new(lines)}
	client := redis.NewClient(options)
	f.Subscriber = events.New(events.Config{
		Objects: objects{f.objects}, Credentials: credentials{f.credentials}, Clock: f.clock,
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
	return server{client, publish.New(client), newLine(t, addr)}
}

// expiring is a miniredis whose keys expire by the clock, as a lease does that is given back.
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

// sized is a size of a test's whole and short form.
func sized(whole, short int) int {
	if testing.Short() {
		return short
	}
	return whole
}

// onBoth runs test against a miniredis and a redis-server.
func onBoth(t *testing.T, test func(t *testing.T, s server)) {
	for name, start := range map[string]func(t *testing.T) string{
		"miniredis":    func(t *testing.T) string { return expiring(t).Addr() },
		"redis-server": func(t *testing.T) string { return strings.TrimPrefix(redistest.Start(t), "redis://") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			test(t, serverAt(t, start(t)))
		})
	}
}
