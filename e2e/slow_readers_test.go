package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestSlowReaders has clients request far more than the edge may hold, and read nothing: Envoy and nginx hold a
// complete answer of the filter or plugin, whatever the limits of a connection. Envoy bounds the heap, and the plugin
// bounds its unsent answers. Other clients soon get answers again.
func TestSlowReaders(t *testing.T) {
	leaveToOtherEdges(t)
	const (
		heap     = 192 << 20 // bytes
		requests = 1000      // of 1 MiB
		soon     = 5 * time.Second
		inARow   = 200
	)
	e := start(t, stack.Options{
		ModifyConfig: func(c *stack.Config) error {
			return c.Set(heap, "overload_manager", "resource_monitors", "envoy.resource_monitors.fixed_heap",
				"typed_config", "max_heap_size_bytes")
		},
		ModifyNginx: func(config string) string { // otherwise the kernel takes the bodies
			return strings.Replace(config, "reuseport;", "reuseport sndbuf=64k;", 1)
		},
	})
	random := make([]byte, 1<<19)
	rand.Read(random) // never fails
	e.put("/v1/products/large", hex.EncodeToString(random))
	e.put("/v1/products/small", "small")
	await(t, "published", patience, func() error {
		return e.sendFromAll(e.workerClients(), hasBody("small"), "GET /v1/products/small")
	})
	before := e.rss()
	if !onNginx() {
		// The alert GatehouseHeapFull uses it.
		if full := e.stat("overload.envoy.resource_monitors.fixed_heap.pressure"); full < 1 || full > 75 {
			t.Errorf("at rest Envoy reports a heap that is %d %% full: want more than 0, and no alert", full)
		}
	}
	transport := slowTransport()
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	var readers, asked sync.WaitGroup
	var crowded atomic.Int32
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
			if err == nil && strings.Contains(answer.Header.Get("Cache-Status"), "detail=crowded") {
				crowded.Add(1)
			}
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
		if a := e.send("GET /v1/products/small"); a.body != "small" {
			good = 0
			return fmt.Errorf("got %d", a.status)
		}
		if good++; good < inARow {
			return fmt.Errorf("%d answers in a row", good)
		}
		return nil
	})
	t.Logf("%d in a row after %v", inARow, time.Since(begin))
	if !onNginx() {
		t.Logf("%d streams were reset", e.stat("http2.tx_reset"))
		return
	}
	grown := e.rss() - before
	t.Logf("nginx has %d MiB more; %d requests went upstream", grown>>20, crowded.Load())
	if crowded.Load() == 0 || grown > heap {
		t.Errorf("want some upstream, and at most %d MiB", heap>>20)
	}
	cancel()
	readers.Wait()
	await(t, "there is room again", patience, func() error {
		return e.sendFromAll(e.workerClients(), hasBody(hex.EncodeToString(random)), "GET /v1/products/large")
	})
}

// slowTransport returns a transport whose buffers are far smaller than a large body.
func slowTransport() *http.Transport {
	if onNginx() { // each request has a connection of its own
		return &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, network,
			address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return conn, conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		}}
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: protocols, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}}
}
