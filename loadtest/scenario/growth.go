//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/loadtest/wrk"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// fleetSecret is the verdict.secret_file of the sidecars that growth starts.
const fleetSecret = "the secret of a fleet in a load test"

// growthRun is a run of growth with the results so far.
type growthRun struct {
	*Options
	*Recorder
	points []growthPoint
}

// growthPoint is the cost at a number of objects or verdicts.
type growthPoint struct {
	load          string
	n             int
	closed, open  report.Row
	pair          report.Pair
	hit           float64 // share of requests answered by the edge without the sidecar
	edge, sidecar memory
}

// memory is resident memory in bytes: with empty tables, with the objects or verdicts, and after a request for each
// object or verdict.
type memory struct{ before, filled, requested int64 }

// perItem returns the memory per item for n items, bytes.
func (m memory) perItem(n int) float64 { return float64(m.filled-m.before) / float64(n) }

// growth measures the cost of a response and the use of memory by the number of objects and of verdicts, and the effect
// of updates on reads.
func growth(ctx context.Context, o *Options, out *Recorder) error {
	g := &growthRun{Options: o, Recorder: out}
	for _, n := range growthSizes(o.Objects) {
		if err := g.measureObjects(ctx, n); err != nil {
			return fmt.Errorf("%d objects: %w", n, err)
		}
	}
	for _, n := range growthSizes(o.Verdicts) {
		if err := g.measureVerdicts(ctx, n); err != nil {
			return fmt.Errorf("%d verdicts: %w", n, err)
		}
	}
	g.printTable()
	return g.measureUpdates(ctx)
}

// growthSizes returns a hundredth, a tenth and all of most.
func growthSizes(most int) []int { return []int{max(most/100, 1), max(most/10, 1), most} }

