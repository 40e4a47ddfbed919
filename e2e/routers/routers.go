// Package routers tests Gatehouse as a black box: widely used routers run behind the edge, and a fuzzer spells the
// paths of protected resources in every way that a router might understand.
//
// # What is checked
//
// All routers serve the same resources, each with its own way of declaring routes. Each answer names the served
// resource, and the method and path that the router received. The oracle (judgeAnswer) uses only these names, so the
// oracle shares no interpretation of paths with the filter:
//
//   - No protected resource is served without its permission: not without a credential, to a wrong credential, or to a
//     device with another permission. The same holds for the edge's own answers.
//   - If a router serves a protected resource, the edge has judged the request: the router sees a device.
//   - No router sees a device without the device's credential in the request.
//
// An edge that refuses everything would pass these checks. So ordinary requests are sent before and after, in the same
// way, and must be served: see sendOrdinary.
//
// # The spellings
//
// Number and seed determine a spelling, so that a spelling can be repeated. The first spellings (systematicCount) are
// the same for all seeds: each byte at some places of each protected path, escaped, escaped twice, and raw. The rest
// are random: one to four changes of a path that some servers undo, methods in other case, headers that override path,
// method, prefix, host or identity. Each spelling is sent unchanged, as bytes of HTTP/1 or frames of HTTP/2.
//
// A spelling goes to one router first. If the edge itself answers the spelling, the edge would answer for every router:
// the filter's decision doesn't depend on the upstream. Only forwarded spellings go to all routers, and one in 64 in
// any case.
package routers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// Config says what to run.
type Config struct {
	// Seed and Spellings determine the spellings: the numbers from 0.
	Seed, Spellings uint64
	// Only is the number of the single spelling to send, with all answers printed; nil: all spellings.
	Only *uint64
	// Workers send concurrently, each over its own connections.
	Workers int
	// Build is the directory where scripts/routers.sh has put the built routers.
	Build string
	// Stack is the template of each edge. Stack.Dir gets the logs.
	Stack stack.Options
	// Out gets the report.
	Out io.Writer
}

// Run runs the suite, prints the violations and returns their number. After an error, not everything was checked.
func Run(ctx context.Context, c Config) (violations int, err error) {
	root, err := stack.Root()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	dir := filepath.Join(c.Stack.Dir, "apps")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	a, err := startApps(root, c.Build, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, a.stop()) }()

	pass := slices.DeleteFunc(slices.Clone(routerNames), func(name string) bool { return name == insensitive })
	var edges []*edge
	for fallback, names := range map[string][]string{"pass": pass, "deny": {insensitive, "servemux"}} {
		e, err := startEdge(ctx, c.Stack, fallback, names, a.address)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, e.Stop()) }()
		edges = append(edges, e)
	}
	slices.SortFunc(edges, func(a, b *edge) int { return len(b.routers) - len(a.routers) })
	if err := a.awaitReady(ctx); err != nil {
		return 0, err
	}
	_, _ = fmt.Fprintf(c.Out, "%d routers and 2 edges are up after %.1f s\n", len(routerNames),
		time.Since(begin).Seconds())

	f := &fuzzer{Config: c, edges: edges, died: a.died, report: newReport(c.Out, c.Seed)}
	if c.Only != nil {
		err = f.sendOnly(*c.Only)
	} else {
		err = f.sendAll(ctx)
	}
	return f.report.violations, err // +checklocksignore: all senders have ended
}
