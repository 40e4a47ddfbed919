package inspect

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
)

// TestUnknownDevice: texts distinguish unknown, revoked, deleted and otherwise refused devices.
func TestUnknownDevice(t *testing.T) {
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct{ reason, refusal, want string }{
		{"gatehouse_denied_unknown_device", "unknown", "No such device is registered."},
		{"gatehouse_denied_unknown_device", "revoked", "The device was revoked at 2026-11-26T12:00:00Z."},
		{"gatehouse_denied_unknown_device", "disabled", "The device was disabled at 2026-11-26T12:00:00Z."},
		{"gatehouse_denied_unknown_device", "deleted", "The device was deleted at 2026-11-26T12:00:00Z."},
		{"gatehouse_denied_unknown_device", "expired", "The device's access ended at 2026-11-26T13:00:00Z."},
		{"gatehouse_denied_unknown_device", "refused_record", "The device's record is malformed or can't be used."},
		{"gatehouse_denied_credential", "expired", "The device's access ended at 2026-11-26T13:00:00Z."},
		{"gatehouse_denied_credential", "", replies["gatehouse_denied_credential"]},
		{"gatehouse_denied_no_credential", "revoked", replies["gatehouse_denied_no_credential"]},
	} {
		a := operatorapi.Answer{Reason: tt.reason, Text: replies[tt.reason]}
		refineRefusal(&a, &operatorapi.Device{Redis: operatorapi.Version{PublishedMS: at.UnixMilli()},
			Sidecar: operatorapi.DeviceAtSidecar{Refusal: tt.refusal, Expires: at.Add(time.Hour)}})
		if a.Text != tt.want {
			t.Errorf("%s, %s: got %q, want %q", tt.reason, tt.refusal, a.Text, tt.want)
		}
	}
}

func TestTargetOf(t *testing.T) {
	for _, tt := range []struct{ url, host, want string }{
		{"/a%2fb?x=1", "", "/a%2fb?x=1"}, {"http://Host:8080/a?x=1", "Host:8080", "/a?x=1"}, {"https://host", "host", "/"},
		{"host/a", "", ""}, {"", "", ""}, {"http://[", "", ""},
	} {
		host, got, err := splitURL(tt.url)
		if host != tt.host || got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%q: got %q, %q, %v, want %q, %q", tt.url, host, got, err, tt.host, tt.want)
		}
	}
}

// TestCounts: the most frequent names are found, memory is bounded, and old counts fade.
func TestCounts(t *testing.T) {
	var c counts
	for n := range 10 * maxCounted {
		c.increment("often")
		c.increment(fmt.Sprint("once ", n))
	}
	if len(c.byName) > maxCounted {
		t.Errorf("%d names are counted, want at most %d", len(c.byName), maxCounted)
	}
	top := c.mostFrequent(2)
	if len(top) != 2 || top[0] != (operatorapi.Count{Name: "often", Count: 10 * maxCounted}) || top[1].Count != 1 {
		t.Errorf("got %v", top)
	}
	c.halved = c.halved.Add(-halfLife)
	if top := c.mostFrequent(10); len(top) != 1 || top[0].Count != 5*maxCounted {
		t.Errorf("a half-life later: got %v, want one name with half of its count", top)
	}
	c.halved = c.halved.Add(-time.Hour)
	if top := c.mostFrequent(10); len(top) != 0 {
		t.Errorf("an hour later: got %v", top)
	}
}

func TestGrowth(t *testing.T) {
	before := map[string]float64{`a{x="1"}`: 10, "b": 5}
	after := map[string]float64{`a{x="1"}`: 20, `a{x="2"}`: 4, "b": 1, "ab": 9}
	rates := growthRates(before, after, 2)
	for name, want := range map[string]float64{"a": 7, `a{x="1"}`: 5, "b": 0, "c": 0} {
		if got := sumSeries(rates, name); got != want {
			t.Errorf("%s: got %v/s, want %v", name, got, want)
		}
	}
	if rates := growthRates(nil, after, 2); len(rates) != 0 {
		t.Errorf("without a sample before: got %v", rates)
	}
}

// TestPlot: a gap in the samples is a gap in the line, and the newest sample is at the right.
func TestPlot(t *testing.T) {
	nan := math.NaN()
	var samples []sample
	for _, v := range []float64{1, 2, nan, 4} {
		samples = append(samples, sample{queue: v})
	}
	p := makePlot(samples, "queue", func(v float64) string {
		return fmt.Sprint(v)
	}, func(s *sample) float64 { return s.queue })
	if len(p.Points) != 2 || p.Last != "4" || p.High != "4" || p.Points[1] != fmt.Sprintf("%d,0.0 ", plotWidth) {
		t.Errorf("got %+v", p)
	}
	if p := makePlot(nil, "", func(float64) string { return "" }, nil); len(p.Points) != 0 || p.Last != "–" {
		t.Errorf("without a sample: got %+v", p)
	}
}

