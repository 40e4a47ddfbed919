//go:build linux

package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// Parameters of reads under updates.
const (
	updatedObjects = 1000 // of 1 KiB, read and updated in turn
	updatePasses   = 3    // over all rates; the pass with the median p99 counts for each rate
	updateReads    = 0.3  // share of the closed loop's rate
)

// updateRates are updates a second.
var updateRates = []float64{0, 100, 300, 1000, 3000, 10_000}

// updatesSeen is the result of reads under a rate of updates.
type updatesSeen struct {
	rate      float64 // as requested
	published float64 // a second
	applied   float64 // a second, by the sidecar
	row       report.Row
}

// measureUpdates measures reads at a constant rate, well below the maximum, under increasing rates of updates through
// Redis.
func (g *growthRun) measureUpdates(ctx context.Context) (err error) {
	w, err := startWorld(ctx, g.Options, worldOptions{name: "growth"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := publishObjects(ctx, w.publisher, updatedObjects); err != nil {
		return err
	}
	if err := w.awaitMetric(ctx, "gatehouse_edge_memory_objects", updatedObjects); err != nil {
		return err
	}
	load := workload.ObjectReads(updatedObjects, false)
	highest, err := g.highestRate(ctx, w, load, g.Recorder)
	if err != nil {
		return err
	}
	unpin, err := w.pinWorker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unpin()) }()
	passes := make([][]updatesSeen, len(updateRates))
	for range updatePasses {
		for i, rate := range updateRates {
			g.printProgress("%.0f updates/s", rate)
			seen, err := g.measureUpdateRate(ctx, w, load, updateReads*highest, rate)
			if err != nil {
				return fmt.Errorf("%.0f updates/s: %w", rate, err)
			}
			passes[i] = append(passes[i], seen)
		}
	}
	all := make([]updatesSeen, len(updateRates))
	for i, pass := range passes {
		slices.SortFunc(pass, func(a, b updatesSeen) int { return cmp.Compare(a.row.LatencyAt(99), b.row.LatencyAt(99)) })
		all[i] = pass[len(pass)/2]
		g.Rows = append(g.Rows, all[i].row)
	}
	g.printUpdates(all)
	return nil
}

