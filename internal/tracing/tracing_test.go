package tracing_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/internal/tracing"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// collector is a receiver of OTLP that keeps the requests' bodies.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	bodies [][]byte
	status int
}

func newCollector(t *testing.T) *collector {
	c := &collector{status: http.StatusOK}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil && r.URL.Path == "/v1/traces" {
			c.bodies = append(c.bodies, body)
		}
		w.WriteHeader(c.status)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) set(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
}

func (c *collector) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.bodies, func(b []byte) bool { return bytes.Contains(b, []byte(text)) })
}

// clientTrace returns a context in the trace of a client, sampled or not.
func clientTrace(t *testing.T, sampled bool) context.Context {
	t.Helper()
	c := trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, Remote: true}
	if sampled {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(c))
}

// TestExport sends spans to a failing collector, and to a working one.
func TestExport(t *testing.T) {
	c, m := newCollector(t), metrics.New()
	var log logbuffer.Buffer
	tracer, stop, err := tracing.New(tracing.Config{Endpoint: c.URL, Version: "v7"}, m,
		slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	defer stop()
	span := func(name string) {
		_, s := tracer.Start(clientTrace(t, true), name)
		s.End()
	}
	count := func(result string) float64 { return metricstest.Value(t, m, "gatehouse_spans_total", "result", result) }
	span("first")
	await.Until(t, "the first span", func() bool { return c.has("first") && count("exported") == 1 })
	if !c.has("gatehouse-sidecar") || !c.has("v7") {
		t.Error("the name or version of the service is missing")
	}
	c.set(http.StatusBadRequest)
	span("second")
	await.Until(t, "a failed export", func() bool { return count("failed") == 1 })
	c.set(http.StatusOK)
	span("third")
	await.Until(t, "the third span", func() bool { return c.has("third") && count("exported") == 2 })
	await.Until(t, "its log", func() bool { return strings.Contains(log.String(), "exported again") }) // after the count
	if got := log.String(); strings.Count(got, "can't be exported") != 1 || strings.Count(got, "exported again") != 1 {
		t.Errorf("got the log %q, want one line for the failure and one for its end", got)
	}
}

// TestLastSpansAreExported stops right after a span has ended.
func TestLastSpansAreExported(t *testing.T) {
	c := newCollector(t)
	tracer, stop, err := tracing.New(tracing.Config{Endpoint: c.URL, Ratio: 1}, metrics.New(),
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	_, span := tracer.Start(t.Context(), "last")
	span.End()
	if stop(); !c.has("last") {
		t.Error("the last span was not exported")
	}
}

// TestOff makes no spans without an endpoint.
func TestOff(t *testing.T) {
	tracer, stop, err := tracing.New(tracing.Config{Ratio: 1}, metrics.New(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer stop()
	ctx, span := tracer.Start(clientTrace(t, true), "verify")
	if span.IsRecording() {
		t.Error("a span is recorded")
	}
	if _, child := tracing.StartChild(ctx, "bcrypt"); child.IsRecording() {
		t.Error("a child is recorded")
	}
}

// TestClientsCantTraceEverything floods with requests whose traceparent is sampled.
func TestClientsCantTraceEverything(t *testing.T) {
	recorded := func(tracer trace.Tracer, ctx context.Context) (n int) {
		for range 10_000 {
			_, span := tracer.Start(ctx, "verify")
			if span.IsRecording() {
				n++
			}
			span.End()
		}
		return n
	}
	for _, tt := range []struct {
		name        string
		ratio       float64
		ctx         context.Context
		least, most int
	}{
		{"clients that ask", 0, clientTrace(t, true), 100, 1000}, // 100 at once, and as many a second
		{"clients that ask for none", 1, clientTrace(t, false), 0, 0},
		{"ratio 0", 0, t.Context(), 0, 0},
		{"ratio 1 percent", .01, t.Context(), 20, 400},
		{"ratio 1", 1, t.Context(), 100, 1000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tracer, stop, err := tracing.New(tracing.Config{Endpoint: newCollector(t).URL, Ratio: tt.ratio},
				metrics.New(), slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			defer stop()
			if got := recorded(tracer, tt.ctx); got < tt.least || got > tt.most {
				t.Errorf("got %d of 10,000 traces, want %d to %d", got, tt.least, tt.most)
			}
			if tt.ratio > 0 || !trace.SpanContextFromContext(tt.ctx).IsSampled() {
				return
			}
			// A flood of clients doesn't use up what begins here.
			both, stopBoth, err := tracing.New(tracing.Config{Endpoint: newCollector(t).URL, Ratio: 1},
				metrics.New(), slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			defer stopBoth()
			recorded(both, tt.ctx)
			if got := recorded(both, t.Context()); got < 100 {
				t.Errorf("got %d traces that begin here after the flood, want 100", got)
			}
		})
	}
}

// silent returns the URL of a listener that accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return "http://" + l.Addr().String()
}

// TestSilentCollector ends more spans than fit while the collector doesn't answer: nothing waits for it, and each span
// is counted.
func TestSilentCollector(t *testing.T) {
	m := metrics.New()
	tracer, stop, err := tracing.New(tracing.Config{Endpoint: silent(t)}, m, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	const spans = 20_000
	ctx, parent := tracer.Start(clientTrace(t, true), "verify")
	late := await.Late(t)
	begin, slowest := time.Now(), time.Duration(0)
	for range spans {
		before := time.Now()
		_, span := tracing.StartChild(ctx, "bcrypt")
		span.End()
		slowest = max(slowest, time.Since(before))
	}
	t.Logf("%d spans in %v, the slowest took %v", spans, time.Since(begin), slowest)
	if slowest > time.Second+late() { // an export waits 5 s
		t.Errorf("a span took %v", slowest)
	}
	// At most the queue and the batch that is being sent wait.
	if dropped := metricstest.Value(t, m, "gatehouse_spans_total", "result", "dropped"); dropped < spans-2048-512 ||
		dropped > spans {
		t.Errorf("got %v dropped spans, want almost all of %d", dropped, spans)
	}
	parent.End()
	begin = time.Now()
	if stop(); time.Since(begin) > 4*time.Second+late() {
		t.Errorf("stopping took %v, want at most 2 s", time.Since(begin))
	}
}

// recording returns a context within a recorded span, and the spans that have ended.
func recording(t *testing.T) (context.Context, *tracetest.SpanRecorder) {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	ctx, span := sdk.NewTracerProvider(sdk.WithSpanProcessor(r)).Tracer("").Start(t.Context(), "parent")
	t.Cleanup(func() { span.End() })
	return ctx, r
}

// TestRedis makes spans of commands without arguments, even if Redis repeats an argument in an error.
func TestRedis(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, DisableIdentity: true})
	defer client.Close()
	client.AddHook(tracing.RedisHook())
	ctx, recorder := recording(t)
	client.Set(t.Context(), "untraced", "hunter2", 0)
	client.Set(ctx, "name-hunter2", "hunter2", 0)
	client.Get(ctx, "hunter2-absent")
	_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Get(ctx, "name-hunter2")
		p.HGet(ctx, "name-hunter2", "hunter2")
		return nil
	})
	client.Do(ctx, "NOSUCH", "hunter2")
	server.SetError("LOADING hunter2")
	client.Get(ctx, "name-hunter2")
	var got []string
	for _, span := range recorder.Ended() {
		got = append(got, span.Name()+" "+span.Status().Description)
		if text := fmt.Sprintf("%+v", span); strings.Contains(fmt.Sprint(span.Attributes(), span.Status(),
			span.Events(), span.Name()), "hunter2") {
			t.Errorf("a span contains an argument: %s", text)
		}
	}
	// A pipeline has a connection of its own, whose first command is HELLO.
	if want := []string{"redis SET ", "redis GET ", "redis HELLO ", "redis PIPELINE WRONGTYPE",
		"redis NOSUCH ERR", "redis GET LOADING"}; !slices.Equal(got, want) {
		t.Errorf("got the spans %q, want %q", got, want)
	}
}

// TestObserve adds an exemplar in a sampled span only.
func TestObserve(t *testing.T) {
	m := metrics.New()
	ctx, _ := recording(t)
	span := trace.SpanFromContext(ctx)
	span.End() // as a span whose time is observed
	tracing.Observe(m.BcryptSeconds, .3, span)
	tracing.Observe(m.PushSeconds, .3, trace.SpanFromContext(t.Context()))
	id := span.SpanContext().TraceID().String()
	if got := exemplars(t, m.Registry, "gatehouse_bcrypt_seconds"); !slices.Equal(got, []string{id}) {
		t.Errorf("got the exemplars %q, want %q", got, id)
	}
	if got := exemplars(t, m.Registry, "gatehouse_push_seconds"); got != nil {
		t.Errorf("got the exemplars %q without a trace", got)
	}
}

// exemplars returns the trace ids of a histogram's exemplars.
func exemplars(t *testing.T, r *prometheus.Registry, name string) (ids []string) {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, bucket := range family.GetMetric()[0].GetHistogram().GetBucket() {
			for _, label := range bucket.GetExemplar().GetLabel() {
				if label.GetName() == "trace_id" {
					ids = append(ids, label.GetValue())
				}
			}
		}
	}
	return ids
}
