//go:build linux

package scenario

import (
	"bytes"
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
	// Pairs is the number of pairs at first. A workload above a limit is measured again with RetryPairs, and the second
	// result counts.
	Pairs      int     `json:"pairs"`
	RetryPairs int     `json:"retry_pairs"`
	Limits     []Limit `json:"limits"`
}

// Limit has the upper bounds for one workload.
type Limit struct {
	Workload string  `json:"workload"`
	Wasm     float64 `json:"wasm"` // the Wasm module against direct_response
	// Native is the bound of the dynamic module against direct_response. 0: no limit, because copying a large body, as
	// the floor does too, costs more than the filter.
	Native float64 `json:"native"`
	// NativeToFloor is the bound of the dynamic module against a module without decisions, the ratio that varies least.
	NativeToFloor float64 `json:"native_to_floor"`
}

// ParseLimits parses limits.json.
func ParseLimits(text []byte) (Limits, error) {
	var l Limits
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&l); err != nil {
		return l, fmt.Errorf("limits.json: %w", err)
	}
	if l.Tolerance < 0 || l.Tolerance > 1 || l.Pairs < 1 || l.RetryPairs < 1 || len(l.Limits) == 0 {
		return l,
			fmt.Errorf("limits.json: tolerance %v, %d pairs, %d of a retry, %d limits: want 0 to 1, and at least one of each",
				l.Tolerance, l.Pairs, l.RetryPairs, len(l.Limits))
	}
	for _, limit := range l.Limits {
		if _, err := ratioWorkload(limit.Workload); err != nil ||
			min(limit.Wasm, limit.NativeToFloor) <= 0 || limit.Native < 0 {
			return l,
				fmt.Errorf(
					"limits.json: %+v: want a workload of ratio, bounds of wasm and native_to_floor above 0, and none below", limit)
		}
	}
	return l, nil
}

// ratioWorkloads returns the workloads of ratio, in order.
func ratioWorkloads() []workload.Workload {
	all := workload.SingleRequests(nil)
	full := all["200"]
	return []workload.Workload{all["pass"][0], all["304"][0], all["auth-304"][0], full[0], all["auth-200"][0], full[4]}
}

// fullOneKiB returns the 200 of 1 KiB, also for direct_response.
func fullOneKiB() workload.Workload { return ratioWorkloads()[3] }

// authorized304 is a credential and a 304, the most expensive response of Gatehouse.
func authorized304() workload.Workload { return ratioWorkloads()[2] }

func ratioWorkload(name string) (workload.Workload, error) {
	for _, w := range ratioWorkloads() {
		if w.Name == name {
			return w, nil
		}
	}
	return workload.Workload{}, fmt.Errorf("no ratio is measured of %q", name)
}

// pairsOfEnvoy is the number of pairs per Envoy process. The cost of the same module differs by some hundredths between
// processes.
const pairsOfEnvoy = 2

// costs are a module's costs under one load, in pairs.
type costs struct {
	direct stats.Pairs // against a direct_response
	floor  stats.Pairs // against the floor, in the same turns; of the dynamic module only
}

// measureRatios measures n pairs of each of loads against a response of 1 KiB by Envoy's direct_response, the cheapest
// response of Envoy, and of the dynamic module also against the floor; the result is by binding and load. Only Envoy's
// CPU counts: no other process handles these requests, and the constant work of sidecar and Redis would weigh more with
// fewer requests. A direct_response also answers requests that are passed on, so that the upstream costs nothing.
// Envoy's worker has its own core. The modules of several bindings run in an Envoy each, in turn.
func (o *Options) measureRatios(ctx context.Context, n int, loads []workload.Workload, bindings []binding,
	out *Recorder) ([][]costs, error) {
	all := make([][]costs, len(bindings))
	for i := range all {
		all[i] = make([]costs, len(loads))
	}
	for done := 0; done < n; done += pairsOfEnvoy {
		for i, b := range bindings {
			out.printProgress("%s: pairs %d of %d", b.subject, done+1, n)
			if err := o.addRatios(ctx, all[i], min(n-done, pairsOfEnvoy), loads, b); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// binding is a module's Proxy-Wasm binding, or native, with its name in the report.
type binding struct{ name, subject string }

var (
	usual  = binding{"", "gatehouse"} // the users' binding, or the environment's
	wasm   = binding{"own", "gatehouse"}
	native = binding{"native", "gatehouse, dynamic module"}
)

// addRatios adds n pairs of each of loads, measured in a new Envoy.
func (o *Options) addRatios(ctx context.Context, all []costs, n int, loads []workload.Workload, b binding) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "ratio", direct: true, binding: b.name, floor: b == native})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	unpin, err := w.pinWorker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unpin()) }()
	for i, load := range loads {
		sides := []loaded{
			{target{name: b.subject, url: w.EdgeURL(), servers: []proc.Server{w.proxy()}}, load},
			{w.besideTarget(directResponse, "direct"), fullOneKiB()},
		}
		if b == native {
			sides = append(sides, loaded{w.besideTarget(floor, "floor"), load})
		}
		for _, s := range sides {
			if err := checkResponses(ctx, s.load, s.target); err != nil {
				return err
			}
		}
		for range n {
			micros, err := o.loadInTurns(ctx, w.dir, sides...)
			if err != nil {
				return err
			}
			all[i].direct.Add(micros[0], micros[1])
			if b == native {
				all[i].floor.Add(micros[0], micros[2])
			}
		}
	}
	return nil
}

