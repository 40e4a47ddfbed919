package stack

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// helperOptions returns options for a stack with this test binary as Envoy and sidecar, to test how parts are started,
// watched and stopped.
func helperOptions(t *testing.T) Options {
	t.Helper()
	t.Setenv(helperVariable, "child")
	self, err := os.Executable()
	require.NoError(t, err)
	return Options{Dir: t.TempDir(), EnvoyPath: self, SidecarPath: self, WasmPath: self, LibraryPath: self,
		ReadyTimeout: 20 * time.Second}
}

func startStack(t *testing.T, opts Options) *Stack {
	t.Helper()
	s, err := Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(body)
}

func TestStackStartsAndStops(t *testing.T) {
	opts := helperOptions(t)
	var seeded []string
	opts.Seed = func(ctx context.Context, url string) error {
		seeded = append(seeded, url)
		options, err := redis.ParseURL(url)
		if err != nil {
			return err
		}
		client := redis.NewClient(options)
		defer func() { _ = client.Close() }()
		return client.Set(ctx, "seed", "kept", 0).Err()
	}
	s := startStack(t, opts)

	if got := get(t, s.UpstreamURL()+"/debug/requests"); got != "{\"requests\":0}\n" {
		t.Errorf("upstream: got %q, want no requests", got)
	}
	if len(seeded) != 1 || seeded[0] != s.RedisURL() {
		t.Errorf("seed: got calls for %q, want one for %s", seeded, s.RedisURL())
	}
	pid := s.EdgePID()
	if err := s.StartEdge(t.Context()); err == nil || !strings.Contains(err.Error(), "envoy runs already") {
		t.Errorf("second Envoy: got %v, want a refusal", err)
	}
	for name, step := range map[string]func() error{
		"envoy":   func() error { return errors.Join(s.KillEdge(), s.StartEdge(t.Context())) },
		"sidecar": func() error { return errors.Join(s.KillSidecar(), s.StartSidecar(t.Context())) },
		"redis":   func() error { return errors.Join(s.KillRedis(), s.StartRedis(t.Context())) },
	} {
		if err := step(); err != nil {
			t.Errorf("restart of %s: %v", name, err)
		}
	}
	options, err := redis.ParseURL(s.RedisURL())
	require.NoError(t, err)
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	if got, err := client.Get(t.Context(), "seed").Result(); err != nil || got != "kept" {
		t.Errorf("embedded Redis after its restart: got %q, %v; want its data kept", got, err)
	}
	if err := client.Do(t.Context(), "CLIENT", "SETINFO", "LIB-NAME", "lettuce").Err(); err != nil {
		t.Errorf("embedded Redis: CLIENT SETINFO, which Lettuce sends: %v", err)
	}
	subscription := client.Subscribe(t.Context(), "channel")
	defer func() { _ = subscription.Close() }()
	if _, err := subscription.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, client.Publish(t.Context(), "channel", "event").Err())
	if message, err := subscription.ReceiveMessage(t.Context()); err != nil || message.Payload != "event" {
		t.Errorf("embedded Redis after its restart: got %v, %v; want the event", message, err)
	}
	if s.EdgePID() == pid {
		t.Errorf("pid of the new Envoy: got %d, that of the old one", pid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Wait(ctx); err != nil {
		t.Errorf("got %v, want no report: every end was asked for", err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	for _, url := range []string{s.EdgeURL(), s.EnvoyAdminURL(), s.SidecarAdminURL(), s.UpstreamURL(), s.RedisURL()} {
		if err := freeport.Probe(strings.TrimPrefix(strings.TrimPrefix(url, "http://"), "redis://")); err != nil {
			t.Errorf("after Stop: %v", err)
		}
	}
}

func TestStackNoticesDeath(t *testing.T) {
	s := startStack(t, helperOptions(t))
	if res, err := http.Get(s.SidecarAdminURL() + "/exit"); err == nil {
		_ = res.Body.Close()
	}
	var exit *ExitError
	if err := s.Wait(t.Context()); !errors.As(err, &exit) {
		t.Fatalf("got %v, want an ExitError", err)
	}
	if exit.Name != "sidecar" || exit.Status != "exit status 9" || !strings.HasSuffix(exit.Tail, "asked to exit") {
		t.Errorf("got %v, want the sidecar's exit status 9 and its last words", exit)
	}
}

func TestStackThatCannotStart(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Options)
		want []string
	}{
		{"envoy ends", func(o *Options) { o.EnvoyArgs = []string{"--fail", "bad rule"} },
			[]string{"envoy (pid ", "exit status 7", "child says hello\nbad rule"}},
		{"sidecar ends", func(o *Options) { o.SidecarArgs = []string{"--fail", "bad flag"} },
			[]string{"sidecar (pid ", "exit status 7", "bad flag"}},
		{"sidecar is never ready", func(o *Options) {
			o.SidecarArgs = []string{"--admin.address", "127.0.0.1:0"}
			o.ReadyTimeout = time.Second
		}, []string{"/readyz: not ready after ", "connection refused", "child says hello"}},
		{"seed fails", func(o *Options) {
			o.Seed = func(context.Context, string) error { return errors.New("no data") }
		}, []string{"seed Redis: no data"}},
		{"configuration is refused", func(o *Options) {
			o.ModifyConfig = func(c *Config) error { return c.Replace("/none", "") }
		}, []string{"render ", "envoy.yaml: ", `"/none"`}},
		{"Redis is elsewhere, but not there", func(o *Options) {
			o.RedisURL, o.ReadyTimeout = "redis://127.0.0.1:1", time.Second
		}, []string{"redis at REDIS_URL: not ready after ", "connection refused"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := helperOptions(t)
			c.edit(&opts)
			s, err := Start(t.Context(), opts)
			// On a busy machine a different part may also not be ready in time, or a child may have logged nothing yet.
			lacks := func(want string) bool { return !strings.Contains(err.Error(), want) }
			for within := 2 * opts.ReadyTimeout; err != nil && strings.Contains(err.Error(), "not ready after") &&
				slices.ContainsFunc(c.want, lacks) && within < await.Deadline; within *= 2 {
				opts = helperOptions(t)
				c.edit(&opts)
				opts.ReadyTimeout = within
				s, err = Start(t.Context(), opts)
			}
			if err == nil {
				t.Fatal(s.Stop(), "got a stack, want an error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
			if errors.Is(err, ErrUsage) {
				t.Error("got ErrUsage, want a runtime error")
			}
		})
	}
}

func TestStackRefusesOptions(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Options)
		want string
	}{
		{"name", func(o *Options) { o.Name = "../demo" }, `STACK "../demo": want `},
		{"concurrency", func(o *Options) { o.Concurrency = -1 }, "CONCURRENCY -1: want 1 to 256"},
		{"wasm", func(o *Options) { o.WasmPath = "/none.wasm" }, "/none.wasm: no such file or directory; run: make build"},
		{"redis twice", func(o *Options) { o.RedisURL, o.RedisServerPath = "redis://a", "/b" }, "both given"},
		{"redis url", func(o *Options) { o.RedisURL = "http://a" }, "REDIS_URL: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := helperOptions(t)
			c.edit(&opts)
			if _, err := Start(t.Context(), opts); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a usage error with %q", err, c.want)
			}
		})
	}
}
