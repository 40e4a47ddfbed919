package push_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
	"github.com/gatehouse/gatehouse/sidecar/internal/push"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// proxy is a push listener over a memory.
type proxy struct {
	*edgememtest.Memory
	socket string
	// fault, if set, may answer instead of the memory, before or after calling apply.
	fault  func(w http.ResponseWriter, apply func() (int, []byte)) (answered bool)
	server *http.Server
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	p := &proxy{Memory: edgememtest.NewMemory(), socket: filepath.Join(t.TempDir(), "push.sock")}
	p.start(t)
	t.Cleanup(func() { p.server.Close() })
	return p
}

func (p *proxy) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", p.socket)
	require.NoError(t, err)
	p.server = &http.Server{Handler: p, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	go p.server.Serve(l)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/apply" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	apply := func() (int, []byte) { return p.Apply(body) }
	if p.fault != nil && p.fault(w, apply) {
		return
	}
	status, answer := apply()
	w.WriteHeader(status)
	w.Write(answer)
}

type sidecar struct {
	*edgemem.Memory
	edge *edgemem.Edge
	*push.Pusher
	metrics *metrics.Metrics
	log     *logbuffer.Buffer
	stop    func()
}

func start(t *testing.T, socket string) *sidecar {
	t.Helper()
	s := &sidecar{Memory: edgemem.New(edgemem.Config{Objects: 100, Verdicts: 100}), metrics: metrics.New(),
		log: new(logbuffer.Buffer)}
	synced := make(chan struct{})
	close(synced)
	s.edge = s.AddEdge()
	s.Pusher = push.New(s.edge, socket, synced, s.metrics, noop.Tracer{}, slog.New(slog.NewTextHandler(s.log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Pusher.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	s.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(s.stop)
	return s
}

func object(key string, version uint64) contract.Object {
	return contract.Object{
		Key: key, Version: version, ETag: `"x"`, ContentType: "text/plain",
		Bodies: []contract.Body{{Bytes: fmt.Appendf(nil, "%s %d", key, version)}},
	}
}

func (p *proxy) version(key string) uint64 {
	f, err := p.Object(key)
	if err != nil {
		return 0
	}
	return f.Version
}

func TestPush(t *testing.T) {
	p := newProxy(t)
	s := start(t, p.socket)
	await.Until(t, "ready", func() bool { return s.Ready() == nil })
	s.PutObject(new(object("/a", 1)))
	await.Until(t, "version 1", func() bool { return p.version("/a") == 1 })
	first, _ := p.State()
	await.Until(t, "a heartbeat", func() bool { state, _ := p.State(); return state.HeartbeatMS > first.HeartbeatMS })
	s.DeleteObject("/a")
	await.Until(t, "the deletion", func() bool { return p.version("/a") == 0 })
	if got, _ := p.State(); got.Epoch != first.Epoch || got.Epoch != s.edge.Epoch() {
		t.Errorf("epoch %x, then %x, the memory's is %x", first.Epoch, got.Epoch, s.edge.Epoch())
	}
	if got := metricstest.Value(t, s.metrics, "gatehouse_epochs_total"); got != 1 {
		t.Errorf("%v epochs, want 1", got)
	}
}

// TestClosedConnection makes the edge close the connection without an answer, before or after applying the batch: the
// memory keeps its epoch and its content.
func TestClosedConnection(t *testing.T) {
	p := newProxy(t)
	var close atomic.Int32 // 1: before applying, 2: after
	var closed atomic.Bool
	p.fault = func(_ http.ResponseWriter, apply func() (int, []byte)) bool {
		if closed.Swap(false) {
			return false // it is the same batch again
		}
		how := close.Swap(0)
		closed.Store(how != 0)
		switch how {
		case 0:
			return false
		case 2:
			apply()
		}
		panic(http.ErrAbortHandler)
	}
	s := start(t, p.socket)
	await.Until(t, "ready", func() bool { return s.Ready() == nil })
	for version := range uint64(10) {
		close.Store(int32(version%2 + 1))
		s.PutObject(new(object("/a", version+1)))
		await.Until(t, "the version", func() bool { return p.version("/a") == version+1 })
	}
	if got := metricstest.Value(t, s.metrics, "gatehouse_epochs_total"); got != 1 {
		t.Errorf("%v epochs, want 1:\n%s", got, s.log)
	}
}

// TestPushAll pushes everything in a new epoch, and returns when the edge has it.
func TestPushAll(t *testing.T) {
	p := newProxy(t)
	s := start(t, p.socket)
	s.PutObject(new(object("/a", 1)))
	await.Until(t, "the object", func() bool { return p.version("/a") == 1 })
	before, _ := p.State()
	require.NoError(t, s.PushAll(t.Context()))
	after, _ := p.State()
	if after.Epoch == before.Epoch || p.version("/a") != 1 || s.Ready() != nil {
		t.Errorf("epoch %x, then %x, version %d, ready: %v", before.Epoch, after.Epoch, p.version("/a"), s.Ready())
	}
	if n := metricstest.Value(t, s.metrics, "gatehouse_epochs_total", "reason", "demand"); n != 1 {
		t.Errorf("%v epochs on demand, want 1", n)
	}
	s.stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.PushAll(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("without a pusher: got %v", err)
	}
}

func TestWaitsForTheFirstSync(t *testing.T) {
	p := newProxy(t)
	before := start(t, p.socket)
	before.PutObject(new(object("/a", 1)))
	await.Until(t, "version 1", func() bool { return p.version("/a") == 1 })

	im, synced := edgemem.New(edgemem.Config{}), make(chan struct{})
	after := push.New(im.AddEdge(), p.socket, synced, metrics.New(), noop.Tracer{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { after.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	if err := after.Ready(); err == nil || !strings.Contains(err.Error(), "redis") {
		t.Errorf("Ready = %v, want that redis was not read", err)
	}
	for range 3 { // heartbeats of the other sidecar
		state, _ := p.State()
		await.Until(t, "a heartbeat", func() bool { now, _ := p.State(); return now.HeartbeatMS > state.HeartbeatMS })
	}
	if state, _ := p.State(); state.Epoch != before.edge.Epoch() || p.version("/a") != 1 {
		t.Error("a sidecar that knows nothing took over")
	}
	before.stop()
	close(synced)
	await.Until(t, "the takeover", func() bool { return after.Ready() == nil && p.version("/a") == 0 })
}

func TestEdgeRestart(t *testing.T) {
	p := newProxy(t)
	s := start(t, p.socket)
	s.PutObject(new(object("/a", 1)))
	await.Until(t, "version 1", func() bool { return s.Ready() == nil && p.version("/a") == 1 })
	p.server.Close()
	p.Forget()
	await.Until(t, "not ready", func() bool { return s.Ready() != nil })
	s.PutObject(new(object("/a", 2)))
	s.PutObject(new(object("/b", 1)))
	p.start(t)
	await.Until(t, "everything again", func() bool {
		return s.Ready() == nil && p.version("/a") == 2 && p.version("/b") == 1
	})
	// A running push fails differently from pushes without a socket, and each reason is logged once.
	refused := strings.Count(s.log.String(), "connect: ")
	if got := strings.Count(s.log.String(), "level=WARN"); got < 1 || got > 2 || refused > 1 {
		t.Errorf("%d warnings, want 1 for one change of state, and 1 for a push that it ended:\n%s", got, s.log.String())
	}
	// The memory is empty although the connection was never lost.
	p.Forget()
	await.Until(t, "everything again", func() bool { return p.version("/a") == 2 && p.version("/b") == 1 })
	if got := metricstest.Value(t, s.metrics, "gatehouse_epochs_total", "reason", "empty"); got != 1 {
		t.Errorf("%v epochs because the memory was empty, want 1", got)
	}
}

func TestRival(t *testing.T) {
	p := newProxy(t)
	first := start(t, p.socket)
	first.PutObject(new(object("/first", 1)))
	await.Until(t, "the first one's object", func() bool { return p.version("/first") == 1 })
	second := start(t, p.socket)
	second.PutObject(new(object("/second", 1)))
	await.Until(t, "the second to take over", func() bool { return p.version("/second") == 1 && p.version("/first") == 0 })
	await.Until(t, "the first to notice", func() bool {
		err := first.Ready()
		return err != nil && strings.Contains(err.Error(), "another sidecar") &&
			strings.Contains(first.log.String(), "level=ERROR")
	})
	if second.Ready() != nil {
		t.Errorf("the second is not ready: %v", second.Ready())
	}
	epochs := func(s *sidecar) string { return fmt.Sprintf("%016x", s.edge.Epoch()) }
	if strings.Count(first.log.String(), "level=ERROR") != 1 || strings.Count(first.log.String(), epochs(first)) == 0 ||
		strings.Count(first.log.String(), epochs(second)) == 0 || strings.Count(first.log.String(), p.socket) == 0 {
		t.Errorf("want one error that names both epochs and the socket:\n%s", first.log.String())
	}
	pushed := metricstest.Value(t, first.metrics, "gatehouse_pushes_total", "result", "ok")
	state, _ := p.State()
	await.Until(t, "more heartbeats", func() bool { now, _ := p.State(); return now.HeartbeatMS > state.HeartbeatMS+1500 })
	if got := metricstest.Value(t, first.metrics, "gatehouse_pushes_total", "result", "ok"); got != pushed {
		t.Error("the first went on pushing")
	}
	seen := metricstest.Value(t, first.metrics, "gatehouse_pushes_total", "result", "rival")
	await.Until(t, "the rival to be counted for as long as it is there", func() bool {
		return seen > 0 && metricstest.Value(t, first.metrics, "gatehouse_pushes_total", "result", "rival") > seen
	})
	second.stop()
	await.Until(t, "the first to take over again", func() bool {
		return first.Ready() == nil && p.version("/first") == 1 && p.version("/second") == 0
	})
}

// TestTakesOverFromWhateverIsThere starts with memories that have no state, a blanked state, and a state of which only
// the epoch can be read.
func TestTakesOverFromWhateverIsThere(t *testing.T) {
	good := wire.AppendState(nil, &wire.State{Epoch: 7})
	for name, state := range map[string][]byte{"none": nil, "blanked": make([]byte, wire.MinRecord),
		"broken": good[:len(good)-1]} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			if name == "broken" { // this memory doesn't know that it is broken
				p.Apply(wire.AppendOp(wire.BeginBatch(nil, 7, 0), wire.RegionState, 0, func(dst []byte) []byte {
					return append(dst, good...)
				}))
			}
			var asked atomic.Bool
			p.fault = func(w http.ResponseWriter, _ func() (int, []byte)) bool {
				if asked.Swap(true) {
					return false
				}
				w.WriteHeader(http.StatusConflict)
				w.Write(state)
				return true
			}
			s := start(t, p.socket)
			s.PutObject(new(object("/a", 1)))
			await.Until(t, "the object", func() bool { return p.version("/a") == 1 })
			if got := metricstest.Value(t, s.metrics, "gatehouse_epochs_total"); got != 1 {
				t.Errorf("got %v takeovers, want one that succeeds", got)
			}
		})
	}
}

func TestRefusedBatchIsSaidWithItsReason(t *testing.T) {
	p := newProxy(t)
	p.fault = func(w http.ResponseWriter, _ func() (int, []byte)) bool {
		http.Error(w, "batch of layout version 1, want 2", http.StatusBadRequest)
		return true
	}
	s := start(t, p.socket)
	await.Until(t, "the reason", func() bool { return s.Ready() != nil && strings.Contains(s.Ready().Error(), "want 2") })
}
