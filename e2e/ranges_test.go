package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// randomLetters returns random letters, which hardly compress.
func randomLetters(seed, size int) string {
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	b := make([]byte, size)
	for i := range b {
		b[i] = 'a' + byte(random.IntN(26))
	}
	return string(b)
}

// TestDownloadResumes interrupts a download of 1 MiB, and has curl get the rest.
func TestDownloadResumes(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	const path, size, have = "/v1/products/firmware", 1 << 20, 300_000
	body := randomLetters(1, size)
	e.put(path, body)
	e.awaitAnswer("published", func(a answer) bool { return a.body == body }, "GET "+path)
	before := e.UpstreamRequests()

	c, err := net.Dial("tcp", strings.TrimPrefix(e.EdgeURL(), "http://"))
	require.NoError(t, err)
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.0\r\nHost: edge\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	part, err := io.ReadAll(io.LimitReader(c, have))
	_ = c.Close()
	_, content, _ := strings.Cut(string(part), "\r\n\r\n")
	if err != nil || !strings.HasPrefix(body, content) || len(content) < have/2 {
		t.Fatalf("got %d bytes: %v", len(content), err)
	}
	file := filepath.Join(t.TempDir(), "firmware")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	curl := func() string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "curl", "-s", "-C", "-", "-o", file,
			"-w", "%{http_code} %{size_download}", e.EdgeURL()+path).CombinedOutput()
		if err != nil {
			t.Fatalf("curl: %v: %s", err, out)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != body {
			t.Fatalf("the file has %d bytes, and not those that were published: %v", len(got), err)
		}
		return string(out)
	}
	if got, want := curl(), fmt.Sprint("206 ", size-len(content)); got != want {
		t.Errorf("the rest: got %s, want %s", got, want)
	}
	if got := curl(); !strings.HasPrefix(got, "416 ") {
		t.Errorf("of a whole file: got %s, want 416", got)
	}
	etag := e.send("HEAD " + path).header.Get("ETag")
	e.put(path, randomLetters(2, size))
	e.awaitAnswer("published again", func(a answer) bool { return a.header.Get("ETag") != etag }, "GET "+path)
	a := e.send("GET "+path, "range: bytes=300000-", "if-range: "+etag)
	if a.status != http.StatusOK || len(a.body) != size {
		t.Errorf("the rest of an earlier version: got %d, %d bytes, want all of the new one", a.status, len(a.body))
	}
	if got := e.UpstreamRequests() - before; got != 0 {
		t.Errorf("the upstream saw %d requests, want none", got)
	}
}

// TestLanguages has more objects, half of them also in German, than the edge has room for.
func TestLanguages(t *testing.T) {
	t.Parallel()
	e := start(t, stack.Options{
		SidecarArgs: []string{"--memory.bytes=1MiB"},
		Rules:       "rules: [{match: {prefix: /v1/}, cache: {on_miss: fetch, languages: [de, en-GB]}}]",
	})
	const objects = 12
	file := filepath.Join(t.TempDir(), "german")
	for i := range objects {
		key := "/v1/" + strconv.Itoa(i)
		e.put(key, randomLetters(i, 100<<10))
		if i%2 == 0 {
			require.NoError(t, os.WriteFile(file, []byte(randomLetters(100+i, 100<<10)), 0o600))
			e.ctl("put", key, "--language", "DE", "--file", file)
		}
	}
	await(t, "each in its language", patience, func() error {
		for i := range objects {
			for accept, want := range map[string]string{"fr, de-AT;q=0.5": "de", "en-GB": ""} {
				body := randomLetters(i, 100<<10)
				if want != "" && i%2 == 0 {
					body = randomLetters(100+i, 100<<10)
				} else {
					want = ""
				}
				a := e.send("GET /v1/"+strconv.Itoa(i), "accept-language: "+accept)
				if a.status != 200 || a.body != body || a.header.Get("Content-Language") != want ||
					!strings.HasPrefix(a.header.Get("Vary"), "accept-language") {
					return fmt.Errorf("object %d for %s: got %d, %d bytes, %v", i, accept, a.status, len(a.body), a.header)
				}
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
	a := e.send("GET /v1/none", "accept-language: de")
	if got := a.header.Get("Cache-Status"); got != "gatehouse; fwd=uri-miss" {
		t.Errorf("got Cache-Status %q, want a miss", got)
	}
	a.seenByUpstream(t)
}
