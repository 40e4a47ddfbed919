//go:build linux

package openloop

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestParseHead(t *testing.T) {
	for _, test := range []struct {
		head         string
		status, left int
		ok           bool
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 42\r\nx: y", 200, 42, true},
		{"HTTP/1.1 200 OK\r\nx: y\r\ncontent-length:7", 200, 7, true},
		{"HTTP/1.1 304 Not Modified\r\netag: x", 304, 0, true},
		{"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0", 503, 0, true},
		{"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked", 0, 0, false},
		{"HTTP/1.1 100 Continue", 0, 0, false},
		{"nonsense", 0, 0, false},
	} {
		status, left, err := parseHead([]byte(test.head))
		if status != test.status || left != test.left || (err == nil) != test.ok {
			t.Errorf("%q: got %d, %d, %v", test.head, status, left, err)
		}
	}
}

func runLoad(t *testing.T, handler http.HandlerFunc, l Load) Result {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	var requests [][]byte
	for _, path := range []string{"/a", "/b"} {
		requests = append(requests, fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path))
	}
	result, err := Run(t.Context(), server.URL, RepeatRequests(requests), l)
	require.NoError(t, err)
	return result
}

// repeatWhileBusy repeats a load while a busy machine leaves the client no time for the tested behaviour.
func repeatWhileBusy(load func() (enough bool)) {
	for end := time.Now().Add(await.Deadline); !load() && time.Now().Before(end); {
	}
}

func TestRateIsHeldAndAnswersAreCounted(t *testing.T) {
	body := strings.Repeat("x", 100<<10) // larger than a read
	var a, b atomic.Int64
	var got Result
	var unsent int64 // the last requests, without a connection in time
	repeatWhileBusy(func() bool {
		a.Store(0)
		b.Store(0)
		got = runLoad(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/a":
				a.Add(1)
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				_, _ = io.WriteString(w, body)
			case "/b":
				b.Add(1)
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}, Load{Rate: 100, Duration: time.Second, Connections: 8})
		unsent = got.Errors["unsent"]
		return unsent <= 50
	})
	if got.Asked != 100 || got.Answered+unsent != 100 || unsent > 50 || a.Load()+b.Load() != got.Answered ||
		len(got.Errors) > 1 {
		t.Errorf("got %d asked, %d answered, %v, %d and %d by the server; want 100, all answered",
			got.Asked, got.Answered, got.Errors, a.Load(), b.Load())
	}
	if got.Statuses[200] != a.Load() || got.Statuses[503] != b.Load() || max(a.Load()-b.Load(), b.Load()-a.Load()) > 1 {
		t.Errorf("got %v, want as many of each as the server gave, %d and %d, in turn", got.Statuses, a.Load(), b.Load())
	}
	if got.Latency.Total() != 100 || got.CPU == 0 {
		t.Errorf("got %d latencies, %s of CPU", got.Latency.Total(), got.CPU)
	}
}

// TestWaitingCounts uses one connection and a server that stops for half a second: latencies of requests due during the
// stop include the wait.
func TestWaitingCounts(t *testing.T) {
	var n atomic.Int64
	late := await.Late(t)
	got := runLoad(t, func(http.ResponseWriter, *http.Request) {
		if n.Add(1) == 20 {
			timer := time.NewTimer(500 * time.Millisecond)
			<-timer.C
		}
	}, Load{Rate: 100, Duration: time.Second, Connections: 1})
	if got.Answered+got.Errors["unsent"] != 100 {
		t.Fatalf("got %d answers and %v, want 100 in all", got.Answered, got.Errors)
	}
	if got.Late > 400*time.Millisecond+late() {
		t.Errorf("got %s late, want what the client was late, not the server", got.Late)
	}
	// 50 of 100 were due during the stop: a closed loop would have one slow response.
	if p := got.Latency.Quantile(.80); p < 200*time.Millisecond {
		t.Errorf("p80: got %s, want more than 200 ms", p)
	}
}

