package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/api"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/token"
)

var discard = slog.New(slog.DiscardHandler)

// verdicts is a Verifier with an answer by device id.
type verdicts map[string]credential.Result

func (v verdicts) Verify(_ context.Context, id, secret, source string) credential.Result {
	r, found := v[strings.TrimSpace(id+" "+secret+" "+source)]
	if !found {
		return credential.Result{Outcome: wire.Deny}
	}
	return r
}

// known is an edge that has the current epoch and everything of the epoch.
type known struct{}

func (k known) Epoch() uint64 { return 77 }

func (v verdicts) VerifySession(id, session string) credential.Result {
	return v.Verify(context.Background(), id, "session", session)
}

// SessionValid returns true for a session without an entry.
func (v verdicts) SessionValid(id, session string) bool {
	_, gone := v[id+" gone "+session]
	return !gone
}

func (k known) AwaitObject(context.Context, string) error { return nil }

func (k known) AwaitVerdicts(context.Context, string) error { return nil }

func (k known) AwaitEpoch(context.Context, string) (uint64, error) { return 77, nil }

// fixture is an API on a socket, with a cache and a Redis.
type fixture struct {
	socket   string
	redis    *miniredis.Miniredis
	publish  *publish.Publisher
	cache    *objectcache.Cache
	metrics  *metrics.Metrics
	sessions *token.Issuer
	used     used
	applied  *applied
	fetcher  api.Fetcher
	handler  http.Handler
	stop     func() error
}

// synced is closed: everything in Redis has been applied.
var synced = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// applied is the last applied write.
type applied struct {
	contract.Link
	err error
}

func (a *applied) get(int) (contract.Link, error) { return a.Link, a.err }

// used collects the used keys.
type used chan []string

func (u used) RecordUses(keys []string) { u <- keys }

func start(t *testing.T, v api.Verifier) fixture {
	t.Helper()
	f := fixture{socket: filepath.Join(t.TempDir(), "api.sock"), redis: miniredis.RunT(t), metrics: metrics.New(),
		used: make(used, 1), applied: new(applied),
		sessions: token.New(token.Config{Secrets: []string{strings.Repeat("s", 32)}, TTL: time.Minute,
			Rotate: time.Hour, Issuer: "test"})}
	client := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	f.publish = publish.New(client)
	var err error
	if f.cache, err = objectcache.New(objectcache.Config{Bytes: 1 << 20, Objects: 100}, edgemem.New(edgemem.Config{}),
		f.metrics, discard); err != nil {
		t.Fatal(err)
	}
	f.cache.Purges(0).EndResync()
	shared, err := api.NewRedis(f.cache, client, 16, contract.Keyspace{}, f.applied.get, synced, f.metrics)
	require.NoError(t, err)
	fetcher := shared.AddEdge()
	f.fetcher = fetcher
	server := api.New(f.socket, v, fetcher, f.used, known{}, f.sessions, f.metrics, noop.Tracer{}, discard)
	require.NoError(t, server.Listen())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	f.handler = server.Handler()
	f.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { f.stop() })
	return f
}

func (f fixture) post(t *testing.T, path string, body []byte) (int, []byte) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", f.socket)
		},
	}}
	r, err := client.Post("http://sidecar"+path, "application/octet-stream", bytes.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	answer, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, answer
}

