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

// Limits has the contents of limits.json: upper bounds of ratios.
type Limits struct {
	// Tolerance allows for noise, as a share: a ratio fails above its bound × (1 + Tolerance).
	Tolerance float64 `json:"tolerance"`
	// Pairs is the number of pairs at first. A workload that would fail is measured again with RetryPairs, and that result
	// counts.
	Pairs      int     `json:"pairs"`
	RetryPairs int     `json:"retry_pairs"`
	Limits     []Limit `json:"limits"`
}

// Limit has the upper bounds for one workload.
type Limit struct {
	Workload     string  `json:"workload"`
	Wasm         float64 `json:"wasm"`           // the Wasm module against direct_response
	Native       float64 `json:"native"`         // the dynamic module against direct_response
	NativeToWasm float64 `json:"native_to_wasm"` // the dynamic module against the Wasm module
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
		if _, err := ratioWorkload(limit.Workload); err != nil || min(limit.Wasm, limit.Native, limit.NativeToWasm) <= 0 {
			return l, fmt.Errorf("limits.json: %+v: want a workload of ratio, and bounds above 0", limit)
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
// response of Envoy; the result is by binding and load. Only Envoy's CPU counts: no other process handles these
// requests, and the constant work of sidecar and Redis would weigh more with fewer requests. A direct_response also
// answers requests that are passed on, so that the upstream costs nothing. Envoy's worker has its own core. The modules
// of several bindings run in an Envoy each, in turn.
func (o *Options) ratios(ctx context.Context, n int, loads []workload.Workload, bindings []binding, out *Recorder) ([][]stats.Pairs, error) {
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
	return pairs, nil
}

// binding is a module's Proxy-Wasm binding, or native, with its name in the report.
type binding struct{ name, subject string }

var (
	usual  = binding{"", "gatehouse"} // the users', or the one that the environment selects
	wasm   = binding{"own", "gatehouse"}
	native = binding{"native", "gatehouse, dynamic module"}
)

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

func ratio(ctx context.Context, o *Options, out *Recorder) error {
	bindings, loads := []binding{usual}, ratioWorkloads()
	if o.Peers > 0 {
		bindings = []binding{wasm, {"plugins", "gatehouse, rules in the plugin"}, {"sdk", "gatehouse, SDK"}, native}
	}
	pairs, err := o.ratios(ctx, o.Pairs, loads, bindings, out)
	if err != nil {
		return err
	}
	for i, load := range loads {
		for j, b := range bindings {
			pair, err := pairOf(load.Name, b.subject, directResponse, pairs[j][i])
			if err != nil {
				return err
			}
			out.Pairs = append(out.Pairs, pair)
		}
	}
	return nil
}

// check measures the ratios that limits.json bounds. It measures workloads above a limit again with more pairs, and
// fails if they still are.
func check(ctx context.Context, o *Options, out *Recorder) error {
	beyond, err := o.within(ctx, o.limits.Limits, o.limits.Pairs, out)
	if err != nil || len(beyond) == 0 {
		return err
	}
	var again []Limit
	for _, b := range beyond {
		out.doing("%s", b.why)
		again = append(again, b.limit)
	}
	if beyond, err = o.within(ctx, again, o.limits.RetryPairs, out); err != nil {
		return err
	}
	var failed []error
	for _, b := range beyond {
		out.Pairs = append(out.Pairs, b.pairs...)
		failed = append(failed, b.why)
	}
	return errors.Join(failed...)
}

// exceeded is a workload above a limit.
type exceeded struct {
	limit Limit
	pairs []report.Pair
	why   error
}

// within measures n pairs for each of limits and both modules, in turn, records what is within its limits, and returns
// the rest.
func (o *Options) within(ctx context.Context, limits []Limit, n int, out *Recorder) (beyond []exceeded, err error) {
	loads := make([]workload.Workload, len(limits))
	for i, limit := range limits {
		if loads[i], err = ratioWorkload(limit.Workload); err != nil {
			return nil, err
		}
	}
	pairs, err := o.ratios(ctx, n, loads, []binding{wasm, native}, out)
	if err != nil {
		return nil, err
	}
	for i, limit := range limits {
		e := exceeded{limit: limit}
		for _, c := range []struct {
			subject, reference string
			pairs              stats.Pairs
			bound              float64
		}{
			{wasm.subject, directResponse, pairs[0][i], limit.Wasm},
			{native.subject, directResponse, pairs[1][i], limit.Native},
			{native.subject, wasm.subject, pairs[1][i].Against(pairs[0][i]), limit.NativeToWasm},
		} {
			pair, err := pairOf(limit.Workload, c.subject, c.reference, c.pairs)
			if err != nil {
				return nil, err
			}
			if pair.Limit = c.bound * (1 + o.limits.Tolerance); pair.Ratio.Median > pair.Limit {
				e.why = errors.Join(e.why, fmt.Errorf("%s: %s: the ratio to %s is %.2f, more than %.2f = %.2f and a tolerance of %.0f %%",
					limit.Workload, c.subject, c.reference, pair.Ratio.Median, pair.Limit, c.bound, 100*o.limits.Tolerance))
			}
			e.pairs = append(e.pairs, pair)
		}
		if e.why != nil {
			beyond = append(beyond, e)
			continue
		}
		out.Pairs = append(out.Pairs, e.pairs...)
	}
	return beyond, nil
}
