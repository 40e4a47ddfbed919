//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

const (
	unobserved  = "nothing logged"
	shipped     = "as shipped"
	fullyLogged = "all logged and traced"
	manyHosts   = "100 virtual hosts"
	// maxObserved and maxHosted are the highest allowed costs of the shipped access log and of the virtual hosts per
	// request, in direct_responses.
	maxObserved, maxHosted = 0.04, 0.03
)

// measureObserved measures the cost of logs and traces against direct_response, in alternating slices in one Envoy: an
// edge without access log, an edge as shipped, and an edge that logs every request (log_hits) and gets a sampled
// traceparent. A fourth edge, as shipped, has 100 virtual hosts, each with ten domains and the same rules.
func measureObserved(ctx context.Context, o *Options, out *Recorder) (err error) {
	var nothing, everything, hosted string
	for _, address := range []*string{&nothing, &everything, &hosted} {
		if *address, err = freeport.FindAddress(); err != nil {
			return err
		}
	}
	w, err := startWorld(ctx, o, worldOptions{
		name: "observed", direct: true, sidecarArgs: []string{"--trace.endpoint=http://127.0.0.1:1", "--trace.ratio=1"},
		modify: func(c *stack.Config) error {
			return errors.Join(addObserved(c, nothing, everything), addHosts(c, hosted))
		},
		seed: func(ctx context.Context, p *publish.Publisher) error {
			return seedObjects(ctx, p, func(path string) string { return publish.KeyOfVirtualHost(hostedName, "", path) })
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	unpin, err := w.pinWorker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unpin()) }()
	listener := func(name, url string) target {
		return target{name: name, url: url, servers: []proc.Server{w.proxy()}}
	}
	off, on := listener(unobserved, "http://"+nothing), listener(fullyLogged, "http://"+everything)
	asShipped, hosting := listener(shipped, w.EdgeURL()), listener(manyHosts, "http://"+hosted)
	var failed []error
	for _, load := range ratioWorkloads()[1:4] { // 304, auth + 304, 200 1 KiB
		traced := load
		traced.Headers = append(slices.Clone(load.Headers),
			"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		of := load
		of.Headers = append(slices.Clone(load.Headers), "Host: a.b."+hostedName+".example") // found by the third lookup
		out.printProgress("%s", load.Name)
		failed = append(failed, o.compareObserved(ctx, out, w.dir, load, []loaded{
			{off, load}, {asShipped, load}, {on, traced}, {hosting, of},
			{w.besideTarget(directResponse, "direct"), fullOneKiB()},
		}))
	}
	return errors.Join(failed...)
}

// compareObserved measures five targets: unobserved, as shipped, all observed, with virtual hosts, and direct_response.
func (o *Options) compareObserved(ctx context.Context, out *Recorder, dir string, load workload.Workload,
	targets []loaded) error {
	for _, t := range targets[:4] {
		if err := checkResponses(ctx, t.load, t.target); err != nil {
			return err
		}
	}
	costs := make([][]float64, len(targets)) // µs, by target
	for range o.Pairs {
		micros, err := o.loadInTurns(ctx, dir, targets...)
		if err != nil {
			return err
		}
		for i := range targets {
			costs[i] = append(costs[i], micros[i])
		}
	}
	direct := costs[4]
	for i, t := range targets[:4] {
		pair, err := pairOf(load.Name, t.name, directResponse, stats.Pairs{Subject: costs[i], Reference: direct})
		if err != nil {
			return err
		}
		out.Pairs = append(out.Pairs, pair)
	}
	var failed []error
	for _, part := range []struct {
		name          string
		with, without []float64
		most          float64
	}{
		{"the shipped access log costs", costs[1], costs[0], maxObserved},
		{manyHosts + " cost", costs[3], costs[1], maxHosted},
	} {
		var more []float64 // in direct_responses
		for i := range direct {
			more = append(more, (part.with[i]-part.without[i])/direct[i])
		}
		low, high := stats.MedianBounds(more)
		fmt.Fprintf(out, "%s: %s %+.3f of a direct_response, with 95 %% confidence at least %+.3f, and at most %+.3f\n",
			load.Name, part.name, stats.SpreadOf(more).Median, low, high)
		if low > part.most {
			failed = append(failed, fmt.Errorf("%s: %s at least %.3f of a direct_response, want at most %.2f",
				load.Name, part.name, low, part.most))
		}
	}
	return errors.Join(failed...)
}

// addObserved adds two copies of the edge listener: the first logs nothing, the second everything.
func addObserved(c *stack.Config, nothing, everything string) error {
	all := map[string]any{"not_health_check_filter": map[string]any{}}
	return errors.Join(
		copyEdge(c, "unobserved", nothing), copyEdge(c, "observed", everything),
		c.Set([]any{}, managerPath("unobserved", "access_log")...),
		c.Set(all, managerPath("observed", "access_log", "0", "filter")...),
		c.Set(true, rulesPath("observed", "log_hits")...),
	)
}

// hostedName is the name of a virtual host of addHosts.
const hostedName = "team-50"

// addHosts adds a copy of the edge listener, with the edge's rules also in each of 100 virtual hosts.
func addHosts(c *stack.Config, address string) error {
	err := copyEdge(c, "hosted", address)
	if err != nil {
		return err
	}
	rules, err := c.Find(rulesPath("hosted", "rules")...)
	if err != nil {
		return err
	}
	hosts := map[string]any{}
	for i := range 100 {
		name := fmt.Sprint("team-", i)
		domains := []string{"*." + name + ".example"}
		for j := range 9 {
			domains = append(domains, fmt.Sprintf("service-%d.%s.example", j, name))
		}
		hosts[name] = map[string]any{"domains": domains, "rules": rules}
	}
	return c.Set(hosts, rulesPath("hosted", "virtual_hosts")...)
}

// rulesPath returns the path of a part of a listener's rules.
func rulesPath(listener, part string) []string {
	return managerPath(listener, "http_filters", "gatehouse", "typed_config", "config", "vm_config", "configuration",
		"value", part)
}
