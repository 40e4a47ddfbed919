//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/loadtest/wrk"
	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/testbed/proc"
)

// More than a worker keeps: three times its limit of bodies.
const (
	largeObjects = 1000
	largeBytes   = 48 << 10
)

// workers measures Envoy with two workers against one with one, slices in turn: the CPU per request, and how the
// workers waited.
func workers(ctx context.Context, o *Options, out *Recorder) (err error) {
	worlds := make([]*world, 2)
	large := func(ctx context.Context, p *publish.Publisher) error { return fill(ctx, p, largeObjects, largeBytes) }
	for i := range worlds {
		if worlds[i], err = startWorld(ctx, o, worldOptions{name: fmt.Sprint("workers-", i+1), workers: i + 1, seed: large}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, worlds[i].stop()) }()
	}
	full := workload.Singles(func(string) int { return -1 })["200"]
	kept, read := full[4], workload.Objects(largeObjects, largeBytes, false)
	kept.Name, read.Name = "200 48 KiB, kept by the worker", fmt.Sprintf("200 48 KiB of %d, read each time", largeObjects)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "lock in Envoy: each with 1 and with 2 workers\tµs/req\t\tin futex\t\tswitches/req: waited, preempted\t\n")
	for _, load := range []workload.Workload{authorized(), full[0], kept, read} {
		var seen [2]waiting
		var pairs stats.Pairs
		out.doing("%s, %d pairs", load.Name, o.Pairs)
		for i := range o.Pairs + 1 {
			var micros [2]float64
			for j, w := range worlds {
				if micros[j], err = seen[j].slice(ctx, o, w, load, i > 0); err != nil {
					return err
				}
			}
			if i > 0 { // in the first, workers fill their caches
				pairs.Add(micros[1], micros[0])
			}
		}
		pair, err := pairOf(load.Name, "Envoy with 2 workers", "Envoy with 1 worker", pairs)
		if err != nil {
			return err
		}
		out.Pairs = append(out.Pairs, pair)
		a, b := seen[0], seen[1]
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.2f %%\t%.2f %%\t%s\t%s\n", load.Name, pair.ReferenceMicros, pair.SubjectMicros, 100*a.locked(), 100*b.locked(), a.switches(), b.switches())
	}
	return t.Flush()
}

// waiting is how an Envoy's workers waited during some slices.
type waiting struct {
	futex             float64 // sum of the slices' shares of samples
	slices            int
	requests          int64
	waited, preempted int64 // voluntary and involuntary context switches
}

// slice measures one slice and returns its CPU per request, µs. It adds the waiting only if it counts.
func (s *waiting) slice(ctx context.Context, o *Options, w *world, load workload.Workload, counts bool) (float64, error) {
	t := w.gatehouse()
	if err := warm(ctx, load, t); err != nil {
		return 0, err
	}
	waited, preempted, err := proc.Switches(w.envoy())
	if err != nil {
		return 0, err
	}
	locks := proc.WatchLocks(t.servers)
	// The client has one thread for any number of workers: the same load on both.
	micros, requests, err := o.slice(ctx, t, load, wrk.Load{Threads: 1, Connections: o.Connections, Duration: sideTime}, w.dir)
	locked := locks.Stop()
	if err != nil || !counts {
		return micros, err
	}
	waitedThen, preemptedThen, err := proc.Switches(w.envoy())
	s.futex, s.slices, s.requests = s.futex+locked, s.slices+1, s.requests+requests
	s.waited, s.preempted = s.waited+waitedThen-waited, s.preempted+preemptedThen-preempted
	return micros, err
}

// locked returns the share of samples in which a worker waited for another thread.
func (s *waiting) locked() float64 { return s.futex / float64(max(s.slices, 1)) }

func (s *waiting) switches() string {
	n := float64(max(s.requests, 1))
	return fmt.Sprintf("%.4f, %.4f", float64(s.waited)/n, float64(s.preempted)/n)
}
