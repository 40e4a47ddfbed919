package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/sidecar/redisurl"
)

// startTwo starts an Envoy of one worker with two listeners of the same rules, and so with one VM for the requests
// of both, and a device dev that the edge knows from the beginning: it refuses others without a call.
func startTwo(t *testing.T, rules string) (*edge, *listeners) {
	t.Helper()
	second, err := stack.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	l := &listeners{t: t, file: filepath.Join(t.TempDir(), "listeners.yaml"), second: second, first: []string{rules, rules}}
	seed := func(ctx context.Context, url string) error {
		client, err := redisurl.Connect(url)
		if err != nil {
			return err
		}
		_, err = publish.New(client).PutDevice(ctx, publish.Device{ID: "dev", Secret: "secret", Cost: 4})
		return errors.Join(err, client.Close())
	}
	e := start(t, stack.Options{ModifyConfig: l.modify, Concurrency: 1, EnvoyArgs: []string{"--drain-time-s", "1"}, Seed: seed})
	await(t, "the second listener", patience, func() error {
		response, err := newClient().Get("http://" + second + "/open")
		if err == nil {
			err = response.Body.Close()
		}
		return err
	})
	return e, l
}

// ask sends a request of device dev and returns the status of its answer, 0 if there is none.
func (e *edge) ask(ctx context.Context, url string) <-chan int {
	status := make(chan int, 1)
	go func() {
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		request.Header = http.Header{"X-Device-Id": {"dev"}, "X-Device-Token": {"secret"}}
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

// verifying waits until so many requests have waited for a verification.
func (e *edge) verifying(want int) {
	e.t.Helper()
	await(e.t, "requests wait", patience, func() error {
		if got := e.stat("wasmcustom.gatehouse.auth_verify"); got != want {
			return fmt.Errorf("%d do, want %d", got, want)
		}
		return nil
	})
}

// TestAskerLeaves has the client leave whose request a call was made for: who waits for the same answer gets it.
func TestAskerLeaves(t *testing.T) {
	t.Parallel()
	e, _ := startTwo(t, `{"sidecar": {"timeout": "10s"}, "credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
		"rules": [{"match": {"path": "/who"}, "auth": {}}]}`)
	if err := e.SignalSidecar(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := e.ask(ctx, e.EdgeURL()+"/who")
	e.verifying(1)
	waits := e.ask(t.Context(), e.EdgeURL()+"/who")
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

// TestCallsOfTwoListeners has a request wait for the answer to a call that a request of another listener has made,
// after which each needs a call of its own.
func TestCallsOfTwoListeners(t *testing.T) {
	t.Parallel()
	e, l := startTwo(t, `{"sidecar": {"timeout": "10s"}, "credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
		"rules": [{"match": {"prefix": "/both/"}, "auth": {}, "cache": {"on_miss": "fetch"}}]}`)
	if err := e.SignalSidecar(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var asked []<-chan int
	for i, url := range []string{"http://" + l.second + "/both/1", e.EdgeURL() + "/both/2"} {
		asked = append(asked, e.ask(t.Context(), url))
		e.verifying(i + 1)
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
		if got := e.stat("wasmcustom.gatehouse.cache_fetch"); got != 2 {
			return fmt.Errorf("got %d, want 2", got)
		}
		return nil
	})
}

// TestListenerGoes has a listener go away with a call of one of its requests, while a request of
// another listener with the same rules, and so in the same VM, waits for the same answer.
func TestListenerGoes(t *testing.T) {
	t.Parallel()
	const rules = `{"sidecar": {"timeout": "3s"}, "credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "rules": [{"match": {"path": "/who"}, "auth": {}}]}`
	e, l := startTwo(t, rules)
	if err := e.SignalSidecar(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	made := e.stat("cluster.gatehouse-sidecar.upstream_rq_total")
	gone := e.ask(t.Context(), "http://"+l.second+"/who")
	await(t, "the call", patience, func() error {
		if e.stat("cluster.gatehouse-sidecar.upstream_rq_total") == made {
			return errors.New("not made")
		}
		return nil
	})
	waits := e.ask(t.Context(), e.EdgeURL()+"/who")
	e.verifying(2)
	if got := e.stat("cluster.gatehouse-sidecar.upstream_rq_total"); got != made+1 {
		t.Fatalf("got %d calls, want one: the listeners have different VMs", got-made)
	}
	l.replace(rules)
	if got := <-gone; got != 0 {
		t.Fatalf("the listener that goes answered %d", got)
	}
	begin := time.Now()
	if got := <-waits; got != 503 {
		t.Errorf("got %d after %v, want 503", got, time.Since(begin))
	}
	if err := e.SignalSidecar(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "the device is let in again", patience, func() error {
		if got := <-e.ask(t.Context(), e.EdgeURL()+"/who"); got != 200 {
			return fmt.Errorf("got %d", got)
		}
		return nil
	})
}
