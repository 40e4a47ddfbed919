package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// restGrace is longer than stopGrace: the sidecar waits up to 5 s for the connections of a running Envoy.
const restGrace = 10 * time.Second

// Rest ends the sidecar and the stack's own redis-server until [Stack.Renew]. Envoy goes on running.
func (s *Stack) Rest() error {
	var errs []error
	for _, name := range []string{sidecarName, redisName} {
		if child := s.child(name); child != nil {
			errs = append(errs, child.stop(restGrace))
		}
	}
	return errors.Join(errs...)
}

// Renew starts the sidecar and Redis of a stack again after [Stack.Rest]. Used options: RedisURL, RedisServerPath,
// RedisEnv, SidecarRedisURL, SidecarArgs, SidecarEnv and Seed. A redis-server is empty; the logs and Envoy's counters
// are reset. The edge keeps running, since compiling the module takes most of a start of Envoy.
func (s *Stack) Renew(ctx context.Context, opts Options) error {
	if s.embedded != nil || len(s.opts.RedisArgs)+len(opts.RedisArgs) != 0 {
		return fmt.Errorf("%w: a Redis that is embedded or has arguments may keep its data: it can't be renewed", ErrUsage)
	}
	s.opts.RedisURL, s.opts.RedisServerPath, s.opts.RedisEnv = opts.RedisURL, opts.RedisServerPath, opts.RedisEnv
	s.opts.SidecarRedisURL = opts.SidecarRedisURL
	s.opts.SidecarArgs, s.opts.SidecarEnv, s.opts.Seed = opts.SidecarArgs, opts.SidecarEnv, opts.Seed
	if s.opts.Redis == "" && opts.RedisURL == "" {
		address, err := resolveAddress("REDIS", "")
		if err != nil {
			return err
		}
		s.opts.Redis = address
	}
	for _, log := range []string{"envoy.log", "sidecar.log", "redis.log"} { // Envoy appends to envoy.log
		if err := os.Truncate(s.path(log), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("empty a log of stack %s: %w", s.opts.Name, err)
		}
	}
	if s.opts.EdgeKind != NginxEdge {
		if err := s.resetCounters(ctx); err != nil {
			return err
		}
	}
	if err := s.startSeeded(ctx); err != nil {
		return err
	}
	return s.StartSidecar(ctx)
}

func (s *Stack) resetCounters(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.EnvoyAdminURL()+"/reset_counters", nil)
	if err != nil {
		return err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("reset Envoy's counters: %w", err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("reset Envoy's counters: %s", response.Status)
	}
	return nil
}
