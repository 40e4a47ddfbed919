//go:build linux

package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/workload"
)

// sliceTime is how long each side of a pair is loaded. CPU is counted in ticks of
// 10 ms, so a slice is exact to about 1 %.
const sliceTime = time.Second

// Limits is limits.json: what the ratios to direct_response may be.
type Limits struct {
	// Tolerance is what noise may add, as a share: a ratio fails above Must × (1 + Tolerance).
	Tolerance float64 `json:"tolerance"`
	// Pairs are measured at first; RetryPairs of a ratio that would fail, which then counts.
	Pairs      int     `json:"pairs"`
	RetryPairs int     `json:"retry_pairs"`
	Limits     []Limit `json:"limits"`
}

// Limit is what one ratio must be at most.
type Limit struct {
	Workload string  `json:"workload"`
	Must     float64 `json:"must"`
}

// ParseLimits reads limits.json.
func ParseLimits(text []byte) (Limits, error) {
	var l Limits
	if err := json.Unmarshal(text, &l); err != nil {
		return l, fmt.Errorf("limits.json: %w", err)
	}
	if l.Tolerance < 0 || l.Tolerance > 1 || l.Pairs < 1 || l.RetryPairs < 1 || len(l.Limits) == 0 {
		return l, fmt.Errorf("limits.json: tolerance %v, %d pairs, %d of a retry, %d limits: want 0 to 1, and at least one of each", l.Tolerance, l.Pairs, l.RetryPairs, len(l.Limits))
	}
	for _, limit := range l.Limits {
		if _, err := ratioWorkload(limit.Workload); err != nil || limit.Must <= 0 {
			return l, fmt.Errorf("limits.json: %q must be %v: want a workload of ratio, and more than 0", limit.Workload, limit.Must)
		}
	}
	return l, nil
}

// ratioWorkloads are the workloads of ratio, in its order.
func ratioWorkloads() []workload.Workload {
	all := workload.Singles(func(string) int { return -1 })
	full := all["200"]
	return []workload.Workload{all["pass"][0], all["304"][0], all["auth-304"][0], full[0], all["auth-200"][0], full[4]}
}

func ratioWorkload(name string) (workload.Workload, error) {
	for _, w := range ratioWorkloads() {
		if w.Name == name {
			return w, nil
		}
	}
	return workload.Workload{}, fmt.Errorf("no ratio is measured of %q", name)
}

// startRatio starts a world in which a request that is passed on costs nothing more: it is
// answered by a direct_response. Envoy's worker has a core of its own.
func startRatio(ctx context.Context, o *Options, name string) (w *world, stop func() error, err error) {
	w, err = startWorld(ctx, o, worldOptions{name: name, direct: true})
	if err != nil {
		return nil, nil, err
	}
	together, err := w.apart()
	if err != nil {
		return nil, nil, errors.Join(err, w.stop())
	}
	return w, func() error { return errors.Join(together(), w.stop()) }, nil
}

// ratio measures the CPU for each request against an answer of 1 KiB by Envoy's
// direct_response, the least that an answer of Envoy's costs.
func ratio(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, stop, err := startRatio(ctx, o, "ratio")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, load := range ratioWorkloads() {
		pair, err := o.ratioOf(ctx, w, load, o.Pairs, out)
		if err != nil {
			return err
		}
		out.Pairs = append(out.Pairs, pair)
	}
	return nil
}

func (o *Options) ratioOf(ctx context.Context, w *world, load workload.Workload, n int, out *Recorder) (report.Pair, error) {
	subject, reference := w.gatehouse(), w.beside("direct_response 1 KiB", "direct")
	out.doing("%s, %d pairs", load.Name, n)
	if err := warm(ctx, load, subject); err != nil {
		return report.Pair{}, err
	}
	return o.pair(ctx, subject, reference, load, ratioWorkloads()[3], n, w.dir)
}

// check measures the ratios that limits.json bounds. One that is beyond its limit is
// measured again with more pairs, and fails if it still is.
func check(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, stop, err := startRatio(ctx, o, "check")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var failed []error
	for _, limit := range o.limits.Limits {
		load, err := ratioWorkload(limit.Workload)
		if err != nil {
			return err
		}
		for _, n := range []int{o.limits.Pairs, o.limits.RetryPairs} {
			pair, err := o.ratioOf(ctx, w, load, n, out)
			if err != nil {
				return err
			}
			if pair.Limit = limit.Must * (1 + o.limits.Tolerance); pair.Ratio.Median <= pair.Limit {
				out.Pairs = append(out.Pairs, pair)
				break
			}
			if n == o.limits.RetryPairs {
				out.Pairs = append(out.Pairs, pair)
				failed = append(failed, fmt.Errorf("%s: the ratio is %.2f, more than %.2f = %.2f and a tolerance of %.0f %%",
					load.Name, pair.Ratio.Median, pair.Limit, limit.Must, 100*o.limits.Tolerance))
				break
			}
			out.doing("%s: %.2f is beyond %.2f: once more", load.Name, pair.Ratio.Median, pair.Limit)
		}
	}
	return errors.Join(failed...)
}
