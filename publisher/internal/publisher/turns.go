package publisher

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// smallBody is the size from which on a body needs a turn: package publish encodes larger bodies at levels that take
	// 70 MB each.
	smallBody = 16 << 10
	// turnTimeout bounds a request's wait for each turn. turnTimeout is less than bodyTimeout, which begins earlier.
	turnTimeout = 20 * time.Second
)

// turns bounds the resources of large bodies. All teams share a limit, and each team has a smaller limit of its own: a
// team with many large bodies waits for its own limit, and leaves capacity to other teams.
type turns struct {
	bodies *semaphore.Weighted // bytes of bodies, and of parts of batches, being read or in memory
	writes *semaphore.Weighted // bodies, and parts, being encoded and written, each with all encodings
	reads  *semaphore.Weighted // objects being read from Redis, each with all encodings
}

// allTurns returns the limits shared by all teams. With three encoders of 70 MB and Go's own needs, the program stays
// below the chart's 512 MiB.
func allTurns() turns {
	return turns{semaphore.NewWeighted(32 << 20), semaphore.NewWeighted(3), semaphore.NewWeighted(6)}
}

// teamTurns returns the limits of a single team.
func teamTurns() turns {
	return turns{semaphore.NewWeighted(8 << 20), semaphore.NewWeighted(2), semaphore.NewWeighted(3)}
}

// takeTurns waits until the team's and then the shared limit have n free, and takes n of both. The longest waiting
// request is next. A request that waits for its team's limit is not in the way of other teams.
func takeTurns(ctx context.Context, n int64, team, all *semaphore.Weighted) (free func(), p *problem) {
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

// takeBodyTurn waits for the turn of a large body, or part of a batch, of size bytes. The request has the turn until
// releaseBodyTurn, at the latest until the request's end.
func (c *call) takeBodyTurn(ctx context.Context, size int64) *problem {
	free, p := takeTurns(ctx, size, c.team.turns.bodies, c.s.turns.bodies)
	if p == nil {
		c.free = free
		c.extendDeadlines()
	}
	return p
}

func (c *call) releaseBodyTurn() {
	if c.free != nil {
		c.free()
		c.free = nil
	}
}

// maxBodySize returns the largest possible size of the body, at most limit.
func (c *call) maxBodySize(limit int64) int64 {
	if c.r.ContentLength < 0 {
		return limit
	}
	return min(c.r.ContentLength, limit)
}

// writeInTurn calls write, which encodes and writes bodies of size bytes. Large bodies wait for their turn.
func (c *call) writeInTurn(ctx context.Context, size int, write func()) *problem {
	if size >= smallBody {
		free, p := takeTurns(ctx, 1, c.team.turns.writes, c.s.turns.writes)
		if p != nil {
			return p
		}
		defer free()
	}
	write()
	return nil
}
