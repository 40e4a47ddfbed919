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

// growing is a run of growth with the results so far.
type growing struct {
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
type memory struct{ before, filled, read int64 }

// each returns the memory per item for n items, bytes.
func (m memory) each(n int) float64 { return float64(m.filled-m.before) / float64(n) }

// growth measures the cost of a response and the use of memory by the number of objects and of verdicts, and the effect
// of updates on reads.
func growth(ctx context.Context, o *Options, out *Recorder) error {
	g := &growing{Options: o, Recorder: out}
	for _, n := range sizes(o.Objects) {
		if err := g.objects(ctx, n); err != nil {
			return fmt.Errorf("%d objects: %w", n, err)
		}
	}
	for _, n := range sizes(o.Verdicts) {
		if err := g.verdicts(ctx, n); err != nil {
			return fmt.Errorf("%d verdicts: %w", n, err)
		}
	}
	g.table()
	return g.updates(ctx)
}

// sizes returns a hundredth, a tenth and all of most.
func sizes(most int) []int { return []int{max(most/100, 1), max(most/10, 1), most} }

// objects measures reads of n objects of 1 KiB.
func (g *growing) objects(ctx context.Context, n int) (err error) {
	w, err := startWorld(ctx, g.Options, worldOptions{name: "growth", room: room{objects: n}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	var edge, sidecar memory
	if err := w.resident(&edge.before, &sidecar.before); err != nil {
		return err
	}
	begin := time.Now()
	if err := fill(ctx, w.publisher, n); err != nil {
		return err
	}
	if err := w.await(ctx, "gatehouse_edge_memory_objects", n+len(workload.Sizes)); err != nil {
		return err
	}
	fmt.Fprintf(g, "growth: %d objects of 1 KiB: published and at the edge in %.1f s\n", n, time.Since(begin).Seconds())
	if err := w.resident(&edge.filled, &sidecar.filled); err != nil {
		return err
	}
	for _, conditional := range []bool{true, false} {
		if err := g.point(ctx, w, workload.Objects(n, conditional), edge, sidecar); err != nil {
			return err
		}
	}
	return nil
}

// verdicts measures conditional reads by n devices with verdicts. Runs of bcrypt for all devices would take longer than
// the measurement, so verdicts are shared with the fleet's secret, as by a second sidecar.
func (g *growing) verdicts(ctx context.Context, n int) (err error) {
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
	w, err := startWorld(ctx, g.Options, worldOptions{name: "growth", room: room{verdicts: n}, sidecar: []string{
		"--verdict.secret-file=" + secret, "--verdict.allow-ttl=" + life,
		"--verdict.pin-ttl=" + life}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	var empty [2]int64
	if err := w.resident(&empty[0], &empty[1]); err != nil {
		return err
	}
	begin := time.Now()
	hash, err := registerShared(ctx, w.bench, n)
	if err != nil {
		return err
	}
	if err := w.await(ctx, "gatehouse_edge_memory_devices", n+1); err != nil {
		return err
	}
	registered := time.Since(begin)
	var edge, sidecar memory
	if err := w.resident(&edge.before, &sidecar.before); err != nil {
		return err
	}
	fmt.Fprintf(g, "growth: %d devices: published and at the edge in %.1f s; edge %.0f → %.0f MiB, sidecar %.0f → "+
		"%.0f MiB\n", n, registered.Seconds(),
		mib(empty[0]), mib(edge.before), mib(empty[1]), mib(sidecar.before))
	begin = time.Now()
	if err := share(ctx, w.RedisURL(), secret, n, hash); err != nil {
		return err
	}
	shared := time.Since(begin)
	if err := w.letIn(ctx, n); err != nil {
		return err
	}
	fmt.Fprintf(g, "growth: %d verdicts: shared in %.1f s, each device authenticated %.1f s later\n",
		n, shared.Seconds(), (time.Since(begin) - shared).Seconds())
	if err := w.resident(&edge.filled, &sidecar.filled); err != nil {
		return err
	}
	return g.point(ctx, w, workload.Devices(n), edge, sidecar)
}

// point measures load, spread over all objects or devices: the closed loop, half of the closed loop's rate, and the CPU
// per request compared with a direct_response of 1 KiB. A single worker has its own core, otherwise the p99 would be
// the worker's wait for the scheduler.
func (g *growing) point(ctx context.Context, w *world, load workload.Workload, used, sidecar memory) (err error) {
	together, err := w.apart()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, together()) }()
	edge, kind := w.edge(), load.Name
	load.Name = fmt.Sprintf("%s, %d", kind, load.Count)
	if err := warm(ctx, load, edge); err != nil {
		return err
	}
	// After a second of load, workers keep as many answers as after a long time.
	if _, err := wrk.Run(ctx, edge.url, load, g.wrkLoad(time.Second), w.dir); err != nil {
		return err
	}
	asked, err := w.verifications(ctx)
	if err != nil {
		return err
	}
	p := growthPoint{load: kind, n: load.Count, edge: used, sidecar: sidecar}
	g.doing("%s, closed loop", load.Name)
	if p.closed, err = g.closed(ctx, edge, load, g.wrkLoad(g.seconds(2)), w.dir); g.row(p.closed, err) != nil {
		return err
	}
	g.doing("%s, %.0f/s", load.Name, p.closed.Achieved/2)
	if p.open, err = g.open(ctx, edge, load, p.closed.Achieved/2, g.seconds(2)); g.row(p.open, err) != nil {
		return err
	}
	calls, err := w.verifications(ctx)
	if err != nil {
		return err
	}
	p.hit = p.closed.HitRatio * (1 - (calls-asked)/(p.closed.Achieved*p.closed.Seconds+p.open.Achieved*p.open.Seconds))
	if err := w.resident(&p.edge.read, &p.sidecar.read); err != nil {
		return err
	}
	n := max(3*g.Options.Pairs/8, 1)
	g.doing("%s, %d pairs", load.Name, n)
	p.pair, err = g.pair(ctx, w.dir, n, loaded{edge, load}, loaded{w.beside(directResponse, "direct"), oneKiB()})
	if err != nil {
		return err
	}
	g.Recorder.Pairs = append(g.Recorder.Pairs, p.pair)
	g.points = append(g.points, p)
	return nil
}

// table prints the cost of each point.
func (g *growing) table() {
	t := tabwriter.NewWriter(g, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "growth\tof\tRPS\tp99 at half\tµs/req\tto direct\thit\tedge, MiB\tbytes each\tonce read, "+
		"MiB\tsidecar, MiB\tbytes each\t")
	for _, p := range g.points {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.2f ms\t%.1f\t%.2f\t%.2f %%\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t\n",
			p.load, p.n, p.closed.Achieved, p.open.At(99)/1000, p.closed.MicrosPerRequest,
			p.pair.Ratio.Median, 100*p.hit, mib(p.edge.filled), p.edge.each(p.n), mib(p.edge.read),
			mib(p.sidecar.filled), p.sidecar.each(p.n))
	}
	_ = t.Flush() // a Recorder never fails
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// resident returns the memory of the edge and of the sidecar, bytes. nginx counts with all workers, shared pages once.
func (b *bench) resident(edge, sidecar *int64) (err error) {
	if b.EdgeKind() == stack.NginxEdge {
		master, workers, err := b.nginxMemory()
		if err != nil {
			return err
		}
		*edge = master.pss
		for _, m := range workers {
			*edge += m.pss
		}
	} else if *edge, err = proc.RSS(b.EdgePID()); err != nil {
		return err
	}
	*sidecar, err = proc.RSS(b.SidecarPID())
	return err
}

// await waits until a metric of the sidecar is at least want, and the edge has acknowledged everything.
func (b *bench) await(ctx context.Context, name string, want int) error {
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
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// verifications returns the number of calls for a verdict by the edge.
func (b *bench) verifications(ctx context.Context) (float64, error) {
	return b.Metric(ctx, `gatehouse_api_requests_total{call="verify",result="ok"}`)
}

// letIn sends a request of each device of the fleet, and checks that the edge has a verdict for each device, with
// hardly any run of bcrypt.
func (w *world) letIn(ctx context.Context, n int) error {
	const connections = 64
	load := workload.Devices(n)
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range connections {
		group.Go(func() error {
			c, err := dial(groupCtx, w.EdgeURL())
			if err != nil {
				return err
			}
			defer c.close()
			for j := i; j < n && groupCtx.Err() == nil; j += connections {
				status, _, err := c.send(load.At(j).Requests(c.host)[0])
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
	if err := w.await(ctx, "gatehouse_edge_memory_allow_verdicts", n); err != nil {
		return err
	}
	ran, err := w.Metric(ctx, `gatehouse_bcrypt_total{result="match"}`)
	if err == nil && ran > float64(n)/1000 {
		err = fmt.Errorf("bcrypt ran for %.0f of %d devices, want shared verdicts to be found", ran, n)
	}
	return err
}
