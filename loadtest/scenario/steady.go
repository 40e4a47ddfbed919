//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/loadtest/stats"
)

// steady measures authenticated devices over several lives of verdicts: bcrypt runs once for each device, and no
// response waits for the renewal of a verdict. Envoy restarts when all devices are authenticated, so that many renewals
// fall together: pins make all verdicts again within a second, with the same life, ± 10 %.
func steady(ctx context.Context, o *Options, out *Recorder) (err error) {
	const (
		life = 30 // of a verdict, s
		cost = 12 // of bcrypt
	)
	w, err := startWorld(ctx, o, worldOptions{name: "steady", workers: 2, sidecarArgs: []string{"--bcrypt.workers=2"},
		seed: func(ctx context.Context, p *publish.Publisher) error {
			return registerDevices(ctx, p, "good", workingDevices, cost)
		}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	begin := time.Now()
	f := startFleet(ctx, w.EdgeURL())
	last, err := f.awaitAuthenticated(ctx)
	if err = errors.Join(err, f.stop()); err != nil {
		return err
	}
	warm := last.Sub(begin)
	runs, err := w.Metric(ctx, "gatehouse_bcrypt_total")
	if err != nil {
		return err
	}
	if err := errors.Join(w.KillEdge(), w.StartEdge(ctx), w.AwaitReady(ctx)); err != nil {
		return err
	}
	f = startFleet(ctx, w.EdgeURL())
	if begin, err = f.awaitAuthenticated(ctx); err != nil {
		return errors.Join(err, f.stop())
	}
	if err := sleep(ctx, time.Second); err != nil { // Envoy's counters are late
		return errors.Join(err, f.stop())
	}
	waited, err := w.EdgeMetric(ctx, "gatehouse_calls_total", `call="verify"`)
	if err != nil {
		return errors.Join(err, f.stop())
	}
	out.printProgress("%s", o.measurementTime(120))
	row, samples, err := f.measureRow(ctx, w.edgeWithUpstream(), "telemetry of devices", o.measurementTime(120))
	if err = errors.Join(err, f.stop()); out.addRow(row, err) != nil {
		return err
	}
	again, err := w.Metric(ctx, "gatehouse_bcrypt_total")
	if err != nil {
		return err
	}
	waitedNow, err := w.EdgeMetric(ctx, "gatehouse_calls_total", `call="verify"`)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "steady: %d devices, 1 request/s each, %.0f s, verdicts of %d s ± 10 %%, cost %d; all in after "+
		"%.0f s\n", workingDevices, row.Seconds, life, cost, warm.Seconds())
	fmt.Fprintf(out, "bcrypt runs: %.0f when all were in, %.0f at the end; %d requests, %d waited for a verification\n",
		runs, again, len(samples), waitedNow-waited)
	printWindows(out, samples, begin, life)
	return nil
}

// printWindows prints the latencies of requests around renewals, around expiries and at all other times, for verdicts
// of life seconds, made at begin.
func printWindows(out *Recorder, samples []sample, begin time.Time, life float64) {
	// The k-th renewal is after k × 2/3 of a life, ± 10 %; a verdict without a renewal expires after a whole life.
	within := func(s sample, first float64) bool {
		t := s.at.Sub(begin).Seconds()
		k := math.Max(1, math.Round(t/first))
		return t >= k*first*0.9 && t <= k*first*1.1+1
	}
	renewal := func(s sample) bool { return within(s, life*2/3.) }
	expiry := func(s sample) bool { return within(s, life) && !renewal(s) }
	elsewhere := func(s sample) bool { return !renewal(s) && !expiry(s) }
	for _, w := range []struct {
		name string
		keep func(sample) bool
	}{{"around renewals", renewal}, {"around expiries", expiry}, {"elsewhere", elsewhere}} {
		var took stats.Histogram
		for _, s := range samples {
			if w.keep(s) {
				took.Add(s.took)
			}
		}
		fmt.Fprintf(out, "%-16s %s\n", w.name, formatQuantiles(&took, .5, .99, .999))
	}
}
