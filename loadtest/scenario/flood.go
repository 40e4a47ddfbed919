//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/testbed/proc"
)

// flood measures authenticated devices without and with a flood of wrong credentials. Under the same flood, a restarted
// sidecar then authenticates every device again.
func flood(ctx context.Context, o *Options, out *Recorder) (err error) {
	const cost = 8 // at 12 all devices on one worker would take more than five minutes
	w, err := startWorld(ctx, o, worldOptions{name: "flood", workers: 2, sidecarArgs: []string{"--bcrypt.workers=1"},
		seed: func(ctx context.Context, p *publish.Publisher) error {
			return errors.Join(registerDevices(ctx, p, "good", workingDevices, cost),
				registerDevices(ctx, p, "idle", workingDevices, cost))
		}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	fleet := startFleet(ctx, w.EdgeURL())
	if _, err := fleet.awaitAuthenticated(ctx); err != nil {
		return errors.Join(err, fleet.stop())
	}
	fmt.Fprintf(out, "flood: %d devices, 1 request/s each; flood of %d/s asked, from %d addresses; cost %d, 1 worker\n",
		workingDevices, floodRate, flooders, cost)
	if err := errors.Join(w.compareWithFlood(ctx, o, fleet, out), fleet.stop()); err != nil {
		return err
	}
	return w.runUnderFlood(out, func(*runningFlood) error { return w.coldFlood(ctx, out) })
}

// floodRounds is how often the fleet is measured without and with the flood, in turn.
const floodRounds = 5

// compareWithFlood measures the fleet without and with the flood, in turn.
func (w *world) compareWithFlood(ctx context.Context, o *Options, f *fleet, out *Recorder) error {
	var p50, p99 stats.Pairs
	for range floodRounds {
		without, err := w.measurePhase(ctx, o, f, out, w.edgeWithUpstream(), "without")
		if err != nil {
			return err
		}
		if err := w.runUnderFlood(out, func(storm *runningFlood) error {
			t := w.edgeWithUpstream()
			t.clients = []proc.Server{storm.cpuServer()}
			with, err := w.measurePhase(ctx, o, f, out, t, "with")
			if err == nil {
				p50.Add(with.LatencyAt(50), without.LatencyAt(50))
				p99.Add(with.LatencyAt(99), without.LatencyAt(99))
			}
			return err
		}); err != nil {
			return err
		}
	}
	half, most := p50.Ratio(), p99.Ratio()
	fmt.Fprintf(out, "latency of devices with the flood, over that without it, %d rounds: p50 %.2f (%.2f – %.2f), p99 "+
		"%.2f (%.2f – %.2f)\n",
		floodRounds, half.Median, half.Min, half.Max, most.Median, most.Min, most.Max)
	return nil
}

// runUnderFlood runs a function under a flood, and prints the flood's results.
func (w *world) runUnderFlood(out *Recorder, do func(*runningFlood) error) error {
	storm, err := startFlood(w.dir, w.EdgeURL())
	if err != nil {
		return err
	}
	err = do(storm)
	was, failed := storm.stop()
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	var answers int64
	for _, n := range was.Statuses {
		answers += n
	}
	fmt.Fprintf(out, "the flood: %.0f/s, %d of its secrets let in, answers %v, %d connections lost\n",
		float64(answers)/was.Seconds, was.Statuses[200], was.Statuses, was.Lost)
	return nil
}

// measurePhase waits for a steady state, measures the fleet, and prints the sidecar's figures.
func (w *world) measurePhase(ctx context.Context, o *Options, f *fleet, out *Recorder, t target,
	name string) (report.Row, error) {
	if err := sleep(ctx, 2*time.Second); err != nil { // until the state is steady
		return report.Row{}, err
	}
	before, err := w.readFigures(ctx)
	if err != nil {
		return report.Row{}, err
	}
	row, _, err := f.measureRow(ctx, t, "telemetry "+name+" the flood", o.measurementTime(120)/12)
	if err := out.addRow(row, err); err != nil {
		return row, err
	}
	after, err := w.readFigures(ctx)
	if err != nil {
		return row, err
	}
	fmt.Fprintf(out, "%s the flood: p99 %.2f ms, calls %.0f/s, bcrypt %.1f/s, push operations %.0f/s, sidecar's RSS "+
		"%.0f → %.0f MiB\n", name, row.LatencyAt(99)/1000,
		(after.calls-before.calls)/row.Seconds, (after.runs-before.runs)/row.Seconds, (after.ops-before.ops)/row.Seconds,
		before.rss/(1<<20), after.rss/(1<<20))
	return row, nil
}

// figures are some of the sidecar's metrics.
type figures struct{ calls, runs, seconds, ops, rss float64 }

func (w *world) readFigures(ctx context.Context) (f figures, err error) {
	for _, m := range []struct {
		name string
		to   *float64
	}{
		{"gatehouse_api_requests_total", &f.calls},
		{"gatehouse_bcrypt_total", &f.runs}, {"gatehouse_bcrypt_seconds_sum", &f.seconds},
		{"gatehouse_push_operations_total", &f.ops},
		{"process_resident_memory_bytes", &f.rss},
	} {
		if *m.to, err = w.Metric(ctx, m.name); err != nil {
			return f, err
		}
	}
	return f, nil
}

// coldFlood restarts the sidecar during a flood.
//
// Every device is new to the sidecar. Each run of bcrypt that isn't for a good device makes an address of the flood a
// suspect, and while others wait, at most one of four runs is for suspects: all devices are authenticated after
// (devices + addresses) × 4/3 runs.
func (w *world) coldFlood(ctx context.Context, out *Recorder) error {
	if err := errors.Join(w.KillSidecar(), w.StartSidecar(ctx)); err != nil {
		return err
	}
	begin := time.Now()
	f := startFleet(ctx, w.EdgeURL())
	last, err := f.awaitAuthenticated(ctx)
	if err = errors.Join(err, f.stop()); err != nil {
		return err
	}
	now, err := w.readFigures(ctx)
	if err != nil {
		return err
	}
	each := now.seconds / now.runs
	computed := float64(workingDevices+flooders) * 4 / 3 * each
	fmt.Fprintf(out, "sidecar just started, every device new: all %d in after %.1f s; computed at most (%d + %d "+
		"addresses) × 4/3 × %.1f ms = %.1f s; %.0f runs, RSS %.0f MiB\n",
		workingDevices, last.Sub(begin).Seconds(), workingDevices, flooders, 1000*each, computed, now.runs, now.rss/(1<<20))
	return nil
}
