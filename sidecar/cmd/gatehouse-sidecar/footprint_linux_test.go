package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
	"github.com/gatehouse/gatehouse/testbed/proc"
)

// The chart's limit of memory, and the sidecar's part of the limit.
const (
	memoryLimit = 1 << 30
	mostMemory  = memoryLimit * 8 / 10
)

// forgetfulEdge is a push listener that acknowledges everything and keeps only the state.
type forgetfulEdge struct {
	mu    sync.Mutex
	state []byte
	epoch uint64
}

func (e *forgetfulEdge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	batch, err := wire.ParseBatch(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if batch.Replaces != e.epoch {
		w.WriteHeader(http.StatusConflict)
		w.Write(e.state)
		return
	}
	for op := range batch.Ops() {
		if op.Region == wire.RegionState {
			e.state, e.epoch = bytes.Clone(op.Record), batch.Epoch
		}
	}
	w.Write(e.state)
}

// process is a sidecar in a process of its own, with the chart's limit.
type process struct {
	*exec.Cmd
	admin string
	log   logbuffer.Buffer
}

func startProcess(t *testing.T, program, address string) *process {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "push.sock"))
	require.NoError(t, err)
	edge := &http.Server{Handler: new(forgetfulEdge)}
	go edge.Serve(l)
	p := &process{admin: redistest.FreeAddress(t)}
	p.Cmd = exec.Command(program, "--redis.url=redis://"+address, "--push.socket="+filepath.Join(dir, "push.sock"),
		"--api.socket="+filepath.Join(dir, "api.sock"), "--admin.address="+p.admin)
	p.Env = append(os.Environ(), fmt.Sprintf("GOMEMLIMIT=%d", memoryLimit>>20*1_000_000))
	p.Stderr = &p.log
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		p.end()
		edge.Close()
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

func (p *process) end() {
	_ = p.Process.Signal(syscall.SIGTERM)
	_ = p.Wait()
}

