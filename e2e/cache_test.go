package e2e

import (
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestCache requests one object in every way; no request may reach the upstream.
func TestCache(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	body := prettyJSON(1024, "v1")
	e.put("/v1/products/42", body)
	e.put("/v1/products/42?lang=de", `{"lang":"de"}`)
	e.put("/v1/products/empty", "")
	e.awaitAnswer("published", func(a answer) bool { return a.status == 200 && a.body == "" }, "GET /v1/products/empty")
	before := e.UpstreamRequests()

	plain := e.send("GET /v1/products/42")
	etag := plain.header.Get("ETag")
	if plain.status != 200 || plain.body != body || etag == "" {
		t.Fatalf("got %d %v %q, want the object", plain.status, plain.header, plain.body)
	}
	tests := []struct {
		name    string
		request []string
		status  int
		body    string // after decoding
		header  map[string]string
	}{
		{"plain", []string{"GET /v1/products/42"}, 200, body, map[string]string{"Cache-Status": "gatehouse; hit",
			"Content-Type": "application/json", "Cache-Control": "no-cache", "Vary": "accept-encoding"}},
		{"gzip", []string{"GET /v1/products/42", "accept-encoding: gzip"}, 200, body,
			map[string]string{"Content-Encoding": "gzip", "Etag": "W/" + etag}},
		{"br", []string{"GET /v1/products/42", "accept-encoding: br, gzip;q=0.5"}, 200, body,
			map[string]string{"Content-Encoding": "br"}},
		{"zstd", []string{"GET /v1/products/42", "accept-encoding: zstd"}, 200, body,
			map[string]string{"Content-Encoding": "zstd"}},
		{"curl --compressed", []string{"GET /v1/products/42", "accept-encoding: deflate, gzip, br, zstd"}, 200, body, nil},
		{"if-none-match", []string{"GET /v1/products/42", "if-none-match: " + etag}, 304,
			"", map[string]string{"Etag": etag, "Cache-Status": "gatehouse; hit", "Cache-Control": "no-cache",
				"Vary": "accept-encoding", "Content-Length": ""}},
		{"if-none-match, weak", []string{"GET /v1/products/42", "if-none-match: W/" + etag}, 304, "", nil},
		{"if-none-match, list", []string{"GET /v1/products/42", `if-none-match: "a", W/"b", ` + etag}, 304, "", nil},
		{"if-none-match, two lines", []string{"GET /v1/products/42", `if-none-match: "a"`, "if-none-match: " + etag},
			304, "", nil},
		{"if-none-match, any", []string{"GET /v1/products/42", "if-none-match: *"}, 304, "", nil},
		{"if-none-match, other", []string{"GET /v1/products/42", `if-none-match: "other"`}, 200, body, nil},
		{"HEAD", []string{"HEAD /v1/products/42"}, 200,
			"", map[string]string{"Content-Length": strconv.Itoa(len(body)), "Etag": etag}},
		{"HEAD, if-none-match", []string{"HEAD /v1/products/42", "if-none-match: " + etag}, 304, "", nil},
		{"range", []string{"GET /v1/products/42", "range: bytes=0-9"}, 206, body[:10],
			map[string]string{"Content-Range": fmt.Sprintf("bytes 0-9/%d", len(body)), "Etag": etag}},
		{"range, beyond the end", []string{"GET /v1/products/42", "range: bytes=9999-"}, 416, "",
			map[string]string{"Content-Range": fmt.Sprintf("bytes */%d", len(body))}},
		{"other parameters", []string{"GET /v1/products/42?utm=1&x"}, 200, body, nil},
		{"its parameter", []string{"GET /v1/products/42?b=1&lang=de"}, 200, `{"lang":"de"}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if onNginx() && tt.name == "if-none-match, two lines" {
				t.Skip("not on nginx: it refuses a second line")
			}
			a := e.send(tt.request[0], tt.request[1:]...)
			if got := decodeBody(t, a); a.status != tt.status || got != tt.body {
				t.Errorf("got %d %q, want %d %q", a.status, got, tt.status, tt.body)
			}
			for name, want := range tt.header {
				if got := a.header.Get(name); got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
		})
	}
	if got := e.UpstreamRequests() - before; got != 0 {
		t.Errorf("the upstream saw %d requests, want none", got)
	}
	// Envoy would convert a filter's answer to a gRPC response, with the body in a header.
	grpc := e.send("GET /v1/products/42", "content-type: application/grpc")
	grpc.seenByUpstream(t)
	if grpc.header.Get("Grpc-Message") != "" || grpc.header.Get("Cache-Status") != "gatehouse; fwd=bypass" {
		t.Errorf("gRPC: got %v, want it to go upstream", grpc.header)
	}
	for first, want := range map[string]string{
		"GET /v1/products/none": "gatehouse; fwd=uri-miss",
		"PUT /v1/products/42":   "gatehouse; fwd=method",
		"GET /other":            "",
	} {
		a := e.send(first)
		a.seenByUpstream(t)
		if got := a.header.Get("Cache-Status"); got != want {
			t.Errorf("%s: got Cache-Status %q, want %q", first, got, want)
		}
	}
}

func decodeBody(t *testing.T, a answer) string {
	t.Helper()
	var r io.Reader = strings.NewReader(a.body)
	var err error
	switch coding := a.header.Get("Content-Encoding"); coding {
	case "":
	case "gzip":
		r, err = gzip.NewReader(r)
	case "br":
		r = brotli.NewReader(r)
	case "zstd":
		r, err = zstd.NewReader(r)
	default:
		t.Fatalf("unknown coding %q", coding)
	}
	require.NoError(t, err)
	body, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(body)
}

// TestUpdateReachesEveryWorker publishes through gatehousectl and checks connections to both workers.
func TestUpdateReachesEveryWorker(t *testing.T) {
	t.Parallel()
	const limit = 100 * time.Millisecond
	e := reuse(t, stack.Options{})
	e.put("/v1/products/42", "v0")
	clients := e.workerClients()
	const rounds = 11
	var took []time.Duration
	for i := range rounds {
		body := prettyJSON(1024, "v"+strconv.Itoa(i+1))
		e.ctl("put", "/v1/products/42", "--file", writeFile(t, "new.json", body))
		took = append(took, await(t, "update", patience, func() error {
			return e.sendFromAll(clients, hasBody(body), "GET /v1/products/42")
		}))
	}
	slices.Sort(took)
	t.Logf("from the command's return to the new body on %d connections over both workers: median %s, max %s of %d",
		len(clients), took[rounds/2], took[rounds-1], rounds)
	if took[rounds/2] > limit {
		t.Errorf("median: got %s, want at most %s", took[rounds/2], limit)
	}

	e.ctl("delete", "/v1/products/42")
	gone := await(t, "delete", patience, func() error {
		return e.sendFromAll(clients, func(a answer) bool {
			return a.header.Get("Cache-Status") == "gatehouse; fwd=uri-miss"
		}, "GET /v1/products/42")
	})
	t.Logf("delete: %s", gone)
	if gone > 10*limit {
		t.Errorf("delete: got %s, want at most %s", gone, 10*limit)
	}
}

// TestFetchOnMiss requests an object that Redis has and the edge doesn't.
func TestFetchOnMiss(t *testing.T) {
	t.Parallel()
	e := start(t, stack.Options{
		SidecarArgs: []string{"--memory.bytes=1MiB"}, // room for few objects
		Rules:       "rules: [{match: {prefix: /v1/}, cache: {on_miss: fetch}}]",
	})
	// Random bytes, because compressed forms would be small and all would fit.
	body := func(i int) string {
		random := rand.New(rand.NewPCG(uint64(i), 0))
		b := make([]byte, 100<<10)
		for j := range b {
			b[j] = 'a' + byte(random.IntN(26))
		}
		return string(b)
	}
	for i := range 20 {
		e.put("/v1/"+strconv.Itoa(i), body(i))
	}
	await(t, "some are evicted", patience, func() error {
		for i := range 20 {
			if a := e.send("GET /v1/" + strconv.Itoa(i)); a.status != 200 || a.body != body(i) {
				return io.ErrUnexpectedEOF
			}
		}
		return nil
	})
	await(t, "fetches are counted", patience, func() error { // at the next tick
		if e.edgeMetric("gatehouse_calls_total", `call="fetch"`) == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
	a := e.send("GET /v1/none")
	if got := a.header.Get("Cache-Status"); got != "gatehouse; fwd=uri-miss" {
		t.Errorf("got Cache-Status %q, want a miss", got)
	}
	a.seenByUpstream(t)
}
