//go:build linux

package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/loadtest/openloop"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// propagation measures the time from the return of a publish to the edge's first response with the new version: one
// update at a time, of 100 keys in turn, under a constant rate of reads of all keys.
func propagation(ctx context.Context, _ *Options, out *Recorder) (err error) {
	const keys, updates, reads, readers = 100, 10_000, 5000, 16
	b, err := startBench(ctx, stack.Options{Name: "propagation"}, func(ctx context.Context, p *publish.Publisher) error {
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

	readCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests := workload.ObjectReads(keys, false).Requests(strings.TrimPrefix(b.EdgeURL(), "http://"))
	var read openloop.Result
	done := make(chan error, 1)
	go func() {
		var err error
		read, err = openloop.Run(readCtx, b.EdgeURL(), openloop.RepeatRequests(requests),
			openloop.Load{Rate: reads, Duration: time.Hour, Connections: readers})
		done <- err
	}()
	begin := time.Now()
	took, err := b.measureVisibility(ctx, updates, requests)
	seconds := time.Since(begin).Seconds()
	cancel()
	if ended := <-done; !errors.Is(ended, context.Canceled) || read.Statuses[http.StatusOK] != read.Answered ||
		read.Errors["closed"] > 0 {
		err = errors.Join(err, fmt.Errorf("readers: %w, answers by status %v, %d connections closed",
			ended, read.Statuses, read.Errors["closed"]))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out,
		"propagation: %d updates of 1 KiB, one at a time, over 2 workers, %d connections reading %.0f/s of %d/s asked\n",
		took.Total(), readers, float64(read.Answered)/seconds, reads)
	fmt.Fprintf(out, "publish returned → first new answer: %s\n", formatQuantiles(took, .5, .9, .99, .999))
	return nil
}

// publishVersion writes version n of key i; its body begins with n.
func publishVersion(ctx context.Context, p *publish.Publisher, i, n int) error {
	body := fmt.Appendf(nil, "version %09d ", n)
	body = append(body, bytes.Repeat([]byte("x"), 1024-len(body))...)
	_, err := p.Put(ctx, publish.Object{Key: fmt.Sprint("/v1/products/", i), Body: body, ContentType: "text/plain"})
	return err
}

// measureVisibility publishes n versions of the requested objects, in turn, and returns the times until each version
// was visible.
func (b *bench) measureVisibility(ctx context.Context, n int, requests [][]byte) (*stats.Histogram, error) {
	c, err := dialEdge(ctx, b.EdgeURL())
	if err != nil {
		return nil, err
	}
	defer c.close()
	keys := len(requests)
	took := new(stats.Histogram)
	for i := 1; i <= n; i++ {
		if err := publishVersion(ctx, b.publisher, i%keys, i); err != nil {
			return nil, err
		}
		begin := time.Now()
		want := fmt.Sprintf("version %09d ", i)
		for {
			_, body, err := c.send(requests[i%keys])
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
		took.Add(time.Since(begin))
	}
	return took, nil
}