func TestVerify(t *testing.T) {
	f := start(t, verdicts{
		"good s":           {Outcome: wire.Allow, Permissions: "telemetry.write"},
		"none s":           {Outcome: wire.Allow},
		"away s 192.0.2.1": {Outcome: wire.Allow, Permissions: "telemetry.write"},
		"revoked s":        {Outcome: wire.Allow, Session: "7-1"}, // revoked while it was verified
		"revoked gone 7-1": {},
		"busy s":           {Outcome: wire.Unavailable, RetryAfter: 1500 * time.Millisecond},
	})
	for _, test := range []struct {
		id, secret, source string
		want               wire.VerifyResponse
	}{
		{"good", "s", "", wire.VerifyResponse{Outcome: wire.Allow, Permissions: "telemetry.write", Epoch: 77}},
		{"none", "s", "", wire.VerifyResponse{Outcome: wire.Allow, Epoch: 77}},
		{"revoked", "s", "", wire.VerifyResponse{Outcome: wire.Unavailable, RetryAfterS: 1, Epoch: 77}},
		{"good", "t", "", wire.VerifyResponse{Outcome: wire.Deny, Epoch: 77}},
		{"busy", "s", "", wire.VerifyResponse{Outcome: wire.Unavailable, RetryAfterS: 2, Epoch: 77}},
		{"away", "s", "192.0.2.1", wire.VerifyResponse{Outcome: wire.Allow, Permissions: "telemetry.write", Epoch: 77}},
	} {
		status, answer := f.post(t, "/v1/verify", wire.AppendVerifyRequest(nil,
			&wire.VerifyRequest{DeviceID: test.id, Secret: test.secret, Source: test.source}))
		got, err := wire.ParseVerifyResponse(answer)
		if status != http.StatusOK || err != nil || got != test.want {
			t.Errorf("%s %s: %d %+v, %v; want %+v", test.id, test.secret, status, got, err, test.want)
		}
	}
	for outcome, want := range map[string]float64{"allow": 3, "deny": 1, "unavailable": 2} {
		if got := metricstest.Value(t, f.metrics, "gatehouse_verification_seconds", "outcome", outcome); got != want {
			t.Errorf("%v calls with the outcome %s were measured, want %v", got, outcome, want)
		}
	}
}

func TestMalformedCalls(t *testing.T) {
	f := start(t, verdicts{})
	for _, test := range []struct {
		name, path string
		body       []byte
		status     int
		say        string
	}{
		{"empty verify", "/v1/verify", nil, 400, "want at least"},
		{"another layout", "/v1/verify", []byte{99, 1, 1, 0, 'a', 'b'}, 400, "layout version 99"},
		{"truncated verify", "/v1/verify", []byte{wire.Layout, 9, 9, 0, 'a'}, 400, "id of 9"},
		{"large verify", "/v1/verify", make([]byte, 5000), 413, "too large"},
		{"empty key", "/v1/fetch", nil, 400, `want "/path"`},
		{"bad key", "/v1/fetch", []byte("no slash"), 400, `want "/path"`},
		{"large key", "/v1/fetch", bytes.Repeat([]byte("/"), limits.MaxKey+1), 413, "too large"},
		{"no such call", "/v1/else", nil, 404, "not found"},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, answer := f.post(t, test.path, test.body)
			if status != test.status || !strings.Contains(string(answer), test.say) {
				t.Errorf("%d %q, want %d and %q", status, answer, test.status, test.say)
			}
		})
	}
	if got := metricstest.Value(t, f.metrics, "gatehouse_api_requests_total", "result", "malformed"); got != 7 {
		t.Errorf("%v malformed calls counted, want 7", got)
	}
}

// fetch returns the version and the bodies of the answer; version 0 for no object.
func (f fixture) fetch(t *testing.T, key string) (uint64, []string) {
	t.Helper()
	status, answer := f.post(t, "/v1/fetch", []byte(key))
	if status != http.StatusOK {
		t.Fatalf("fetch %s: %d %s", key, status, answer)
	}
	r, err := wire.ParseFetchResponse(answer)
	if err != nil || r.Epoch != 77 {
		t.Fatalf("fetch %s: %+v, %v", key, r, err)
	}
	o, err := wire.FindObject(r.Record, r.Epoch, 0, key)
	if errors.Is(err, wire.ErrNotFound) {
		return 0, nil
	}
	require.NoError(t, err)
	var bodies []string
	for i := range o.Variants() {
		bodies = append(bodies, string(r.Body(&o, i)))
	}
	return o.Version, bodies
}

