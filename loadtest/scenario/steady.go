//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// steady measures devices at work over several lives of their verdicts: bcrypt runs once
// for each, and no answer waits for a verdict to be renewed. So that there are times at
// which many are renewed at once, Envoy is started again when all devices are in: all
// verdicts are made again within a second, by pins, and the lives of all are alike, ± 10 %.
func steady(ctx context.Context, o *Options, out *Recorder) (err error) {
	const life = 30 // of a verdict, s
	w, err := startWorld(ctx, o, worldOptions{name: "steady", workers: 2, sidecar: []string{"--bcrypt.workers=2"}, seed: func(ctx context.Context, p *publish.Publisher) error {
		return register(ctx, p, "good", o.Devices, o.Cost)
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	begin := time.Now()
	f := startFleet(ctx, w.EdgeURL(), o.Devices)
	last, err := f.awaitIn(ctx, o.Devices)
	if err = errors.Join(err, f.stop()); err != nil {
		return err
	}
	warm := last.Sub(begin)
	runs, err := w.sum(ctx, "gatehouse_bcrypt_total")
	if err != nil {
		return err
	}
	if err := errors.Join(w.KillEnvoy(), w.StartEnvoy(ctx), w.AwaitReady(ctx)); err != nil {
		return err
	}
	f = startFleet(ctx, w.EdgeURL(), o.Devices)
	if begin, err = f.awaitIn(ctx, o.Devices); err != nil {
		return errors.Join(err, f.stop())
	}
	if err := wait(ctx, time.Second); err != nil { // Envoy's counters are late
		return errors.Join(err, f.stop())
	}
	waited, err := w.stat(ctx, "wasmcustom.gatehouse.auth_verify")
	if err != nil {
		return errors.Join(err, f.stop())
	}
	out.doing("%s", o.seconds(120))
	row, samples, err := f.row(ctx, w.edge(), "telemetry of devices", o.Devices, o.seconds(120))
	if err = errors.Join(err, f.stop()); out.row(row, err) != nil {
		return err
	}
	again, err := w.sum(ctx, "gatehouse_bcrypt_total")
	if err != nil {
		return err
	}
	waitedNow, err := w.stat(ctx, "wasmcustom.gatehouse.auth_verify")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "steady: %d devices, 1 request/s each, %.0f s, verdicts of %d s ± 10 %%, cost %d; all in after %.0f s\n", o.Devices, row.Seconds, life, o.Cost, warm.Seconds())
	fmt.Fprintf(out, "bcrypt runs: %.0f when all were in, %.0f at the end; %d requests, %d waited for a verification\n", runs, again, len(samples), waitedNow-waited)
	printWindows(out, samples, begin, life)
	return nil
}

// printWindows prints how long requests took at the times when verdicts of life seconds,
// made at begin, are renewed or would expire, and at all others.
func printWindows(out *Recorder, samples []sample, begin time.Time, life float64) {
	// The k-th renewal comes after k times two thirds of a life, ± 10 %, the end of a life
	// that is not renewed after a whole one.
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
		fmt.Fprintf(out, "%-16s p50 %s, p99 %s, p99.9 %s\n", w.name, quantile(samples, .5, w.keep), quantile(samples, .99, w.keep), quantile(samples, .999, w.keep))
	}
}

// stat is a counter of Envoy's, 0 if it was never used.
func (w *world) stat(ctx context.Context, name string) (n int, err error) {
	text, err := fetch(ctx, w.EnvoyAdminURL()+"/stats?filter=^"+name+"$")
	if _, value, found := strings.Cut(text, name+": "); found && err == nil {
		_, err = fmt.Sscan(value, &n)
	}
	return n, err
}

// sum is a metric of the sidecar over all its labels.
func (w *world) sum(ctx context.Context, name string) (float64, error) {
	text, err := w.metrics(ctx)
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for line := range strings.Lines(text) {
		var value float64
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			if _, err := fmt.Sscan(rest[strings.LastIndexByte(strings.TrimSpace(rest), ' ')+1:], &value); err != nil {
				return 0, fmt.Errorf("metric %q: %w", line, err)
			}
			sum, found = sum+value, true
		}
	}
	if !found {
		return 0, fmt.Errorf("the sidecar has no metric %s", name)
	}
	return sum, nil
}
