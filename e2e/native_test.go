package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// startDrilled returns an edge whose module panics where a request asks for a panic.
func startDrilled(t *testing.T) *edge {
	t.Helper()
	if !onNative() {
		t.Skip("with a dynamic module only: EDGE_KIND=native")
	}
	library := filepath.Join(t.TempDir(), "libgatehouse.so")
	if out, err := exec.CommandContext(t.Context(), "../scripts/drill-build.sh", library).CombinedOutput(); err != nil {
		t.Fatalf("drill-build.sh: %v: %s", err, out)
	}
	return start(t, stack.Options{LibraryPath: library, Concurrency: 1})
}

// TestPanics has the module panic in each callback and goroutine: Envoy survives, the panicking request is refused and
// never accepted, and everything goes on afterwards. With one worker, each panic takes the VM of all requests.
func TestPanics(t *testing.T) {
	t.Parallel()
	e := startDrilled(t)
	e.put("/v1/products/42", "body")
	e.awaitAnswer("the object is at the edge", hasBody("body"), "GET /v1/products/42")
	pid, panics, devices := e.EdgePID(), 0, 0

	arm := func(place string) { e.send("GET /arm", "x-drill: "+place) }
	counted := func(place string) {
		t.Helper()
		panics++
		await(t, "the panic in "+place+" is counted", patience, func() error {
			if got := e.edgeMetric("gatehouse_panics_total"); got < panics {
				return fmt.Errorf("got %d, want %d", got, panics)
			}
			return nil
		})
	}
	// newDevice returns a device about which the edge must ask.
	newDevice := func() (string, []string) {
		devices++
		id := fmt.Sprintf("device%d", devices)
		e.putDevice(id, "secret", 4, "telemetry.write")
		e.awaitRecords(devices)
		return id, credential(id, "secret")
	}
	goesOn := func(place string) {
		t.Helper()
		if got := e.EdgePID(); got != pid {
			t.Fatalf("%s: Envoy has ended", place)
		}
		_, shown := newDevice()
		e.awaitAnswer("a device is let in after a panic in "+place, hasStatus(200), "POST /v1/telemetry", shown...)
		e.put("/v1/products/42", "after "+place)
		e.awaitAnswer("an object arrives after a panic in "+place, hasBody("after "+place), "GET /v1/products/42")
	}

	for _, place := range []string{"headers", "woken", "answer", "dispatch", "callout"} {
		// A report of hits may come before the request and get the panic.
		await(t, "a request gets the panic in "+place, patience, func() error {
			_, shown := newDevice()
			arm(place)
			before := e.UpstreamRequests()
			got := e.send("POST /v1/telemetry", shown...)
			counted(place)
			if got.status == 503 {
				if n := e.UpstreamRequests() - before; n != 0 {
					t.Errorf("panic in %s: the request was let in", place)
				}
				return nil
			}
			return fmt.Errorf("got %d, want 503", got.status)
		})
		goesOn(place)
	}
	for _, place := range []string{"body", "tick"} { // of a push, and of a worker
		arm(place)
		counted(place)
		goesOn(place)
	}
	arm("ticks") // of all workers, outside of one
	goesOn("ticks")

	// A push has half arrived when the panic of another push takes the VM.
	half, err := net.Dial("unix", e.PushSocket())
	require.NoError(t, err)
	defer func() { _ = half.Close() }()
	if _, err := io.WriteString(half,
		"POST /v1/apply HTTP/1.1\r\nHost: push\r\nContent-Length: 100\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	await(t, "the half has arrived", patience, func() error {
		if e.stat("http.gatehouse_push.downstream_rq_active") == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	arm("body")
	counted("body")
	if _, err := io.WriteString(half, strings.Repeat("x", 96)); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, half.SetReadDeadline(time.Now().Add(patience)))
	if response, err := http.ReadResponse(bufio.NewReader(half), nil); err != nil || response.StatusCode != 503 {
		t.Errorf("the rest of a push after a panic: got %v %v, want 503", response, err)
	}
	goesOn("body")

	// A stream ends that waits for an answer.
	id, _ := newDevice()
	require.NoError(t, e.SignalSidecar(syscall.SIGSTOP))
	waiting := e.edgeMetric("gatehouse_calls_total", `call="verify"`)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		out, _ := exec.CommandContext(ctx, "curl", "-s", "-d", "x", "-H", "x-device-id: "+id, "-H", "x-device-token: secret",
			e.EdgeURL()+"/v1/telemetry").CombinedOutput()
		_ = out
	}()
	await(t, "a request waits", patience, func() error {
		if e.edgeMetric("gatehouse_calls_total", `call="verify"`) == waiting {
			return errors.New("none")
		}
		return nil
	})
	arm("destroyed")
	leave()
	<-left
	counted("destroyed")
	require.NoError(t, e.SignalSidecar(syscall.SIGCONT))
	goesOn("destroyed")

	if log := e.edgeLog(); !strings.Contains(log, "gatehouse: panic in callback: drill: headers\n") ||
		!strings.Contains(log, "native-filter/filter.go") {
		t.Error("the log has no panic with its stack")
	}
	if n := strings.Count(e.edgeLog(), "gatehouse: panic in "); n > 3 { // one a minute
		t.Errorf("the log has %d panics of %d", n, panics)
	}
}

