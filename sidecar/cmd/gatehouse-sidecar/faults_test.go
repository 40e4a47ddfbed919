package main

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// scene is a sidecar's surroundings, in which a fault is injected.
type scene struct {
	server *redistest.Server
	client *redis.Client
	url    string // of Redis
	push   string // socket of the edge
	edge   *http.Server
}

func (x *scene) do(t *testing.T, args ...any) {
	t.Helper()
	if err := x.client.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// limitUser makes the sidecar a user of Redis with all permissions except rules.
func limitUser(rules ...any) func(*testing.T, *scene) {
	return func(t *testing.T, x *scene) {
		user := append([]any{"ACL", "SETUSER", "reader", "on", ">secret", "~*", "&*", "+@all"}, rules...)
		x.do(t, user...)
		x.url = "redis://reader:secret@" + x.server.Address
	}
}

func configure(args ...any) func(*testing.T, *scene) {
	return func(t *testing.T, x *scene) { x.do(t, append([]any{"CONFIG", "SET"}, args...)...) }
}

// fault is a fault before the start of the sidecar, or once the sidecar is in step, and the words that operators must
// read.
type fault struct {
	name   string
	inject func(*testing.T, *scene)
	words  []string
	later  bool // once the sidecar is in step
	ready  bool // what is missing doesn't make the sidecar unready
	slow   bool // a call must time out first
}

func faults() []fault {
	all := []fault{
		{name: "wrong password", words: []string{"WRONGPASS"}, inject: func(t *testing.T, x *scene) {
			x.do(t, "CONFIG", "SET", "requirepass", "right")
			x.url = "redis://:wrong@" + x.server.Address
		}},
		{name: "no password", words: []string{"NOAUTH"}, inject: configure("requirepass", "right")},
		{name: "port closed", words: []string{"connection refused"}, inject: func(t *testing.T, x *scene) {
			x.url = "redis://" + redistest.FreeAddress(t)
		}},
		{name: "killed", words: []string{"Redis is not followed", "connection refused"}, later: true, ready: true,
			inject: func(_ *testing.T, x *scene) { x.server.Kill() }},
		{name: "stopped", words: []string{"timeout"}, slow: true,
			inject: func(_ *testing.T, x *scene) { x.server.Signal(syscall.SIGSTOP) }},
		{name: "stopped later", words: []string{"timeout"}, later: true, ready: true, slow: true,
			inject: func(_ *testing.T, x *scene) { x.server.Signal(syscall.SIGSTOP) }},
		{name: "another certificate", words: []string{"certificate"}, inject: func(t *testing.T, x *scene) {
			server := httptest.NewTLSServer(nil)
			t.Cleanup(server.Close)
			x.url = "rediss://" + server.Listener.Addr().String()
		}},
		{name: "no TLS", words: []string{"timeout"}, slow: true, inject: func(_ *testing.T, x *scene) {
			x.url = "rediss://" + x.server.Address
		}},
		{name: "unknown name", words: []string{"lookup no-such-host.invalid"}, inject: func(_ *testing.T, x *scene) {
			x.url = "redis://no-such-host.invalid:6379"
		}},
		{name: "a replica", words: []string{"is a replica"}, inject: func(t *testing.T, x *scene) {
			x.do(t, "REPLICAOF", "127.0.0.1", "1")
		}},
		{name: "a replica later", words: []string{"is a replica"}, later: true, ready: true,
			inject: func(t *testing.T, x *scene) { x.do(t, "REPLICAOF", "127.0.0.1", "1") }},
		{name: "too many clients", words: []string{"max number of clients reached"}, inject: configure("maxclients", "1")},
		{name: "loading", words: []string{"LOADING"}, inject: func(t *testing.T, x *scene) {
			pipe := x.client.Pipeline()
			for i := range 4000 {
				pipe.Set(t.Context(), fmt.Sprint("filler", i), strings.Repeat(fmt.Sprint(i), 500), 0)
			}
			if _, err := pipe.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
			x.do(t, "CONFIG", "SET", "key-load-delay", "10000", "loading-process-events-interval-bytes", "1024",
				"rdbcompression", "no")
			go x.client.Do(t.Context(), "DEBUG", "RELOAD") // takes longer than the test
		}},
		{name: "out of memory", words: []string{"Redis is full", "out of memory"}, ready: true,
			inject: configure("maxmemory", "1")},
		{name: "unsaved", words: []string{"MISCONF", "rdb_last_bgsave_status"}, ready: true,
			inject: func(t *testing.T, x *scene) {
				dir := t.TempDir()
				x.do(t, "CONFIG", "SET", "dir", dir)
				require.NoError(t, os.Remove(dir))
				x.do(t, "BGSAVE")
			}},
		{name: "evicts", words: []string{"may evict records"}, ready: true,
			inject: configure("maxmemory-policy", "allkeys-lru")},
		{name: "emptied", words: []string{"redis is empty"}, inject: func(t *testing.T, x *scene) { x.do(t, "FLUSHALL") }},
		{name: "log lost", words: []string{"{gatehouse:0}:log"}, inject: func(t *testing.T, x *scene) {
			x.do(t, "DEL", contract.Keys{}.LogKey())
		}},
		{name: "log lost later", words: []string{"{gatehouse:0}:log"}, later: true, ready: true,
			inject: func(t *testing.T, x *scene) { x.do(t, "DEL", contract.Keys{}.LogKey()) }},
		{name: "chain lost", words: []string{"{gatehouse:0}:chain"}, ready: true, inject: func(t *testing.T, x *scene) {
			x.do(t, "DEL", contract.Keys{}.ChainKey())
		}},
		{name: "no channel", words: []string{"NOPERM", "channel"}, inject: limitUser("resetchannels")},
		{name: "no keys", words: []string{"NOPERM", "key"}, inject: limitUser("resetkeys", "~other")},
		{name: "no push socket", words: []string{"push.sock", "no such file"}, inject: func(_ *testing.T, x *scene) {
			x.edge.Close() // removes it
		}},
		{name: "edge stopped", words: []string{"push.sock", "connection refused"}, later: true,
			inject: func(t *testing.T, x *scene) {
				kept := x.push + ".kept" // as after a crash
				require.NoError(t, os.Link(x.push, kept))
				x.edge.Close()
				require.NoError(t, os.Rename(kept, x.push))
			}},
		{name: "push socket of another user", words: []string{"push.sock", "permission denied"},
			inject: func(t *testing.T, x *scene) {
				require.NoError(t, os.Chmod(filepath.Dir(x.push), 0))
			}},
	}
	for _, command := range []string{"subscribe", "get", "zrange", "hgetall"} {
		all = append(all, fault{name: "no " + command, words: []string{"NOPERM", command}, inject: limitUser("-" + command)})
	}
	for command, rule := range map[string]string{"HMGET": "-hmget", "INFO": "-info", "MEMORY USAGE": "-memory"} {
		all = append(all, fault{name: "no " + command, words: []string{"NOPERM", command}, inject: limitUser(rule),
			ready: true})
	}
	return all
}

// start runs a sidecar in a separate process, as a user other than root, and returns the admin address.
func (x *scene) start(t *testing.T) (admin string, log *logbuffer.Buffer) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sidecar-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	admin, log = redistest.FreeAddress(t), new(logbuffer.Buffer)
	cmd := exec.Command("/proc/self/exe", "--redis.url="+x.url, "--push.socket="+x.push, "--admin.address="+admin,
		"--api.socket="+filepath.Join(dir, "api.sock"))
	cmd.Env = append(os.Environ(), asSidecar+"=1")
	cmd.Stderr = log
	if os.Getuid() == 0 {
		const nobody = 65534
		require.NoError(t, os.Chown(dir, nobody, nobody))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return admin, log
}

// ask returns the answer of an admin address, "" if there is none yet.
func ask(admin, path string) (status int, body string) {
	<-time.After(20 * time.Millisecond) // it is asked again and again
	response, err := http.Get("http://" + admin + path)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// TestFaultsAreNamed injects faults into a real Redis, its permissions, the connection and the edge: status, the page,
// and /readyz of a sidecar that isn't ready, name the cause. status never says that all is well while the edge isn't in
// step.
func TestFaultsAreNamed(t *testing.T) {
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			if f.slow && testing.Short() {
				t.Skip("in the long form")
			}
			x := &scene{server: redistest.StartServer(t, "--enable-debug-command", "yes", "--enable-protected-configs", "yes")}
			x.url, x.client = "redis://"+x.server.Address, redis.NewClient(&redis.Options{Addr: x.server.Address, PoolSize: 1,
				MaxRetries: -1})
			t.Cleanup(func() { x.client.Close() })
			if _, err := publish.New(x.client).PutDevice(t.Context(), publish.Device{ID: "d",
				Hashes: []string{"$2b$04$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234"}}); err != nil {
				t.Fatal(err)
			}
			dir, err := os.MkdirTemp("", "edge-")
			require.NoError(t, err)
			t.Cleanup(func() { os.Chmod(dir, 0o700); os.RemoveAll(dir) })
			os.Chmod(dir, 0o755)
			x.push = filepath.Join(dir, "push.sock")
			l, err := net.Listen("unix", x.push)
			require.NoError(t, err)
			os.Chmod(x.push, 0o666)
			x.edge = &http.Server{Handler: new(forgetfulEdge)}
			go x.edge.Serve(l)
			t.Cleanup(func() { x.edge.Close() })

			if !f.later {
				f.inject(t, x)
			}
			admin, log := x.start(t)
			var s operatorapi.Status
			state := func() string {
				s = operatorapi.Status{}
				status, body := ask(admin, "/v1/status")
				if status != 200 {
					return ""
				}
				if err := json.Unmarshal([]byte(body), &s); err != nil {
					t.Fatalf("%v: %s", err, body)
				}
				if len(s.Problems) == 0 && !s.InStep {
					t.Errorf("all is well, but not in step: %s", body)
				}
				return fmt.Sprint(s.Problems)
			}
			if f.later {
				await.Until(t, "all is well", func() bool { return state() == "[]" })
				f.inject(t, x)
			}
			named := func(text string) bool {
				for _, word := range f.words {
					if !strings.Contains(text, word) {
						return false
					}
				}
				return true
			}
			last := ""
			defer func() {
				if t.Failed() {
					t.Logf("status: %s\nlog: %s", last, log.String())
				}
			}()
			await.Until(t, fmt.Sprintf("%q in status", f.words), func() bool { last = state(); return named(last) })
			await.Until(t, fmt.Sprintf("%q on the page", f.words), func() bool {
				_, page := ask(admin, "/")
				return named(html.UnescapeString(page))
			})
			await.Until(t, fmt.Sprintf("%q, or ready: %t", f.words, f.ready), func() bool {
				status, text := ask(admin, "/readyz")
				return f.ready && status == 200 || !f.ready && status == 503 && named(text)
			})
		})
	}
}
