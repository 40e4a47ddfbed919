package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// callRules returns equal rules for two listeners, which therefore share one VM for requests.
func callRules(timeout string) string {
	return fmt.Sprintf(
		`{"sidecar": {"timeout": %q}, "credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "rules": [
		{"match": {"path": "/who"}, "auth": {}}, {"match": {"prefix": "/both/"}, "auth": {}, "cache": {"on_miss": "fetch"}}]}`, timeout)
}

// callOptions returns options for an Envoy with one worker, with devices that the edge knows from the start: the edge
// refuses unknown devices without a call.
func callOptions() stack.Options {
	seed := func(ctx context.Context, url string) error {
		client, err := redisurl.Connect(url)
		if err != nil {
			return err
		}
		p := publish.New(client)
		ids := []string{"one", "two", "resets", "waits"}
		for round := range resetRounds {
			ids = append(ids, resetDevice(round))
		}
		for _, id := range ids {
			if _, err = p.PutDevice(ctx, publish.Device{ID: id, Secret: "secret", Cost: 4}); err != nil {
				break
			}
		}
		return errors.Join(err, client.Close())
	}
	return stack.Options{Concurrency: 1, EnvoyArgs: []string{"--drain-time-s", "1"}, Seed: seed}
}

// startRequest sends a request of a device, and returns the status of the answer, or 0 without an answer.
func (e *edge) startRequest(ctx context.Context, device, url string) <-chan int {
	status := make(chan int, 1)
	go func() {
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		request.Header = http.Header{"X-Device-Id": {device}, "X-Device-Token": {"secret"}}
		response, err := newClient().Do(request)
		if err != nil {
			status <- 0
			return
		}
		_ = response.Body.Close()
		status <- response.StatusCode
	}()
	return status
}

// awaitVerifications waits until this many requests have waited for a verification. No request in asked may have an
// answer.
func (e *edge) awaitVerifications(want int, asked ...<-chan int) {
	e.t.Helper()
	await(e.t, "requests wait", patience, func() error {
		for _, status := range asked {
			select {
			case got := <-status:
				e.t.Fatalf("a request that should wait got %d", got)
			default:
			}
		}
		if got := e.edgeMetric("gatehouse_calls_total", `call="verify"`); got != want {
			return fmt.Errorf("%d do, want %d", got, want)
		}
		return nil
	})
}

// TestCalls has requests wait for the answers to calls of other requests.
func TestCalls(t *testing.T) {
	t.Parallel()
	rules := callRules("10s")
	e, l := startTwo(t, callOptions(), rules, rules)
	t.Run("asker leaves", func(t *testing.T) { clientLeaves(t, e) })
	t.Run("two listeners", func(t *testing.T) { callsOfTwoListeners(t, e, l) })
	t.Run("reset then answered", func(t *testing.T) { resetThenAnswered(t, e) })
	t.Run("resets leave places", func(t *testing.T) { resetsLeavePlaces(t, e) })
}

// clientLeaves: the client whose request caused a call leaves. Requests that wait for the same answer get the answer.
func clientLeaves(t *testing.T, e *edge) {
	require.NoError(t, e.SignalSidecar(syscall.SIGSTOP))
	ctx, leave := context.WithCancel(t.Context())
	left := e.startRequest(ctx, "one", e.EdgeURL()+"/who")
	e.awaitVerifications(1)
	waits := e.startRequest(t.Context(), "one", e.EdgeURL()+"/who")
	e.awaitVerifications(2)
	leave()
	<-left
	await(t, "the connection ends", patience, func() error {
		port := e.EdgeURL()[strings.LastIndexByte(e.EdgeURL(), ':')+1:]
		if got := e.stat("listener.127.0.0.1_" + port + ".downstream_cx_active"); got != 1 {
			return fmt.Errorf("there are %d, want one", got)
		}
		return nil
	})
	begin := time.Now()
	require.NoError(t, e.SignalSidecar(syscall.SIGCONT))
	if got := <-waits; got != 200 {
		t.Errorf("got %d after %v, want 200", got, time.Since(begin))
	}
}

// callsOfTwoListeners: a request waits for the answer to a call of another listener's request. Afterwards each request
// needs its own call.
func callsOfTwoListeners(t *testing.T, e *edge, l *listeners) {
	before := e.edgeMetric("gatehouse_calls_total", `call="verify"`)
	require.NoError(t, e.SignalSidecar(syscall.SIGSTOP))
	var asked []<-chan int
	for i, url := range []string{"http://" + l.second + "/both/1", e.EdgeURL() + "/both/2"} {
		asked = append(asked, e.startRequest(t.Context(), "two", url))
		e.awaitVerifications(before+i+1, asked...)
	}
	require.NoError(t, e.SignalSidecar(syscall.SIGCONT))
	for i, status := range asked {
		if got := <-status; got != 200 {
			t.Errorf("listener %d: got %d, want 200", i+1, got)
		}
	}
	await(t, "a fetch of each", patience, func() error {
		if got := e.edgeMetric("gatehouse_calls_total", `call="fetch"`); got != 2 {
			return fmt.Errorf("got %d, want 2", got)
		}
		return nil
	})
}

// TestListenerGoes removes a listener during a call of one of its requests. Another listener with the same rules, and
// therefore in the same VM, has a request that waits for the same answer. With the dynamic module each listener has its
// own calls.
func TestListenerGoes(t *testing.T) {
	t.Parallel()
	if os.Getenv("BINDING") == "plugins" {
		t.Skip("plugins with rules of their own don't share calls")
	}
	rules := callRules("3s")
	e, l := startTwo(t, callOptions(), rules, rules)
	require.NoError(t, e.SignalSidecar(syscall.SIGSTOP))
	made := e.stat("cluster.gatehouse-sidecar.upstream_rq_total")
	gone := e.startRequest(t.Context(), "one", "http://"+l.second+"/who")
	await(t, "the call", patience, func() error {
		if e.stat("cluster.gatehouse-sidecar.upstream_rq_total") == made {
			return errors.New("not made")
		}
		return nil
	})
	waits := e.startRequest(t.Context(), "one", e.EdgeURL()+"/who")
	e.awaitVerifications(2)
	want, calls := 503, 1
	if onNative() {
		want, calls = 200, 2
	}
	await(t, "the calls", patience, func() error {
		if got := e.stat("cluster.gatehouse-sidecar.upstream_rq_total"); got != made+calls {
			return fmt.Errorf("got %d, want %d", got-made, calls)
		}
		return nil
	})
	l.replaceRules(rules)
	if got := <-gone; got != 0 {
		t.Fatalf("the listener that goes answered %d", got)
	}
	goOn := sync.OnceFunc(func() {
		require.NoError(t, e.SignalSidecar(syscall.SIGCONT))
	})
	if onNative() {
		goOn()
	}
	begin := time.Now()
	if got := <-waits; got != want {
		t.Errorf("got %d after %v, want %d", got, time.Since(begin), want)
	}
	goOn()
	await(t, "the device is authenticated again", patience, func() error {
		if got := <-e.startRequest(t.Context(), "one", e.EdgeURL()+"/who"); got != 200 {
			return fmt.Errorf("got %d", got)
		}
		return nil
	})
}
