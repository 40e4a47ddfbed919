package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/e2e/chaos"
	"github.com/gatehouse/gatehouse/testbed/http2conn"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// injectFaults breaks things until ctx ends, and heals them.
func (r *run) injectFaults(ctx context.Context, draw *rand.Rand) {
	kinds := []struct {
		name string
		do   func(context.Context, *rand.Rand) error
	}{
		{"edge paused", r.pauseEdge}, {"edge paused", r.pauseEdge}, {"new configuration", r.changeConfig},
		{"sidecar paused", r.pauseSidecar}, {"sidecar killed", r.killSidecar}, {"edge trapped", r.trapWorkers},
	}
	for ctx.Err() == nil {
		k := kinds[draw.IntN(len(kinds))]
		r.seen.fault(k.name)
		if err := k.do(ctx, draw); err != nil && ctx.Err() == nil {
			r.t.Errorf("%s: %v", k.name, err)
			return
		}
		pause(ctx, time.Duration(300+draw.IntN(700))*time.Millisecond)
	}
}

// pauseEdge stops the edge, so that ends of streams and answers to these streams reach the edge together.
func (r *run) pauseEdge(ctx context.Context, draw *rand.Rand) error {
	err := r.SignalEdge(syscall.SIGSTOP)
	pause(ctx, time.Duration(20+draw.IntN(100))*time.Millisecond)
	return errors.Join(err, r.SignalEdge(syscall.SIGCONT))
}

// pauseSidecar stops the sidecar: requests wait, and some longer than the edge's timeouts.
func (r *run) pauseSidecar(ctx context.Context, draw *rand.Rand) error {
	defer r.excuse.begin()(time.Second)
	err := r.SignalSidecar(syscall.SIGSTOP)
	pause(ctx, time.Duration(200+draw.IntN(1500))*time.Millisecond)
	return errors.Join(err, r.SignalSidecar(syscall.SIGCONT))
}

// killSidecar ends the sidecar. The next one begins an epoch.
func (r *run) killSidecar(ctx context.Context, draw *rand.Rand) error {
	defer r.excuse.begin()(time.Second)
	err := r.KillSidecar()
	pause(ctx, time.Duration(draw.IntN(500))*time.Millisecond)
	return errors.Join(err, r.StartSidecar(r.whole))
}

// trapWorkers makes the VMs of some workers trap.
func (r *run) trapWorkers(_ context.Context, _ *rand.Rand) error {
	if r.EdgeKind() == stack.NginxEdge {
		return nil // its code can't trap
	}
	defer r.excuse.begin()(4 * time.Second) // the next VM begins after a backoff
	chaos.TrapModule(&http.Client{Timeout: time.Second}, r.EdgeURL()+"/who/trap")
	return nil
}

// changeConfig gives the edge a new configuration.
func (r *run) changeConfig(_ context.Context, draw *rand.Rand) error {
	if r.lds == nil {
		return r.SignalEdge(syscall.SIGHUP)
	}
	return r.lds.writeRules(draw.IntN(1000))
}

// discovered is the listener that Envoy's edge discovers from a file.
type discovered struct {
	file, library string
	static        struct {
		Listeners []map[string]any `yaml:"listeners"`
	}
}

// manager is the path of the settings of the edge's connections.
var manager = []string{"static_resources", "listeners", "edge", "filter_chains", "0", "filters", "0", "typed_config"}

// moveListener moves the listener from a configuration to the file. Streams end soon, and connections are drained.
func (d *discovered) moveListener(c *stack.Config) error {
	set := func(value any, path ...string) error {
		return c.Set(value, append(manager[:len(manager):len(manager)], path...)...)
	}
	err := errors.Join(set("1s", "stream_idle_timeout"), set("2s", "request_timeout"), set("2s", "stream_flush_timeout"),
		set("1s", "drain_timeout"), set("3s", "common_http_protocol_options", "max_connection_duration"),
		set(200, "common_http_protocol_options", "max_requests_per_connection"))
	if err != nil {
		return err
	}
	static, err := c.Find("static_resources")
	if err == nil {
		err = static.Decode(&d.static)
	}
	if err == nil {
		err = d.writeRules(0)
	}
	return errors.Join(err,
		c.Set(d.static.Listeners[1:], "static_resources", "listeners"),
		c.Set(map[string]any{"id": "edge", "cluster": "edge"}, "node"),
		c.Set(map[string]any{"lds_config": map[string]any{"path_config_source": map[string]any{"path": d.file}}},
			"dynamic_resources"))
}

