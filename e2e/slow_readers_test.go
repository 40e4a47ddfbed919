package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestSlowReaders has clients request far more than Envoy's heap may hold, and read nothing: Envoy holds a complete
// answer of the filter, whatever the limits of a connection. Other clients soon get answers again.
func TestSlowReaders(t *testing.T) {
	const (
		heap     = 192 << 20 // bytes
		requests = 1000      // of 1 MiB
		soon     = 5 * time.Second
		inARow   = 200
	)
	e := start(t, stack.Options{ModifyConfig: func(c *stack.Config) error {
		return c.Set(heap, "overload_manager", "resource_monitors", "envoy.resource_monitors.fixed_heap", "typed_config", "max_heap_size_bytes")
	}})
	random := make([]byte, 1<<19)
	rand.Read(random) // never fails
	e.put("/v1/products/large", hex.EncodeToString(random))
	e.put("/v1/products/small", "small")
	await(t, "published", patience, func() error {
		return e.everyone(e.workers(), says("small"), "GET /v1/products/small")
	})
	// The alert GatehouseHeapFull uses it.
	if full := e.stat("overload.envoy.resource_monitors.fixed_heap.pressure"); full < 1 || full > 75 {
		t.Errorf("at rest Envoy reports a heap that is %d %% full: want more than 0, and no alert", full)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	var readers, asked sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for range requests {
		asked.Add(1)
		readers.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.EdgeURL()+"/v1/products/large", nil)
			if err != nil {
				t.Error(err)
				asked.Done()
				return
			}
			answer, err := transport.RoundTrip(request)
			asked.Done()
			if err != nil {
				return // reset by Envoy
			}
			<-ctx.Done()
			_ = answer.Body.Close()
		})
	}
	asked.Wait()
	begin, good := time.Now(), 0
	await(t, "others are answered again", soon, func() error {
		if a := e.send("GET /v1/products/small"); a.status != 200 {
			good = 0
			return fmt.Errorf("got %d", a.status)
		}
		if good++; good < inARow {
			return fmt.Errorf("%d answers of 200 in a row", good)
		}
		return nil
	})
	t.Logf("%d in a row after %v; %d streams were reset", inARow, time.Since(begin), e.stat("http2.tx_reset"))
}