// TestCounters reads the counters of Envoy, or of nginx at its path, and nothing that is not ours.
func TestCounters(t *testing.T) {
	const text = "# TYPE gatehouse_x counter\ngatehouse_x{rule=\"a\"} 3\n# TYPE envoy_y counter\nenvoy_y 1\n# TYPE " +
		"gatehouse_z gauge\ngatehouse_z 1\n"
	for path, broken := range map[string]string{"/stats/prometheus": "", "/metrics": "", "/else": "", "/metrics ": "{"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != strings.TrimSpace(path) {
				http.NotFound(w, r)
				return
			}
			fmt.Fprint(w, broken+text)
		}))
		i := New(Parts{EdgeAdmin: strings.TrimPrefix(server.URL, "http://")})
		got := i.readEdgeCounters(t.Context())
		if want := path != "/else" && broken == ""; (len(got) == 1 && got[`gatehouse_x{rule="a"}`] == 3) != want {
			t.Errorf("%s: got %v", path, got)
		}
		server.Close()
	}
}

// TestRelease refuses anything but a single network, and everything without permission.
func TestRelease(t *testing.T) {
	for _, tt := range []struct {
		actions bool
		network string
		status  int
	}{{true, "10.0.0.0/8", 400}, {true, "2001:db8::/32", 400}, {true, "office", 400}, {true, "", 400},
		{false, "10.0.0.1", 403}} {
		handler := NewServer(New(Parts{}), tt.actions, new(slog.LevelVar), slog.New(slog.DiscardHandler)).Handler()
		for path, body := range map[string]string{"/v1/release": fmt.Sprintf(`{"network": %q}`, tt.network),
			"/release": "network=" + url.QueryEscape(tt.network)} {
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, r); w.Code != tt.status {
				t.Errorf("%s %+v: got %d", path, tt, w.Code)
			}
		}
	}
}

// TestResync: a resync reads, then pushes; meanwhile no second resync begins or waits. Without permission, none begins.
func TestResync(t *testing.T) {
	steps := make(chan string)
	step := func(name string) func(context.Context) error {
		return func(context.Context) error { steps <- name; return nil }
	}
	resync := NewResync(step("read"), step("push"), slog.New(slog.DiscardHandler))
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { _ = resync.Run(ctx) })
	defer running.Wait()
	defer cancel()
	post := func(actions bool, path string) int {
		handler := NewServer(New(Parts{Resync: resync}), actions, new(slog.LevelVar),
			slog.New(slog.DiscardHandler)).Handler()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		return w.Code
	}
	for path, status := range map[string]int{"/resync": 303, "/v1/resync": 200} {
		if got := post(false, path); got != 403 {
			t.Errorf("%s without permission: got %d", path, got)
		}
		if got := post(true, path); got != status {
			t.Errorf("%s: got %d, want %d", path, got, status)
		}
		for _, want := range []string{"read", "push"} {
			if got := post(true, path); got != 409 {
				t.Errorf("%s before %s has ended: got %d", path, want, got)
			}
			if got := <-steps; got != want {
				t.Errorf("got step %q, want %q", got, want)
			}
		}
		await.Until(t, "the end", func() bool { return !resync.running.Load() })
	}
	select {
	case step := <-steps:
		t.Errorf("another resync was queued: %s", step)
	default:
	}
}

func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		formatCount(0): "0", formatCount(999): "999", formatCount(1234567): "1 234 567", formatBytes(1023): "1023 B",
		formatBytes(1.5 * 1024 * 1024): "1.5 MiB",
		formatDuration(-time.Second):   "never", formatDuration(1500 * time.Millisecond): "1.5 s",
		formatDuration(90 * time.Second): "90 s",
		formatDuration(3 * time.Hour):    "3 h",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestReasonsOnce: a reason why Redis isn't followed is one problem, though it is also why the sidecar isn't ready.
