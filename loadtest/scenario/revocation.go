//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// revoked is how many devices revocation revokes, one after the other.
const revoked = 200

// revocation measures how long after a revocation has returned its device is refused for
// the first time, while it sends 200 requests a second on four connections, over both
// workers, and from then on without a pause on two more; and looks for answers of 200 after that.
func revocation(ctx context.Context, o *Options, out *Recorder) (err error) {
	b, err := start(ctx, stack.Options{Name: "revocation", SidecarArgs: []string{"--verdict.allow-ttl=10m"}}, func(ctx context.Context, p *publish.Publisher) error {
		return register(ctx, p, "good", revoked, 4)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	var took []time.Duration
	var later, requests int
	for i := range revoked {
		s := &stream{id: fmt.Sprint("good", i)}
		if err := s.run(ctx, b); err != nil {
			return fmt.Errorf("device %d: %w", i, err)
		}
		took = append(took, max(s.first.Sub(s.returned), 0))
		later, requests = later+s.later(), requests+len(s.samples)
	}
	slices.Sort(took)
	at := func(q float64) time.Duration {
		return took[min(int(q*float64(len(took))), len(took)-1)].Round(10 * time.Microsecond)
	}
	fmt.Fprintf(out, "revocation: %d devices one by one, 200 requests/s each on 4 connections, then without a pause on 2 more until refused, %d requests\n", revoked, requests)
	fmt.Fprintf(out, "revocation returned → first 401: p50 %s, p90 %s, p99 %s, max %s; answers of 200 to requests sent after it: %d\n", at(.5), at(.9), at(.99), at(1), later)
	return b.revokeAll(ctx, o, out)
}

// revokeAll measures one operation that revokes many devices, until the sidecar has
// applied the last event.
func (b *bench) revokeAll(ctx context.Context, o *Options, out *Recorder) error {
	if err := register(ctx, b.publisher, "many", o.Objects, 4); err != nil {
		return err
	}
	applied := func() error {
		seq, err := b.client.Get(ctx, "{gatehouse:0}:seq").Float64()
		for got := 0.0; err == nil && got < seq; {
			got, err = b.metric(ctx, "gatehouse_redis_seq")
		}
		return err
	}
	if err := applied(); err != nil {
		return err
	}
	begin := time.Now()
	n, err := b.publisher.RevokeAll(ctx)
	if err != nil {
		return err
	}
	returned := time.Since(begin)
	if err := applied(); err != nil {
		return err
	}
	fmt.Fprintf(out, "all: %d devices revoked in %.1f s; the sidecar had applied all %.0f ms later\n", n, returned.Seconds(), 1000*(time.Since(begin)-returned).Seconds())
	return nil
}

// stream is what one device sends and gets.
type stream struct {
	id              string
	returned, first time.Time // when the revocation returned; when the first 401 came

	mu      sync.Mutex // protects samples, and first while requests are made
	samples []sample
}

// run lets the device in, revokes it and goes on for some time.
func (s *stream) run(ctx context.Context, b *bench) error {
	const conns, pollers, interval = 4, 2, 20 * time.Millisecond // of one connection: 200/s together
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := make(chan struct{}, conns)
	errs := make(chan error, conns+pollers)
	for i := range conns {
		go func() { errs <- s.send(ctx, b.EdgeURL(), interval, interval*time.Duration(i)/conns, in) }()
	}
	revoked := make(chan struct{})
	for range pollers {
		go func() { errs <- s.poll(ctx, b.EdgeURL(), revoked) }()
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
	if err = errors.Join(err, wait(ctx, 150*time.Millisecond)); err != nil {
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

// send sends a request each interval on one connection. It says in when it was let in twice.
func (s *stream) send(ctx context.Context, url string, interval, offset time.Duration, in chan<- struct{}) error {
	c, err := dial(ctx, url)
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
		if _, err := s.show(c); err != nil {
			return err
		}
		if let++; let == 2 {
			in <- struct{}{}
		}
	}
}

// poll sends one request after another from a revocation on until one is refused, so that when
// that is doesn't depend on when the next of send's is due.
func (s *stream) poll(ctx context.Context, url string, revoked <-chan struct{}) error {
	c, err := dial(ctx, url)
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
		if status, err := s.show(c); err != nil || status == http.StatusUnauthorized {
			return err
		}
	}
	return nil
}

// show sends one request.
func (s *stream) show(c *conn) (status int, err error) {
	begin := time.Now()
	if status, err = c.show(s.id, workload.Secret); err != nil {
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

// later counts answers of 200 to requests that were sent after the first 401 had come.
func (s *stream) later() int {
	n := 0
	for _, r := range s.samples {
		if r.status == http.StatusOK && r.at.After(s.first) {
			n++
		}
	}
	return n
}
