package publish

import (
	"context"
	"crypto/sha1" // Redis identifies scripts by SHA-1
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// movingFor bounds how long a script waits while a Cluster moves a slot to another server. Each key is on one of the
	// two servers; the script can run once all its keys are on the same server.
	movingFor = 5 * time.Second
	// firstPause and longestPause bound the pause before a retry.
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// once is a command that is retried only after a redirection in a Cluster. After any other error the command may have
// been executed, and a retry would conflict with its own version.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// script is a script that is sent as its hash after the first run.
type script struct{ source, hash string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(sum[:])}
}

// call is a run of a script. All keys are of one shard.
type call struct {
	keys []string
	args []any
}

// reply is the result of a run.
type reply struct {
	numbers []int64
	err     error
}

// runCalls runs the script for each of calls, in one round trip to each server. Calls of the same shard run in order,
// except while the shard's slot moves.
func (s script) runCalls(ctx context.Context, client redis.UniversalClient, calls ...call) []reply {
	replies := make([]reply, len(calls))
	pending := make([]int, len(calls)) // indices
	for i := range pending {
		pending[i] = i
	}
	pause := firstPause
	for begin := time.Now(); ; {
		evalScript(ctx, client, "evalsha", s.hash, calls, pending, replies)
		loading := s.loadScript(ctx, client, calls, pending, replies)
		pending = slices.DeleteFunc(pending, func(i int) bool {
			return !isSlotMoving(replies[i].err) && !isUnknownScript(replies[i].err)
		})
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

// loadScript sends the script's source for the first call of each shard whose server did not know the script, and
// reports whether any source was sent.
func (s script) loadScript(ctx context.Context, client redis.UniversalClient, calls []call, pending []int,
	replies []reply) bool {
	sent := map[string]bool{} // by shard
	for _, i := range pending {
		shard, _, _ := strings.Cut(calls[i].keys[0], "}")
		if isUnknownScript(replies[i].err) && !sent[shard] {
			sent[shard] = true
			evalScript(ctx, client, "eval", s.source, calls, []int{i}, replies)
		}
	}
	return len(sent) > 0
}

// evalScript runs a script once for each of the calls with an index in pending, and stores the replies.
func evalScript(ctx context.Context, client redis.UniversalClient, command, script string, calls []call,
	pending []int, replies []reply) {
	commands := make([]*redis.Cmd, len(pending))
	pipe := client.Pipeline()
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
		_ = client.Process(ctx, once{commands[0]}) // also follows a failover of a Cluster
	} else {
		_, _ = pipe.Exec(ctx) // the commands have the errors
	}
	for n, i := range pending {
		replies[i].numbers, replies[i].err = commands[n].Int64Slice()
	}
}

// isUnknownScript reports whether the server doesn't know the script, and executed nothing.
func isUnknownScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// isSlotMoving reports whether a Cluster is moving the slot and executed nothing.
func isSlotMoving(err error) bool {
	for _, prefix := range []string{"TRYAGAIN", "ASK", "MOVED", "CLUSTERDOWN"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
