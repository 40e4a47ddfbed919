package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/testbed/proc"
)

// program is a running gatehouse-publisher with a Redis of its own. The teams are a and b; each team's token is its
// name.
type program struct {
	url string
	pid int
	tls *tls.Config
}

func startProgram(t *testing.T, binary string) program {
	t.Helper()
	file := write(t, "teams.yaml", fmt.Appendf(nil, `teams:
- {name: a, tokens: [%x], prefixes: [/a/], rate: 1000, bytes: 1073741824}
- {name: b, tokens: [%x], prefixes: [/b/], rate: 1000}
`, sum("a"), sum("b")))
	cert, key, pool := certificate(t)
	p := program{url: "https://" + redistest.FreeAddress(t), tls: &tls.Config{RootCAs: pool}}
	cmd := exec.Command(binary, "--teams.file="+file, "--redis.url=redis://"+redistest.StartServer(t).Address,
		"--listen.address="+strings.TrimPrefix(p.url, "https://"), "--admin.address="+redistest.FreeAddress(t),
		"--listen.tls-cert-file="+cert, "--listen.tls-key-file="+key, "--log.level=error")
	cmd.Env = append(os.Environ(), "GOMEMLIMIT=512000000") // as in the chart
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the end of the program's log:\n%s", log.Bytes()[max(0, log.Len()-2000):])
		}
	})
	await.Until(t, "the program to listen", func() bool {
		status, _ := p.send(t.Context(), p.client(t, false), "GET", "/v1/objects/b/0", "b", "", nil)
		return status == 404
	})
	return p
}

// client returns a client with separate connections; over HTTP/2, a single connection for all requests.
func (p program) client(t *testing.T, http2 bool) *http.Client {
	transport := &http.Transport{TLSClientConfig: p.tls.Clone(), ForceAttemptHTTP2: http2}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// send sends a request as docs/publish-http.md says: after a 429, a 503 or a lost connection again, with the same
// Idempotency-Key.
func (p program) send(ctx context.Context, client *http.Client, method, target, team, contentType string,
	body []byte) (status int, text string) {
	key := strconv.FormatUint(rand.Uint64(), 16)
	for {
		r, err := http.NewRequestWithContext(ctx, method, p.url+target, bytes.NewReader(body))
		if err != nil {
			return 0, err.Error()
		}
		r.Header = http.Header{"Authorization": {"Bearer " + team}, "Content-Type": {contentType}, "Idempotency-Key": {key}}
		wait := time.Second
		answer, err := client.Do(r)
		if err != nil {
			status, text = 0, err.Error()
		} else {
			content, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if status, text = answer.StatusCode, string(content); status != 429 && status != 503 {
				return status, text
			}
			seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
			if err != nil {
				return status, "no Retry-After: " + text
			}
			wait = time.Duration(seconds) * time.Second
		}
		select {
		case <-ctx.Done():
			return status, text
		case <-time.After(wait):
		}
	}
}

// document returns JSON of the largest size whose encodings are almost as large.
func document(seed uint64) string {
	random := make([]byte, limits.MaxBody/4*3-3)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	return `"` + base64.StdEncoding.EncodeToString(random) + `"`
}

// TestCrowd: many large concurrent requests of a team succeed if clients repeat refused requests as documented. The
// program stays in the chart's memory, and another team hardly waits.
func TestCrowd(t *testing.T) {
	const (
		clients   = 40
		maxMemory = 400e6
	)
	binary := filepath.Join(t.TempDir(), name) // without the race detector, which takes memory of its own
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, tt := range []struct {
		name   string
		http2  bool
		method string
		target string
		kind   string
		body   func(i uint64) string
		want   int
	}{
		{"put", false, "PUT", "/v1/objects/a/NUMBER", "application/json", document, 201},
		{"put of HTTP2", true, "PUT", "/v1/objects/a/NUMBER", "application/json", document, 201},
		{"batch", false, "POST", "/v1/batch", "application/x-ndjson", func(i uint64) string {
			line := `{"op": "put", "key": "/a/%d", "content_type": "text/plain", "body": %s}` + "\n"
			return fmt.Sprintf(line, i, document(i))
		}, 200},
		{"get", false, "GET", "/v1/objects/a/large", "", func(uint64) string { return "" }, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && tt.method != "PUT" {
				t.Skip("long; in short: put")
			}
			p := startProgram(t, binary)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			crowded, end := context.WithCancel(ctx)
			defer end()
			var waits []time.Duration
			var other, crowd sync.WaitGroup
			other.Go(func() {
				client := p.client(t, false)
				for i := 0; crowded.Err() == nil; i++ {
					begin := time.Now()
					status, text := p.send(ctx, client, "PUT", "/v1/objects/b/"+strconv.Itoa(i%10), "b", "text/plain", []byte("small"))
					if status != 200 && status != 201 {
						t.Errorf("the other team: %d %s", status, text)
						return
					}
					waits = append(waits, time.Since(begin))
				}
			})
			client := p.client(t, tt.http2)
			if tt.method == "GET" {
				p.send(ctx, client, "PUT", tt.target, "a", "text/plain", []byte(document(0)))
			}
			begin := time.Now()
			for i := range uint64(clients) {
				crowd.Go(func() {
					body, target := []byte(tt.body(i)), strings.ReplaceAll(tt.target, "NUMBER", strconv.FormatUint(i, 10))
					if status, text := p.send(ctx, client, tt.method, target, "a", tt.kind, body); status != tt.want {
						t.Errorf("client %d: %d %.300s", i, status, text)
					}
				})
			}
			crowd.Wait()
			took := time.Since(begin)
			end()
			other.Wait()
			peak, err := proc.PeakRSS(p.pid)
			if err != nil || len(waits) == 0 {
				t.Fatal(err, len(waits))
			}
			slices.Sort(waits)
			median := waits[len(waits)/2]
			t.Logf("%.1f s, peak memory %d MB; another team's %d writes: median %v, longest %v", took.Seconds(), peak/1e6,
				len(waits), median, waits[len(waits)-1])
			if peak > maxMemory {
				t.Errorf("peak memory %d MB, want at most %d", peak/1e6, int64(maxMemory/1e6))
			}
			maxMedian := max(100*time.Millisecond, took/(2*clients)) // on a busy machine everything takes longer
			if median > maxMedian {
				t.Errorf("the other team's median is %v, want at most %v", median, maxMedian)
			}
		})
	}
}
