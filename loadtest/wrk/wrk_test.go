package wrk

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/loadtest/workload"
)

func TestParse(t *testing.T) {
	const good = "Running 1s test @ http://127.0.0.1\n  2 threads and 10 connections\n" + resultMarker +
		`{"requests":1000,"durationUS":2000000,"percentiles":[1,2,3,4,5],"errors":{"connect":0,"read":2,"write":0,"timeout":0,"status":7}}` + "\n"
	for _, test := range []struct {
		name, text string
		ok         bool
	}{
		{"good", good, true},
		{"nothing", "", false},
		{"no result", "unable to connect to 127.0.0.1:1 Connection refused\n", false},
		{"cut short", good[:len(good)-20], false},
		{"too few percentiles", strings.Replace(good, "[1,2", "[2", 1), false},
		{"no time", strings.Replace(good, "2000000", "0", 1), false},
	} {
		got, err := ParseOutput(test.text)
		if (err == nil) != test.ok {
			t.Errorf("%s: got error %v", test.name, err)
		}
		if test.ok && (got.Requests != 1000 || got.Seconds != 2 || got.Percentiles[4] != 5 || len(got.Errors) != 2 ||
			got.Errors["status"] != 7) {
			t.Errorf("%s: got %+v", test.name, got)
		}
	}
}

// TestRunSendsTheWorkload runs wrk.
func TestRunSendsTheWorkload(t *testing.T) {
	var mu sync.Mutex
	var seen map[string]int
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.Method+" "+r.URL.Path+" "+r.Header.Get("x-device-id")]++
		mu.Unlock()
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	device := []string{`x-device-id: q"\`}
	for _, test := range []struct {
		name  string
		w     workload.Workload
		want  []string
		wrong bool
	}{
		{"one", workload.Workload{Method: http.MethodPost, Path: "/one", Headers: device}, []string{`POST /one q"\`}, false},
		{"numbered", workload.Workload{Method: http.MethodGet, Path: "/n/{n}", Headers: []string{"x-device-id: d{n}"},
			Count: 3}, []string{"GET /n/0 d0", "GET /n/1 d1", "GET /n/2 d2"}, false},
		{"errors", workload.Workload{Method: http.MethodGet, Path: "/bad"}, []string{"GET /bad "}, true},
	} {
		seen = map[string]int{}
		server := httptest.NewServer(handler)
		got, err := Run(t.Context(), server.URL, test.w, Load{Threads: 1, Connections: 2, Duration: time.Second}, t.TempDir())
		server.Close() // waits for the last requests of a wrk that has exited
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		asked := slices.Sorted(maps.Keys(seen))
		if !slices.Equal(asked, test.want) {
			t.Errorf("%s: got requests %q, want %q", test.name, asked, test.want)
		}
		if got.Requests == 0 || got.CPU == 0 || got.Percentiles[0] == 0 || (got.Errors["status"] > 0) != test.wrong {
			t.Errorf("%s: got %+v", test.name, got)
		}
	}
}

// TestHold pauses and resumes wrk between two requests.
func TestHold(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	p, err := Start(t.Context(), server.URL, workload.Workload{Method: http.MethodGet, Path: "/"},
		Load{Threads: 1, Connections: 2, Duration: 2 * time.Second}, t.TempDir())
	require.NoError(t, err)
	until := func(what string, f func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not %s after 20 s", what)
			}
		}
	}
	until("at work", func() bool { return requests.Load() > 0 })
	require.NoError(t, p.Hold())
	until("held", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	before := requests.Load() + 2 // outstanding requests
	require.NoError(t, p.Resume())
	until("at work again", func() bool { return requests.Load() > before })
	if r, err := p.Result(); err != nil || len(r.Errors) > 0 || r.Requests > requests.Load() {
		t.Errorf("got %+v, %v after %d requests", r, err, requests.Load())
	}
	if err := p.Hold(); err != nil { // wrk may end just before the hold
		t.Errorf("when it has ended: %v", err)
	}
}