func TestFetch(t *testing.T) {
	f := start(t, verdicts{})
	body := strings.Repeat("hello ", 100)
	put := func(key string) {
		if _, err := f.publish.Put(t.Context(), publish.Object{Key: key, Body: []byte(body),
			ContentType: "text/plain"}); err != nil {
			t.Fatal(err)
		}
	}
	count := func(result string) float64 {
		return metricstest.Value(t, f.metrics, "gatehouse_fetches_total", "result", result)
	}
	put("/a")
	version, bodies := f.fetch(t, "/a")
	if version != 1 || len(bodies) < 2 || bodies[0] != body {
		t.Errorf("version %d, %d bodies", version, len(bodies))
	}
	if version, _ := f.fetch(t, "/a"); version != 1 || count("redis") != 1 || count("cache") != 1 {
		t.Errorf("version %d, %v from redis, %v from the cache", version, count("redis"), count("cache"))
	}
	for range 3 {
		if version, _ := f.fetch(t, "/absent"); version != 0 {
			t.Errorf("/absent in version %d", version)
		}
	}
	if count("absent") != 1 || count("remembered_absent") != 2 {
		t.Errorf("redis was asked %v times for what it does not have, want 1", count("absent"))
	}

	// Without an object in a language, there may be an object without a language.
	put("/l")
	put("/l#de")
	for key, want := range map[string][2]uint64{"/l#de": {1, 0}, "/l#en": {0, 1}, "/absent#en": {0, 0}} {
		plain, _, _ := strings.Cut(key, "#")
		_, answer := f.post(t, "/v1/fetch", []byte(key))
		r, err := wire.ParseFetchResponse(answer)
		require.NoError(t, err)
		inLanguage, _ := wire.FindObject(r.Record, r.Epoch, 0, key)
		without, _ := wire.FindObject(r.Record, r.Epoch, 0, plain)
		if got := [2]uint64{inLanguage.Version, without.Version}; got != want || r.Epoch != 77 {
			t.Errorf("%s: got versions %v, want %v", key, got, want)
		}
	}

	// An older version never replaces one from an event.
	put("/b")
	f.cache.Apply(contract.Object{Key: "/b", Version: 5, Deleted: true, PublishedMS: time.Now().UnixMilli()})
	if version, _ := f.fetch(t, "/b"); version != 0 {
		t.Errorf("/b in version %d although it was deleted in version 5", version)
	}
	put("/c")
	f.redis.HDel(contract.Keys{}.ObjectKey("/c"), "etag")
	if status, _ := f.post(t, "/v1/fetch", []byte("/c")); status != http.StatusServiceUnavailable {
		t.Errorf("a corrupt object: %d, want 503", status)
	}
	f.redis.Close()
	if status, _ := f.post(t, "/v1/fetch", []byte("/d")); status != http.StatusServiceUnavailable {
		t.Errorf("without redis: %d, want 503", status)
	}
	if version, _ := f.fetch(t, "/a"); version != 1 {
		t.Error("the cache answers without redis")
	}
	if got := metricstest.Value(t, f.metrics, "gatehouse_fetch_seconds"); got != 12 {
		t.Errorf("%v calls were measured, want 12", got)
	}
}

// overtaken is a cache that changes between a read of Redis and ApplyRead.
type overtaken struct {
	*objectcache.Cache
	during func()
	times  int
}

func (m *overtaken) ApplyRead(o *contract.Object, mark uint64) objectcache.Result {
	if m.times > 0 {
		m.times--
		m.during()
	}
	return m.Cache.ApplyRead(o, mark)
}

// fetchOvertaken fetches /a while during changes the cache, up to times times.
func fetchOvertaken(t *testing.T, client redis.UniversalClient, budget int64, times int,
	during func(*objectcache.Cache)) (contract.Object, bool, error) {
	t.Helper()
	m, err := objectcache.New(objectcache.Config{Bytes: budget, Objects: 1, Shards: 1}, edgemem.New(edgemem.Config{}),
		metrics.New(), discard)
	require.NoError(t, err)
	m.Purges(0).EndResync()
	shared, err := api.NewRedis(&overtaken{m, func() {
		during(m)
	}, times}, client, 16, contract.Keyspace{}, new(applied).get, synced, metrics.New())
	require.NoError(t, err)
	fetcher := shared.AddEdge()
	return fetcher.Fetch(t.Context(), "/a")
}

// TestFetchDuringAStart: until everything in Redis has been applied, the versions of the cache don't count: they may be
// a snapshot's.
func TestFetchDuringAStart(t *testing.T) {
	f := start(t, verdicts{})
	for _, key := range []string{"/a", "/deleted"} {
		putText(t, &f, key)
		_, _, err := f.fetcher.Fetch(t.Context(), key) // into the cache
		require.NoError(t, err)
	}
	putText(t, &f, "/a")
	f.redis.Del(contract.Keyspace{}.KeysOf("/deleted").ObjectKey("/deleted"))
	client := redis.NewClient(&redis.Options{Addr: f.redis.Addr()})
	t.Cleanup(func() { client.Close() })
	shared, err := api.NewRedis(f.cache, client, 16, contract.Keyspace{}, f.applied.get, make(chan struct{}), f.metrics)
	require.NoError(t, err)
	fetcher := shared.AddEdge()
	if o, found, err := fetcher.Fetch(t.Context(), "/a"); err != nil || !found || o.Version != 2 {
		t.Errorf("/a: got version %d, %v, %v; want 2", o.Version, found, err)
	}
	if o, found, err := fetcher.Fetch(t.Context(), "/deleted"); err != nil || found {
		t.Errorf("/deleted: got version %d, %v; want none", o.Version, err)
	}
}

