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

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/http2conn"
)

// resetRounds is the number of devices that resetThenAnswered uses, named by resetDevice.
const resetRounds = 4

func resetDevice(round int) string { return fmt.Sprintf("reset-%d", round) }

func (e *edge) connectHTTP2() *http2conn.Conn {
	e.t.Helper()
	c, err := http2conn.Dial(strings.TrimPrefix(e.EdgeURL(), "http://"), patience)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// sendDeviceRequest sends the request of a device on a stream.
func sendDeviceRequest(c *http2conn.Conn, stream uint32, path, device, secret string) error {
	return c.SendHeaders(stream, true, [2]string{":method", "GET"}, [2]string{":scheme", "http"}, [2]string{":path", path},
		[2]string{":authority", "edge"}, [2]string{"x-device-id", device}, [2]string{"x-device-token", secret})
}

// wantSignaled sends signals, each to the edge or the sidecar.
func (e *edge) wantSignaled(errs ...error) {
	e.t.Helper()
	require.NoError(e.t, errors.Join(errs...))
}

func (e *edge) stopEdge() {
	e.t.Helper()
	e.wantSignaled(e.SignalEdge(syscall.SIGSTOP))
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

// resetThenAnswered: a stream is reset right before the answer comes. Envoy is stopped meanwhile, so that Envoy sees
// both at once: the stream is destroyed while the module's object for the stream still exists. The edge survives, and a
// second stream that waits for the same answer gets the answer.
func resetThenAnswered(t *testing.T, e *edge) {
	const answers = `gatehouse_api_requests_total{call="verify",result="ok"}`
	for round := range resetRounds {
		answered := e.metric(answers)
		before := e.edgeMetric("gatehouse_calls_total", `call="verify"`)
		sent := e.stat("cluster.gatehouse-sidecar.upstream_cx_tx_bytes_total")
		e.wantSignaled(e.SignalSidecar(syscall.SIGSTOP))
		c, secret, want := e.connectHTTP2(), "wrong", 401
		if round%2 == 1 {
			secret, want = "secret", 200
		}
		require.NoError(t, errors.Join(sendDeviceRequest(c, 1, "/who", resetDevice(round), secret),
			sendDeviceRequest(c, 3, "/who", resetDevice(round), secret)))
		e.awaitVerifications(before + 2)
		await(t, "Envoy sends the call", patience, func() error {
			if e.stat("cluster.gatehouse-sidecar.upstream_cx_tx_bytes_total") == sent {
				return errors.New("not yet")
			}
			return nil
		})
		e.stopEdge()
		e.wantSignaled(c.Framer.WriteRSTStream(1, http2.ErrCodeCancel), e.SignalSidecar(syscall.SIGCONT))
		await(t, "the sidecar answers", patience, func() error {
			if got := e.metric(answers); got == answered {
				return fmt.Errorf("still %v answers", got)
			}
			return nil
		})
		e.wantSignaled(e.SignalEdge(syscall.SIGCONT))
		if a, err := c.ReadAnswer(3); err != nil || a.Status != want {
			t.Fatalf("round %d: got %d, %v; want %d", round, a.Status, err, want)
		}
	}
}

// resetsLeavePlaces: more streams are reset than can wait, and their connections end. A request of another device still
// waits for the sidecar, and gets an answer.
func resetsLeavePlaces(t *testing.T, e *edge) {
	const connections, streams = 140, 70 // a worker has 8192 places
	e.wantSignaled(e.SignalSidecar(syscall.SIGSTOP))
	before := e.edgeMetric("gatehouse_calls_total", `call="verify"`)
	for range connections {
		c := e.connectHTTP2()
		for i := range uint32(streams) {
			require.NoError(t, errors.Join(sendDeviceRequest(c, 1+2*i, "/who", "resets", "secret"),
				c.Framer.WriteRSTStream(1+2*i, http2.ErrCodeCancel)))
		}
		const last = 1 + 2*streams
		require.NoError(t, sendDeviceRequest(c, last, "/open", "resets", "secret"))
		if a, err := c.ReadAnswer(last); err != nil || a.Status != 200 { // the edge has read all
			t.Fatalf("got %d, %v; want 200", a.Status, err)
		}
		_ = c.Close()
	}
	e.awaitVerifications(before + connections*streams)
	status := e.startRequest(t.Context(), "waits", e.EdgeURL()+"/who")
	e.awaitVerifications(before + connections*streams + 1)
	e.wantSignaled(e.SignalSidecar(syscall.SIGCONT))
	if got := <-status; got != 200 {
		t.Errorf("got %d, want 200", got)
	}
}
