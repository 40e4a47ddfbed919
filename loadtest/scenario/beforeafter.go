//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/service"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/loadtest/wrk"
)

// bcryptConns returns the number of connections to a service that runs bcrypt for every request: enough to keep all
// cores busy. More would only wait longer, and the runs that have begun but not ended when a slice ends would count for
// the other stages.
func bcryptConns() int { return runtime.NumCPU() }

// stage is one way to check credentials, before or after the introduction of Gatehouse.
type stage struct {
	target
	load wrk.Load
}

// beforeAfter measures the same work, a credential and 1 KiB, done in the ways that services use before: bcrypt on
// every request, or a verdict cache in the service; and by Gatehouse.
func beforeAfter(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "beforeafter", cost: bcryptCost, services: []string{service.Bcrypt, service.Cached}, listeners: []worldListener{
		{"bcrypt", service.Bcrypt, ""}, {"cached", service.Cached, ""},
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	load := workload.Singles(func(string) int { return -1 })["auth-200"][0]
	stages := w.stages(o)
	fmt.Fprintf(out, "beforeafter: a credential and 1 KiB; bcrypt cost %d, %d connections where it runs for every request, %d elsewhere; %d rounds, each way in turn; rows are the rounds of median throughput\n",
		bcryptCost, bcryptConns(), o.Connections, rounds)
	return o.stageRows(ctx, w, load, stages, out)
}

// rounds is how many turns each stage has.
const rounds = 3

func (w *world) stages(o *Options) []stage {
	fast, slow := o.wrkLoad(o.seconds(3)), o.wrkLoad(o.seconds(3))
	slow.Connections, slow.Timeout = bcryptConns(), 20*time.Second
	slow.Duration = max(slow.Duration, 5*time.Second)
	bcrypt, cached := w.services[service.Bcrypt], w.services[service.Cached]
	// The runs of bcrypt that go on when a slice ends must not count for the next slice.
	return []stage{
		{alone("bcrypt on every request", bcrypt), slow},
		{alone("verdict cache in Go", cached), fast},
		{w.beside("bcrypt on every request, behind Envoy", "bcrypt", service.Bcrypt), slow},
		{w.beside("verdict cache in Go, behind Envoy", "cached", service.Cached), fast},
		{w.gatehouse(), fast},
	}
}

// stageRows loads the stages in turn, rounds times. Pairs compare the CPU per request with Gatehouse's in the same
// round.
func (o *Options) stageRows(ctx context.Context, w *world, load workload.Workload, stages []stage, out *Recorder) error {
	rows := make([][]report.Row, len(stages))
	for round := range rounds {
		for i, s := range stages {
			out.doing("round %d of %d: %s", round+1, rounds, s.name)
			if err := warm(ctx, load, s.target); err != nil { // a cached verdict lives as long as a round takes
				return err
			}
			row, err := o.closed(ctx, s.target, load, s.load, w.dir)
			if err != nil {
				return err
			}
			rows[i] = append(rows[i], row)
		}
	}
	last := len(stages) - 1
	for i, s := range stages {
		var pairs stats.Pairs
		for round := range rounds {
			pairs.Add(rows[i][round].MicrosPerRequest, rows[last][round].MicrosPerRequest)
		}
		if i != last {
			pair, err := pairOf(load.Name, s.name, stages[last].name, pairs)
			if err != nil {
				return err
			}
			out.Pairs = append(out.Pairs, pair)
		}
		out.Rows = append(out.Rows, middle(rows[i], func(r report.Row) float64 { return r.Achieved }))
	}
	return nil
}