// TestPanicOfConfiguration has the module panic while reading the configuration: Envoy refuses the configuration, and
// exits.
func TestPanicOfConfiguration(t *testing.T) {
	t.Parallel()
	e := startDrilled(t)
	check := exec.CommandContext(t.Context(), envoyPath(t), "--mode", "validate", "-c", e.ConfigPath())
	check.Env = append(check.Environ(), "GATEHOUSE_DRILL=configuration")
	out, err := check.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() || !strings.Contains(string(out), "Failed to initialize dynamic module") ||
		!strings.Contains(string(out), "gatehouse: panic in new configuration: drill: configuration") {
		t.Errorf("got %v %s, want the configuration refused", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), envoyPath(t), "--mode", "validate", "-c",
		e.ConfigPath()).CombinedOutput(); err != nil {
		t.Errorf("without a panic: got %v %s", err, out)
	}
}

func envoyPath(t *testing.T) string {
	t.Helper()
	path, err := stack.FindEnvoy()
	require.NoError(t, err)
	return path
}

// TestSignals: Go's runtime in the process changes nothing about Envoy's handling of signals.
func TestSignals(t *testing.T) {
	t.Parallel()
	if !onNative() {
		t.Skip("with a dynamic module only: EDGE_KIND=native")
	}
	e := start(t, stack.Options{})
	e.awaitAnswer("Envoy answers", hasStatus(200), "GET /open")
	for signal, logs := range map[syscall.Signal]string{
		syscall.SIGHUP:  "caught and eating SIGHUP",
		syscall.SIGUSR1: "", // opens its logs again
	} {
		require.NoError(t, e.SignalEdge(signal))
		await(t, signal.String()+" is in the log", patience, func() error {
			if !strings.Contains(e.edgeLog(), logs) {
				return errors.New("not yet")
			}
			return nil
		})
		e.awaitAnswer("Envoy answers after "+signal.String(), hasStatus(200), "GET /open")
	}
	require.NoError(t, e.SignalEdge(syscall.SIGSEGV))
	await(t, "Envoy's own trace of a crash", patience, func() error {
		if log := e.edgeLog(); !strings.Contains(log, "Caught Segmentation fault") || !strings.Contains(log, "Backtrace") {
			return errors.New("not yet")
		}
		return nil
	})
}

// TestManyConfigurations replaces a listener's rules again and again under load. Each answer is by the rules before or
// after, none is missing, and what the earlier configurations had is released.
func TestManyConfigurations(t *testing.T) {
	t.Parallel()
	if !onNative() {
		t.Skip("with a dynamic module only: EDGE_KIND=native; TestRulesOfListeners")
	}
	e, l := startTwo(t, stack.Options{}, `{"default": "pass"}`, `{"default": "pass"}`)
	rules := [2]string{`{"default": "deny"}`, `{"default": "pass"}`}
	wanted := [2]int{403, 200}
	client := newClient()
	client.Transport.(*http.Transport).DisableKeepAlives = true // a connection keeps the rules with which it began
	stop := keepCalling(t, func() error {
		if a, err := e.try(client, "GET /open"); err != nil || a.status != 200 && a.status != 403 {
			return fmt.Errorf("got %d, %v", a.status, err)
		}
		return nil
	})
	threads := 0
	for i := range pickSize(200, 40) {
		l.replaceRules(rules[i%2], rules[i%2])
		fresh := newClient()
		await(t, "the rules change", patience, func() error {
			fresh.CloseIdleConnections()
			a, err := e.try(fresh, "GET /open")
			if err == nil && a.status != wanted[i%2] {
				err = fmt.Errorf("got %d", a.status)
			}
			return err
		})
		if i == 10 {
			threads = threadsOf(t, e.EdgePID())
		}
	}
	if err := stop(); err != nil {
		t.Errorf("while rules change: %v", err)
	}
	if got := threadsOf(t, e.EdgePID()); got > threads+3 {
		t.Errorf("%d threads, and %d after more configurations", threads, got)
	}
}

