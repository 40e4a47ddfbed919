package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/http2"

	"github.com/gatehouse/gatehouse/testbed/http2conn"
)

// resetRounds is the number of devices that resetThenAnswered uses, named by resetDevice.
const resetRounds = 4

func resetDevice(round int) string { return fmt.Sprintf("reset-%d", round) }

// connect returns a connection by HTTP/2.
func (e *edge) connect() *http2conn.Conn {
	e.t.Helper()
	c, err := http2conn.Dial(strings.TrimPrefix(e.EdgeURL(), "http://"), patience)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// request sends the request of a device on a stream.
func request(c *http2conn.Conn, stream uint32, path, device, secret string) error {
	return c.SendHeaders(stream, true, [2]string{":method", "GET"}, [2]string{":scheme", "http"}, [2]string{":path", path},
		[2]string{":authority", "edge"},
		[2]string{"x-device-id", device}, [2]string{"x-device-token", secret})
}

// signals sends signals, each to the edge or the sidecar.
func (e *edge) signals(errs ...error) {
	e.t.Helper()
	if err := errors.Join(errs...); err != nil {
		e.t.Fatal(err)
	}
}

// stopEdge stops all threads of Envoy.
func (e *edge) stopEdge() {
	e.t.Helper()
	e.signals(e.SignalEdge(syscall.SIGSTOP))
	await(e.t, "Envoy stops", patience, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", e.EdgePID()))
		for _, thread := range threads {
			text, _ := os.ReadFile(thread) // an ended one has none
			if _, state, _ := strings.Cut(string(text), ") "); !strings.HasPrefix(state, "T") {
				return fmt.Errorf("%s: %.1s", thread, state)
			}
		}
		return err
	})
}

// resetThenAnswered: a stream is reset right before its answer comes. Envoy stands still meanwhile, so that it sees
// both at once: it destroys the stream, and has not yet deleted what the module knows as the stream. The edge lives,
// and another stream that waits for the same answer gets it.
func resetThenAnswered(t *testing.T, e *edge) {
	const answers = `gatehouse_api_requests_total{call="verify",result="ok"}`
	for round := range resetRounds {
		answered := e.metric(answers)
		before := e.edgeMetric("gatehouse_calls_total", `call="verify"`)
		sent := e.stat("cluster.gatehouse-sidecar.upstream_cx_tx_bytes_total")
		e.signals(e.SignalSidecar(syscall.SIGSTOP))
		c, secret, want := e.connect(), "wrong", 401
		if round%2 == 1 {
			secret, want = "secret", 200
		}
		if err := errors.Join(request(c, 1, "/who", resetDevice(round), secret),
			request(c, 3, "/who", resetDevice(round), secret)); err != nil {
			t.Fatal(err)
		}
		e.verifying(before + 2)
		await(t, "Envoy sends the call", patience, func() error {
			if e.stat("cluster.gatehouse-sidecar.upstream_cx_tx_bytes_total") == sent {
				return errors.New("not yet")
			}
			return nil
		})
		e.stopEdge()
		e.signals(c.Framer.WriteRSTStream(1, http2.ErrCodeCancel), e.SignalSidecar(syscall.SIGCONT))
		await(t, "the sidecar answers", patience, func() error {
			if got := e.metric(answers); got == answered {
				return fmt.Errorf("still %v answers", got)
			}
			return nil
		})
		e.signals(e.SignalEdge(syscall.SIGCONT))
		if a, err := c.ReadAnswer(3); err != nil || a.Status != want {
			t.Fatalf("round %d: got %d, %v; want %d", round, a.Status, err, want)
		}
	}
}

// resetsLeavePlaces: more streams are reset than can wait, and their connections end. Another device's request still
// waits for the sidecar, and gets its answer.
func resetsLeavePlaces(t *testing.T, e *edge) {
	const connections, streams = 140, 70 // a worker has 8192 places
	e.signals(e.SignalSidecar(syscall.SIGSTOP))
	before := e.edgeMetric("gatehouse_calls_total", `call="verify"`)
	for range connections {
		c := e.connect()
		for i := range uint32(streams) {
			if err := errors.Join(request(c, 1+2*i, "/who", "resets", "secret"),
				c.Framer.WriteRSTStream(1+2*i, http2.ErrCodeCancel)); err != nil {
				t.Fatal(err)
			}
		}
		const last = 1 + 2*streams
		if err := request(c, last, "/open", "resets", "secret"); err != nil {
			t.Fatal(err)
		}
		if a, err := c.ReadAnswer(last); err != nil || a.Status != 200 { // the edge has read all
			t.Fatalf("got %d, %v; want 200", a.Status, err)
		}
		_ = c.Close()
	}
	e.verifying(before + connections*streams)
	status := e.ask(t.Context(), "waits", e.EdgeURL()+"/who")
	e.verifying(before + connections*streams + 1)
	e.signals(e.SignalSidecar(syscall.SIGCONT))
	if got := <-status; got != 200 {
		t.Errorf("got %d, want 200", got)
	}
}
