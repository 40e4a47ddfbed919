// Package edges runs what belongs to a single edge: its part of the memory, the pushes, and the server for its calls.
// A sidecar has one edge, at two sockets that are configured, or many, each in a directory of its own, which come and
// go while the sidecar runs.
package edges

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/sidecar/internal/api"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/push"
)

const (
	// scanEvery is the interval at which directories are looked for.
	scanEvery = 500 * time.Millisecond
	// maxEdges bounds the edges of a sidecar.
	maxEdges = 1000
	// Names of the sockets in an edge's directory.
	pushSocket = "push.sock"
	apiSocket  = "api.sock"
)

// takeoverTime is how long another agent may serve an edge before that is logged. Tests change it.
var takeoverTime = 30 * time.Second

// Config says where the edges are, and what they share.
type Config struct {
	// PushSocket and APISocket are the sockets of the only edge, if Directories is empty.
	PushSocket, APISocket string
	// Directories are patterns as of [filepath.Match]. Each matching directory is an edge, with the sockets push.sock,
	// of the proxy, and api.sock, of the sidecar. Who can enter the directory can write the edge's memory.
	Directories []string
	Memory      *edgemem.Memory
	NewPusher   func(e *edgemem.Edge, socket string) *push.Pusher
	// NewServer returns the server of an edge's calls, and what releases the rest when the edge has gone.
	NewServer func(e *edgemem.Edge, name, socket string) (*api.Server, func())
	Log       *slog.Logger
}

// Edge is an edge of the sidecar.
type Edge struct {
	// Name is the part of the directory that a pattern's wildcards match; "": the only edge.
	Name   string
	Memory *edgemem.Edge
	Pusher *push.Pusher
	server *api.Server
	leave  func() // releases what the server leaves
	end    context.CancelFunc
	done   chan struct{} // closed when the edge has ended
}

// Group runs the edges. It is safe for concurrent use.
type Group struct {
	Config

	mu  sync.Mutex
	all map[string]*Edge // by directory; +checklocks:mu
	// refused has the reason for each directory that can't be an edge; +checklocks:mu
	refused map[string]refusal
	failure error // of a pattern's directories; +checklocks:mu
}

// New returns a Group. Listen and then Run must run.
func New(c Config) *Group {
	return &Group{Config: c, all: make(map[string]*Edge), refused: make(map[string]refusal)}
}

func (g *Group) newEdge(name, pushSocket, apiSocket string) *Edge {
	memory := g.Memory.AddEdge()
	pusher := g.NewPusher(memory, pushSocket)
	server, leave := g.NewServer(memory, name, apiSocket)
	return &Edge{Name: name, Memory: memory, Pusher: pusher, server: server.ServeReady(pusher.Ready), leave: leave,
		done: make(chan struct{})}
}

// release releases what an edge has in what the edges share.
func (e *Edge) release() {
	e.Memory.Remove()
	e.leave()
}

// Many reports whether the edges are in directories.
func (g *Group) Many() bool { return g != nil && len(g.Directories) > 0 }

// Listen opens the socket of the only edge. Directories are opened by Run.
func (g *Group) Listen() error {
	if g.Many() {
		return nil
	}
	e := g.newEdge("", g.PushSocket, g.APISocket)
	g.mu.Lock()
	g.all[""] = e
	g.mu.Unlock()
	return e.server.Listen()
}

// List returns the edges, by name.
func (g *Group) List() []*Edge {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]*Edge, 0, len(g.all))
	for _, e := range g.all {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *Edge) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Ready returns why the sidecar isn't ready for its edges, nil if it is. With many, one that is away doesn't count.
func (g *Group) Ready() error {
	if g.Many() {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.failure
	}
	for _, e := range g.List() {
		return e.Pusher.Ready()
	}
	return errors.New("the sidecar starts")
}

// PushAll pushes everything again to each edge that is ready, and returns when all have everything. With many edges,
// PushAll doesn't wait for one that isn't ready any more, which gets everything anyway.
func (g *Group) PushAll(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, e := range g.List() {
		group.Go(func() error { return e.pushAll(ctx, g.Many()) })
	}
	return group.Wait()
}

// pushAll pushes everything again, unless the edge ends meanwhile or, if mayLeave, isn't ready any more.
func (e *Edge) pushAll(ctx context.Context, mayLeave bool) error {
	edge, end := context.WithCancel(ctx)
	defer end()
	go func() {
		tick := time.NewTicker(scanEvery)
		defer tick.Stop()
		for !mayLeave || e.Pusher.Ready() == nil {
			select {
			case <-tick.C:
			case <-e.done:
				end()
			case <-edge.Done():
				return
			}
		}
		end()
	}()
	if err := e.Pusher.PushAll(edge); ctx.Err() != nil {
		return err
	}
	return nil
}

// run pushes to the edge and serves its calls until ctx ends or a part fails.
func (e *Edge) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.Pusher.Run(ctx) })
	group.Go(func() error { return e.server.Run(ctx) })
	return group.Wait()
}

func (e *Edge) isDone() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// Run runs the edges until ctx ends.
func (g *Group) Run(ctx context.Context) error {
	if !g.Many() {
		return g.List()[0].run(ctx)
	}
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		g.scan(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			for _, e := range g.List() {
				<-e.done
			}
			return nil
		}
	}
}