// writeRules writes the file with the rules of a version.
func (d *discovered) writeRules(version int) error {
	raw, err := yaml.Marshal(map[string]any{"static_resources": map[string]any{"listeners": d.static.Listeners[:1]}})
	if err != nil {
		return err
	}
	next := d.file + ".next"
	if err := os.WriteFile(next, raw, 0o600); err != nil {
		return err
	}
	c, err := stack.LoadConfig(next)
	if err != nil {
		return err
	}
	configuration := map[string]any{"@type": "type.googleapis.com/google.protobuf.StringValue", "value": rules(version)}
	err = c.Set(configuration, append(manager[:len(manager):len(manager)], "http_filters", "gatehouse",
		"typed_config", "config", "vm_config", "configuration")...)
	if os.Getenv("BINDING") == "plugins" {
		c.MoveRules()
	}
	if os.Getenv("EDGE_KIND") == string(stack.NativeEdge) {
		err = errors.Join(err, c.MakeNative(d.library))
	}
	var listener map[string]any
	node, findErr := c.Find("static_resources", "listeners", "0")
	if err = errors.Join(err, findErr); err == nil {
		err = node.Decode(&listener)
	}
	if err != nil {
		return err
	}
	listener["@type"] = "type.googleapis.com/envoy.config.listener.v3.Listener"
	text, err := yaml.Marshal(map[string]any{"resources": []any{listener}})
	return errors.Join(err, os.WriteFile(next, text, 0o600), os.Rename(next, d.file)) // Envoy watches for this
}

// withHTTP2 has the edge listen for HTTP/2. This version of nginx needs separate ports for HTTP/2.
func withHTTP2(config, address string) string {
	first, rest, _ := strings.Cut(config, " reuseport;")
	return first + " reuseport;\n    listen " + address + " http2 reuseport;" + rest
}

// freePlaces checks that requests can wait in all places of a worker, once the load's last requests have answers.
func (r *run) freePlaces() {
	require.NoError(r.t, r.AwaitReady(r.t.Context()))
	refused := 0
	begin := time.Now()
	for attempt := 0; time.Since(begin) < patience; attempt++ {
		if refused = r.fillPlaces(attempt); refused == 0 {
			return
		}
	}
	r.t.Errorf("%d requests found no place: see %s", refused, r.Dir())
}

// fillPlaces has as many requests wait as a worker has places, and returns how many found none.
func (r *run) fillPlaces(attempt int) (refused int) {
	const fetches, verifications, shared, streams = 250, 3500, 4000, 100 // of 256, 4096 in all, and 8192 that wait
	sum := func(name string, labels ...string) int {
		n, err := r.EdgeMetric(r.t.Context(), name, labels...)
		require.NoError(r.t, err)
		return n
	}
	var all []*request
	for i := range fetches {
		all = append(all, &request{method: "GET", path: fmt.Sprintf("/fetched/place-%d-%d", attempt, i)})
	}
	for i := range verifications {
		all = append(all, &request{method: "GET", path: "/who/place", device: unused[i%len(unused)],
			secret: fmt.Sprintf("place-%d-%d", attempt, i)})
	}
	for range shared {
		all = append(all, &request{method: "GET", path: "/who/place", device: unused[0],
			secret: fmt.Sprint("place-", attempt)})
	}
	asked := func() int {
		return sum("gatehouse_calls_total", `call="fetch"`) + sum("gatehouse_calls_total", `call="verify"`)
	}
	before, failed := asked(), sum("gatehouse_calls_failed_total")
	require.NoError(r.t, r.SignalSidecar(syscall.SIGSTOP))
	draw := rand.New(rand.NewPCG(r.seed, clients+2))
	var c *http2conn.Conn
	for i, q := range all {
		stream := uint32(1 + 2*(i%streams))
		if stream == 1 {
			conn := r.dial(r.http2, draw)
			if conn == nil {
				r.t.Fatal("the edge doesn't accept connections")
			}
			defer func() { _ = conn.Close() }()
			var err error
			if c, err = http2conn.NewConn(conn, patience); err != nil {
				r.t.Fatal(err)
			}
		}
		fields := append([][2]string{{":method", q.method}, {":scheme", "http"}, {":path", q.path},
			{":authority", "edge"}}, q.headers()...)
		require.NoError(r.t, c.SendHeaders(stream, true, fields...))
	}
	// Before the calls fail, because the sidecar stands still.
	for end := time.Now().Add(3 * time.Second); asked() < before+len(all) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	silent, without := before+len(all)-asked(), sum("gatehouse_calls_failed_total")-failed
	r.t.Logf("places, attempt %d: %d requests haven't asked, %d found none", attempt, silent, without)
	refused = max(0, silent) + without // silent is negative if one of the load was counted late
	require.NoError(r.t, r.SignalSidecar(syscall.SIGCONT))
	client := &http.Client{Timeout: patience}
	q := &request{method: "GET", path: "/who/last", device: "canary", secret: "the right one", right: true, id: "last"}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		status, body, err := q.send(client, r.EdgeURL())
		if err == nil && status == 200 {
			if err := q.judge(status, body); err != nil {
				r.t.Error(err)
			}
			return refused
		}
		if time.Now().After(end) {
			r.t.Fatalf("at the end: got %d %q, %v", status, body, err)
		}
	}
}
