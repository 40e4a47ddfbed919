//go:build linux

package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// readers is how many connections read while updates are measured.
const readers = 16

// propagation measures how long after a publish has returned the edge gives the new
// answer for the first time: one update at a time, one key of 100 after the other, under
// a constant rate of reads of all of them.
func propagation(ctx context.Context, o *Options, out *Recorder) (err error) {
	const keys = 100
	b, err := start(ctx, stack.Options{Name: "propagation"}, func(ctx context.Context, p *publish.Publisher) error {
		for i := range keys {
			if err := publishVersion(ctx, p, i, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	load := &load{interval: time.Second * readers / time.Duration(o.Reads)}
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() { load.run(ctx, b.EdgeURL(), keys, i) })
	}
	begin := time.Now()
	took, err := b.update(ctx, o.Updates, keys)
	seconds := time.Since(begin).Seconds()
	cancel()
	wg.Wait()
	if err = errors.Join(err, load.err()); err != nil {
		return err
	}
	slices.Sort(took)
	at := func(q float64) time.Duration {
		return took[min(int(q*float64(len(took))), len(took)-1)].Round(time.Microsecond)
	}
	fmt.Fprintf(out, "propagation: %d updates of 1 KiB, one at a time, over 2 workers, %d connections reading %.0f/s of %d/s asked\n",
		len(took), readers, float64(load.reads.Load())/seconds, o.Reads)
	fmt.Fprintf(out, "publish returned → first new answer: p50 %s, p90 %s, p99 %s, p99.9 %s, max %s\n", at(.5), at(.9), at(.99), at(.999), took[len(took)-1])
	return nil
}

// publishVersion writes version n of key i, whose body begins with it.
func publishVersion(ctx context.Context, p *publish.Publisher, i, n int) error {
	body := fmt.Appendf(nil, "version %09d ", n)
	body = append(body, bytes.Repeat([]byte("x"), 1024-len(body))...)
	_, err := p.Put(ctx, publish.Object{Key: fmt.Sprint("/v1/products/", i), Body: body, ContentType: "text/plain"})
	return err
}

// update publishes n versions and returns how long each took to be seen.
func (b *bench) update(ctx context.Context, n, keys int) ([]time.Duration, error) {
	c, err := dial(ctx, b.EdgeURL())
	if err != nil {
		return nil, err
	}
	defer c.close()
	took := make([]time.Duration, 0, n)
	for i := 1; i <= n; i++ {
		if err := publishVersion(ctx, b.publisher, i%keys, i); err != nil {
			return nil, err
		}
		begin := time.Now()
		want := fmt.Sprintf("version %09d ", i)
		for {
			body, err := c.get(fmt.Sprint("/v1/products/", i%keys))
			if err != nil {
				return nil, err
			}
			if strings.HasPrefix(string(body), want) {
				break
			}
			if time.Since(begin) > 10*time.Second {
				return nil, fmt.Errorf("version %d not seen within 10 s; the edge answers %.40q", i, body)
			}
		}
		took = append(took, time.Since(begin))
	}
	return took, nil
}

// load reads at a constant rate.
type load struct {
	interval time.Duration // between two reads of one connection
	reads    atomic.Int64
	failed   atomic.Pointer[error]
}

func (l *load) run(ctx context.Context, url string, keys, offset int) {
	c, err := dial(ctx, url)
	if err != nil {
		l.failed.Store(&err)
		return
	}
	defer c.close()
	next := time.Now().Add(l.interval * time.Duration(offset) / readers)
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	for i := offset; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if _, err := c.get(fmt.Sprint("/v1/products/", i%keys)); err != nil {
			l.failed.Store(&err)
			return
		}
		l.reads.Add(1)
		next = next.Add(l.interval)
		timer.Reset(time.Until(next))
	}
}

func (l *load) err() error {
	if err := l.failed.Load(); err != nil {
		return fmt.Errorf("reader: %w", *err)
	}
	return nil
}
