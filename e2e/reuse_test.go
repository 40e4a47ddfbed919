package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

// idle are stacks of the shipped configuration that no test has now, by how many workers their options name.
var idle = struct {
	mu     sync.Mutex
	stacks map[int][]*stack.Stack
}{stacks: map[int][]*stack.Stack{}}

func TestMain(m *testing.M) {
	code := m.Run()
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

// reuse is start, but with the Envoy of an earlier test if one is idle: the sidecar and Redis are new, and so the
// edge's memory. Of Envoy, opts may say only how many workers it has.
func reuse(t *testing.T, opts stack.Options) *edge {
	t.Helper()
	if opts.Rules != "" || opts.ConfigPath != "" || opts.ModifyConfig != nil || opts.EnvoyArgs != nil {
		t.Fatal("an Envoy with options of its own is not reused")
	}
	opts = withRedis(t, opts)
	s, err := renewed(t.Context(), opts)
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
		idle.stacks[opts.Concurrency] = append(idle.stacks[opts.Concurrency], s)
	})
	return edgeOf(t, s)
}

// renewed is an idle stack with opts, or a new one.
func renewed(ctx context.Context, opts stack.Options) (*stack.Stack, error) {
	idle.mu.Lock()
	var s *stack.Stack
	if stacks := idle.stacks[opts.Concurrency]; len(stacks) > 0 {
		s, idle.stacks[opts.Concurrency] = stacks[len(stacks)-1], stacks[:len(stacks)-1]
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