// TestFetchFromReplica: a call reads from the replica that is followed, and fails without a replica.
func TestFetchFromReplica(t *testing.T) {
	f := start(t, verdicts{})
	putText(t, &f, "/a")
	master := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	replica := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { master.Close(); replica.Close() })
	fetcher, err := api.NewRedis(f.cache, master, 16, contract.Keyspace{}, f.applied.get, synced, f.metrics)
	require.NoError(t, err)
	none := errors.New("none")
	fetcher.ReadReplicas(func(int) (*redis.Client, error) { return nil, none })
	if _, _, err := fetcher.AddEdge().Fetch(t.Context(), "/a"); !errors.Is(err, none) {
		t.Errorf("without a replica: got %v", err)
	}
	fetcher.ReadReplicas(func(int) (*redis.Client, error) { return replica, nil })
	if o, found, err := fetcher.AddEdge().Fetch(t.Context(), "/a"); err != nil || !found || o.Version != 1 {
		t.Errorf("got version %d, %v, %v from the replica", o.Version, found, err)
	}
}

// TestFetchFromServerThatIsBehind: a server that lacks applied writes may have an old record, or no record, and a
// server with different writes may have a lost record.
func TestFetchFromServerThatIsBehind(t *testing.T) {
	f := start(t, verdicts{})
	putText(t, &f, "/a")
	client := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	shared, err := api.NewRedis(f.cache, client, 16, contract.Keyspace{}, f.applied.get, synced, f.metrics)
	require.NoError(t, err)
	fetcher := shared.AddEdge()
	for _, f.applied.Link = range []contract.Link{{Seq: 2}, {Seq: 1, Digest: strings.Repeat("0", 40)}} {
		for _, key := range []string{"/a", "/b"} {
			if o, found, err := fetcher.AddEdge().Fetch(t.Context(), key); err == nil {
				t.Errorf("%s: got version %d, %v from a server without %v; want an error", key, o.Version, found, f.applied.Link)
			}
		}
	}
	f.applied.Link = contract.Link{Seq: 1}
	if o, found, err := fetcher.Fetch(t.Context(), "/a"); err != nil || !found || o.Version != 1 {
		t.Errorf("got version %d, %v, %v when it has caught up", o.Version, found, err)
	}
}

// TestFetchFromEmptyRedis: a record that is absent in an empty Redis may have been lost.
func TestFetchFromEmptyRedis(t *testing.T) {
	f := start(t, verdicts{})
	f.applied.err = errors.New("empty")
	if _, found, err := f.fetcher.Fetch(t.Context(), "/a"); err == nil {
		t.Errorf("got %v, want an error", found)
	}
}

// TestFetchBesideAChange: the server changes between the proofs before and after the read of the record. The server
// loses everything, or gets an already applied write: the answer may have come without the write.
func TestFetchBesideAChange(t *testing.T) {
	for name, tt := range map[string]struct {
		applied uint64
		change  func(t *testing.T, f *fixture)
	}{
		"loses everything": {1, func(_ *testing.T, f *fixture) { f.redis.FlushAll() }},
		"catches up":       {2, func(t *testing.T, f *fixture) { putText(t, f, "/b") }},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, verdicts{})
			putText(t, &f, "/a")
			client := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), MaxRetries: -1})
			t.Cleanup(func() { client.Close() })
			shared, err := api.NewRedis(f.cache, client, 16, contract.Keyspace{}, f.applied.get, synced, f.metrics)
			require.NoError(t, err)
			fetcher := shared.AddEdge()
			_, _, err = fetcher.Fetch(t.Context(), "/c") // asks for sizes, which this Redis doesn't know
			require.NoError(t, err)
			f.applied.Link = contract.Link{Seq: tt.applied}
			client.AddHook(halfway(func() { tt.change(t, &f) }))
			if _, found, err := fetcher.Fetch(t.Context(), "/a"); err == nil {
				t.Errorf("got %v, want an error", found)
			}
		})
	}
}

func putText(t *testing.T, f *fixture, key string) {
	t.Helper()
	if _, err := f.publish.Put(t.Context(), publish.Object{Key: key, Body: []byte("body"),
		ContentType: "text/plain"}); err != nil {
		t.Fatal(err)
	}
}

