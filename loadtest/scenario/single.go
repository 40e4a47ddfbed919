//go:build linux

package scenario

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/loadtest/peers"
	"github.com/gatehouse/gatehouse/loadtest/service"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// single measures the workloads of one request: the closed loop, then a constant rate, then the peers.
func single(ctx context.Context, o *Options, out *Recorder) (err error) {
	wo := worldOptions{name: "single"}
	if o.Peers > 0 {
		wo.services = []string{service.Auth, service.Cached, service.Bcrypt}
		wo.listeners = []worldListener{
			{"origin", service.Origin, ""}, {"ext-authz", service.Origin, service.Auth}, {"ext-authz-direct", "", service.Auth},
			{"bcrypt", service.Bcrypt, ""},
		}
	}
	w, err := startWorld(ctx, o, wo)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	gzipped, err := w.gzippedSizes(ctx)
	if err != nil {
		return err
	}
	var compared []peer
	if o.Peers > 0 {
		if compared, err = w.startPeers(ctx, o, out); err != nil {
			return err
		}
	}
	for _, load := range workload.SingleRequests(gzipped)[out.Scenario] {
		if err := o.singleRows(ctx, w, load, out); err != nil {
			return err
		}
		if err := o.comparePeers(ctx, w, load, compared, out); err != nil {
			return err
		}
	}
	return nil
}

// singleRows measures the rows of Gatehouse itself: the closed loop, and then a constant rate.
func (o *Options) singleRows(ctx context.Context, w *world, load workload.Workload, out *Recorder) error {
	t := w.edgeWithUpstream()
	if err := checkResponses(ctx, load, t); err != nil {
		return err
	}
	out.printProgress("%s, closed loop", load.Name)
	row, err := o.closedLoop(ctx, t, load, o.wrkLoad(o.measurementTime(5)), w.dir)
	if out.addRow(row, err) != nil {
		return err
	}
	rate := o.Rate
	if rate == 0 {
		rate = row.Achieved / 2
	}
	out.printProgress("%s, %.0f/s", load.Name, rate)
	return out.addRow(o.openLoop(ctx, t, load, rate, o.measurementTime(5)))
}

// peer is a target with the workloads that it supports.
type peer struct {
	target
	serves []string // names of workloads
	loose  bool     // responses differ from Gatehouse's: a lower bound, not an alternative
	slow   bool     // requests last longer than a turn: whole closed loops are compared
}

// Names of peers that are also compared with each other.
const (
	edgeInNginx = "Gatehouse in nginx"
	nginxAlone  = "nginx alone"
)

// startPeers starts the installed programs, and notes the missing programs.
func (w *world) startPeers(ctx context.Context, o *Options, out *Recorder) ([]peer, error) {
	origin, auth, cached := w.services[service.Origin], w.services[service.Auth], w.services[service.Cached]
	public := []string{"304", "200 1 KiB", "200 4.5 KiB", "200 48 KiB"}
	private := []string{"auth + 304", "auth + 200 1 KiB"}
	all := []peer{
		{target: w.besideTarget("Envoy direct_response", "direct"), loose: true,
			serves: []string{"304", "200 1 KiB", "200 48 KiB", "pass", "auth + 304", "auth + 200 1 KiB"}},
		{target: w.besideTarget("Envoy → Go service", "origin", service.Origin),
			serves: slices.Concat(public, []string{"pass", "miss"})},
		{target: w.besideTarget("Envoy ext_authz → Go service", "ext-authz", service.Origin, service.Auth),
			serves: slices.Concat(private, []string{"auth"})},
		{target: w.besideTarget("Envoy → Go service, bcrypt for each request", "bcrypt", service.Bcrypt), slow: true,
			serves: []string{"auth"}},
		{target: w.besideTarget("Envoy ext_authz, direct_response", "ext-authz-direct", service.Auth), loose: true,
			serves: []string{"auth + 200 1 KiB"}},
		{target: aloneTarget("Go alone", origin), serves: public},
		{target: aloneTarget("Go alone, verdict cached", cached), serves: private},
	}
	nginx, err := peers.StartNginx(ctx, w.dir, o.Workers, origin.Address, auth.Address)
	if err = w.keepStarted(nginx, err, out); err != nil {
		return nil, err
	}
	if nginx != nil {
		all = append(all, peer{target: aloneTarget(nginxAlone+", proxy_cache", nginx, origin), serves: public},
			peer{target: aloneTarget(nginxAlone+", auth_request", nginx, origin, auth), serves: private},
			peer{target: aloneTarget(nginxAlone+", proxy_pass", nginx, origin), serves: []string{"pass"}})
	}
	if w.nginx, err = w.startNginx(ctx, o); errors.Is(err, stack.ErrUsage) { // not installed
		out.NotRun = append(out.NotRun, err.Error())
	} else if err != nil {
		return nil, err
	} else {
		t := target{name: edgeInNginx, url: w.nginx.EdgeURL(), servers: append(w.nginx.gatehouseServers(), origin.Server())}
		all = append(all, peer{target: t, serves: slices.Concat(public, private, []string{"pass", "auth"})})
	}
	varnish, err := peers.StartVarnish(ctx, w.dir, origin.Address)
	if err = w.keepStarted(varnish, err, out); err != nil {
		return nil, err
	}
	if varnish != nil {
		all = append(all, peer{target: aloneTarget("Varnish alone", varnish, origin), serves: public})
	}
	return all, nil
}

// keepStarted keeps a running program, or notes a missing program.
func (w *world) keepStarted(r *peers.Running, err error, out *Recorder) error {
	if _, missing := errors.AsType[*peers.MissingError](err); missing {
		out.NotRun = append(out.NotRun, err.Error())
		return nil
	}
	if err == nil {
		w.others = append(w.others, r)
	}
	return err
}

// comparePeers measures each peer that supports the workload: a row, and the CPU of all processes per request, in turn
// with Gatehouse; and Gatehouse in nginx in turn with nginx alone.
func (o *Options) comparePeers(ctx context.Context, w *world, load workload.Workload, compared []peer,
	out *Recorder) error {
	for _, p := range compared {
		if !slices.Contains(p.serves, load.Name) {
			continue
		}
		if !p.loose {
			if err := checkResponses(ctx, load, p.target); err != nil {
				return err
			}
		}
		out.printProgress("%s, %s", load.Name, p.name)
		length, compare := o.measurementTime(3), o.measurePair
		if p.slow {
			length, compare = slowTime, o.measureLoopPair
		}
		row, err := o.closedLoop(ctx, p.target, load, o.wrkLoad(length), w.dir)
		if out.addRow(row, err) != nil {
			return err
		}
		pair, err := compare(ctx, w.dir, max(o.Pairs/2, 1), loaded{p.target, load}, loaded{w.edgeWithUpstream(), load})
		if err != nil {
			return err
		}
		out.Pairs = append(out.Pairs, pair)
		if p.name != edgeInNginx {
			continue
		}
		for _, other := range compared { // the cost of nginx itself
			if !strings.HasPrefix(other.name, nginxAlone) || !slices.Contains(other.serves, load.Name) {
				continue
			}
			if pair, err = o.measurePair(ctx, w.dir, o.Pairs, loaded{p.target, load}, loaded{other.target, load}); err != nil {
				return err
			}
			out.Pairs = append(out.Pairs, pair)
		}
	}
	return nil
}
