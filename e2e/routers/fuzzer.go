package routers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// sample: one of sample spellings goes to all routers, even if the edge answers the spelling.
const sample = 64

// progress is the number of spellings between two lines of progress.
const progress = 100_000

// A fuzzer sends spellings to edges and passes the answers to a report.
type fuzzer struct {
	Config
	edges  []*edge
	died   <-chan error // an exit of a router
	report *report
}

// sendAll sends the ordinary requests, the spellings, and the ordinary requests again.
func (f *fuzzer) sendAll(ctx context.Context) error {
	if err := f.sendOrdinary(ctx); err != nil {
		return err
	}
	begin := time.Now()
	var next atomic.Uint64
	group, groupCtx := errgroup.WithContext(ctx)
	for range f.Workers {
		group.Go(func() error {
			clients := f.newClients()
			defer clients.close()
			for number := next.Add(1) - 1; number < f.Spellings; number = next.Add(1) - 1 {
				if err := f.stopReason(groupCtx); err != nil {
					return err
				}
				if number > 0 && number%progress == 0 {
					_, _ = fmt.Fprintf(f.Out, "%d of %d spellings after %.0f s\n", number, f.Spellings, time.Since(begin).Seconds())
				}
				for i, e := range f.edges {
					if err := f.trySpelling(clients[i], e, newSpelling(f.Seed, number)); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	err := group.Wait()
	f.report.printSummary(min(next.Load(), f.Spellings), time.Since(begin))
	if err != nil {
		return err
	}
	return f.sendOrdinary(ctx)
}

// stopReason returns the reason why the run can't continue, nil if it can.
func (f *fuzzer) stopReason(ctx context.Context) error {
	select {
	case err := <-f.died:
		return err
	case <-ctx.Done():
		return ctx.Err()
	default:
		return nil
	}
}

// trySpelling sends s for the edge's first router, and for the other routers if the first router answered.
func (f *fuzzer) trySpelling(c *client, e *edge, s spelling) error {
	for i, router := range e.routers {
		a, err := c.send(s, router)
		if err != nil && !errors.Is(err, errNoAnswer) {
			return err
		}
		f.report.addAnswer(e.fallback, router, s, a, err)
		if i == 0 && !a.byRouter && s.number%sample != 0 {
			break
		}
	}
	return nil
}

// sendOnly sends one spelling to all routers and prints each answer.
func (f *fuzzer) sendOnly(number uint64) error {
	clients := f.newClients()
	defer clients.close()
	s := newSpelling(f.Seed, number)
	_, _ = fmt.Fprintf(f.Out, "spelling %d, as %s: %s\n", number, s.who.name, s)
	for i, e := range f.edges {
		for _, router := range e.routers {
			a, err := clients[i].send(s, router)
			if err != nil && !errors.Is(err, errNoAnswer) {
				return err
			}
			_, _ = fmt.Fprintf(f.Out, "  default %s, %s: %s\n", e.fallback, router, describeAnswer(a, err))
			f.report.addAnswer(e.fallback, router, s, a, err)
		}
	}
	return nil
}

// newClients returns a client for each edge.
func (f *fuzzer) newClients() clients {
	list := make(clients, len(f.edges))
	for i, e := range f.edges {
		list[i] = &client{address: e.address, address2: e.address2}
	}
	return list
}

type clients []*client

func (list clients) close() {
	for _, c := range list {
		c.close()
	}
}
