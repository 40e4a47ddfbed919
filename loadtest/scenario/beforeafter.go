//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/service"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/loadtest/wrk"
)

// bcryptConns is how many connections ask a service that runs bcrypt for every request: as
// many as keep all cores busy. More would only wait longer, and what is begun but not
// answered when a slice ends would count for the others.
func bcryptConns() int { return runtime.NumCPU() }

// stage is one way to check credentials, before or after.
type stage struct {
	target
	load wrk.Load
	// program is the Go program of this stage, and profiles where it has net/http/pprof;
	// empty: it is that of another stage.
	program, profiles string
}

// beforeAfter measures the same work, a credential and 1 KiB, done in the ways that
// services come from: bcrypt on every request, a verdict cache in the service, Gatehouse.
func beforeAfter(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "beforeafter", cost: o.Cost, services: []string{service.Bcrypt, service.Cached}, listeners: []worldListener{
		{"bcrypt", service.Bcrypt, ""}, {"cached", service.Cached, ""},
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	load := workload.Singles(func(string) int { return -1 })["auth-200"][0]
	stages := w.stages(o)
	fmt.Fprintf(out, "beforeafter: a credential and 1 KiB; bcrypt cost %d, %d connections where it runs for every request, %d elsewhere; %d rounds, each way in turn; rows are the rounds of median throughput\n",
		o.Cost, bcryptConns(), o.Connections, rounds)
	if err := o.stageRows(ctx, w, load, stages, out); err != nil {
		return err
	}
	for _, s := range stages {
		if s.profiles == "" {
			continue
		}
		out.doing("profiles of the %s", s.program)
		found, err := o.profile(ctx, w, s, load)
		if err != nil {
			return err
		}
		out.Profiles = append(out.Profiles, found...)
	}
	return nil
}

// rounds is how often each stage has its turn.
const rounds = 3

func (w *world) stages(o *Options) []stage {
	fast, slow := o.wrkLoad(o.seconds(3)), o.wrkLoad(o.seconds(3))
	slow.Connections, slow.Timeout = bcryptConns(), 20*time.Second
	slow.Duration = max(slow.Duration, 5*time.Second)
	bcrypt, cached := w.services[service.Bcrypt], w.services[service.Cached]
	// What bcrypt still does when a slice ends must not count for the next one.
	return []stage{
		{alone("bcrypt on every request", bcrypt), slow, "bcrypt service", bcrypt.URL()},
		{alone("verdict cache in Go", cached), fast, "verdict cache service", cached.URL()},
		{w.beside("bcrypt on every request, behind Envoy", "bcrypt", service.Bcrypt), slow, "", ""},
		{w.beside("verdict cache in Go, behind Envoy", "cached", service.Cached), fast, "", ""},
		{w.gatehouse(), fast, "sidecar", w.SidecarAdminURL()},
	}
}

// stageRows loads the stages in turn, a few times. Pairs compare the CPU for each request
// with Gatehouse's in the same round.
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

// profile takes a CPU and a block profile of a stage's Go program under load.
func (o *Options) profile(ctx context.Context, w *world, s stage, load workload.Workload) ([]report.Profile, error) {
	const seconds = 3
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		l := s.load
		l.Duration = (2*seconds + 1) * time.Second
		_, err := wrk.Run(ctx, s.url, load, l, w.dir)
		return err
	})
	var found []report.Profile
	group.Go(func() error {
		for _, kind := range []struct{ name, path string }{{"cpu", "profile"}, {"block", "block"}} {
			text, err := fetch(ctx, fmt.Sprintf("%s/debug/pprof/%s?seconds=%d", s.profiles, kind.path, seconds))
			if err != nil {
				return err
			}
			file := strings.ReplaceAll(s.program, " ", "-") + "." + kind.name + ".pprof"
			path := filepath.Join(o.Out, file)
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				return err
			}
			top, err := report.Top(ctx, path)
			if err != nil {
				return err
			}
			found = append(found, report.Profile{Name: s.program + ", " + kind.name, File: file, Top: top})
		}
		return nil
	})
	return found, group.Wait()
}