// measureObjects measures reads of n objects of 1 KiB.
func (g *growthRun) measureObjects(ctx context.Context, n int) (err error) {
	w, err := startWorld(ctx, g.Options, worldOptions{name: "growth", capacity: capacity{objects: n}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	var edge, sidecar memory
	if err := w.readMemory(&edge.before, &sidecar.before); err != nil {
		return err
	}
	begin := time.Now()
	if err := publishObjects(ctx, w.publisher, n); err != nil {
		return err
	}
	if err := w.awaitMetric(ctx, "gatehouse_edge_memory_objects", n+len(workload.Sizes)); err != nil {
		return err
	}
	fmt.Fprintf(g, "growth: %d objects of 1 KiB: published and at the edge in %.1f s\n", n, time.Since(begin).Seconds())
	if err := w.readMemory(&edge.filled, &sidecar.filled); err != nil {
		return err
	}
	for _, conditional := range []bool{true, false} {
		if err := g.measurePoint(ctx, w, workload.ObjectReads(n, conditional), edge, sidecar); err != nil {
			return err
		}
	}
	return nil
}

// measureVerdicts measures conditional reads by n devices with verdicts. Runs of bcrypt for all devices would take
// longer than the measurement, so verdicts are shared with the fleet's secret, as by a second sidecar.
func (g *growthRun) measureVerdicts(ctx context.Context, n int) (err error) {
	dir, err := os.MkdirTemp("", "gatehouse-loadtest-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	secret := filepath.Join(dir, "fleet-secret")
	if err := os.WriteFile(secret, []byte(fleetSecret), 0o600); err != nil {
		return err
	}
	const life = "24h" // longer than any run
	w, err := startWorld(ctx, g.Options, worldOptions{name: "growth", capacity: capacity{verdicts: n},
		sidecarArgs: []string{
			"--verdict.secret-file=" + secret, "--verdict.allow-ttl=" + life,
			"--verdict.pin-ttl=" + life}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	var empty [2]int64
	if err := w.readMemory(&empty[0], &empty[1]); err != nil {
		return err
	}
	begin := time.Now()
	hash, err := registerFleet(ctx, w.bench, n)
	if err != nil {
		return err
	}
	if err := w.awaitMetric(ctx, "gatehouse_edge_memory_devices", n+1); err != nil {
		return err
	}
	registered := time.Since(begin)
	var edge, sidecar memory
	if err := w.readMemory(&edge.before, &sidecar.before); err != nil {
		return err
	}
	fmt.Fprintf(g, "growth: %d devices: published and at the edge in %.1f s; edge %.0f → %.0f MiB, sidecar %.0f → "+
		"%.0f MiB\n", n, registered.Seconds(),
		toMiB(empty[0]), toMiB(edge.before), toMiB(empty[1]), toMiB(sidecar.before))
	begin = time.Now()
	if err := shareVerdicts(ctx, w.RedisURL(), secret, n, hash); err != nil {
		return err
	}
	shared := time.Since(begin)
	if err := w.authenticateFleet(ctx, n); err != nil {
		return err
	}
	fmt.Fprintf(g, "growth: %d verdicts: shared in %.1f s, each device authenticated %.1f s later\n",
		n, shared.Seconds(), (time.Since(begin) - shared).Seconds())
	if err := w.readMemory(&edge.filled, &sidecar.filled); err != nil {
		return err
	}
	return g.measurePoint(ctx, w, workload.DeviceReads(n), edge, sidecar)
}

// measurePoint measures load, spread over all objects or devices: the closed loop, half of the closed loop's rate, and
// the CPU per request compared with a direct_response of 1 KiB. A single worker has its own core, otherwise the p99
// would be the worker's wait for the scheduler.
func (g *growthRun) measurePoint(ctx context.Context, w *world, load workload.Workload,
	used, sidecar memory) (err error) {
	unpin, err := w.pinWorker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unpin()) }()
	edge, kind := w.edgeWithUpstream(), load.Name
	load.Name = fmt.Sprintf("%s, %d", kind, load.Count)
	if err := checkResponses(ctx, load, edge); err != nil {
		return err
	}
	// After a second of load, workers keep as many answers as after a long time.
	if _, err := wrk.Run(ctx, edge.url, load, g.wrkLoad(time.Second), w.dir); err != nil {
		return err
	}
	asked, err := w.verifyCalls(ctx)
	if err != nil {
		return err
	}
	p := growthPoint{load: kind, n: load.Count, edge: used, sidecar: sidecar}
	g.printProgress("%s, closed loop", load.Name)
	p.closed, err = g.closedLoop(ctx, edge, load, g.wrkLoad(g.measurementTime(2)), w.dir)
	if g.addRow(p.closed, err) != nil {
		return err
	}
	g.printProgress("%s, %.0f/s", load.Name, p.closed.Achieved/2)
	if p.open, err = g.openLoop(ctx, edge, load, p.closed.Achieved/2, g.measurementTime(2)); g.addRow(p.open, err) != nil {
		return err
	}
	calls, err := w.verifyCalls(ctx)
	if err != nil {
		return err
	}
	p.hit = p.closed.HitRatio * (1 - (calls-asked)/(p.closed.Achieved*p.closed.Seconds+p.open.Achieved*p.open.Seconds))
	if err := w.readMemory(&p.edge.requested, &p.sidecar.requested); err != nil {
		return err
	}
	n := max(3*g.Options.Pairs/8, 1)
	g.printProgress("%s, %d pairs", load.Name, n)
	p.pair, err = g.measurePair(ctx, w.dir, n, loaded{edge, load},
		loaded{w.besideTarget(directResponse, "direct"), fullOneKiB()})
	if err != nil {
		return err
	}
	g.Recorder.Pairs = append(g.Recorder.Pairs, p.pair)
	g.points = append(g.points, p)
	return nil
}

// printTable prints the cost of each point.
func (g *growthRun) printTable() {
	t := tabwriter.NewWriter(g, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "growth\tof\tRPS\tp99 at half\tµs/req\tto direct\thit\tedge, MiB\tbytes each\tonce read, "+
		"MiB\tsidecar, MiB\tbytes each\t")
	for _, p := range g.points {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.2f ms\t%.1f\t%.2f\t%.2f %%\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t\n",
			p.load, p.n, p.closed.Achieved, p.open.LatencyAt(99)/1000, p.closed.MicrosPerRequest,
			p.pair.Ratio.Median, 100*p.hit, toMiB(p.edge.filled), p.edge.perItem(p.n), toMiB(p.edge.requested),
			toMiB(p.sidecar.filled), p.sidecar.perItem(p.n))
	}
	_ = t.Flush() // a Recorder never fails
}

func toMiB(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// readMemory returns the memory of the edge and of the sidecar, bytes. nginx counts with all workers, shared pages
// once.
func (b *bench) readMemory(edge, sidecar *int64) (err error) {
	if b.EdgeKind() == stack.NginxEdge {
		pids, err := stack.NginxWorkers(b.EdgePID())
		if err != nil {
			return err
		}
		*edge = 0
		for _, pid := range append(pids, b.EdgePID()) {
			size, err := proc.PSS(pid)
			if err != nil {
				return err
			}
			*edge += size
		}
	} else if *edge, err = proc.RSS(b.EdgePID()); err != nil {
		return err
	}
	*sidecar, err = proc.RSS(b.SidecarPID())
	return err
}

// awaitMetric waits until a metric of the sidecar is at least want, and the edge has acknowledged everything.
func (b *bench) awaitMetric(ctx context.Context, name string, want int) error {
	for deadline := time.Now().Add(5 * time.Minute); ; {
		got, err := b.Metric(ctx, name)
		if err != nil {
			return err
		}
		dirty, err := b.Metric(ctx, "gatehouse_edge_memory_dirty_buckets")
		if err != nil {
			return err
		}
		if int(got) >= want && dirty == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %.0f after 5 minutes, want %d; %.0f buckets not pushed", name, got, want, dirty)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// verifyCalls returns the number of calls for a verdict by the edge.
func (b *bench) verifyCalls(ctx context.Context) (float64, error) {
	return b.Metric(ctx, `gatehouse_api_requests_total{call="verify",result="ok"}`)
}

// authenticateFleet sends a request of each device of the fleet, and checks that the edge has a verdict for each
// device, with hardly any run of bcrypt.
func (w *world) authenticateFleet(ctx context.Context, n int) error {
	const connections = 64
	load := workload.DeviceReads(n)
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range connections {
		group.Go(func() error {
			c, err := dialEdge(groupCtx, w.EdgeURL())
			if err != nil {
				return err
			}
			defer c.close()
			for j := i; j < n && groupCtx.Err() == nil; j += connections {
				status, _, err := c.send(load.RequestAt(j).Requests(c.host)[0])
				if err != nil {
					return fmt.Errorf("device %s: %w", workload.FleetDevice(j), err)
				}
				if status != load.Status {
					return fmt.Errorf("device %s: status %d, want %d", workload.FleetDevice(j), status, load.Status)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := w.awaitMetric(ctx, "gatehouse_edge_memory_allow_verdicts", n); err != nil {
		return err
	}
	ran, err := w.Metric(ctx, `gatehouse_bcrypt_total{result="match"}`)
	if err == nil && ran > float64(n)/1000 {
		err = fmt.Errorf("bcrypt ran for %.0f of %d devices, want shared verdicts to be found", ran, n)
	}
	return err
}
