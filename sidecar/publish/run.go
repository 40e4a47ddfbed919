package publish

import (
	"context"
	"crypto/sha1" // Redis identifies scripts by it
	"encoding/hex"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// movingFor bounds how long a script waits while a Cluster moves its slot to another server. Meanwhile each key is
	// at one of the two servers; the script can run once all of its keys are at one.
	movingFor = 5 * time.Second
	// firstPause and longestPause bound the pause before a retry.
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// once is a command that is retried only after a redirection in a Cluster. After another error it may have been
// executed, and the retry would find its own version.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// script is a script that is sent as its hash after the first run.
type script struct{ source, hash string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(sum[:])}
}

// run runs a script.
func (p *Publisher) run(ctx context.Context, s script, keys []string, args ...any) ([]int64, error) {
	pause := firstPause
	for begin := time.Now(); ; {
		reply, err := p.eval(ctx, "evalsha", s.hash, keys, args)
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			reply, err = p.eval(ctx, "eval", s.source, keys, args)
		}
		if !moving(err) || time.Since(begin) > movingFor {
			return reply, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(pause):
			pause = min(2*pause, longestPause)
		}
	}
}

func (p *Publisher) eval(ctx context.Context, command, script string, keys []string, args []any) ([]int64, error) {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, command, script, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3) // for the client to select the server in a Cluster
	if err := p.client.Process(ctx, once{cmd}); err != nil {
		return nil, err
	}
	return cmd.Int64Slice()
}

// moving reports whether a Cluster is moving the slot and executed nothing.
func moving(err error) bool {
	for _, prefix := range []string{"TRYAGAIN", "ASK", "MOVED", "CLUSTERDOWN"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
