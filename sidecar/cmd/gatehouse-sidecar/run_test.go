package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/settings"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
	"github.com/gatehouse/gatehouse/verify/hasher"
)

// TestMain makes the test program able to be a hasher, as the sidecar's program is.
func TestMain(m *testing.M) {
	if hasher.IsHasher(os.Args) {
		os.Exit(hasher.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	if os.Getenv(asSidecar) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// asSidecar is the environment variable that makes the test's own program a sidecar.
const asSidecar = "GATEHOUSE_TEST_SIDECAR"

func TestExitCodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	require.NoError(t, os.WriteFile(file, []byte("redis: {url: redis://localhost}\nlog: {levle: info}\n"), 0o600))
	for _, test := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"help", []string{"--help"}, settings.ExitOK, "--redis.url", ""},
		{"version", []string{"--version"}, settings.ExitOK, "gatehouse-sidecar ", ""},
		{"good configuration", []string{"--check-config"}, settings.ExitOK, "ok\n", ""},
		{"bad configuration", []string{"--check-config", "--config", file, "--memory.bytes=1"}, settings.ExitUsage,
			"", "sidecar.yaml:2: log.levle: unknown setting, did you mean log.level?\ngatehouse-sidecar: memory.bytes"},
		{"bad flag", []string{"--nonsense"}, settings.ExitUsage, "", "unknown flag --nonsense"},
		{"no such directory", []string{"--api.socket=/no/such/directory/api.sock", "--admin.address=127.0.0.1:0",
			"--redis.url=redis://127.0.0.1:1"}, settings.ExitRuntime, "", "/no/such/directory/api.sock"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr logbuffer.Buffer
			if code := run(t.Context(), test.args, &stdout, &stderr); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("stdout %q, stderr %q; want %q, %q", stdout.String(), stderr.String(), test.stdout, test.stderr)
			}
		})
	}
}

func unixClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
}

// program is a sidecar between a Redis and an edge.
type program struct {
	memory     *edgememtest.Memory
	publish    *publish.Publisher
	api, admin string
	stderr     logbuffer.Buffer
	code       chan int
	stop       func()
}

// startEdge is a push listener over a memory.
func startEdge(t *testing.T, socket string) *edgememtest.Memory {
	t.Helper()
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	memory := edgememtest.NewMemory()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		status, answer := memory.Apply(body)
		w.WriteHeader(status)
		w.Write(answer)
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return memory
}

func startProgram(t *testing.T) *program {
	t.Helper()
	server := miniredis.RunT(t)
	server.Set(contract.Keys{}.DataEpochKey(), "beef") // an empty one isn't believed
	return startProgramWith(t, "redis://"+server.Addr())
}

func startProgramWith(t *testing.T, redisURL string) *program {
	t.Helper()
	dir := t.TempDir()
	push := filepath.Join(dir, "push.sock")
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(redisURL, "redis://")})
	t.Cleanup(func() { client.Close() })
	p := &program{
		memory: startEdge(t, push), publish: publish.New(client),
		api: filepath.Join(dir, "api.sock"), admin: redistest.FreeAddress(t), code: make(chan int, 1),
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	p.stop = cancel
	go func() {
		p.code <- run(ctx, []string{
			"--redis.url=" + redisURL, "--push.socket=" + push,
			"--api.socket=" + p.api, "--admin.address=" + p.admin, "--log.level=debug",
		}, io.Discard, &p.stderr)
	}()
	return p
}

// verify returns the verdict about a secret. On a busy machine bcrypt may end too late for the first question.
func (p *program) verify(t *testing.T, secret string) (answer wire.VerifyResponse) {
	t.Helper()
	await.Until(t, "a verdict", func() bool {
		answer = p.ask(t, secret)
		return answer.Outcome != wire.Unavailable
	})
	return answer
}

func (p *program) ask(t *testing.T, secret string) wire.VerifyResponse {
	t.Helper()
	request := wire.AppendVerifyRequest(nil, &wire.VerifyRequest{DeviceID: "d", Secret: secret})
	r, err := unixClient(p.api).Post("http://sidecar/v1/verify", "", bytes.NewReader(request))
	require.NoError(t, err)
	defer r.Body.Close()
	answer, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	response, err := wire.ParseVerifyResponse(answer)
	require.NoError(t, err)
	return response
}

