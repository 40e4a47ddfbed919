//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"

	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// flooders is how many addresses a flood comes from, and floodConns how many connections.
const (
	flooders   = 250
	floodConns = 1000
)

// flooding sends random secrets for known and unknown devices at a rate.
type flooding struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	sent   atomic.Int64
	let    atomic.Int64 // answers of 200: there must be none
	failed atomic.Int64 // connections lost, and made again
	begin  time.Time
}

// startFlood starts a flood of rate requests a second: half for unknown devices, a quarter
// for those of the fleet, which the edge refuses by itself once they are in, and a quarter
// for as many that never come: each of these is a call to the sidecar.
func startFlood(ctx context.Context, url string, devices, rate int) *flooding {
	ctx, cancel := context.WithCancel(ctx)
	f := &flooding{cancel: cancel, begin: time.Now()}
	// Ten turns a second, each with its part of the rate: who waits for an answer leaves his
	// turn to the others.
	turns := make(chan struct{}, rate)
	f.wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for range rate / 100 {
				select {
				case turns <- struct{}{}:
				default:
				}
			}
		}
	})
	for i := range floodConns {
		f.wg.Go(func() { f.run(ctx, url, devices, i%flooders, turns) })
	}
	return f
}

func (f *flooding) run(ctx context.Context, url string, devices, address int, turns <-chan struct{}) {
	for ctx.Err() == nil {
		c, err := dialFrom(ctx, url, 2, address)
		if err != nil {
			f.failed.Add(1)
			continue
		}
		stop := context.AfterFunc(ctx, c.close)
		for err == nil {
			select {
			case <-ctx.Done():
				err = ctx.Err()
				continue
			case <-turns:
			}
			id := fmt.Sprint("unknown", rand.Uint64())
			switch rand.IntN(4) {
			case 0:
				id = fmt.Sprint("good", rand.IntN(devices))
			case 1:
				id = fmt.Sprint("idle", rand.IntN(devices))
			}
			var status int
			if status, err = c.show(id, fmt.Sprint("wrong", rand.Uint64())); err == nil {
				f.sent.Add(1)
			}
			if status == 200 {
				f.let.Add(1)
			}
		}
		stop()
		c.close()
		if ctx.Err() == nil {
			f.failed.Add(1)
		}
	}
}

func (f *flooding) stop() { f.cancel(); f.wg.Wait() }

// rate is how many requests of the flood were answered in a second.
func (f *flooding) rate() float64 { return float64(f.sent.Load()) / time.Since(f.begin).Seconds() }

// flood measures devices at work without and with a flood, and then a sidecar that has
// just started, to which every device is new, under the same flood.
func flood(ctx context.Context, o *Options, out *Recorder) (err error) {
	cost := min(o.Cost, 8) // at 12 all devices on one worker would take more than five minutes
	b, err := start(ctx, stack.Options{Name: "flood", SidecarArgs: []string{"--bcrypt.workers=1"}}, func(ctx context.Context, p *publish.Publisher) error {
		return errors.Join(register(ctx, p, "good", o.Devices, cost), register(ctx, p, "idle", o.Devices, cost))
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	fleet := startFleet(ctx, b.EdgeURL(), "good", o.Devices)
	if _, err := fleet.awaitIn(ctx, o.Devices); err != nil {
		return errors.Join(err, fleet.stop())
	}
	fmt.Fprintf(out, "flood: %d devices, 1 request/s each; flood of %d/s asked, from %d addresses; cost %d, 1 worker\n", o.Devices, o.Flood, flooders, cost)
	if err := b.phase(ctx, o, fleet, out, "without"); err != nil {
		return errors.Join(err, fleet.stop())
	}
	storm := startFlood(ctx, b.EdgeURL(), o.Devices, o.Flood)
	if err = b.phase(ctx, o, fleet, out, "with"); err == nil {
		fmt.Fprintf(out, "the flood: %.0f/s, %d of its secrets let in, %d connections lost\n", storm.rate(), storm.let.Load(), storm.failed.Load())
	}
	if err = errors.Join(err, fleet.stop()); err != nil {
		storm.stop()
		return err
	}
	err = b.coldFlood(ctx, o, out)
	storm.stop()
	return err
}

// phase lets time pass and prints what it was like.
func (b *bench) phase(ctx context.Context, o *Options, f *fleet, out *Recorder, name string) error {
	if err := wait(ctx, 3*time.Second); err != nil { // until it is as it stays
		return err
	}
	before, err := b.figures(ctx)
	if err != nil {
		return err
	}
	row, _, err := f.row(ctx, b.gatehouse(), "telemetry "+name+" the flood", o.Devices, o.seconds(120)/4)
	if out.row(row, err) != nil {
		return err
	}
	after, err := b.figures(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s the flood: calls %.0f/s, bcrypt %.1f/s, push operations %.0f/s, sidecar's RSS %.0f → %.0f MiB\n", name,
		(after.calls-before.calls)/row.Seconds, (after.runs-before.runs)/row.Seconds, (after.ops-before.ops)/row.Seconds, before.rss/(1<<20), after.rss/(1<<20))
	return nil
}

// figures are some of the sidecar's metrics.
type figures struct{ calls, runs, seconds, ops, rss float64 }

func (b *bench) figures(ctx context.Context) (f figures, err error) {
	for _, m := range []struct {
		name string
		to   *float64
	}{
		{"gatehouse_api_requests_total", &f.calls},
		{"gatehouse_bcrypt_total", &f.runs}, {"gatehouse_bcrypt_seconds_sum", &f.seconds}, {"gatehouse_push_operations_total", &f.ops},
		{"process_resident_memory_bytes", &f.rss},
	} {
		if *m.to, err = b.sum(ctx, m.name); err != nil {
			return f, err
		}
	}
	return f, nil
}

// coldFlood starts the sidecar again in the middle of a flood.
//
// Every device is new then. A run of bcrypt that isn't a good device's finds an address
// of the flood, which is suspect from then on, and of four runs at most one goes to
// suspects while others wait: all are in after (devices + addresses) × 4/3 runs.
func (b *bench) coldFlood(ctx context.Context, o *Options, out *Recorder) error {
	if err := errors.Join(b.KillSidecar(), b.StartSidecar(ctx)); err != nil {
		return err
	}
	begin := time.Now()
	f := startFleet(ctx, b.EdgeURL(), "good", o.Devices)
	last, err := f.awaitIn(ctx, o.Devices)
	if err = errors.Join(err, f.stop()); err != nil {
		return err
	}
	now, err := b.figures(ctx)
	if err != nil {
		return err
	}
	each := now.seconds / now.runs
	computed := float64(o.Devices+flooders) * 4 / 3 * each
	fmt.Fprintf(out, "sidecar just started, every device new: all %d in after %.1f s; computed at most (%d + %d addresses) × 4/3 × %.1f ms = %.1f s; %.0f runs, RSS %.0f MiB\n",
		o.Devices, last.Sub(begin).Seconds(), o.Devices, flooders, 1000*each, computed, now.runs, now.rss/(1<<20))
	return nil
}
