package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// EdgeURL returns the URL of the edge, like all URLs of a stack without a final slash.
func (s *Stack) EdgeURL() string { return "http://" + dialAddress(s.opts.Edge) }

// EnvoyAdminURL returns the URL of Envoy's admin interface.
func (s *Stack) EnvoyAdminURL() string { return "http://" + dialAddress(s.opts.EnvoyAdmin) }

// SidecarAdminURL returns the URL of the sidecar's admin interface.
func (s *Stack) SidecarAdminURL() string {
	return "http://" + dialAddress(s.sidecarOwner().opts.SidecarAdmin)
}

// UpstreamURL returns the URL of the demo upstream, without Envoy in between.
func (s *Stack) UpstreamURL() string { return "http://" + dialAddress(s.opts.Upstream) }

// UpstreamRequests returns the number of requests received by the demo upstream.
func (s *Stack) UpstreamRequests() int64 { return s.upstream.Requests() }

// RedisURL returns the URL of the stack's Redis, for package redisurl or `gatehousectl --redis`.
func (s *Stack) RedisURL() string {
	if s.opts.RedisURL != "" {
		return s.opts.RedisURL
	}
	return "redis://" + dialAddress(s.opts.Redis)
}

// Dir returns the directory of the stack's configuration and logs: envoy.log, sidecar.log, redis.log.
func (s *Stack) Dir() string { return s.opts.Dir }

// ConfigPath returns the path of Envoy's running configuration.
func (s *Stack) ConfigPath() string { return s.path("envoy.yaml") }

// PushSocket returns the path of the unix socket on which Envoy accepts the sidecar's batches.
func (s *Stack) PushSocket() string { return filepath.Join(s.sockets, "push.sock") }

// APISocket returns the path of the unix socket on which the sidecar answers verify and fetch calls.
func (s *Stack) APISocket() string { return filepath.Join(s.sockets, "api.sock") }

// EdgePID returns the process id of the last started edge, Envoy or nginx's master, 0 before the first start.
func (s *Stack) EdgePID() int { return s.pid(s.edgeName()) }

// SidecarPID returns the process id of the last started sidecar, 0 before the first start.
func (s *Stack) SidecarPID() int { return s.pid(sidecarName) }

// RedisPID returns the process id of the last started redis-server, 0 if the stack runs none.
func (s *Stack) RedisPID() int { return s.pid(redisName) }

func (s *Stack) pid(name string) int {
	if child := s.child(name); child != nil {
		return child.pid
	}
	return 0
}

func (s *Stack) envoyProgram() program {
	args := []string{
		"--config-path", s.ConfigPath(),
		"--concurrency", strconv.Itoa(s.opts.Concurrency),
		"--disable-hot-restart", // would need an id unique on this host
		"--log-level", "warn",
	}
	return program{
		name: envoyName, path: s.opts.EnvoyPath, args: append(args, s.opts.EnvoyArgs...),
		env: s.opts.EnvoyEnv, log: s.path("envoy.log"),
	}
}

func (s *Stack) sidecarProgram() program {
	args := []string{
		"--redis.url", orDefault(s.opts.SidecarRedisURL, s.RedisURL()),
		"--push.socket", s.PushSocket(),
		"--api.socket", s.APISocket(),
		"--admin.address", s.opts.SidecarAdmin,
		"--edge.admin", s.opts.EnvoyAdmin,
	}
	if s.opts.EdgesDir != "" {
		args = append(args, "--edge.directories", s.opts.EdgesDir+"/*")
	}
	return program{
		name: sidecarName, path: s.opts.SidecarPath, args: append(args, s.opts.SidecarArgs...),
		env: s.opts.SidecarEnv, log: s.path("sidecar.log"),
	}
}

// awaitOK waits until a GET of url returns 200.
func (s *Stack) awaitOK(ctx context.Context, child *process, url string) error {
	return s.await(ctx, child, url, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		req.Close = true // keeps no connection to a part that a test will kill
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode == http.StatusOK {
			return nil
		}
		body, err := io.ReadAll(io.LimitReader(res.Body, 512))
		if err != nil {
			return err
		}
		return fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(body)))
	})
}

// await calls check until check returns nil. After the ready timeout or the end of ctx, await returns check's last
// error; if child (unless nil) ends, the child's error.
func (s *Stack) await(ctx context.Context, child *process, what string, check func(context.Context) error) error {
	const interval, attempt = 20 * time.Millisecond, time.Second
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadyTimeout)
	defer cancel()
	var ended <-chan struct{} // nil: never ready to receive
	if child != nil {
		ended = child.done
	}
	begin := time.Now()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error // more informative than the next check's cancellation
	for {
		once, cancel := context.WithTimeout(ctx, attempt)
		err := check(once)
		cancel()
		if err == nil {
			return nil
		}
		if last == nil || !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		select {
		case <-ended:
			return child.exitError()
		case <-ctx.Done():
			waited := time.Since(begin).Round(time.Millisecond)
			err = fmt.Errorf("%s: not ready after %s: %w (last: %w)", what, waited, ctx.Err(), last)
			if child != nil {
				err = fmt.Errorf("%w; last lines of %s:\n%s", err, child.log, readTail(child.log, child.logStart))
			}
			return err
		case <-ticker.C:
		}
	}
}