func (p *program) ready() bool {
	r, err := http.Get("http://" + p.admin + "/readyz")
	if err != nil {
		return false
	}
	r.Body.Close()
	return r.StatusCode == http.StatusOK
}

// get returns the body of an admin endpoint.
func (p *program) get(t *testing.T, path string) string {
	t.Helper()
	r, err := http.Get("http://" + p.admin + path)
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(body)
}

func TestWholeProgram(t *testing.T) {
	p := startProgram(t)
	await.Until(t, "ready", p.ready)
	if log := p.stderr.String(); strings.Contains(log, "level=WARN") || !strings.Contains(log, "can't tell its role") {
		t.Errorf("on miniredis, which make run starts, the sidecar logs:\n%s\nwant no warning", log)
	}
	if _, err := p.publish.Put(t.Context(), publish.Object{Key: "/a", Body: []byte("hello"),
		ContentType: "text/plain"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.publish.PutDevice(t.Context(), publish.Device{ID: "d", Secret: "s", Cost: 4,
		Permissions: []string{"read", "write"}}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the object", func() bool {
		f, err := p.memory.Object("/a")
		return err == nil && string(f.Bodies[0]) == "hello"
	})
	await.Until(t, "the device", func() bool { status, _ := p.memory.Status("d", "s"); return status == wire.New })
	state, _ := p.memory.State()
	if got := p.verify(t, "s"); got.Outcome != wire.Allow || got.Epoch != state.Epoch || got.Permissions != "read,write" {
		t.Errorf("verify = %+v, want allow with both permissions under epoch %x", got, state.Epoch)
	}
	await.Until(t, "the verdict", func() bool {
		v, err := p.memory.Verdict("d", "s")
		return err == nil && v.Outcome == wire.Allow
	})
	if got := p.verify(t, "t"); got.Outcome != wire.Deny {
		t.Errorf("verify of a wrong secret = %+v", got)
	}
	if _, err := p.publish.RevokeDevice(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the revocation", func() bool {
		v, err := p.memory.Verdict("d", "s")
		return err != nil || v.Outcome == wire.Deny
	})
	if got := p.verify(t, "s"); got.Outcome != wire.Deny {
		t.Errorf("verify after the revocation = %+v", got)
	}
	text := p.get(t, "/metrics")
	for _, want := range []string{`gatehouse_build_info{goversion="go`, `gatehouse_redis_seconds_count{call="pipeline"}`} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	// The revocation came as an event.
	await.Until(t, "a measured propagation", func() bool {
		return regexp.MustCompile(`(?m)^gatehouse_propagation_seconds_count [1-9]`).MatchString(p.get(t, "/metrics"))
	})
	if age := time.Since(time.UnixMilli(state.InStepMS)); age > await.Deadline {
		t.Errorf("in step %v ago", age)
	}
	p.stop()
	select {
	case got := <-p.code:
		if got != settings.ExitOK {
			t.Errorf("exit code %d, want 0:\n%s", got, p.stderr.String())
		}
	case <-time.After(await.Deadline):
		t.Fatalf("still running after %v", await.Deadline)
	}
	if _, err := os.Stat(p.api); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	if strings.Contains(p.stderr.String(), "level=ERROR") {
		t.Errorf("errors were logged:\n%s", p.stderr.String())
	}
}

// TestRedisThatIsNotThere is reported at once, in a single line with the address.
func TestRedisThatIsNotThere(t *testing.T) {
	for _, url := range []string{"redis://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/master",
		"redis+cluster://127.0.0.1:1"} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			late, begin := await.Late(t), time.Now()
			p := startProgramWith(t, url)
			await.Until(t, "a warning", func() bool { return strings.Contains(p.stderr.String(), "level=WARN") })
			if took := time.Since(begin); took > 5*time.Second+late() {
				t.Errorf("it was reported after %v", took)
			}
			p.stop()
			<-p.code
			warnings := strings.Count(p.stderr.String(), "level=WARN")
			if said := p.stderr.String(); warnings != 1 || !strings.Contains(said, "redis can't be followed yet") ||
				!strings.Contains(said, "127.0.0.1:1: connect: connection refused") {
				t.Errorf("%d warnings, want one that says what is wrong:\n%s", warnings, said)
			}
		})
	}
}
