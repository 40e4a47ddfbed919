package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// kind is the configuration of Envoy in a stack that may be reused.
type kind struct {
	workers int
	config  string // path
}

// idle are stacks that no test is using.
var idle = struct {
	mu     sync.Mutex
	stacks map[kind][]*stack.Stack
}{stacks: map[kind][]*stack.Stack{}}

// suiteDir has the files that several tests use.
var suiteDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gatehouse-e2e-")
	if err != nil {
		panic(err)
	}
	suiteDir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	for _, stacks := range idle.stacks {
		for _, s := range stacks {
			if err := errors.Join(s.Stop(), os.RemoveAll(s.Dir())); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// reuse is like start, but takes the Envoy of an earlier test if one is idle: the sidecar and Redis are new, and so is
// the edge's memory. Of Envoy's options, opts may only set the number of workers and the path of the configuration.
func reuse(t *testing.T, opts stack.Options) *edge {
	t.Helper()
	if opts.Rules != "" || opts.ModifyConfig != nil || opts.EnvoyArgs != nil {
		t.Fatal("an Envoy with its own options is not reused")
	}
	if onNginx() {
		return start(t, opts) // nginx starts at once
	}
	opts = withRedis(t, opts)
	s, err := renewIdle(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, s.Dir())
			if err := errors.Join(s.Stop(), os.RemoveAll(s.Dir())); err != nil {
				t.Error(err)
			}
			return
		}
		if err := s.Rest(); err != nil {
			t.Error(err)
		}
		idle.mu.Lock()
		defer idle.mu.Unlock()
		k := kind{opts.Concurrency, opts.ConfigPath}
		idle.stacks[k] = append(idle.stacks[k], s)
	})
	return edgeOf(t, s)
}

// renewIdle returns an idle stack, renewed with opts, or a new stack.
func renewIdle(ctx context.Context, opts stack.Options) (*stack.Stack, error) {
	idle.mu.Lock()
	var s *stack.Stack
	k := kind{opts.Concurrency, opts.ConfigPath}
	if stacks := idle.stacks[k]; len(stacks) > 0 {
		s, idle.stacks[k] = stacks[len(stacks)-1], stacks[:len(stacks)-1]
	}
	idle.mu.Unlock()
	if s != nil {
		if err := s.Renew(ctx, opts); err != nil {
			return nil, errors.Join(err, s.Stop(), os.RemoveAll(s.Dir()))
		}
		return s, nil
	}
	var err error
	if opts.Dir, err = os.MkdirTemp("", "gatehouse-e2e-"); err != nil {
		return nil, err
	}
	return stack.Start(ctx, opts)
}
