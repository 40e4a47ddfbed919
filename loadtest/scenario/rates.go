//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// authorized is the workload that ramp, breakpoint and pauses use besides: a credential
// and a 304, the most that Gatehouse does for an answer.
func authorized() workload.Workload {
	return workload.Singles(func(string) int { return -1 })["auth-304"][0]
}

// ramp measures throughput by connections.
func ramp(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "ramp"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	for _, load := range []workload.Workload{ratioWorkloads()[1], authorized()} {
		if err := warm(ctx, load, w.edge()); err != nil {
			return err
		}
		for conns := 1; conns <= 256; conns *= 2 {
			out.doing("%s, %d connections", load.Name, conns)
			l := o.wrkLoad(o.seconds(2))
			l.Connections = conns
			if err := out.row(o.closed(ctx, w.edge(), load, l, w.dir)); err != nil {
				return err
			}
		}
	}
	return nil
}

// highest is what the closed loop reaches, requests a second.
func (o *Options) highest(ctx context.Context, w *world, load workload.Workload, out *Recorder) (float64, error) {
	if err := warm(ctx, load, w.edge()); err != nil {
		return 0, err
	}
	out.doing("%s, closed loop", load.Name)
	row, err := o.closed(ctx, w.edge(), load, o.wrkLoad(5*time.Second), w.dir)
	return row.Achieved, out.row(row, err)
}

// breakpoint raises the rate by tenths of what the closed loop reached until it breaks,
// then halves the last step three times. A rate breaks if it does so twice.
func breakpoint(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "breakpoint"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	load := authorized()
	highest, err := o.highest(ctx, w, load, out)
	if err != nil {
		return err
	}
	try := func(rate float64) (ok bool, err error) {
		for range 2 { // once may be somebody else's doing
			out.doing("%s, %.0f/s", load.Name, rate)
			row, err := o.open(ctx, w.edge(), load, rate, o.seconds(3))
			if ok = o.holds(row); ok || err != nil {
				return ok, out.row(row, err)
			}
			out.Rows = append(out.Rows, row)
		}
		return false, nil
	}
	good, bad, err := search(highest, try)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "breakpoint: %.0f/s hold with p99 of at most %v ms and errors of at most 0.1 %%; %.0f/s don't\n", good, o.P99, bad)
	return nil
}

// search finds a rate that holds and a higher one that doesn't.
func search(highest float64, try func(rate float64) (bool, error)) (good, bad float64, err error) {
	step := highest / 10
	for bad = step; ; bad += step {
		ok, err := try(bad)
		if err != nil {
			return good, bad, err
		}
		if !ok {
			break
		}
		if good = bad; good >= 3*highest {
			return good, bad, fmt.Errorf("%.0f/s still hold, three times what the closed loop reached: that can't be", good)
		}
	}
	for range 3 {
		middle := (good + bad) / 2
		ok, err := try(middle)
		if err != nil {
			return good, bad, err
		}
		if ok {
			good = middle
		} else {
			bad = middle
		}
	}
	return good, bad, nil
}

// holds reports whether a rate was answered well enough.
func (o *Options) holds(row report.Row) bool {
	var errors int64
	for _, n := range row.Errors {
		errors += n
	}
	return row.Achieved >= 0.99*row.Asked && float64(errors) <= 0.001*row.Asked*row.Seconds && row.At(99) <= o.P99*1000
}

// pauses looks for pauses, of a collector for example: half load for long. Envoy's worker
// has a core of its own, so that nobody else's turn on a core is taken for a pause; what
// pauses the machine itself has is what a direct_response shows at the same rate.
func pauses(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "pauses"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	together, err := w.apart()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, together()) }()
	load := authorized()
	rate := o.Rate
	if rate == 0 {
		if rate, err = o.halfLoad(ctx, w, load, out); err != nil {
			return err
		}
	}
	d := o.seconds(300)
	for _, m := range []struct {
		target target
		load   workload.Workload
		d      time.Duration
	}{{w.beside("direct_response", "direct"), oneKiB(), d / 5}, {w.edge(), load, d}} {
		out.doing("%s of %s, %.0f/s for %s", m.load.Name, m.target.name, rate, m.d)
		row, err := o.open(ctx, m.target, m.load, rate, m.d)
		if out.row(row, err) != nil {
			return err
		}
		fmt.Fprintf(out, "pauses: %s of %s, %.0f requests/s for %s, Envoy's workers %.0f %% busy: p99.9 %.2f ms, max %.2f ms; the client itself was at most %.2f ms late\n",
			m.load.Name, m.target.name, rate, m.d, 100*row.Cores["envoy"]/float64(o.Workers), row.At(99.9)/1000, row.At(100)/1000, row.ClientLate/1000)
	}
	return nil
}

// halfLoad is about the rate at which Envoy's workers are busy half of the time. That is less
// than half of what the closed loop reaches, because each request wakes a worker.
func (o *Options) halfLoad(ctx context.Context, w *world, load workload.Workload, out *Recorder) (float64, error) {
	rate, err := o.highest(ctx, w, load, out)
	if err != nil {
		return 0, err
	}
	rate /= 4
	for range 3 {
		out.doing("%s, %.0f/s", load.Name, rate)
		row, err := o.open(ctx, w.edge(), load, rate, 3*time.Second)
		if out.row(row, err) != nil {
			return 0, err
		}
		rate *= 0.5 * float64(o.Workers) / row.Cores["envoy"]
	}
	return rate, nil
}

// mixed measures a fleet of devices with credentials of their own.
func mixed(ctx context.Context, o *Options, out *Recorder) (err error) {
	const objects, requests = 1000, 20_000
	w, err := startWorld(ctx, o, worldOptions{name: "mixed", seed: func(ctx context.Context, p *publish.Publisher) error {
		for i := range objects {
			if _, err := p.Put(ctx, publish.Object{Key: workload.FleetPath(i), Body: workload.FleetBody(i), ContentType: workload.ContentType}); err != nil {
				return err
			}
		}
		return register(ctx, p, "fleet", o.Devices, 4)
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := w.admit(ctx, o.Devices); err != nil {
		return err
	}
	fmt.Fprintf(out, "mixed: %d devices, %d objects of 1 KiB; of 100 requests 30 post telemetry; of the reads 70 %% are conditional, keys by Zipf, s = 1.1\n", o.Devices, objects)
	return o.rowsOf(ctx, w, workload.Fleet(o.Devices, objects, requests), out)
}

// admit has each device of the fleet verified.
func (w *world) admit(ctx context.Context, devices int) error {
	c, err := dial(ctx, w.EdgeURL())
	if err != nil {
		return err
	}
	defer c.close()
	for i := range devices {
		status, err := c.show(workload.FleetDevice(i), workload.Secret)
		if err != nil {
			return fmt.Errorf("device %s: %w", workload.FleetDevice(i), err)
		}
		if status != 200 {
			return fmt.Errorf("device %s: status %d, want 200", workload.FleetDevice(i), status)
		}
	}
	return nil
}
