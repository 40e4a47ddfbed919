//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// ramp measures throughput by number of connections.
func ramp(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "ramp"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	for _, load := range ratioWorkloads()[1:3] { // 304, auth + 304
		if err := checkResponses(ctx, load, w.edgeWithUpstream()); err != nil {
			return err
		}
		for conns := 1; conns <= 256; conns *= 2 {
			out.printProgress("%s, %d connections", load.Name, conns)
			l := o.wrkLoad(o.measurementTime(2))
			l.Connections = conns
			if err := out.addRow(o.closedLoop(ctx, w.edgeWithUpstream(), load, l, w.dir)); err != nil {
				return err
			}
		}
	}
	return nil
}

// highestRate returns the rate of the closed loop, requests a second.
func (o *Options) highestRate(ctx context.Context, w *world, load workload.Workload, out *Recorder) (float64, error) {
	if err := checkResponses(ctx, load, w.edgeWithUpstream()); err != nil {
		return 0, err
	}
	out.printProgress("%s, closed loop", load.Name)
	row, err := o.closedLoop(ctx, w.edgeWithUpstream(), load, o.wrkLoad(5*time.Second), w.dir)
	return row.Achieved, out.addRow(row, err)
}

// Updates in the last part of pauses. Each update is garbage of the size of a body.
const (
	pausesUpdates = 400 // a second
	pausesObjects = 100
	pausesBytes   = 48 << 10
)

// pauses looks for pauses, for example of a garbage collector: half load for a long time, and then under updates.
// A single worker has its own core, so that waiting for a core doesn't look like a pause. A direct_response, or nginx's
// return, at the same rate shows the machine's own pauses.
func pauses(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "pauses"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	unpin, err := w.pinWorker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unpin()) }()
	load := authorized304()
	rate := o.Rate
	if rate == 0 {
		if rate, err = o.halfLoad(ctx, w, load, out); err != nil {
			return err
		}
	}
	measure := func(t target, load workload.Workload, d time.Duration) error {
		out.printProgress("%s of %s, %.0f/s for %s", load.Name, t.name, rate, d)
		row, err := o.openLoop(ctx, t, load, rate, d)
		if out.addRow(row, err) != nil {
			return err
		}
		fmt.Fprintf(out, "pauses: %s of %s, %.0f requests/s for %s, its workers %.0f %% busy: p99.9 %.2f ms, max %.2f "+
			"ms; the client itself was at most %.2f ms late\n",
			load.Name, t.name, rate, d, 100*row.EdgeCores()/float64(o.Workers), row.LatencyAt(99.9)/1000,
			row.LatencyAt(100)/1000, row.ClientLate/1000)
		return nil
	}
	d := o.measurementTime(300)
	direct := "direct_response"
	if w.EdgeKind() == stack.NginxEdge {
		direct = "return"
	}
	if err := measure(w.besideTarget(direct, "direct"), fullOneKiB(), d/5); err != nil {
		return err
	}
	if err := measure(w.edgeWithUpstream(), load, d); err != nil {
		return err
	}
	publisher, stop, err := w.startUpdates(ctx, pausesUpdates, pausesObjects, pausesBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	t := w.edgeWithUpstream()
	t.servers = append(t.servers, publisher)
	load.Name = fmt.Sprintf("%s, %d updates/s of %d KiB", load.Name, pausesUpdates, pausesBytes>>10)
	return measure(t, load, d/5)
}

// halfLoad returns a rate at which the edge's workers are busy about half of the time: less than half of the closed
// loop's rate, because each request wakes a worker. Workers that share cores get half of the closed loop's rate.
func (o *Options) halfLoad(ctx context.Context, w *world, load workload.Workload, out *Recorder) (float64, error) {
	most, err := o.highestRate(ctx, w, load, out)
	if err != nil {
		return 0, err
	}
	rate := most / 4
	for range 3 {
		out.printProgress("%s, %.0f/s", load.Name, rate)
		row, err := o.openLoop(ctx, w.edgeWithUpstream(), load, rate, 3*time.Second)
		if out.addRow(row, err) != nil {
			return 0, err
		}
		rate = min(rate*0.5*float64(o.Workers)/row.EdgeCores(), most/2)
	}
	return rate, nil
}