// halfway runs after the first command of each pipeline.
type halfway func()

func (h halfway) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h halfway) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h halfway) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds[:1])
		h()
		return errors.Join(err, next(ctx, cmds[1:]))
	}
}

// TestFetchIsOvertaken: a fetched version is outdated when applied, and the cache doesn't have the object: Redis still
// has a version.
func TestFetchIsOvertaken(t *testing.T) {
	f := start(t, verdicts{})
	client := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	put := func(version uint64) {
		_, err := f.publish.Put(t.Context(), publish.Object{Key: "/a", Body: []byte("body"),
			ContentType: "text/plain", Version: version})
		require.NoError(t, err)
	}
	for name, tt := range map[string]struct {
		budget int64
		during func(*objectcache.Cache)
		want   uint64
	}{
		"by a version that the cache has no room for": {1, func(m *objectcache.Cache) {
			put(3)
			m.Apply(contract.Object{Key: "/a", Version: 3})
		}, 3},
		"by a full resync": {1 << 20, func(m *objectcache.Cache) { m.Shard(0).BeginResync() }, 2},
		"by a deletion": {1 << 20, func(m *objectcache.Cache) {
			m.Apply(contract.Object{Key: "/a", Version: 3, Deleted: true, PublishedMS: time.Now().UnixMilli()})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f.redis.FlushAll()
			put(2)
			o, found, err := fetchOvertaken(t, client, tt.budget, 1, tt.during)
			if err != nil || found != (tt.want > 0) || o.Version != tt.want {
				t.Errorf("got version %d, %v, %v; want %d", o.Version, found, err, tt.want)
			}
		})
	}
}

// TestFetchIsOvertakenAgain: a removal overtakes each read, so the existence of the object is unknown. Removals of
// other keys overtake nothing.
func TestFetchIsOvertakenAgain(t *testing.T) {
	f := start(t, verdicts{})
	client := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	putText(t, &f, "/a")
	fetch := func(removed string) (bool, error) {
		_, found, err := fetchOvertaken(t, client, 1<<20, 2, func(m *objectcache.Cache) { m.Remove(removed) })
		return found, err
	}
	if found, err := fetch("/a"); found || err == nil {
		t.Errorf("got %v, %v; want an error", found, err)
	}
	others := 0 // one in a thousand of these is in the same stripe
	for _, key := range []string{"/b", "/c", "/d"} {
		if found, err := fetch(key); found && err == nil {
			others++
		}
	}
	if others < 2 {
		t.Errorf("got the object %d times of 3, want it in spite of what else was removed", others)
	}
}

// TestReadsLeaveRoom: Redis hangs, and the followers still get connections to it.
func TestReadsLeaveRoom(t *testing.T) {
	f := start(t, verdicts{})
	var reading, most atomic.Int64
	release := make(chan struct{})
	client := redis.NewClient(&redis.Options{Addr: f.redis.Addr()})
	t.Cleanup(func() { client.Close() })
	client.AddHook(hanging(func() {
		now := reading.Add(1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		<-release
		reading.Add(-1)
	}))
	shared, err := api.NewRedis(f.cache, client, 16, contract.Keyspace{}, new(applied).get, synced, metrics.New())
	require.NoError(t, err)
	fetcher := shared.AddEdge()
	var fetches sync.WaitGroup
	var asked atomic.Int64
	for i := range 50 {
		fetches.Go(func() {
			asked.Add(1)
			if _, _, err := fetcher.Fetch(t.Context(), fmt.Sprint("/", i)); err != nil {
				t.Error(err)
			}
		})
	}
	for end := time.Now().Add(10 * time.Second); asked.Load() < 50 || reading.Load() < 8; {
		if time.Now().After(end) {
			t.Fatalf("%d fetches are asked for and %d read, want 50 and 8", asked.Load(), reading.Load())
		}
		<-time.After(time.Millisecond)
	}
	close(release)
	fetches.Wait()
	if got := most.Load(); got != 8 {
		t.Errorf("got %d reads at a time, want 8", got)
	}
}

// hanging runs before each command.
type hanging func()

func (h hanging) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hanging) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h()
		return next(ctx, cmd)
	}
}