// scan begins new edges, and ends those whose directory is gone.
func (g *Group) scan(ctx context.Context) {
	found, err := g.findDirectories()
	g.mu.Lock()
	g.failure = err
	known := make(map[string]*Edge, len(g.all))
	for directory, e := range g.all {
		known[directory] = e
	}
	g.mu.Unlock()
	gone := make(map[string]*Edge)
	for directory, e := range known {
		if _, still := found[directory]; !still && err == nil || still && !e.isListening(directory) || e.isDone() {
			gone[directory] = e
			e.end() // of all before the first is awaited
		}
	}
	for directory, e := range gone {
		<-e.done
		e.release()
		g.mu.Lock()
		delete(g.all, directory)
		g.mu.Unlock()
		g.Log.Info("edge is gone", "edge", e.Name)
	}
	for directory, name := range found {
		if known[directory] == nil {
			g.begin(ctx, directory, name)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for directory := range g.refused {
		if _, still := found[directory]; !still {
			delete(g.refused, directory)
		}
	}
}

// isListening reports whether the edge's socket is in the directory. It isn't in one that was removed and made again.
func (e *Edge) isListening(directory string) bool {
	_, err := os.Lstat(filepath.Join(directory, apiSocket))
	return !errors.Is(err, os.ErrNotExist)
}

// refusal is why a directory can't be an edge.
type refusal struct {
	why    string
	since  time.Time
	logged bool
}

// refuse records why a directory can't be an edge, and logs it once. While an agent replaces another, the other one
// serves the edges until it has ended, so a socket in use is logged only if it remains so.
func (g *Group) refuse(directory string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.refused[directory]
	if r.why != err.Error() {
		r = refusal{why: err.Error(), since: time.Now()}
	}
	if !r.logged && (!errors.Is(err, api.ErrInUse) || time.Since(r.since) >= takeoverTime) {
		g.Log.Error("directory can't be an edge", "directory", directory, "reason", r.why)
		r.logged = true
	}
	g.refused[directory] = r
}

// begin begins an edge, or logs why not.
func (g *Group) begin(ctx context.Context, directory, name string) {
	all := g.List()
	if len(all) >= maxEdges {
		g.refuse(directory, fmt.Errorf("%d edges are the most", maxEdges))
		return
	}
	if slices.ContainsFunc(all, func(e *Edge) bool { return e.Name == name }) {
		name = directory
	}
	e := g.newEdge(name, filepath.Join(directory, pushSocket), filepath.Join(directory, apiSocket))
	if err := e.server.AllowAll().Listen(); err != nil {
		e.release()
		g.refuse(directory, err)
		return
	}
	ctx, e.end = context.WithCancel(ctx)
	g.mu.Lock()
	g.all[directory] = e
	delete(g.refused, directory)
	g.mu.Unlock()
	g.Log.Info("edge found", "edge", name, "directory", directory)
	go func() {
		defer close(e.done)
		if err := e.run(ctx); err != nil {
			g.Log.Error("edge failed: beginning again", "edge", name, "error", err)
		}
	}()
}

// findDirectories returns the names of the edges by directory. A directory that is a symbolic link is none: who writes
// in one directory could make another edge's of it.
func (g *Group) findDirectories() (map[string]string, error) {
	found, errs := map[string]string{}, []error(nil)
	for _, pattern := range g.Directories {
		base := literalPart(pattern)
		if base != pattern {
			if _, err := os.ReadDir(base); err != nil {
				errs = append(errs, err) // Glob ignores errors
				continue
			}
		}
		matches, err := filepath.Glob(pattern)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", pattern, err))
			continue
		}
		for _, directory := range matches {
			info, err := os.Lstat(directory)
			if err != nil || !info.IsDir() || !utf8.ValidString(directory) || hasLink(base, directory) {
				continue
			}
			found[directory] = nameOf(pattern, directory)
		}
	}
	return found, errors.Join(errs...)
}

// hasLink reports whether a directory below base is reached by a symbolic link.
func hasLink(base, directory string) bool {
	realBase, err := filepath.EvalSymlinks(base)
	if err != nil {
		return true
	}
	below, err := filepath.Rel(base, directory)
	if err != nil {
		return true
	}
	real, err := filepath.EvalSymlinks(directory)
	return err != nil || real != filepath.Join(realBase, below)
}

// literalPart returns the directories of a pattern before its first wildcard.
func literalPart(pattern string) string {
	i := strings.IndexAny(pattern, `*?[\`)
	if i < 0 {
		return pattern
	}
	return filepath.Dir(pattern[:i] + "x")
}

// nameOf returns the parts of a directory's path for which the pattern has wildcards, or the last part.
func nameOf(pattern, directory string) string {
	parts, names := strings.Split(directory, "/"), []string(nil)
	for i, p := range strings.Split(filepath.Clean(pattern), "/") {
		if i < len(parts) && strings.ContainsAny(p, `*?[\`) {
			names = append(names, parts[i])
		}
	}
	if names == nil {
		return filepath.Base(directory)
	}
	return strings.Join(names, "/")
}
