package edges

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/api"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/push"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// group is a running Group over directories, and how often what an edge has was released.
type group struct {
	*Group
	log      *logbuffer.Buffer
	released chan string
}

func start(t *testing.T, patterns ...string) *group {
	t.Helper()
	log := new(logbuffer.Buffer)
	logger := slog.New(slog.NewTextHandler(log, nil))
	m, synced, released := metrics.New(), make(chan struct{}), make(chan string, 10)
	g := New(Config{
		Directories: patterns, Memory: edgemem.New(edgemem.Config{}), Log: logger,
		NewPusher: func(e *edgemem.Edge, socket string) *push.Pusher {
			return push.New(e, socket, synced, m, noop.Tracer{}, logger)
		},
		NewServer: func(e *edgemem.Edge, name, socket string) (*api.Server, func()) {
			return api.New(socket, nil, nil, nil, e, nil, m, noop.Tracer{}, logger), func() { released <- name }
		},
	})
	require.NoError(t, g.Listen())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return &group{g, log, released}
}

// awaitNames waits until the edges have these names.
func (g *group) awaitNames(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	await.Until(t, fmt.Sprint("the edges are ", want), func() bool {
		got = nil
		for _, e := range g.List() {
			got = append(got, e.Name)
		}
		return slices.Equal(got, want)
	})
}

// shortDir returns a directory whose sockets have short paths.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "edges")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func makeDir(t *testing.T, path ...string) string {
	t.Helper()
	dir := filepath.Join(path...)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	return dir
}

// TestDirectories: edges come and go with their directories, and what they have is released.
func TestDirectories(t *testing.T) {
	dir := shortDir(t)
	a := makeDir(t, dir, "a")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.NoError(t, os.Symlink(a, filepath.Join(dir, "link"))) // who writes below one directory must not choose another
	g := start(t, dir+"/*")
	g.awaitNames(t, "a")
	info, err := os.Stat(filepath.Join(a, "api.sock"))
	if err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("got mode %v, %v; want that who can enter the directory can call", info.Mode(), err)
	}
	makeDir(t, dir, "b")
	g.awaitNames(t, "a", "b")
	require.NoError(t, os.RemoveAll(a))
	g.awaitNames(t, "b")
	if name := <-g.released; name != "a" {
		t.Errorf("released %q, want a", name)
	}
	if err := g.Ready(); err != nil {
		t.Errorf("an edge that is away makes the sidecar not ready: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := g.PushAll(ctx); err != nil {
		t.Errorf("PushAll waits for edges that are away: %v", err)
	}
	require.NoError(t, os.Rename(dir, dir+".away"))
	t.Cleanup(func() { os.RemoveAll(dir + ".away") })
	await.Until(t, "the sidecar isn't ready", func() bool { return errors.Is(g.Ready(), os.ErrNotExist) })
	require.NoError(t, os.Rename(dir+".away", dir))
	await.Until(t, "the sidecar is ready", func() bool { return g.Ready() == nil })
	if n := strings.Count(g.log.String(), "edge is gone"); n != 1 { // a: b's directory may have been there all the time
		t.Errorf("%d edges are gone, want one", n)
	}
	g.awaitNames(t, "b")
}

// TestRefusedDirectory: a directory whose socket another process serves for long is logged once, and becomes an edge
// later.
func TestRefusedDirectory(t *testing.T) {
	defer func(before time.Duration) { takeoverTime = before }(takeoverTime)
	for want, takeover := range []time.Duration{time.Hour, 0} {
		t.Run(takeover.String(), func(t *testing.T) {
			takeoverTime = takeover
			dir := shortDir(t)
			other, err := net.Listen("unix", filepath.Join(makeDir(t, dir, "a"), "api.sock"))
			require.NoError(t, err)
			g := start(t, dir+"/*")
			makeDir(t, dir, "b")
			g.awaitNames(t, "b")
			makeDir(t, dir, "c")
			g.awaitNames(t, "b", "c")
			if n := strings.Count(g.log.String(), "can't be an edge"); n != want {
				t.Errorf("logged %d times, want %d", n, want)
			}
			require.NoError(t, other.Close())
			g.awaitNames(t, "a", "b", "c")
		})
	}
}

// TestLinkedDirectory: a directory that is reached by a symbolic link is no edge: it may be another edge's.
func TestLinkedDirectory(t *testing.T) {
	dir := shortDir(t)
	makeDir(t, dir, "x", "sub")
	other := shortDir(t)
	makeDir(t, other, "sub")
	require.NoError(t, os.Symlink(other, filepath.Join(dir, "y")))
	g := start(t, dir+"/*/sub")
	g.awaitNames(t, "x")
	makeDir(t, dir, "z", "sub")
	g.awaitNames(t, "x", "z")
}

// TestDirectoryMadeAgain: an edge whose directory was removed and made again gets a new socket.
func TestDirectoryMadeAgain(t *testing.T) {
	dir := shortDir(t)
	a := makeDir(t, dir, "a")
	g := start(t, dir+"/*")
	g.awaitNames(t, "a")
	require.NoError(t, os.RemoveAll(a))
	makeDir(t, a)
	await.Until(t, "the socket", func() bool { _, err := os.Stat(filepath.Join(a, "api.sock")); return err == nil })
	g.awaitNames(t, "a")
}

func TestNameOf(t *testing.T) {
	for _, test := range []struct{ pattern, directory, want string }{
		{"/run/gatehouse/edges/*", "/run/gatehouse/edges/shop", "shop"},
		{"/pods/*/volumes/kubernetes.io~empty-dir/gatehouse", "/pods/3f/volumes/kubernetes.io~empty-dir/gatehouse", "3f"},
		{"/srv/*/edges/e?", "/srv/a/edges/e1", "a/e1"},
		{"/run/one", "/run/one", "one"},
	} {
		if got := nameOf(test.pattern, test.directory); got != test.want {
			t.Errorf("%s: got %q, want %q", test.directory, got, test.want)
		}
	}
	for pattern, want := range map[string]string{"/a/*": "/a", "/a/b*/c": "/a", "/a/b": "/a/b", "/*": "/"} {
		if got := literalPart(pattern); got != want {
			t.Errorf("%s: got %q, want %q", pattern, got, want)
		}
	}
}
