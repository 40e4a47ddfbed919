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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/internal/config"
	"github.com/gatehouse/gatehouse/sidecar/internal/image"
	"github.com/gatehouse/gatehouse/sidecar/internal/image/imagetest"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/wire"
)

const deadline = 30 * time.Second

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !condition(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", deadline, what)
		}
		<-time.After(time.Millisecond)
	}
}

// buffer is safe for a program that logs while a test reads.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestExitCodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	if err := os.WriteFile(file, []byte("redis: {url: redis://localhost}\nlog: {levle: info}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"help", []string{"--help"}, exitOK, "--redis.url", ""},
		{"version", []string{"--version"}, exitOK, "gatehouse-sidecar ", ""},
		{"good configuration", []string{"--check-config"}, exitOK, "ok\n", ""},
		{"bad configuration", []string{"--check-config", "--config", file, "--memory.bytes=1"}, exitUsage, "", "sidecar.yaml:2: log.levle: unknown setting\ngatehouse-sidecar: memory.bytes"},
		{"bad flag", []string{"--nonsense"}, exitUsage, "", "unknown flag --nonsense"},
		{"no such directory", []string{"--api.socket=/no/such/directory/api.sock", "--admin.address=127.0.0.1:0", "--redis.url=redis://127.0.0.1:1"}, exitRuntime, "", "/no/such/directory/api.sock"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr buffer
			if code := run(t.Context(), test.args, &stdout, &stderr); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("stdout %q, stderr %q; want %q, %q", stdout.String(), stderr.String(), test.stdout, test.stderr)
			}
		})
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func unixClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
}

// TestWholeProgram runs the sidecar between a Redis and an edge.
func TestWholeProgram(t *testing.T) {
	dir, memory := t.TempDir(), imagetest.NewMemory()
	l, err := net.Listen("unix", filepath.Join(dir, "push.sock"))
	if err != nil {
		t.Fatal(err)
	}
	edge := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		status, answer := memory.Apply(body)
		w.WriteHeader(status)
		w.Write(answer)
	})}
	go edge.Serve(l)
	defer edge.Close()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer client.Close()
	p := publish.New(client)
	if _, err := p.Put(t.Context(), publish.Object{Key: "/a", Body: []byte("hello"), ContentType: "text/plain"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.PutDevice(t.Context(), publish.Device{ID: "d", Secret: "s", Cost: 4, Permissions: []string{"read", "write"}}); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	api, admin := filepath.Join(dir, "api.sock"), freeAddress(t)
	var stderr buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{
			"--redis.url=redis://" + client.Options().Addr, "--push.socket=" + filepath.Join(dir, "push.sock"),
			"--api.socket=" + api, "--admin.address=" + admin, "--log.level=debug",
		}, io.Discard, &stderr)
	}()
	eventually(t, "ready", func() bool {
		r, err := http.Get("http://" + admin + "/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	if f, err := memory.Object("/a"); err != nil || string(f.Bodies[0]) != "hello" {
		t.Errorf("/a: %v", err)
	}
	verify := func(secret string) wire.VerifyResponse {
		r, err := unixClient(api).Post("http://x/v1/verify", "", bytes.NewReader(wire.AppendVerifyRequest(nil, &wire.VerifyRequest{DeviceID: "d", Secret: secret})))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		answer, _ := io.ReadAll(r.Body)
		response, err := wire.ParseVerifyResponse(answer)
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	if got, epoch := verify("s"), epochOf(memory); got.Outcome != wire.Allow || got.Epoch != epoch || got.Permissions != 3 {
		t.Errorf("verify = %+v, want allow with both permissions under epoch %x", got, epoch)
	}
	eventually(t, "the verdict", func() bool { v, err := memory.Verdict("d", "s"); return err == nil && v.Outcome == wire.Allow })
	if got := verify("t"); got.Outcome != wire.Deny {
		t.Errorf("verify of a wrong secret = %+v", got)
	}
	if _, err := p.RevokeDevice(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the revocation", func() bool { v, err := memory.Verdict("d", "s"); return err != nil || v.Outcome == wire.Deny })
	if got := verify("s"); got.Outcome != wire.Deny {
		t.Errorf("verify after the revocation = %+v", got)
	}
	state, _ := memory.State()
	if age := time.Since(time.UnixMilli(state.InStepMS)); age > 10*time.Second {
		t.Errorf("in step %v ago", age)
	}
	cancel()
	select {
	case got := <-code:
		if got != exitOK {
			t.Errorf("exit code %d, want 0:\n%s", got, stderr.String())
		}
	case <-time.After(deadline):
		t.Fatalf("still running after %v", deadline)
	}
	if _, err := os.Stat(api); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	if strings.Contains(stderr.String(), "level=ERROR") {
		t.Errorf("errors were logged:\n%s", stderr.String())
	}
}

func epochOf(m *imagetest.Memory) uint64 {
	state, _ := m.State()
	return state.Epoch
}

// TestReadme compares what sidecar/README.md lists with what there is.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := func(pattern string) []string {
		var names []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			names = append(names, match[1])
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	equal := func(what string, got, want []string) {
		t.Helper()
		slices.Sort(want)
		if got, want := strings.Join(got, "\n"), strings.Join(slices.Compact(want), "\n"); got != want {
			t.Errorf("%s listed:\n%s\nwant:\n%s", what, got, want)
		}
	}

	m := metrics.New()
	m.WatchImage(image.New(image.Config{}).Stats)
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "gatehouse_") {
			continue
		}
		labels := map[string]bool{}
		name := family.GetName()
		for _, pair := range family.GetMetric()[0].GetLabel() {
			labels[pair.GetName()] = true
			name += " " + pair.GetName()
		}
		names = append(names, name)
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(gatehouse_\\w+)` \\|[^|]*\\| ([^|]*) \\|").FindAllStringSubmatch(string(text), -1) {
		labels := regexp.MustCompile("`(\\w+)`:").FindAllStringSubmatch(row[2], -1)
		name := row[1]
		for _, label := range labels {
			name += " " + label[1]
		}
		documented = append(documented, name)
	}
	slices.Sort(documented)
	equal("metrics", documented, names)

	var usage bytes.Buffer
	if err := config.Usage(&usage); err != nil {
		t.Fatal(err)
	}
	var flags, variables, settings []string
	for _, match := range regexp.MustCompile(`--([a-z-]+\.[a-z-]+)=`).FindAllStringSubmatch(usage.String(), -1) {
		flags = append(flags, match[1])
		variables = append(variables, "GATEHOUSE_"+strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(match[1])))
		settings = append(settings, strings.ReplaceAll(match[1], "-", "_"))
	}
	equal("flags", listed("(?m)^\\| `--([a-z-]+\\.[a-z-]+)`"), flags)
	equal("variables", listed("(?m)^\\| `--[a-z-]+\\.[a-z-]+` \\| `(GATEHOUSE_[A-Z_]+)`"), variables)
	equal("settings", listed("(?m)^\\| `--[a-z-]+\\.[a-z-]+` \\| `GATEHOUSE_[A-Z_]+` \\| `([a-z_.]+)`"), settings)
}
