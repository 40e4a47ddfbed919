// Package stack starts and stops a whole Gatehouse on one host: Redis, a demo upstream, gatehouse-sidecar and Envoy.
// `make run` and the end-to-end tests use stack.
//
// A test gets a stack with free ports, and only has to call Stop:
//
//	s, err := stack.Start(t.Context(), stack.Options{Name: "revoke", Dir: t.TempDir()})
//	if err != nil { t.Fatal(err) }
//	t.Cleanup(func() { if err := s.Stop(); err != nil { t.Error(err) } })
//	res, err := http.Get(s.EdgeURL() + "/v1/products/42")
package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/alicebob/miniredis/v2"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/testbed/upstream"
)

// Names of the processes.
const (
	envoyName   = "envoy"
	sidecarName = "sidecar"
	redisName   = "redis-server"
	nginxName   = "nginx"
)

// Stack is a running Gatehouse. Methods are safe for concurrent use, except for starting the same part twice at a time.
type Stack struct {
	opts       Options // complete: defaults set, addresses resolved
	sockets    string  // directory of the unix sockets
	ownSockets bool    // sockets is a temporary directory

	upstream       upstream.Handler
	upstreamServer *http.Server

	embedded     *miniredis.Miniredis // nil if a different Redis is used
	stopEmbedded func()

	stop func() error // ends all parts, once
	died chan error   // holds the first unexpected exit of a child

	mu       sync.Mutex // protects children
	children map[string]*process
}

// Start starts everything and returns when the edge answers and the sidecar has filled the edge's memory. After an
// error, nothing is left running.
func Start(ctx context.Context, opts Options) (*Stack, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Stack{opts: opts, died: make(chan error, 1), children: map[string]*process{}}
	s.stop = sync.OnceValue(s.stopAll)
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context) error {
	if err := s.makeDirs(); err != nil {
		return err
	}
	if err := s.serveUpstream(); err != nil {
		return err
	}
	if s.opts.Agent != nil {
		if err := s.StartEdge(ctx); err != nil {
			return err
		}
		return s.AwaitReady(ctx)
	}
	if err := s.startSeeded(ctx); err != nil {
		return err
	}
	if err := s.StartEdge(ctx); err != nil {
		return err
	}
	return s.StartSidecar(ctx)
}

// startSeeded starts Redis and calls Seed.
func (s *Stack) startSeeded(ctx context.Context) error {
	if err := s.StartRedis(ctx); err != nil {
		return err
	}
	seed := s.opts.Seed
	if seed == nil {
		seed = AcceptLoss(contract.Keyspace{})
	}
	if err := seed(ctx, s.RedisURL()); err != nil {
		return fmt.Errorf("seed Redis: %w", err)
	}
	return nil
}

// Wait returns nil when ctx is done, or an [ExitError] as soon as a child has exited by itself. Only one caller at a
// time gets the error.
func (s *Stack) Wait(ctx context.Context) error {
	select {
	case err := <-s.died:
		return err
	case <-ctx.Done():
		return nil
	}
}

// Stop ends all parts, the edge first, and returns when all have exited. A stopped stack can't be restarted; further
// calls return the first result.
func (s *Stack) Stop() error { return s.stop() }