func (p *process) get(path string) (status int, body string) {
	r, err := http.Get("http://" + p.admin + path)
	if err != nil {
		return 0, ""
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

// await waits for what takes longer than a test usually does.
func (p *process) await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !condition(); {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// ready waits until the edge has everything, and returns how long that took.
func (p *process) ready(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	p.await(t, "ready", func() bool { status, _ := p.get("/readyz"); return status == http.StatusOK })
	return time.Since(began)
}

// metric returns the value of a metric without labels.
func (p *process) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, text := p.get("/metrics")
	match := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
	if match == nil {
		return 0
	}
	value, err := strconv.ParseFloat(match[1], 64)
	require.NoError(t, err)
	return value
}

// heap returns the bytes of live objects, after a collection.
func (p *process) heap(t *testing.T) float64 {
	t.Helper()
	for range 2 {
		if status, _ := p.get("/debug/pprof/heap?gc=1"); status != http.StatusOK {
			t.Fatalf("a collection: status %d", status)
		}
	}
	return p.metric(t, "go_memstats_heap_alloc_bytes")
}

// fits fails the test if the process ever took more memory than it may.
func (p *process) fits(t *testing.T, what string) {
	t.Helper()
	peak, err := proc.PeakRSS(p.Process.Pid)
	require.NoError(t, err)
	now, err := proc.RSS(p.Process.Pid)
	require.NoError(t, err)
	t.Logf("%s: %d MiB at most, %d MiB now; objects take %.0f MiB of the budget", what, peak>>20,
		now>>20, p.metric(t, "gatehouse_object_cache_bytes")/(1<<20))
	if peak > mostMemory {
		t.Errorf("%s: got %d MiB at most, want %d", what, peak>>20, mostMemory>>20)
	}
}

// content writes records as no writer does: many at once, without events.
type content struct {
	*redis.Client
	seq int
}

func (c *content) write(t *testing.T, n int, member func(i int) contract.Member, fields func(i int) map[string]string) {
	t.Helper()
	keys := contract.Keys{}
	for from := 0; from < n; {
		pipe := c.Pipeline()
		for size := 0; from < n && size < 32<<20; from++ {
			record := fields(from)
			for _, value := range record {
				size += 200 + len(value)
			}
			c.seq++
			pipe.HSet(t.Context(), keys.RecordKey(member(from)), record)
			pipe.ZAdd(t.Context(), keys.LogKey(), redis.Z{Score: float64(c.seq), Member: member(from).String()})
		}
		pipe.SetNX(t.Context(), keys.DataEpochKey(), "beef", 0)
		pipe.Set(t.Context(), keys.SeqKey(), c.seq, 0)
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func objectKey(i int) contract.Member { return contract.ObjectMember(fmt.Sprint("/v1/products/", i)) }

func noise(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return string(b)
}

func objectOf(body string) map[string]string {
	return map[string]string{"version": "1", "published": "1", "etag": `"a"`,
		"content-type": "application/json", "body": body}
}

// allEncodings returns an object of four encodings.
func allEncodings(body string) map[string]string {
	fields := objectOf(body)
	for _, coding := range []string{"body.gzip", "body.br", "body.zstd"} {
		fields[coding] = body
	}
	return fields
}

// TestFootprint starts the program with the worst content that Redis may have, and changes the content: the program
// stays within four fifths of the chart's limit. After the changes the heap is about as large as in a freshly started
// program.
func TestFootprint(t *testing.T) {
	if testing.Short() {
		t.Skip("long form; the packages that hold memory test that they give it back")
	}
	program := filepath.Join(t.TempDir(), "gatehouse-sidecar")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := redistest.StartServer(t)
	c := &content{Client: server.Client(t)}
	body := noise(1 << 20)

	t.Run("records without bounds", func(t *testing.T) {
		without := strings.Repeat("x", 15<<20)
		c.write(t, 80, objectKey, func(int) map[string]string { return objectOf(without) })
		p := startProcess(t, program, server.Address)
		took := p.ready(t)
		p.fits(t, fmt.Sprintf("80 objects of 15 MiB, read in %v", took))
		if got := strings.Count(p.log.String(), "malformed record from redis skipped"); got != 80 {
			t.Errorf("the log names %d records, want 80", got)
		}
	})
	c.FlushAll(t.Context())

	t.Run("large objects", func(t *testing.T) {
		large := allEncodings(body)
		hash := "$2b$12$" + strings.Repeat("a", 53)
		c.write(t, 100_000, func(i int) contract.Member {
			return contract.CredentialMember(fmt.Sprint("device-", i))
		}, func(int) map[string]string {
			return map[string]string{"version": "1", "published": "1", "hash": hash, "permissions": "read,write"}
		})
		c.write(t, 300, objectKey, func(int) map[string]string { return large })
		require.NoError(t, c.Do(t.Context(), "CONFIG", "RESETSTAT").Err())
		p := startProcess(t, program, server.Address)
		took := p.ready(t)
		p.fits(t, fmt.Sprintf("300 objects of 4 MiB and 100,000 devices, read in %v", took))
		// The same again, with everything known, and once more after Redis has lost its data.
		require.NoError(t, c.Set(t.Context(), contract.Keys{}.DataEpochKey(), "cafe", 0).Err())
		p.await(t, "the second resync", func() bool { return strings.Count(p.log.String(), "caught up with redis") >= 2 })
		p.fits(t, "and all read again")
	})
	c.FlushAll(t.Context())

	t.Run("churn", func(t *testing.T) {
		const n, rounds, size = 1000, 12, 48 << 10
		round := 0
		key := func(i int) contract.Member {
			return contract.ObjectMember(fmt.Sprint("/v1/", round, "/", i))
		}
		device := func(i int) contract.Member {
			return contract.CredentialMember(fmt.Sprint("device-", round, "-", i))
		}
		write := redistest.Writer(t, c, "../../../clients/go/publish/write.lua")
		gone := map[string]string{"deleted": "1"}
		small := map[string]string{"etag": `"a"`, "content-type": "application/json", "body": body[:size]}
		hash := map[string]string{"hash": "$2b$12$" + strings.Repeat("a", 53)}
		write(key(0), small) // an empty Redis isn't believed
		p := startProcess(t, program, server.Address)
		p.ready(t)
		for ; round < rounds; round++ {
			for i := range n {
				write(key(i), small)
				write(device(i), hash)
			}
			if round == 1 { // larger than the budget, so that others are evicted
				for i := range 80 {
					write(contract.ObjectMember(fmt.Sprint("/large/", i)), map[string]string{
						"etag": `"a"`, "content-type": "a", "body": body, "body.gzip": body, "body.br": body, "body.zstd": body,
					})
				}
				for i := range 80 {
					write(contract.ObjectMember(fmt.Sprint("/large/", i)), gone)
				}
			}
			if round == rounds-1 {
				break // the last ones stay
			}
			for i := range n {
				write(key(i), gone)
				write(device(i), gone)
			}
		}
		inStep := func(p *process) {
			p.await(t, "in step", func() bool {
				seq, err := c.Get(t.Context(), contract.Keys{}.SeqKey()).Uint64()
				return err == nil && p.metric(t, "gatehouse_redis_seq") == float64(seq) &&
					p.metric(t, "gatehouse_edge_memory_dirty_buckets") == 0
			})
		}
		inStep(p)
		churned := p.heap(t)
		p.fits(t, "churn")
		p.end()
		fresh := startProcess(t, program, server.Address)
		fresh.ready(t)
		inStep(fresh)
		held := fresh.heap(t)
		t.Logf("heap after churn %.1f MiB, of a program that has just started %.1f MiB", churned/(1<<20), held/(1<<20))
		if churned > 1.3*held {
			t.Errorf("got %.2f times the heap of a program that has just started, want at most 1.3", churned/held)
		}
	})
}