func (h hanging) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestSocket(t *testing.T) {
	f := start(t, verdicts{})
	info, err := os.Stat(f.socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if _, err := api.Listen(f.socket, false); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second listener: %v, want that another process listens", err)
	}
	if err := f.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}

	stale := filepath.Join(t.TempDir(), "stale.sock")
	l, err := net.Listen("unix", stale)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if l, err = api.Listen(stale, false); err != nil {
		t.Fatalf("a stale socket file: %v", err)
	}
	l.Close()

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o644))
	if _, err := api.Listen(file, false); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Error("the file is gone")
	}
	if _, err := api.Listen("/tmp/"+strings.Repeat("x", 200), false); err == nil ||
		!strings.Contains(err.Error(), "at most 103") {
		t.Errorf("a long path: %v", err)
	}
}

func TestHits(t *testing.T) {
	f := start(t, verdicts{})
	report := wire.AppendHit(wire.AppendHit(wire.BeginHits(nil), "/a"), "/b")
	if status, _ := f.post(t, "/v1/hits", report); status != http.StatusOK {
		t.Errorf("status %d, want 200", status)
	}
	if got := <-f.used; len(got) != 2 || got[0] != "/a" || got[1] != "/b" {
		t.Errorf("used %q, want /a and /b", got)
	}
	for name, tt := range map[string]struct {
		body []byte
		want int
	}{
		"truncated": {report[:len(report)-1], http.StatusBadRequest},
		"empty":     {nil, http.StatusBadRequest},
		"too large": {make([]byte, 65<<10), http.StatusRequestEntityTooLarge},
	} {
		if status, _ := f.post(t, "/v1/hits", tt.body); status != tt.want {
			t.Errorf("%s: status %d, want %d", name, status, tt.want)
		}
	}
}

// TestReadsOfEdges: Redis is slow, and edge A has many reads to make. Of these, only those that are running delay a
// read for edge B, even of a key that A waits for.
func TestReadsOfEdges(t *testing.T) {
	f := start(t, verdicts{})
	release := make(chan struct{})
	var reading atomic.Int64
	client := redis.NewClient(&redis.Options{Addr: f.redis.Addr()})
	t.Cleanup(func() { client.Close() })
	client.AddHook(hanging(func() {
		reading.Add(1)
		<-release
	}))
	shared, err := api.NewRedis(f.cache, client, 16, contract.Keyspace{}, new(applied).get, synced, metrics.New())
	require.NoError(t, err)
	a, b := shared.AddEdge(), shared.AddEdge()
	const flood = 1000
	var asked atomic.Int64
	var fetches sync.WaitGroup
	for i := range flood {
		fetches.Go(func() {
			asked.Add(1)
			_, _, _ = a.Fetch(t.Context(), fmt.Sprint("/", i))
		})
	}
	for end := time.Now().Add(10 * time.Second); asked.Load() < flood || reading.Load() < 8; {
		if time.Now().After(end) {
			t.Fatalf("%d fetches are asked for and %d read, want %d and 8", asked.Load(), reading.Load(), flood)
		}
		<-time.After(time.Millisecond)
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := b.Fetch(t.Context(), "/last")
		done <- err
	}()
	released := 0
	for waits := true; waits; {
		select {
		case release <- struct{}{}:
			released++
		case err := <-done:
			require.NoError(t, err)
			waits = false
		}
	}
	if released > flood/4 {
		t.Errorf("B's read waited for %d reads of A", released)
	}
	close(release)
	fetches.Wait()
}

// TestReady: the answer to a proxy's probe is that of the edge, and without an edge of its own there is none.
func TestReady(t *testing.T) {
	var problem error
	server := api.New("", verdicts{}, newest(true), make(used), known{}, nil, metrics.New(), noop.Tracer{}, discard)
	ask := func() (int, string) {
		answer := httptest.NewRecorder()
		server.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody))
		return answer.Code, answer.Body.String()
	}
	if code, _ := ask(); code != http.StatusNotFound {
		t.Errorf("without an edge: got %d, want 404", code)
	}
	server.ServeReady(func() error { return problem })
	for _, tt := range []struct {
		problem error
		code    int
		text    string
	}{{nil, http.StatusOK, "ok\n"}, {errors.New("redis was not read yet"), http.StatusServiceUnavailable,
		"redis was not read yet\n"}} {
		problem = tt.problem
		if code, text := ask(); code != tt.code || text != tt.text {
			t.Errorf("%v: got %d %q, want %d %q", tt.problem, code, text, tt.code, tt.text)
		}
	}
}