func (s *Stack) stopAll() error {
	var errs []error
	for _, name := range []string{envoyName, nginxName, sidecarName, redisName} {
		if child := s.child(name); child != nil {
			errs = append(errs, child.stop(stopGrace))
		}
	}
	if s.upstreamServer != nil {
		errs = append(errs, s.upstreamServer.Close())
	}
	if s.stopEmbedded != nil {
		s.stopEmbedded()
	}
	if s.sockets == "" {
		return errors.Join(errs...)
	}
	for _, socket := range []string{s.PushSocket(), s.APISocket()} {
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if s.ownSockets {
		errs = append(errs, os.RemoveAll(s.sockets))
	}
	return errors.Join(errs...)
}

// StartEdge starts the edge, Envoy or nginx, also after a kill, and returns when the edge accepts connections. The
// sidecar may be ready later: see [Stack.AwaitReady].
func (s *Stack) StartEdge(ctx context.Context) error {
	render, program := s.render, s.envoyProgram()
	if s.opts.EdgeKind == NginxEdge {
		render, program = s.renderNginx, s.nginxProgram()
		if err := s.awaitEndOfWorkers(ctx); err != nil {
			return err
		}
	}
	if err := render(); err != nil {
		return err
	}
	return s.startChild(ctx, s.edgeName(), program, func(ctx context.Context, child *process) error {
		if err := s.awaitOK(ctx, child, s.EnvoyAdminURL()+"/ready"); err != nil {
			return err
		}
		return s.await(ctx, child, "edge "+s.opts.Edge, func(ctx context.Context) error {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", dialAddress(s.opts.Edge))
			if err != nil {
				return err
			}
			return conn.Close()
		})
	})
}

// StartSidecar starts the sidecar, also after a kill, and returns when the sidecar is ready: everything in Redis has
// been pushed.
func (s *Stack) StartSidecar(ctx context.Context) error {
	return s.startChild(ctx, sidecarName, s.sidecarProgram(), s.awaitSidecar)
}

// AwaitReady waits until the sidecar is in step with Redis and this edge.
func (s *Stack) AwaitReady(ctx context.Context) error {
	return s.awaitSidecar(ctx, s.sidecarOwner().child(sidecarName))
}

func (s *Stack) awaitSidecar(ctx context.Context, child *process) error {
	if err := s.awaitOK(ctx, child, s.SidecarAdminURL()+"/readyz"); err != nil || s.opts.EdgesDir == "" {
		return err
	}
	return s.await(ctx, child, "edge "+s.opts.Name, func(ctx context.Context) error {
		ready, err := s.Metric(ctx, fmt.Sprintf("gatehouse_edge_ready{edge=%q}", s.opts.Name))
		if err == nil && ready != 1 {
			err = errors.New("not ready")
		}
		return err
	})
}

// sidecarOwner returns the stack with the sidecar of this edge.
func (s *Stack) sidecarOwner() *Stack {
	if s.opts.Agent != nil {
		return s.opts.Agent
	}
	return s
}

// KillEdge ends the edge, Envoy or nginx, by SIGKILL.
func (s *Stack) KillEdge() error { return s.kill(s.edgeName()) }

// KillSidecar ends the sidecar by SIGKILL.
func (s *Stack) KillSidecar() error { return s.kill(sidecarName) }

// KillRedis ends the stack's own Redis: redis-server by SIGKILL, an embedded Redis by closing its listener and
// connections.
func (s *Stack) KillRedis() error {
	if s.embedded != nil {
		s.embedded.Close()
		return nil
	}
	return s.kill(redisName)
}

// SignalEdge sends the edge, Envoy or nginx, a signal, for example SIGSTOP.
func (s *Stack) SignalEdge(signal syscall.Signal) error { return s.signal(s.edgeName(), signal) }

// SignalSidecar sends the sidecar a signal, for example SIGSTOP.
func (s *Stack) SignalSidecar(signal syscall.Signal) error { return s.signal(sidecarName, signal) }

// SignalRedis sends the stack's own redis-server a signal, for example SIGSTOP.
func (s *Stack) SignalRedis(signal syscall.Signal) error { return s.signal(redisName, signal) }

func (s *Stack) edgeName() string {
	if s.opts.EdgeKind == NginxEdge {
		return nginxName
	}
	return envoyName
}

// startChild runs p as name and waits until ready returns nil.
func (s *Stack) startChild(ctx context.Context, name string, p program,
	ready func(context.Context, *process) error) error {
	if child := s.child(name); child != nil {
		select {
		case <-child.done:
		default:
			return fmt.Errorf("%s runs already (pid %d)", name, child.pid)
		}
	}
	child, err := start(p, func(err error) {
		select {
		case s.died <- err:
		default: // the first error is the cause
		}
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.children[name] = child
	s.mu.Unlock()
	return ready(ctx, child)
}

func (s *Stack) child(name string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.children[name]
}

func (s *Stack) kill(name string) error {
	child := s.child(name)
	if child == nil {
		return fmt.Errorf("kill %s: this stack has none", name)
	}
	return child.kill()
}

func (s *Stack) signal(name string, signal syscall.Signal) error {
	child := s.child(name)
	if child == nil {
		return fmt.Errorf("signal %s: this stack has none", name)
	}
	err := child.signal(signal)
	if err == nil && signal == syscall.SIGSTOP {
		err = awaitStop(child.pid)
	}
	if err != nil {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	return nil
}

func (s *Stack) serveUpstream() error {
	listener, err := net.Listen("tcp", s.opts.Upstream)
	if err != nil {
		return &AddressError{Variable: "UPSTREAM", Address: s.opts.Upstream, Err: err}
	}
	// Without timeouts: a timeout would close a connection on which the proxy has not sent a request yet. A paused proxy
	// would later send its next request on the closed connection, and answer 503 (UC).
	s.upstreamServer = &http.Server{Handler: &s.upstream}
	go func() { _ = s.upstreamServer.Serve(listener) }() // returns when Stop closes the server
	return nil
}

// path returns the path of a file of the stack.
func (s *Stack) path(name string) string { return filepath.Join(s.opts.Dir, name) }
