//go:build linux

package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/loadtest/report"
)

// tuning measures what an operator can turn, as docs/tuning.md says it.
func tuning(ctx context.Context, o *Options, out *Recorder) error {
	for _, part := range []func(context.Context, *Options, *Recorder) error{tuneWorkers, tuneReusePort, tunePinning, tuneLimits} {
		if err := part(ctx, o, out); err != nil {
			return err
		}
	}
	return nil
}

const (
	tunePasses = 5
	tuneRate   = 9000 // of the open loops, requests a second, unless there is a flag
)

func (o *Options) tuneRate() float64 { return cmp.Or(o.Rate, tuneRate) }

// setting is one of several that are compared, with what was seen in each pass.
type setting struct {
	name         string
	world        *world
	closed, open []report.Row
	connections  []string // of each worker, while the closed loop ran
}

// compare measures settings in turn: closed loops, if wanted, and a constant rate.
func (o *Options) compare(ctx context.Context, settings []*setting, closed bool, out *Recorder) error {
	load := authorized()
	for range tunePasses {
		for _, s := range settings {
			named := load
			named.Name += ", " + s.name
			out.doing("%s", named.Name)
			if err := warm(ctx, load, s.world.edge()); err != nil {
				return err
			}
			if closed {
				counted := make(chan error, 1)
				go func() { counted <- s.count(ctx) }()
				row, err := o.closed(ctx, s.world.edge(), named, o.wrkLoad(o.seconds(2)), s.world.dir)
				if err = errors.Join(err, <-counted); err != nil {
					return err
				}
				s.closed = append(s.closed, row)
			}
			row, err := o.open(ctx, s.world.edge(), named, o.tuneRate(), o.seconds(2))
			if err != nil {
				return err
			}
			s.open = append(s.open, row)
		}
	}
	for _, s := range settings {
		if closed {
			out.Rows = append(out.Rows, middle(s.closed, func(r report.Row) float64 { return r.Achieved }))
		}
		out.Rows = append(out.Rows, middle(s.open, func(r report.Row) float64 { return r.At(99) }))
	}
	return nil
}

// count reads how many connections each worker has, when the load has begun.
func (s *setting) count(ctx context.Context) error {
	if err := wait(ctx, 800*time.Millisecond); err != nil {
		return err
	}
	edge := strings.ReplaceAll(strings.TrimPrefix(s.world.EdgeURL(), "http://"), ":", "_")
	text, err := fetch(ctx, s.world.EnvoyAdminURL()+"/stats?filter=^listener."+edge+".worker_[0-9]*.downstream_cx_active$")
	if err != nil {
		return err
	}
	var each []string
	for line := range strings.Lines(text) {
		if _, n, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			each = append(each, n)
		}
	}
	s.connections = append(s.connections, strings.Join(each, "+"))
	return nil
}

// startSettings starts an Envoy with so many workers for each of the changes to its configuration.
func startSettings(ctx context.Context, o *Options, settings []*setting, workers []int, change []func(*stack.Config) error) (stop func() error, err error) {
	stop = func() error {
		var errs []error
		for _, s := range settings {
			if s.world != nil {
				errs = append(errs, s.world.stop())
			}
		}
		return errors.Join(errs...)
	}
	for i, s := range settings {
		w, err := startWorld(ctx, o, worldOptions{name: fmt.Sprint("tuning-", i), workers: workers[i], change: change[i]})
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		s.world = w
	}
	return stop, nil
}

// tuneWorkers compares one worker with two.
func tuneWorkers(ctx context.Context, o *Options, out *Recorder) (err error) {
	settings := []*setting{{name: "1 worker"}, {name: "2 workers"}}
	stop, err := startSettings(ctx, o, settings, []int{1, 2}, make([]func(*stack.Config) error, 2))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return o.compare(ctx, settings, true, out)
}

// tuneReusePort compares a listening socket for each worker with one for all, and with
// Envoy's own balance.
func tuneReusePort(ctx context.Context, o *Options, out *Recorder) (err error) {
	edge := []string{"static_resources", "listeners", "edge"}
	settings := []*setting{{name: "reuse_port"}, {name: "no reuse_port"}, {name: "exact_balance"}}
	stop, err := startSettings(ctx, o, settings, []int{2, 2, 2}, []func(*stack.Config) error{
		nil,
		func(c *stack.Config) error { return c.Set(false, append(edge, "enable_reuse_port")...) },
		func(c *stack.Config) error {
			return c.Set(map[string]any{"exact_balance": map[string]any{}}, append(edge, "connection_balance_config")...)
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := o.compare(ctx, settings, true, out); err != nil {
		return err
	}
	for _, s := range settings {
		fmt.Fprintf(out, "tuning: %s: connections of each of 2 workers, of %d in all: %s\n", s.name, o.Connections, strings.Join(s.connections, ", "))
	}
	return nil
}

// tunePinning compares a worker with a core of its own with one that the scheduler places.
func tunePinning(ctx context.Context, o *Options, out *Recorder) (err error) {
	w, err := startWorld(ctx, o, worldOptions{name: "tuning", workers: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	settings := []*setting{{name: "placed by the scheduler", world: w}, {name: "alone on a core", world: w}}
	load := authorized()
	if err := warm(ctx, load, w.edge()); err != nil {
		return err
	}
	for range tunePasses {
		for i, s := range settings {
			named := load
			named.Name += ", " + s.name
			out.doing("%s", named.Name)
			together := func() error { return nil }
			if i == 1 {
				if together, err = w.apart(); err != nil {
					return err
				}
			}
			row, err := o.open(ctx, w.edge(), named, o.tuneRate(), o.seconds(4))
			if err = errors.Join(err, together()); err != nil {
				return err
			}
			s.open = append(s.open, row)
		}
	}
	for _, s := range settings {
		row := middle(s.open, func(r report.Row) float64 { return r.At(99) })
		out.Rows = append(out.Rows, row)
		tail := middle(s.open, func(r report.Row) float64 { return r.At(99.9) })
		fmt.Fprintf(out, "tuning: worker %s, %.0f/s: p50 %.0f µs, p99 %.0f µs, p99.9 %.0f µs, the median of %d passes each\n", s.name, row.Asked, row.At(50), row.At(99), tail.At(99.9), tunePasses)
	}
	return nil
}
