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
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// callRules returns equal rules for two listeners, which therefore share one VM for requests.
func callRules(timeout string) string {
	return fmt.Sprintf(
		`{"sidecar": {"timeout": %q}, "credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "rules": [
		{"match": {"path": "/who"}, "auth": {}}, {"match": {"prefix": "/both/"}, "auth": {}, "cache": {"on_miss": "fetch"}}]}`, timeout)
}

// callOptions returns options for an Envoy with one worker, with devices that the edge knows from the start: it refuses
// others without a call.
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

// ask sends a request of a device and returns the status of the answer, 0 if there is none.
func (e *edge) ask(ctx context.Context, device, url string) <-chan int {
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

// verifying waits until this many requests have waited for a verification. None of those asked may have an answer.
func (e *edge) verifying(want int, asked ...<-chan int) {
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
	t.Run("asker leaves", func(t *testing.T) { askerLeaves(t, e) })
	t.Run("two listeners", func(t *testing.T) { callsOfTwoListeners(t, e, l) })
	t.Run("reset then answered", func(t *testing.T) { resetThenAnswered(t, e) })
	t.Run("resets leave places", func(t *testing.T) { resetsLeavePlaces(t, e) })
}

// askerLeaves: the client leaves whose request caused a call. Requests that wait for the same answer get it.
func askerLeaves(t *testing.T, e *edge) {
	if err := e.SignalSidecar(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := e.ask(ctx, "one", e.EdgeURL()+"/who")
	e.verifying(1)
	waits := e.ask(t.Context(), "one", e.EdgeURL()+"/who")
	e.verifying(2)
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
	if err := e.SignalSidecar(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := <-waits; got != 200 {
		t.Errorf("got %d after %v, want 200", got, time.Since(begin))
	}
}

// callsOfTwoListeners: a request waits for the answer to a call of another listener's request. Afterwards each needs
// its own call.
func callsOfTwoListeners(t *testing.T, e *edge, l *listeners) {
	before := e.edgeMetric("gatehouse_calls_total", `call="verify"`)
	if err := e.SignalSidecar(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var asked []<-chan int
	for i, url := range []string{"http://" + l.second + "/both/1", e.EdgeURL() + "/both/2"} {
		asked = append(asked, e.ask(t.Context(), "two", url))
		e.verifying(before+i+1, asked...)
	}
	if err := e.SignalSidecar(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
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

// TestListenerGoes removes a listener during a call of one of its requests, while a request of another listener with
// the same rules, and so in the same VM, waits for the same answer. With the dynamic module each listener has calls of
// its own.
func TestListenerGoes(t *testing.T) {
	t.Parallel()
	if os.Getenv("BINDING") == "plugins" {
		t.Skip("plugins with rules of their own don't share calls")
	}
	rules := callRules("3s")
	e, l := startTwo(t, callOptions(), rules, rules)
	if err := e.SignalSidecar(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	made := e.stat("cluster.gatehouse-sidecar.upstream_rq_total")
	gone := e.ask(t.Context(), "one", "http://"+l.second+"/who")
	await(t, "the call", patience, func() error {
		if e.stat("cluster.gatehouse-sidecar.upstream_rq_total") == made {
			return errors.New("not made")
		}
		return nil
	})
	waits := e.ask(t.Context(), "one", e.EdgeURL()+"/who")
	e.verifying(2)
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
	l.replace(rules)
	if got := <-gone; got != 0 {
		t.Fatalf("the listener that goes answered %d", got)
	}
	goOn := sync.OnceFunc(func() {
		if err := e.SignalSidecar(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
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
		if got := <-e.ask(t.Context(), "one", e.EdgeURL()+"/who"); got != 200 {
			return fmt.Errorf("got %d", got)
		}
		return nil
	})
}
