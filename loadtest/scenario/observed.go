//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

const (
	unobserved = "nothing logged"
	shipped    = "as shipped"
	observedIs = "all logged and traced"
	// maxObserved bounds what the shipped access log may cost a request, in direct_responses.
	maxObserved = 0.04
)

// observed measures what it costs to look: an edge without access log, one as shipped, and one that logs every request
// (log_hits) and gets a sampled traceparent, in turn, slice by slice, in one Envoy, against direct_response.
func observed(ctx context.Context, o *Options, out *Recorder) (err error) {
	everything, nothing, err := addresses()
	if err != nil {
		return err
	}
	w, err := startWorld(ctx, o, worldOptions{
		name: "observed", direct: true, sidecar: []string{"--trace.endpoint=http://127.0.0.1:1", "--trace.ratio=1"},
		modify: func(c *stack.Config) error { return observe(c, nothing, everything) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	together, err := w.apart()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, together()) }()
	listener := func(name, url string) target {
		return target{name: name, url: url, servers: []proc.Server{w.proxy()}}
	}
	off, on := listener(unobserved, "http://"+nothing), listener(observedIs, "http://"+everything)
	asShipped := listener(shipped, w.EdgeURL())
	var failed []error
	for _, load := range ratioWorkloads()[1:4] { // 304, auth + 304, 200 1 KiB
		traced := load
		traced.Headers = append(slices.Clone(load.Headers),
			"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		out.doing("%s", load.Name)
		failed = append(failed, o.observe(ctx, out, w.dir, load, []loaded{
			{off, load}, {asShipped, load}, {on, traced}, {w.beside(directResponse, "direct"), oneKiB()},
		}))
	}
	return errors.Join(failed...)
}

// observe measures four targets: unobserved, as shipped, all observed, and direct_response.
func (o *Options) observe(ctx context.Context, out *Recorder, dir string, load workload.Workload,
	targets []loaded) error {
	for _, t := range targets[:3] {
		if err := warm(ctx, t.load, t.target); err != nil {
			return err
		}
	}
	costs := make([][]float64, len(targets)) // µs, by target
	for range o.Pairs {
		micros, err := o.round(ctx, dir, targets...)
		if err != nil {
			return err
		}
		for i := range targets {
			costs[i] = append(costs[i], micros[i])
		}
	}
	direct := costs[3]
	for i, t := range targets[:3] {
		pair, err := pairOf(load.Name, t.name, directResponse, stats.Pairs{Subject: costs[i], Reference: direct})
		if err != nil {
			return err
		}
		out.Pairs = append(out.Pairs, pair)
	}
	var more []float64 // of the shipped edge, in direct_responses
	for i := range direct {
		more = append(more, (costs[1][i]-costs[0][i])/direct[i])
	}
	low, high := stats.Bounds(more)
	fmt.Fprintf(out, "%s: the shipped access log costs %+.3f of a direct_response, with 95 %% confidence at least "+
		"%+.3f, and at most %+.3f\n",
		load.Name, stats.SpreadOf(more).Median, low, high)
	if low > maxObserved {
		return fmt.Errorf("%s: the shipped access log costs at least %.3f of a direct_response, want at most %.2f",
			load.Name, low, maxObserved)
	}
	return nil
}

// addresses returns two free addresses.
func addresses() (a, b string, err error) {
	if a, err = stack.FreeAddress(); err == nil {
		b, err = stack.FreeAddress()
	}
	return a, b, err
}

// observe adds two copies of the edge listener: one logs nothing, the other one everything.
func observe(c *stack.Config, nothing, everything string) error {
	all := map[string]any{"not_health_check_filter": map[string]any{}}
	return errors.Join(
		copyEdge(c, "unobserved", nothing), copyEdge(c, "observed", everything),
		c.Set([]any{}, manager("unobserved", "access_log")...),
		c.Set(all, manager("observed", "access_log", "0", "filter")...),
		c.Set(true, manager("observed", "http_filters", "gatehouse", "typed_config", "config", "vm_config",
			"configuration", "value", "log_hits")...),
	)
}
