// Package updates publishes at a constant rate, in its own process: `loadtest update`. In a client's process,
// publishing would delay the client's responses.
package updates

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/loadtest/workload"
)

// writers is the number of concurrent writers.
const writers = 16

// Command is the command line.
type Command struct {
	Redis   string  `required:"" help:"Its URL."`
	Rate    float64 `required:"" help:"Updates a second."`
	Objects int     `required:"" help:"How many objects are updated, in turn."`
	Bytes   int     `required:"" help:"Size of each."`
}

// Run publishes until ctx ends.
func (c Command) Run(ctx context.Context) error {
	client, err := redisurl.Connect(c.Redis)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := publish.New(client)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			if err := c.publishEvery(ctx, p, i); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != ctx.Err() {
		return err
	}
	return nil
}

// publishEvery publishes updates i, i+writers, …, each when due or, if late, at once.
func (c Command) publishEvery(ctx context.Context, p *publish.Publisher, i int) error {
	random := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
	body := make([]byte, c.Bytes)
	begin := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ; ; i += writers {
		timer.Reset(time.Duration(float64(i)/c.Rate*float64(time.Second)) - time.Since(begin))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		for j := range body {
			body[j] = byte(random.Uint32())
		}
		if _, err := p.Put(ctx, publish.Object{Key: workload.ObjectPath(i % c.Objects), Body: body,
			ContentType: "image/png"}); err != nil {
			return err
		}
	}
}