func threadsOf(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	require.NoError(t, err)
	return len(tasks)
}

// TestDiscoveredRules gets the rules by discovery (ECDS), and new ones while requests wait for the sidecar. The clients
// leave at once, so the earlier configuration ends with the last request, on a worker, while Envoy's main thread ends
// the calls.
func TestDiscoveredRules(t *testing.T) {
	t.Parallel()
	if !onNative() {
		t.Skip("with a dynamic module only: EDGE_KIND=native; Istio's way to the Wasm module is in make mesh-e2e")
	}
	library, err := stack.Library()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "rules.json")
	write := func(version int) error {
		text, err := json.Marshal(map[string]any{"version_info": strconv.Itoa(version), "resources": []any{map[string]any{
			"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", "name": "gatehouse",
			"typed_config": map[string]any{
				"@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter",
				"dynamic_module_config": map[string]any{"module": map[string]any{"local": map[string]any{"filename": library}},
					"do_not_close": true},
				"filter_name": "gatehouse",
				"filter_config": map[string]any{"@type": "type.googleapis.com/google.protobuf.Struct", "value": map[string]any{
					"sidecar":       map[string]any{"cluster": "gatehouse-sidecar", "timeout": "1s"},
					"credentials":   map[string]any{"id_header": "x-device-id", "secret_header": "x-device-token"},
					"max_staleness": fmt.Sprintf("%ds", 30+version),
					"rules":         []any{map[string]any{"match": map[string]any{"path": "/who"}, "auth": map[string]any{}}},
				}},
			},
		}}})
		if err != nil {
			return err
		}
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			return err
		}
		return os.Rename(path+".new", path) // Envoy watches for that
	}
	e := start(t, stack.Options{ModifyConfig: func(c *stack.Config) error {
		discovered := map[string]any{"name": "gatehouse", "config_discovery": map[string]any{
			"config_source": map[string]any{"path_config_source": map[string]any{"path": path}, "resource_api_version": "V3"},
			"type_urls":     []any{"type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter"},
		}}
		return errors.Join(write(0), c.Set(map[string]any{"id": "edge", "cluster": "edge"}, "node"),
			c.Set(discovered, "static_resources", "listeners", "edge", "filter_chains", "0", "filters",
				"0", "typed_config", "http_filters", "gatehouse"))
	}})
	const waiting = 120
	rounds := pickSize(20, 5)
	e.putDevice("dev", "secret", 4)
	for i := range rounds * waiting { // a request of each one waits: there is no verdict on it
		e.putDevice(fmt.Sprintf("dev-%d", i), "secret", 4)
	}
	e.awaitRecords(rounds*waiting + 1)
	pid := e.EdgePID()
	for round := range rounds {
		e.awaitAnswer("the device is let in", hasStatus(200), "GET /who", credential("dev", "secret")...)
		require.NoError(t, e.SignalSidecar(syscall.SIGSTOP))
		made := e.stat("cluster.gatehouse-sidecar.upstream_rq_total")
		ctx, leave := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		var once sync.Once
		first := make(chan struct{}) // answer
		for i := range waiting {
			answer := e.startRequest(ctx, fmt.Sprintf("dev-%d", round*waiting+i), e.EdgeURL()+"/who")
			clients.Go(func() {
				<-answer
				once.Do(func() { close(first) })
			})
		}
		await(t, "requests wait", patience, func() error {
			if got := e.stat("cluster.gatehouse-sidecar.upstream_rq_total") - made; got < waiting {
				return fmt.Errorf("%d calls", got)
			}
			return nil
		})
		require.NoError(t, write(round+1))
		await(t, "other rules", patience, func() error {
			if got := e.stat("extension_config_discovery.http_filter.gatehouse.config_reload"); got < round+2 {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
		require.NoError(t, e.SignalSidecar(syscall.SIGCONT))
		<-first
		leave()
		clients.Wait()
	}
	e.awaitAnswer("the device is let in", hasStatus(200), "GET /who", credential("dev", "secret")...)
	if e.EdgePID() != pid {
		t.Error("Envoy has ended")
	}
	if strings.Contains(e.edgeLog(), ": refused") { // of a header, such as the permissions of a device that has none
		t.Errorf("Envoy refused something:\n%s", e.edgeLog())
	}
}
