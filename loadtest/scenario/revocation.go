//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// revoked is how many devices revocation revokes, one after the other.
const revoked = 200

// revocation measures the time from the return of a revocation to the device's first 401. The device sends 200 requests
// a second on four connections, to both workers, and after the revocation also continuously on two more. Later
// responses of 200 are counted.
func revocation(ctx context.Context, o *Options, out *Recorder) (err error) {
	b, err := startBench(ctx, stack.Options{Name: "revocation", SidecarArgs: []string{"--verdict.allow-ttl=10m"}},
		func(ctx context.Context, p *publish.Publisher) error {
			return registerDevices(ctx, p, "good", revoked, 4)
		})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	var took stats.Histogram
	var later, requests int
	for i := range revoked {
		s := &stream{id: fmt.Sprint("good", i)}
		if err := s.revokeWhileSending(ctx, b); err != nil {
			return fmt.Errorf("device %d: %w", i, err)
		}
		took.Add(s.first.Sub(s.returned))
		later, requests = later+s.countLateOK(), requests+len(s.samples)
	}
	fmt.Fprintf(out, "revocation: %d devices one by one, 200 requests/s each on 4 connections, then without a pause on "+
		"2 more until refused, %d requests\n", revoked, requests)
	fmt.Fprintf(out, "revocation returned → first 401: %s; answers of 200 to requests sent after it: %d\n",
		formatQuantiles(&took, .5, .9, .99), later)
	return b.revokeAll(ctx, o, out)
}

// revokeAll measures one operation that revokes many devices, until the sidecar has applied the last event.
func (b *bench) revokeAll(ctx context.Context, o *Options, out *Recorder) error {
	if err := registerDevices(ctx, b.publisher, "many", o.Objects, 4); err != nil {
		return err
	}
	if err := b.awaitApplied(ctx); err != nil {
		return err
	}
	begin := time.Now()
	n, err := b.publisher.RevokeAll(ctx)
	if err != nil {
		return err
	}
	returned := time.Since(begin)
	if err := b.awaitApplied(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "all: %d devices revoked in %.1f s; the sidecar had applied all %.0f ms later\n",
		n, returned.Seconds(), 1000*(time.Since(begin)-returned).Seconds())
	return nil
}

// stream is the requests of one device and their results.
type stream struct {
	id              string
	returned, first time.Time // when the revocation returned; the time of the first 401

	mu      sync.Mutex // protects samples, and first while requests are sent
	samples []sample
}

// revokeWhileSending authenticates and revokes the device, and goes on sending for some time.
func (s *stream) revokeWhileSending(ctx context.Context, b *bench) error {
	const conns, pollers, interval = 4, 2, 20 * time.Millisecond // of one connection: 200/s together
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := make(chan struct{}, conns)
	errs := make(chan error, conns+pollers)
	for i := range conns {
		go func() { errs <- s.sendAtInterval(ctx, b.EdgeURL(), interval, interval*time.Duration(i)/conns, in) }()
	}
	revoked := make(chan struct{})
	for range pollers {
		go func() { errs <- s.sendUntilRefused(ctx, b.EdgeURL(), revoked) }()
	}
	for range conns {
		select {
		case <-in:
		case err := <-errs:
			return err
		}
	}
	_, err := b.publisher.RevokeDevice(ctx, s.id)
	s.returned = time.Now()
	close(revoked)
	if err = errors.Join(err, sleep(ctx, 150*time.Millisecond)); err != nil {
		return err
	}
	cancel()
	for range conns + pollers {
		if err := <-errs; err != nil {
			return err
		}
	}
	if s.first.IsZero() {
		return errors.New("not refused within 150 ms")
	}
	return nil
}

// sendAtInterval sends a request each interval on one connection, and signals in after the second response.
func (s *stream) sendAtInterval(ctx context.Context, url string, interval, offset time.Duration,
	in chan<- struct{}) error {
	c, err := dialEdge(ctx, url)
	if err != nil {
		return err
	}
	defer c.close()
	timer := time.NewTimer(offset)
	defer timer.Stop()
	for let := 0; ; timer.Reset(interval) {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if _, err := s.sendOne(c); err != nil {
			return err
		}
		if let++; let == 2 {
			in <- struct{}{}
		}
	}
}

// sendUntilRefused sends requests continuously from a revocation to the first refusal, so that the measured time
// doesn't depend on when the next request of sendAtInterval is due.
func (s *stream) sendUntilRefused(ctx context.Context, url string, revoked <-chan struct{}) error {
	c, err := dialEdge(ctx, url)
	if err != nil {
		return err
	}
	defer c.close()
	select {
	case <-ctx.Done():
		return nil
	case <-revoked:
	}
	for ctx.Err() == nil {
		if status, err := s.sendOne(c); err != nil || status == http.StatusUnauthorized {
			return err
		}
	}
	return nil
}

// sendOne sends one request.
func (s *stream) sendOne(c *conn) (status int, err error) {
	begin := time.Now()
	if status, err = c.postTelemetry(s.id, workload.Secret); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples = append(s.samples, sample{begin, time.Since(begin), status})
	if status == http.StatusUnauthorized && s.first.IsZero() {
		s.first = time.Now()
	}
	return status, nil
}

// countLateOK counts responses of 200 to requests that were sent after the first 401.
func (s *stream) countLateOK() int {
	n := 0
	for _, r := range s.samples {
		if r.status == http.StatusOK && r.at.After(s.first) {
			n++
		}
	}
	return n
}
