//go:build linux

package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/proc"
)

// Limits has the contents of limits.json: upper bounds of the ratios to direct_response.
type Limits struct {
	// Tolerance allows for noise, as a share: a ratio fails above Must × (1 + Tolerance).
	Tolerance float64 `json:"tolerance"`
	// Pairs is the number of pairs at first. A ratio that would fail is measured again with RetryPairs, and that result
	// counts.
	Pairs      int     `json:"pairs"`
	RetryPairs int     `json:"retry_pairs"`
	Limits     []Limit `json:"limits"`
}

// Limit is the upper bound of one ratio.
type Limit struct {
	Workload string  `json:"workload"`
	Must     float64 `json:"must"`
}

// ParseLimits parses limits.json.
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

// ratioWorkloads returns the workloads of ratio, in its order.
func ratioWorkloads() []workload.Workload {
	all := workload.Singles(func(string) int { return -1 })
	full := all["200"]
	return []workload.Workload{all["pass"][0], all["304"][0], all["auth-304"][0], full[0], all["auth-200"][0], full[4]}
}

// oneKiB returns the 200 of 1 KiB, which direct_response answers, too.
func oneKiB() workload.Workload { return ratioWorkloads()[3] }

func ratioWorkload(name string) (workload.Workload, error) {
	for _, w := range ratioWorkloads() {
		if w.Name == name {
			return w, nil
		}
	}
	return workload.Workload{}, fmt.Errorf("no ratio is measured of %q", name)
}

// pairsOfEnvoy is how many pairs one Envoy process measures. The cost of the same module differs by some hundredths
// between processes.
const pairsOfEnvoy = 2

// ratios measures n pairs of each of loads against a response of 1 KiB by Envoy's direct_response, the cheapest
// response of Envoy. Only Envoy's CPU counts: no other process handles these requests, and the constant work of sidecar
// and Redis would weigh more with fewer requests. A direct_response also answers requests that are passed on, so that
// the upstream costs nothing. Envoy's worker has its own core. The modules of several bindings run in an Envoy each, in
// turn.
func (o *Options) ratios(ctx context.Context, n int, loads []workload.Workload, bindings []binding, out *Recorder) ([]report.Pair, error) {
	pairs := make([][]stats.Pairs, len(bindings))
	for i := range pairs {
		pairs[i] = make([]stats.Pairs, len(loads))
	}
	for done := 0; done < n; done += pairsOfEnvoy {
		for i, b := range bindings {
			out.doing("%s: pairs %d of %d", b.subject, done+1, n)
			if err := o.addRatios(ctx, pairs[i], min(n-done, pairsOfEnvoy), loads, b); err != nil {
				return nil, err
			}
		}
	}
	var all []report.Pair
	for i, load := range loads {
		for j, b := range bindings {
			pair, err := pairOf(load.Name, b.subject, directResponse, pairs[j][i])
			if err != nil {
				return nil, err
			}
			all = append(all, pair)
		}
	}
	return all, nil
}

// binding is a module's Proxy-Wasm binding, or native, with its name in the report.
type binding struct{ name, subject string }

// usual is the users' binding, or the one that the environment selects.
var usual = binding{"", "gatehouse"}

// addRatios adds n pairs of each of loads, measured in a new Envoy.
func (o *Options) addRatios(ctx context.Context, pairs []stats.Pairs, n int, loads []workload.Workload, b binding) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "ratio", direct: true, binding: b.name})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	together, err := w.apart()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, together()) }()
	subject, reference := target{b.subject, w.EdgeURL(), []proc.Server{w.envoy()}, nil, nil}, w.beside(directResponse, "direct")
	for i, load := range loads {
		if err := warm(ctx, load, subject); err != nil {
			return err
		}
		if err := o.addPairs(ctx, &pairs[i], subject, reference, load, oneKiB(), n, w.dir); err != nil {
			return err
		}
	}
	return nil
}

const directResponse = "direct_response 1 KiB"

func ratio(ctx context.Context, o *Options, out *Recorder) (err error) {
	bindings := []binding{usual}
	if o.Peers > 0 {
		bindings = []binding{{"own", "gatehouse"}, {"plugins", "gatehouse, rules in the plugin"}, {"sdk", "gatehouse, SDK"}, {"native", "gatehouse, dynamic module"}}
	}
	out.Pairs, err = o.ratios(ctx, o.Pairs, ratioWorkloads(), bindings, out)
	return err
}

// check measures the ratios that limits.json bounds. It measures those above their limits again with more pairs, and
// fails if they still are.
func check(ctx context.Context, o *Options, out *Recorder) error {
	beyond, err := o.within(ctx, o.limits.Limits, o.limits.Pairs, out)
	if err != nil || len(beyond) == 0 {
		return err
	}
	var again []Limit
	for _, b := range beyond {
		out.doing("%s: %.2f is beyond %.2f: once more", b.pair.Workload, b.pair.Ratio.Median, b.pair.Limit)
		again = append(again, b.limit)
	}
	if beyond, err = o.within(ctx, again, o.limits.RetryPairs, out); err != nil {
		return err
	}
	var failed []error
	for _, b := range beyond {
		out.Pairs = append(out.Pairs, b.pair)
		failed = append(failed, fmt.Errorf("%s: the ratio is %.2f, more than %.2f = %.2f and a tolerance of %.0f %%",
			b.pair.Workload, b.pair.Ratio.Median, b.pair.Limit, b.limit.Must, 100*o.limits.Tolerance))
	}
	return errors.Join(failed...)
}

// exceeded is a ratio above its limit.
type exceeded struct {
	limit Limit
	pair  report.Pair
}

// within measures n pairs for each of limits, records the ratios within them, and returns the others.
func (o *Options) within(ctx context.Context, limits []Limit, n int, out *Recorder) (beyond []exceeded, err error) {
	loads := make([]workload.Workload, len(limits))
	for i, limit := range limits {
		if loads[i], err = ratioWorkload(limit.Workload); err != nil {
			return nil, err
		}
	}
	pairs, err := o.ratios(ctx, n, loads, []binding{usual}, out)
	if err != nil {
		return nil, err
	}
	for i, pair := range pairs {
		if pair.Limit = limits[i].Must * (1 + o.limits.Tolerance); pair.Ratio.Median > pair.Limit {
			beyond = append(beyond, exceeded{limits[i], pair})
			continue
		}
		out.Pairs = append(out.Pairs, pair)
	}
	return beyond, nil
}
