//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/loadtest/wrk"
	"github.com/gatehouse/gatehouse/testbed/proc"
)

const (
	// sideTime is the total time for which each side of a pair is loaded.
	sideTime = time.Second
	// turnTime is the length of a turn. Noise from users of a shared machine lasts longer, and so affects both sides
	// alike.
	turnTime = 50 * time.Millisecond
	// settleTime is how long after a turn CPU still counts for the side, because of responses to the last requests.
	settleTime = 2 * time.Millisecond
	// slowTime is the length of a closed loop of slow requests. The CPU of unfinished requests counts at the end, but
	// no answer, so unfinished requests must be few.
	slowTime = 10 * time.Second
)

// measurePair measures the CPU of subject and reference per request in n pairs.
func (o *Options) measurePair(ctx context.Context, dir string, n int, subject, reference loaded) (report.Pair, error) {
	var pairs stats.Pairs
	for range n {
		micros, err := o.loadInTurns(ctx, dir, subject, reference)
		if err != nil {
			return report.Pair{}, err
		}
		pairs.Add(micros[0], micros[1])
	}
	return pairOf(subject.load.Name, subject.name, reference.name, pairs)
}

// measureLoopPair is [Options.measurePair] for a subject with requests longer than a turn: whole closed loops of
// subject and reference alternate.
func (o *Options) measureLoopPair(ctx context.Context, dir string, n int,
	subject, reference loaded) (report.Pair, error) {
	var pairs stats.Pairs
	for range n {
		slow, err := o.closedLoop(ctx, subject.target, subject.load, o.wrkLoad(slowTime), dir)
		if err != nil {
			return report.Pair{}, err
		}
		fast, err := o.closedLoop(ctx, reference.target, reference.load, o.wrkLoad(sideTime), dir)
		if err != nil {
			return report.Pair{}, err
		}
		pairs.Add(slow.MicrosPerRequest, fast.MicrosPerRequest)
	}
	return pairOf(subject.load.Name, subject.name, reference.name, pairs)
}

func pairOf(name, subject, reference string, pairs stats.Pairs) (report.Pair, error) {
	p := report.Pair{
		Workload: name, Subject: subject, Reference: reference, Ratio: pairs.Ratio(),
		SubjectMicros: stats.SpreadOf(pairs.Subject).Median, ReferenceMicros: stats.SpreadOf(pairs.Reference).Median,
	}
	if !(p.ReferenceMicros > 0) {
		return p, fmt.Errorf("%s: %s used no CPU that could be measured", name, reference)
	}
	return p, nil
}

// loaded is a target with its load.
type loaded struct {
	target
	load workload.Workload
}

// loadInTurns loads all targets in turns, and returns each target's CPU per request, µs.
func (o *Options) loadInTurns(ctx context.Context, dir string, all ...loaded) (micros []float64, err error) {
	sides := make([]*side, len(all))
	for i, l := range all {
		clock, err := proc.NewClock(l.servers)
		if err != nil {
			return nil, err
		}
		sides[i] = &side{loaded: l, clock: clock}
	}
	if err := o.takeTurns(ctx, dir, sides...); err != nil {
		return nil, err
	}
	for _, s := range sides {
		micros = append(micros, s.micros)
	}
	return micros, nil
}

// side is a target that is loaded in turns, with the CPU used.
type side struct {
	loaded
	clock  proc.Clock
	wrk    *wrk.Process  // nil before the first turn
	used   time.Duration // CPU of the servers in the side's turns
	over   bool
	micros float64 // CPU per request, when over
}

// takeTurns loads sides in closed loops, one at a time, until all are over.
func (o *Options) takeTurns(ctx context.Context, dir string, sides ...*side) error {
	ctx, cancel := context.WithCancel(ctx) // ends the other sides if one fails
	defer cancel()
	for slices.ContainsFunc(sides, func(s *side) bool { return !s.over }) {
		for _, s := range sides {
			if s.over {
				continue
			}
			if err := s.takeTurn(ctx, o.wrkLoad(time.Duration(len(sides))*sideTime), dir); err != nil {
				return fmt.Errorf("%s on %s: %w", s.load.Name, s.name, err)
			}
		}
	}
	return nil
}

// takeTurn loads a side for one turn; the last turn lasts until the side is over.
func (s *side) takeTurn(ctx context.Context, l wrk.Load, dir string) error {
	before, err := s.clock.Read()
	if err != nil {
		return err
	}
	if s.wrk == nil {
		s.wrk, err = wrk.Start(ctx, s.url, s.load, l, dir)
	} else {
		err = s.wrk.Resume()
	}
	if err != nil {
		return err
	}
	end := time.NewTimer(turnTime)
	defer end.Stop()
	select {
	case <-s.wrk.Done():
		s.over = true
	case <-end.C:
		err = s.wrk.Hold()
	}
	if err = errors.Join(err, sleep(ctx, settleTime)); err != nil {
		return err
	}
	after, err := s.clock.Read()
	if err != nil {
		return err
	}
	if s.used += after - before; !s.over {
		return nil
	}
	r, err := s.wrk.Result()
	if err == nil && (len(r.Errors) > 0 || r.Requests == 0) {
		err = fmt.Errorf("%d requests, errors %v", r.Requests, r.Errors)
	}
	if err == nil {
		s.micros = float64(s.used.Nanoseconds()) / 1e3 / float64(r.Requests)
	}
	return err
}