func TestReasonsOnce(t *testing.T) {
	for _, tt := range []struct {
		name, failure string
		ready         []string
		empty         float64
		connected     bool
		want          []string // the ends of the texts
	}{
		{"empty", "redis is empty", []string{"redis: shard 0: redis is empty", "push: not read"}, 1, false,
			[]string{"Redis is empty or has lost keys (shards: 1), so the edge keeps what it has: redis is empty",
				"not ready: push: not read"}},
		{"empty, reason unknown", "", nil, 2, true, []string{"`gatehousectl accept-loss` to drop everything"}},
		{"away", "refused", []string{"redis: refused"}, 0, false, []string{"requests for objects go upstream: refused"}},
		{"other reasons", "refused", []string{"redis: shard 1: redis is empty"}, 0, false,
			[]string{"requests for objects go upstream: refused", "not ready: redis: shard 1: redis is empty"}},
		{"connected", "refused", []string{"redis: refused"}, 0, true, []string{"not ready: redis: refused"}},
	} {
		i := New(Parts{Ready: func() []string { return tt.ready }, Failure: func() string { return tt.failure },
			Degraded: func() []string { return nil }})
		s := &operatorapi.Status{InStep: true, Redis: operatorapi.RedisStatus{Connected: tt.connected}}
		s.Edge.AcknowledgedAge, s.Bcrypt.Queue, s.Objects.Budget = -1, 1, 1
		var got []string
		for _, p := range i.findProblems(s, map[string]float64{"gatehouse_redis_empty": tt.empty}, false) {
			got = append(got, p.Text)
		}
		if !slices.EqualFunc(got, tt.want, strings.HasSuffix) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestRecent: what grew in the last 15 minutes is a problem, the latest first; what grew before is none.
func TestRecent(t *testing.T) {
	totals := func(corrupt, trapped, refused, allowed float64) map[string]float64 {
		return map[string]float64{
			`gatehouse_corrupt_total{kind="event"}`: corrupt, traps: trapped, `gatehouse_chain_breaks_total{reason="format"}`: 9,
			unavailable + `"limited"}`: refused, verifications + `{outcome="allow",reason="pin"}`: allowed,
		}
	}
	begin := time.Now().Add(-15 * time.Minute)
	var samples []sample
	for n := range maxSamples { // a trap in the second minute, a bad record in the fifth
		s := sample{at: begin.Add(time.Duration(n) * sampleEvery), totals: totals(0, 0, 0, 0)}
		if n >= 24 {
			s.totals[traps] = 1
		}
		if n >= 60 {
			s.totals[`gatehouse_corrupt_total{kind="event"}`] = 1
		}
		samples = append(samples, s)
	}
	for _, tt := range []struct {
		name    string
		samples []sample
		now     map[string]float64
		want    []string // the begin of each text
	}{
		{"nothing", nil, totals(0, 0, 0, 0), nil},
		{"young", nil, totals(2, 0, 0, 0), []string{"2 records"}},
		{"in the last 15 minutes", samples, totals(1, 1, 0, 100), []string{"1 records", "the filter trapped or panicked"}},
		{"before", slices.Repeat(samples[maxSamples-1:], maxSamples), totals(1, 1, 0, 100), nil},
		{"just now", samples, totals(1, 2, 6, 94), []string{"the filter trapped or panicked, and 2 of its VMs were started",
			"6 verifications got a 503, most of them because of limited", "1 records"}},
		{"few", samples, totals(0, 0, 5, 95), nil},
	} {
		got := listIncidents(tt.samples, tt.now)
		ok := len(got) == len(tt.want)
		for n := range min(len(got), len(tt.want)) {
			ok = ok && strings.HasPrefix(got[n].Text, tt.want[n]) && got[n].Severity == warning
		}
		if !ok {
			t.Errorf("%s: got %+v, want %q", tt.name, got, tt.want)
		}
	}
}

// TestNotice counts traps and refused rules, and nothing when Envoy is new or away. TestFaults steps a clock.
func TestNotice(t *testing.T) {
	const reloads, panics = "envoy_wasm_gatehouse_vm_reload_success", "gatehouse_panics_total"
	const refused = "envoy_extension_config_discovery_http_filter_gatehouse_update_rejected"
	now := time.Now()
	for _, tt := range []struct {
		name       string
		before, at time.Time
		was, is    map[string]float64
		traps      float64
		refusals   float64
	}{
		{"first", time.Time{}, now, nil, map[string]float64{reloads: 3}, 0, 0},
		{"refusal", now, now.Add(time.Minute), map[string]float64{refused: 1}, map[string]float64{refused: 2}, 0, 1},
		{"trap", now, now.Add(time.Minute), map[string]float64{reloads: 3},
			map[string]float64{reloads: 5, heapPressure: 7}, 2, 0},
		{"panic", now, now.Add(time.Minute), map[string]float64{panics: 1}, map[string]float64{panics: 2}, 1, 0},
		{"new Envoy", now, now.Add(time.Second), map[string]float64{reloads: 3}, map[string]float64{reloads: 1}, 0, 0},
		{"no Envoy", now, now.Add(time.Second), map[string]float64{reloads: 3}, nil, 0, 0},
	} {
		h := past{at: tt.before, edge: tt.was}
		h.countIncidents(tt.at, tt.is)
		if h.clockSteps != 0 || h.traps != tt.traps || h.refusals != tt.refusals {
			t.Errorf("%s: got %v steps, %v traps, %v refusals", tt.name, h.clockSteps, h.traps, h.refusals)
		}
		if _, kept := tt.is[heapPressure]; kept {
			t.Errorf("%s: the heap's gauge is among the counters", tt.name)
		}
	}
}
