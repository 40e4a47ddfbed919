//go:build linux

package scenario

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/openloop"
	"github.com/gatehouse/gatehouse/loadtest/peers"
	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/loadtest/wrk"
	"github.com/gatehouse/gatehouse/testbed/proc"
)

// target is a server under load.
type target struct {
	name    string
	url     string
	servers []proc.Server // every process on a request's way
	counted *bench        // the stack whose counters give the hits, or nil
	clients []proc.Server // clients beside the measured client
}

// edgeTarget returns the edge of a stack as a target; more are the upstream's processes.
func (b *bench) edgeTarget(more ...proc.Server) target {
	return target{name: "gatehouse", url: b.EdgeURL(), servers: append(b.gatehouseServers(), more...), counted: b}
}

// client is the report of a load generator.
type client struct {
	answers int64
	cores   float64 // cores used
	busy    float64 // share of the usable cores
	held    bool    // responses arrived at the fixed rate of requests
}

// measureRow runs load, and sets the row's fields about processes and machine.
func measureRow(ctx context.Context, t target, row report.Row, load func(row *report.Row) (client, error)) (
	report.Row, error) {
	row.Server = t.name
	row.Cores = map[string]float64{}
	before, hits, err := beginMeasurement(ctx, t)
	if err != nil {
		return row, err
	}
	clients, err := proc.ReadUsage(t.clients)
	if err != nil {
		return row, err
	}
	locks := proc.WatchLocks(t.servers)
	c, err := load(&row)
	locked := locks.Stop()
	if err != nil {
		return row, err
	}
	after, err := proc.ReadUsage(t.servers)
	if err != nil {
		return row, err
	}
	clientsAfter, err := proc.ReadUsage(t.clients)
	if err != nil {
		return row, err
	}
	u, more := after.Since(before), clientsAfter.Since(clients)
	c.cores += more.Total() / more.Seconds
	for name, seconds := range u.CPU {
		row.Cores[name] = seconds / u.Seconds
	}
	row.Client, row.Others = c.cores, max(u.Machine-u.Total()/u.Seconds-c.cores, 0)
	if c.answers == 0 {
		return row, fmt.Errorf("%s on %s: no answer in %.1f s, errors %v", row.Workload, t.name, u.Seconds, row.Errors)
	}
	row.MicrosPerRequest = u.Total() * 1e6 / float64(c.answers)
	l := proc.Load{
		Client: c.busy, Servers: u.Busy, Machine: u.Machine / float64(runtime.NumCPU()), Others: row.Others,
		Locked: locked, Lost: float64(u.Lost) / float64(c.answers), Held: c.held,
	}
	row.Bottleneck, row.ClientBound = l.FindBottleneck(), l.ClientBound()
	row.HitRatio, err = hits(ctx)
	return row, err
}

// beginMeasurement reads usage and counters so far. hits returns the share of hits since begin.
func beginMeasurement(ctx context.Context, t target) (before proc.Reading,
	hits func(context.Context) (float64, error), err error) {
	hits = func(context.Context) (float64, error) { return -1, nil }
	if t.counted != nil {
		first, err := t.counted.cacheCounters(ctx)
		if err != nil {
			return before, nil, err
		}
		hits = func(ctx context.Context) (float64, error) {
			last, err := t.counted.cacheCounters(ctx)
			if err != nil {
				return 0, err
			}
			return last.hitRatio(first), nil
		}
	}
	before, err = proc.ReadUsage(t.servers)
	return before, hits, err
}

// cacheCounts are Gatehouse's counters of cacheable requests.
type cacheCounts struct{ hits, all int }

// hitRatio returns the share of hits since first, -1 without cacheable requests.
func (c cacheCounts) hitRatio(first cacheCounts) float64 {
	if c.all == first.all {
		return -1
	}
	return float64(c.hits-first.hits) / float64(c.all-first.all)
}

// cacheCounters reads the counters after Envoy's flush, which takes at most 200 ms.
func (b *bench) cacheCounters(ctx context.Context) (c cacheCounts, err error) {
	if err := sleep(ctx, 300*time.Millisecond); err != nil {
		return c, err
	}
	for _, outcome := range []string{"hit", "not_modified", "stale_served"} {
		n, err := b.EdgeMetric(ctx, "gatehouse_cache_requests_total", fmt.Sprintf("outcome=%q", outcome))
		if err != nil {
			return c, err
		}
		c.hits += n
	}
	c.all, err = b.EdgeMetric(ctx, "gatehouse_cache_requests_total")
	return c, err
}

