package publish

import (
	"context"
	"crypto/sha1" // Redis identifies scripts by it
	"encoding/hex"
	"errors"
	"slices"
	"strings"
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

// call is one run of a script. All its keys are of one shard.
type call struct {
	keys []string
	args []any
}

// reply is what a run returned.
type reply struct {
	numbers []int64
	err     error
}

// run runs a script for each of calls, in one round trip to each server. Calls of the same shard run in their order,
// except where its slot is moving.
func (p *Publisher) run(ctx context.Context, s script, calls ...call) []reply {
	replies := make([]reply, len(calls))
	pending := make([]int, len(calls)) // indices
	for i := range pending {
		pending[i] = i
	}
	pause := firstPause
	for begin := time.Now(); ; {
		p.eval(ctx, "evalsha", s.hash, calls, pending, replies)
		loading := p.load(ctx, s, calls, pending, replies)
		pending = slices.DeleteFunc(pending, func(i int) bool { return !moving(replies[i].err) && !unknown(replies[i].err) })
		if len(pending) == 0 || time.Since(begin) > movingFor {
			return replies
		}
		if loading {
			continue
		}
		select {
		case <-ctx.Done():
			for _, i := range pending {
				replies[i].err = errors.Join(replies[i].err, ctx.Err())
			}
			return replies
		case <-time.After(pause):
			pause = min(2*pause, longestPause)
		}
	}
}

// load sends the script itself for the first call of each shard whose server did not know it. It reports whether there
// was one.
func (p *Publisher) load(ctx context.Context, s script, calls []call, pending []int, replies []reply) bool {
	sent := map[string]bool{} // by shard
	for _, i := range pending {
		shard, _, _ := strings.Cut(calls[i].keys[0], "}")
		if unknown(replies[i].err) && !sent[shard] {
			sent[shard] = true
			p.eval(ctx, "eval", s.source, calls, []int{i}, replies)
		}
	}
	return len(sent) > 0
}

// eval runs a script once for each of the calls that pending names, and stores the replies.
func (p *Publisher) eval(ctx context.Context, command, script string, calls []call, pending []int, replies []reply) {
	commands := make([]*redis.Cmd, len(pending))
	pipe := p.client.Pipeline()
	for n, i := range pending {
		all := make([]any, 0, 3+len(calls[i].keys)+len(calls[i].args))
		all = append(all, command, script, len(calls[i].keys))
		for _, key := range calls[i].keys {
			all = append(all, key)
		}
		commands[n] = redis.NewCmd(ctx, append(all, calls[i].args...)...)
		commands[n].SetFirstKeyPos(3) // for the client to select the server in a Cluster
		_ = pipe.Process(ctx, once{commands[n]})
	}
	if len(pending) == 1 {
		_ = p.client.Process(ctx, once{commands[0]}) // also follows a failover of a Cluster
	} else {
		_, _ = pipe.Exec(ctx) // the commands have the errors
	}
	for n, i := range pending {
		replies[i].numbers, replies[i].err = commands[n].Int64Slice()
	}
}

// unknown reports whether the server doesn't know the script, and executed nothing.
func unknown(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// moving reports whether a Cluster is moving the slot and executed nothing.
func moving(err error) bool {
	for _, prefix := range []string{"TRYAGAIN", "ASK", "MOVED", "CLUSTERDOWN"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
