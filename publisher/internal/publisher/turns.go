package publisher

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// smallBody is where bodies begin to need a turn: package publish encodes them at levels that take 70 MB each.
	smallBody = 16 << 10
	// turnTimeout bounds how long a request waits for each of its turns; less than bodyTimeout, which begins before.
	turnTimeout = 20 * time.Second
)

// turns bounds what large bodies take at a time. Those of all teams share one, and those of each team a smaller one: a
// team with many large bodies waits for itself, and leaves room for the others.
type turns struct {
	bodies *semaphore.Weighted // bytes of bodies, and parts of batches, that are being read or have been
	writes *semaphore.Weighted // bodies, and parts, that are encoded and written, each with all its encodings
	reads  *semaphore.Weighted // objects that are read from Redis, each with all its encodings
}

// allTurns are those of all teams. With three encoders of 70 MB and what Go needs, the program stays below the chart's
// 512 MiB.
func allTurns() turns {
	return turns{semaphore.NewWeighted(32 << 20), semaphore.NewWeighted(3), semaphore.NewWeighted(6)}
}

// teamTurns are those of one team.
func teamTurns() turns {
	return turns{semaphore.NewWeighted(8 << 20), semaphore.NewWeighted(2), semaphore.NewWeighted(3)}
}

// take waits until a team, and then all teams, have n less than their most, and takes n of both. Who waits longest is
// the next; a team's requests that wait for their own team are in no other's way.
func take(ctx context.Context, n int64, team, all *semaphore.Weighted) (free func(), p *problem) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	busy := func(detail string) *problem {
		return &problem{Status: http.StatusTooManyRequests, retry: time.Second, Detail: detail}
	}
	if team.Acquire(ctx, n) != nil {
		return nil, busy("too many large bodies of the team at once")
	}
	if all.Acquire(ctx, n) != nil {
		team.Release(n)
		return nil, busy("too many large bodies of all teams at once")
	}
	return func() { all.Release(n); team.Release(n) }, nil
}

// enter waits for the turn of a large body, or part of a batch, of size bytes. The request has the turn until leave, at
// the latest until its end.
func (c *call) enter(ctx context.Context, size int64) *problem {
	free, p := take(ctx, size, c.team.turns.bodies, c.s.turns.bodies)
	if p == nil {
		c.free = free
		c.extend()
	}
	return p
}

func (c *call) leave() {
	if c.free != nil {
		c.free()
		c.free = nil
	}
}

// size returns how many bytes of the body there may be, at most limit.
func (c *call) size(limit int64) int64 {
	if c.r.ContentLength < 0 {
		return limit
	}
	return min(c.r.ContentLength, limit)
}

// write calls what encodes and writes bodies of size bytes: large ones in their turn.
func (c *call) write(ctx context.Context, size int, write func()) *problem {
	if size >= smallBody {
		free, p := take(ctx, 1, c.team.turns.writes, c.s.turns.writes)
		if p != nil {
			return p
		}
		defer free()
	}
	write()
	return nil
}