// measureUpdateRate measures one rate of updates.
func (g *growthRun) measureUpdateRate(ctx context.Context, w *world, load workload.Workload, reads,
	rate float64) (u updatesSeen, err error) {
	u.rate = rate
	t := w.edgeWithUpstream()
	if rate > 0 {
		publisher, stop, err := w.startUpdates(ctx, rate, updatedObjects, workload.ObjectBytes)
		if err != nil {
			return u, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		t.servers = append(t.servers, publisher)
	}
	begin := time.Now()
	published, applied, err := w.sequenceNumbers(ctx)
	if err != nil {
		return u, err
	}
	load.Name = fmt.Sprintf("%s, %.0f updates/s", load.Name, rate)
	if u.row, err = g.openLoop(ctx, t, load, reads, g.measurementTime(3)); err != nil {
		return u, err
	}
	publishedThen, appliedThen, err := w.sequenceNumbers(ctx)
	seconds := time.Since(begin).Seconds()
	u.published, u.applied = (publishedThen-published)/seconds, (appliedThen-applied)/seconds
	return u, err
}

// startUpdates starts a process that updates objects of a size at a rate, a second. stop ends the process, and waits
// until the edge has all updates.
func (w *world) startUpdates(ctx context.Context, rate float64, objects, bytes int) (publisher proc.Server,
	stop func() error, err error) {
	p, err := stack.StartChild("publisher", "", []string{
		"update", "--redis=" + w.RedisURL(), fmt.Sprint("--rate=", rate), fmt.Sprint("--objects=", objects),
		fmt.Sprint("--bytes=", bytes),
	}, nil, filepath.Join(w.dir, "publisher.log"), nil)
	if err != nil {
		return publisher, nil, err
	}
	stop = func() error {
		if err := p.Stop(); err != nil {
			return err
		}
		return w.awaitPushed(ctx)
	}
	if err := sleep(ctx, 500*time.Millisecond); err != nil { // until the publisher has reached the rate
		return publisher, nil, errors.Join(err, p.Stop())
	}
	return proc.Server{Name: "publisher", PID: p.PID()}, stop, nil
}

// sequenceNumbers returns the sequence numbers of Redis and of the sidecar.
func (b *bench) sequenceNumbers(ctx context.Context) (published, applied float64, err error) {
	if published, err = b.client.Get(ctx, "{gatehouse:0}:seq").Float64(); err != nil {
		return 0, 0, err
	}
	applied, err = b.Metric(ctx, "gatehouse_redis_seq")
	return published, applied, err
}

// awaitApplied waits until the sidecar has applied all published changes, and polls without a pause: callers measure
// the time.
func (b *bench) awaitApplied(ctx context.Context) error {
	published, applied, err := b.sequenceNumbers(ctx)
	for err == nil && applied < published {
		applied, err = b.Metric(ctx, "gatehouse_redis_seq")
	}
	return err
}

// awaitPushed waits until sidecar and edge have all published changes.
func (b *bench) awaitPushed(ctx context.Context) error {
	published, _, err := b.sequenceNumbers(ctx)
	if err != nil {
		return err
	}
	return b.awaitMetric(ctx, "gatehouse_redis_seq", int(published))
}

// printUpdates prints the results.
func (g *growthRun) printUpdates(all []updatesSeen) {
	fmt.Fprintf(g, "growth: %.0f reads/s of %d objects of 1 KiB while they are updated; median by p99 of %d passes of "+
		"%s\n", all[0].row.Asked, updatedObjects, updatePasses, g.measurementTime(3))
	t := tabwriter.NewWriter(g, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "updates/s\tpublished/s\tapplied/s\tp50\tp90\tp99\tp99.9\tedge, cores\tsidecar\tRedis\tpublisher\t")
	for _, u := range all {
		fmt.Fprintf(t, "%.0f\t%.0f\t%.0f\t%.0f µs\t%.0f µs\t%.0f µs\t%.0f µs\t%.2f\t%.2f\t%.2f\t%.2f\t\n",
			u.rate, u.published, u.applied, u.row.LatencyAt(50), u.row.LatencyAt(90), u.row.LatencyAt(99), u.row.LatencyAt(99.9),
			u.row.EdgeCores(), u.row.Cores["sidecar"], u.row.Cores["redis"], u.row.Cores["publisher"])
	}
	_ = t.Flush() // a Recorder never fails
	for _, q := range []float64{50, 90, 99} {
		var rates, at []float64
		for _, u := range all {
			rates, at = append(rates, u.applied), append(at, u.row.LatencyAt(q))
		}
		if rate, found := findDoubling(rates, at); found {
			fmt.Fprintf(g, "growth: p%.0f is twice the %.0f µs without updates from about %.0f updates/s on\n", q, at[0], rate)
		} else {
			fmt.Fprintf(g, "growth: p%.0f is less than twice the %.0f µs without updates at %.0f updates/s\n",
				q, at[0], rates[len(rates)-1])
		}
	}
}

// findDoubling returns the x from which on y stays at least twice y[0], the value without updates: a linear
// interpolation between the logarithms of points, or the first x above 0 if y is at least twice y[0] at all of them.
func findDoubling(x, y []float64) (at float64, found bool) {
	limit, last := 2*y[0], len(y)-1
	for last >= 0 && y[last] >= limit {
		last--
	}
	switch {
	case last == len(y)-1:
		return 0, false
	case x[last] <= 0:
		return x[last+1], true
	}
	share := math.Log(limit/y[last]) / math.Log(y[last+1]/y[last])
	return x[last] * math.Pow(x[last+1]/x[last], share), true
}