func TestWhatIsNotAnsweredCounts(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	var dropped atomic.Bool
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				n, _ := c.Read(make([]byte, 100))
				if n > 0 && !dropped.Swap(true) {
					_ = c.Close() // the first request loses its connection
				}
				<-hang
				_ = c.Close()
			}()
		}
	}()
	var got Result
	repeatWhileBusy(func() bool {
		dropped.Store(false)
		got, err = Run(t.Context(), "http://"+listener.Addr().String(),
			RepeatRequests([][]byte{[]byte("GET / HTTP/1.1\r\n\r\n")}), Load{Rate: 10, Duration: time.Second, Connections: 2})
		return err != nil || got.Errors["unsent"] <= 7
	})
	require.NoError(t, err)
	if got.Asked != 10 || got.Answered != 0 || got.Errors["closed"] != 1 || got.Errors["timeout"] != 2 ||
		got.Errors["unsent"] != 7 {
		t.Errorf("got %d asked, %d answered, %v; want 10, 0, 1 closed, 2 timeouts, 7 unsent", got.Asked,
			got.Answered, got.Errors)
	}
	if got.Latency.Total() != 10 {
		t.Errorf("got %d latencies, want 10", got.Latency.Total())
	}
}

// TestNothingIsSentLate uses a server that can't keep up: requests due while the only connection is busy are never sent
// after the time is up.
func TestNothingIsSentLate(t *testing.T) {
	var n atomic.Int64
	got := runLoad(t, func(http.ResponseWriter, *http.Request) {
		n.Add(1)
		timer := time.NewTimer(100 * time.Millisecond)
		<-timer.C
	}, Load{Rate: 100, Duration: time.Second, Connections: 1})
	if n.Load() > 11 || got.Answered != n.Load() || got.Answered+got.Errors["unsent"] != 100 {
		t.Errorf("got %d at the server, %d answered, %v; want at most 11, and all others unsent", n.Load(),
			got.Answered, got.Errors)
	}
}

func TestConnectionsComeFromTheirAddresses(t *testing.T) {
	addresses := make(chan string, 8)
	runLoad(t, func(w http.ResponseWriter, r *http.Request) {
		addresses <- r.RemoteAddr
		w.WriteHeader(http.StatusNoContent)
	}, Load{Rate: 8, Duration: time.Second, Connections: 2, From: func(i int) [4]byte {
		return [4]byte{127, 3, 0, byte(1 + i)}
	}})
	close(addresses)
	for got := range addresses {
		if !strings.HasPrefix(got, "127.3.0.") {
			t.Errorf("got a request from %s, want 127.3.0.1 or 2", got)
		}
	}
}

// TestOwnRequests has a device with a slow response, and a device with fast responses: only the slow device skips
// requests due during the wait.
func TestOwnRequests(t *testing.T) {
	var answers []Answer
	var got Result
	repeatWhileBusy(func() bool {
		release := make(chan struct{})
		let := sync.OnceFunc(func() { close(release) })
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/0" {
				<-release
			}
			w.WriteHeader(http.StatusNoContent)
		}))
		defer server.Close()
		defer let()
		answers = nil
		var err error
		got, err = Run(t.Context(), server.URL, func(dst []byte, i int64) []byte {
			return fmt.Appendf(dst, "GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", i%2)
		}, Load{Rate: 40, Duration: time.Second, Connections: 2, OwnConnections: true, Answered: func(a Answer) {
			if answers = append(answers, a); len(answers) == 10 {
				let()
			}
		}})
		require.NoError(t, err)
		return len(answers) > 10 && got.Errors["unsent"] == 0
	})
	if skipped := got.Asked - got.Answered; got.Asked != 40 || skipped < 5 || len(got.Errors) != 0 || len(answers) < 11 {
		t.Fatalf("got %d asked, %d answered, errors %v; want 40, but for those that were due while one waited",
			got.Asked, got.Answered, got.Errors)
	}
	if int64(len(answers)) != got.Answered {
		t.Fatalf("Answered was called for %d answers of %d", len(answers), got.Answered)
	}
	for i, a := range answers[:9] {
		if a.Request%2 != 1 || i > 0 && a.Request <= answers[i-1].Request || a.Status != http.StatusNoContent {
			t.Errorf("answer %d: got %+v after %+v, want the other device's, in order", i, a, answers[max(i-1, 0)])
		}
	}
	if !slices.ContainsFunc(answers[9:], func(a Answer) bool { return a.Request == 0 }) {
		t.Errorf("got %+v, want the first request's answer, too, once the server gives it", answers[9:])
	}
}