// closedLoop loads t as fast as t responds.
func (o *Options) closedLoop(ctx context.Context, t target, w workload.Workload, l wrk.Load,
	dir string) (report.Row, error) {
	row := report.Row{Workload: w.Name, Loop: report.Closed, Bytes: w.Bytes, Connections: l.Connections}
	return measureRow(ctx, t, row, func(row *report.Row) (client, error) {
		r, err := wrk.Run(ctx, t.url, w, l, dir)
		if err != nil {
			return client{}, err
		}
		row.Seconds, row.Achieved, row.Errors = r.Seconds, float64(r.Requests)/r.Seconds, r.Errors
		for i, p := range stats.Percents {
			row.Latency = append(row.Latency, report.Point{Percent: p, Micros: r.Percentiles[i]})
		}
		if n := r.Errors["status"]; n > 0 {
			delete(r.Errors, "status")
			r.Errors[badStatuses(ctx, t, w)] = n
		}
		cores := r.CPU.Seconds() / r.Seconds
		return client{answers: r.Requests, cores: cores, busy: cores / float64(min(l.Threads, l.Connections))}, nil
	})
}

// badStatuses returns the status codes behind wrk's errors, by a short open loop: counting codes in wrk would cost up
// to half of wrk's rate.
func badStatuses(ctx context.Context, t target, w workload.Workload) string {
	const asked = "≥400"
	r, err := openloop.Run(ctx, t.url, openloop.RepeatRequests(w.Requests(strings.TrimPrefix(t.url, "http://"))),
		openloop.Load{Rate: 200, Duration: time.Second, Connections: 4})
	if err != nil {
		return asked
	}
	var codes []string
	for _, status := range slices.Sorted(maps.Keys(r.Statuses)) {
		if status >= 400 {
			codes = append(codes, fmt.Sprint(status))
		}
	}
	if len(codes) == 0 {
		return asked
	}
	return strings.Join(codes, "/")
}

// openLoop loads t at a constant rate.
func (o *Options) openLoop(ctx context.Context, t target, w workload.Workload, rate float64,
	d time.Duration) (report.Row, error) {
	row := report.Row{Workload: w.Name, Loop: report.Open, Bytes: w.Bytes, Connections: o.Connections, Asked: rate}
	return measureRow(ctx, t, row, func(row *report.Row) (client, error) {
		r, err := openloop.Run(ctx, t.url, openloop.RepeatRequests(w.Requests(strings.TrimPrefix(t.url, "http://"))),
			openloop.Load{Rate: rate, Duration: d, Connections: o.Connections})
		if err != nil {
			return client{}, err
		}
		row.Seconds, row.Achieved, row.Latency = r.Seconds, float64(r.Answered)/r.Seconds, report.LatencyPoints(&r.Latency)
		row.Errors, row.ClientLate = r.Errors, float64(r.Late)/float64(time.Microsecond)
		for status, n := range r.Statuses {
			if w.Status != 0 && status != w.Status || w.Status == 0 && status >= http.StatusBadRequest {
				row.Errors[fmt.Sprint(status)] += n
			}
		}
		held := float64(r.Answered) >= 0.99*float64(r.Asked)
		return client{answers: r.Answered, cores: r.CPU.Seconds() / r.Seconds, busy: r.Busy, held: held}, nil
	})
}

// wrkLoad returns a closed loop of the usual size.
func (o *Options) wrkLoad(d time.Duration) wrk.Load {
	return wrk.Load{Threads: max(1, runtime.NumCPU()-o.Workers), Connections: o.Connections, Duration: d}
}

// checkResponses sends one request to each target, and checks the response.
func checkResponses(ctx context.Context, w workload.Workload, targets ...target) error {
	if w.Count > 0 {
		w = w.RequestAt(w.Count - 1)
	}
	for _, t := range targets {
		if err := peers.CheckResponse(ctx, t.url, w); err != nil {
			return err
		}
	}
	return nil
}

// ownCPU returns the CPU time of the loadtest process so far, s.
func ownCPU() float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()).Seconds()
}