const (
	directResponse = "direct_response 1 KiB"
	// floor is the module of loadtest/floor.
	floor = "module that decides nothing"
)

// floorPairs returns the pairs of the floor against a direct_response.
func (c costs) floorPairs() stats.Pairs {
	return stats.Pairs{Subject: c.floor.Reference, Reference: c.direct.Reference}
}

func ratio(ctx context.Context, o *Options, out *Recorder) error {
	bindings, loads := []binding{usual}, ratioWorkloads()
	if o.Peers > 0 {
		bindings = []binding{wasm, {"plugins", "gatehouse, rules in the plugin"}, {"sdk", "gatehouse, SDK"}, native}
	}
	all, err := o.measureRatios(ctx, o.Pairs, loads, bindings, out)
	if err != nil {
		return err
	}
	for i, load := range loads {
		for j, b := range bindings {
			comparisons := []comparison{{b.subject, directResponse, all[j][i].direct, 0}}
			if b == native {
				comparisons = append(comparisons, comparison{b.subject, floor, all[j][i].floor, 0},
					comparison{floor, directResponse, all[j][i].floorPairs(), 0})
			}
			for _, c := range comparisons {
				pair, err := pairOf(load.Name, c.subject, c.reference, c.pairs)
				if err != nil {
					return err
				}
				out.Pairs = append(out.Pairs, pair)
			}
		}
	}
	return nil
}

// comparison is the pairs of two targets under one load.
type comparison struct {
	subject, reference string
	pairs              stats.Pairs
	bound              float64 // of the ratio; 0: none
}

// check measures the ratios with limits in limits.json. Workloads above a limit are measured again with more pairs; a
// second excess is an error.
func check(ctx context.Context, o *Options, out *Recorder) error {
	beyond, err := o.splitByLimits(ctx, o.limits.Limits, o.limits.Pairs, out)
	if err != nil || len(beyond) == 0 {
		return err
	}
	var again []Limit
	for _, b := range beyond {
		out.printProgress("%s", b.why)
		again = append(again, b.limit)
	}
	if beyond, err = o.splitByLimits(ctx, again, o.limits.RetryPairs, out); err != nil {
		return err
	}
	var failed []error
	for _, b := range beyond {
		out.Pairs = append(out.Pairs, b.pairs...)
		failed = append(failed, b.why)
	}
	return errors.Join(failed...)
}

// excess is a workload above a limit.
type excess struct {
	limit Limit
	pairs []report.Pair
	why   error
}

// splitByLimits measures n pairs for each of limits and both modules, in turn, records workloads within the limits, and
// returns the rest. The ratios of dynamic module and floor to the Wasm module are recorded without a limit: both depend
// on the processor more than on a module.
func (o *Options) splitByLimits(ctx context.Context, limits []Limit, n int,
	out *Recorder) (beyond []excess, err error) {
	loads := make([]workload.Workload, len(limits))
	for i, limit := range limits {
		if loads[i], err = ratioWorkload(limit.Workload); err != nil {
			return nil, err
		}
	}
	all, err := o.measureRatios(ctx, n, loads, []binding{wasm, native}, out)
	if err != nil {
		return nil, err
	}
	for i, limit := range limits {
		e, theirs, ours := excess{limit: limit}, all[0][i].direct, all[1][i]
		least := ours.floorPairs()
		for _, c := range []comparison{
			{wasm.subject, directResponse, theirs, limit.Wasm},
			{native.subject, directResponse, ours.direct, limit.Native},
			{native.subject, wasm.subject, ours.direct.ScaleTo(theirs), 0},
			{native.subject, floor, ours.floor, limit.NativeToFloor},
			{floor, wasm.subject, least.ScaleTo(theirs), 0},
		} {
			pair, err := pairOf(limit.Workload, c.subject, c.reference, c.pairs)
			if err != nil {
				return nil, err
			}
			if pair.Limit = c.bound * (1 + o.limits.Tolerance); c.bound > 0 && pair.Ratio.Median > pair.Limit {
				e.why = errors.Join(e.why,
					fmt.Errorf("%s: %s: the ratio to %s is %.2f, more than %.2f = %.2f and a tolerance of %.0f %%",
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
