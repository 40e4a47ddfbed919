package chaos

import (
	"context"
	"sync"
	"time"
)

const (
	// probes is the number of connections that check the edge after a fault; each must see every key.
	probes = 4
	// giveUp bounds how long the probes wait for a late key, to measure the delay.
	giveUp = 15 * time.Second
	// giveUpAnyway bounds the wait also if the parts can't run.
	giveUpAnyway = time.Minute
)

// convergence describes how the edge caught up after a fault.
type convergence struct {
	// took is the time from the end of the fault to the end of the last answer without the last write acknowledged at the
	// fault's end, 0 if there was no such answer.
	took time.Duration
	// never counts keys that did not catch up before the probes gave up.
	never int
}

// probeConvergence requests every key until it has the last write acknowledged at since, the end of the fault.
func (r *run) probeConvergence(ctx context.Context, since time.Duration) convergence {
	targets := r.checker.TargetsAt(since)
	var running sync.WaitGroup
	var mu sync.Mutex // protects the rest
	var total convergence
	late := map[int]bool{} // already reported
	for i := range probes {
		running.Go(func() {
			edge := i % len(r.urls)
			if r.world.tight && edge == tightEdge {
				edge = 0
			}
			probe := newReader(r.world, r.content, edge, r.urls[edge])
			probe.probes = true
			defer probe.close()
			got := probeAll(ctx, r, probe, i*len(targets)/probes, targets, since, func(v Violation) {
				mu.Lock()
				defer mu.Unlock()
				if !late[v.Key] {
					late[v.Key] = true
					r.reportViolation(v)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			total.took = max(total.took, got.took)
			total.never = max(total.never, got.never)
		})
	}
	running.Wait()
	return total
}

// probeAll requests all keys over one connection, beginning with the key first.
func probeAll(ctx context.Context, r *run, probe *reader, first int, targets []uint64, since time.Duration,
	late func(Violation)) convergence {
	var got convergence
	waiting := make([]int, len(targets))
	for i := range waiting {
		waiting[i] = (first + i) % len(targets)
	}
	for len(waiting) > 0 && ctx.Err() == nil && !r.starvation.hasPassed(since, r.world.now(), giveUp) &&
		r.world.now() < since+giveUpAnyway {
		left := waiting[:0]
		for _, key := range waiting {
			read := r.judgeRead(ctx, probe, key)
			if ctx.Err() != nil {
				return got // the run is over
			}
			if r.checker.HasReached(targets[key], read) {
				continue
			}
			left = append(left, key)
			got.took = max(got.took, read.End-since)
			if v, is := checkOverdue(read, targets[key], since,
				r.limits.Converge+r.starvation.between(since, read.Start)); is {
				late(v)
			}
		}
		waiting = left
	}
	got.never = len(waiting)
	return got
}
