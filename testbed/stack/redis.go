package stack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// StartRedis starts the stack's own Redis, unless the stack uses a running Redis. After KillRedis, an embedded Redis
// still has its data; a redis-server has lost all data unless RedisArgs enable persistence.
func (s *Stack) StartRedis(ctx context.Context) error {
	switch {
	case s.opts.RedisURL != "":
		return s.pingRedis(ctx, nil)
	case s.opts.RedisServerPath != "":
		return s.startRedisServer(ctx)
	}
	if s.embedded == nil {
		s.embedded = miniredis.NewMiniRedis()
		if err := s.embedded.StartAddr(s.opts.Redis); err != nil {
			return &AddressError{Variable: "REDIS", Address: s.opts.Redis, Err: err}
		}
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			expireKeys(ctx, s.embedded)
		}()
		s.stopEmbedded = func() { cancel(); <-stopped; s.embedded.Close() }
	} else if err := s.embedded.Restart(); err != nil {
		return &AddressError{Variable: "REDIS", Address: s.opts.Redis, Err: err}
	}
	s.embedded.Server().SetPreHook(answerMissing)
	return nil
}

// answerMissing answers commands that Redis has and miniredis lacks: CLIENT SETINFO, without which Lettuce 6.3 doesn't
// connect; INFO's sections of server, replication and memory, and MEMORY USAGE with SAMPLES, without which the sidecar
// warns.
func answerMissing(c *server.Peer, command string, args ...string) bool {
	switch {
	case command == "CLIENT" && len(args) == 3 && strings.EqualFold(args[0], "SETINFO"):
		c.WriteOK()
	case command == "INFO":
		c.WriteBulk(embeddedInfo)
	case command == "MEMORY" && len(args) == 4 && strings.EqualFold(args[0], "USAGE"):
		c.WriteInt(recordMemory)
	default:
		return false
	}
	return true
}

// recordMemory is the size of each record in the embedded Redis for MEMORY USAGE: demo and tests have only small ones.
const recordMemory = 4 << 10

var embeddedInfo = fmt.Sprintf("# Server\r\nrun_id:%040x\r\n# Memory\r\nused_memory:1048576\r\nmaxmemory:0\r\n"+
	"maxmemory_policy:noeviction\r\n# Replication\r\nrole:master\r\nmaster_replid:%040x\r\nmaster_repl_offset:0\r\n",
	rand.Uint64(), rand.Uint64())

// expireKeys advances the embedded Redis's clock, because miniredis doesn't expire keys by itself.
func expireKeys(ctx context.Context, embedded *miniredis.Miniredis) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			embedded.FastForward(now.Sub(last))
			last = now
		}
	}
}

// startRedisServer runs redis-server without persistence, unless RedisArgs enable it: tests need the loss of data.
func (s *Stack) startRedisServer(ctx context.Context) error {
	host, port, err := net.SplitHostPort(s.opts.Redis)
	if err != nil {
		return fmt.Errorf("address of redis-server: %w", err)
	}
	args := []string{"--bind", host, "--port", port, "--dir", s.opts.Dir, "--save", "", "--appendonly", "no"}
	return s.startChild(ctx, redisName, program{
		name: redisName, path: s.opts.RedisServerPath, args: append(args, s.opts.RedisArgs...),
		env: s.opts.RedisEnv, log: s.path("redis.log"),
	}, s.pingRedis)
}

// AcceptLoss returns a Seed that acts as `gatehousectl accept-loss`: the sidecar accepts that Redis has no records.
func AcceptLoss(k contract.Keyspace) func(ctx context.Context, redisURL string) error {
	return func(ctx context.Context, redisURL string) error {
		client, err := redisurl.Connect(redisURL)
		if err != nil {
			return err
		}
		errs := []error{client.SetNX(ctx, k.ShardsKey(), k.Count(), 0).Err()}
		for i := range k.Count() {
			errs = append(errs, client.SetNX(ctx, k.Keys(i).DataEpochKey(),
				fmt.Sprintf("%016x", rand.Uint64()), 0).Err())
		}
		return errors.Join(append(errs, client.Close())...)
	}
}

// pingTimeout bounds the first answer of a Redis that ran before the stack.
const pingTimeout = 2 * time.Second

// pingRedis waits until Redis answers.
func (s *Stack) pingRedis(ctx context.Context, child *process) error {
	client, err := redisurl.Settings{URL: s.RedisURL(), Once: true}.Connect() // await retries
	if err != nil {
		return fmt.Errorf("%w: REDIS_URL: %w", ErrUsage, err)
	}
	defer func() { _ = client.Close() }()
	what := "redis at REDIS_URL"
	if s.opts.RedisURL == "" {
		what = "redis " + dialAddress(s.opts.Redis)
	} else { // not started here: nothing to wait for
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, pingTimeout)
		defer cancel()
	}
	return s.await(ctx, child, what, func(ctx context.Context) error {
		if s.opts.RedisURL == "" {
			// The client would write every failed dial to stderr.
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", dialAddress(s.opts.Redis))
			if err != nil {
				return err
			}
			_ = conn.Close()
		}
		if err := client.Ping(ctx).Err(); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("PING: %w", err)
		}
		return ctx.Err()
	})
}
