package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestGuesses has somebody try the secrets of an active device, one after the other, on many connections: for requests,
// and for tokens. The limit of one device and network holds: some guesses are refused, and all further credentials,
// even the right one, get a 503. The device itself, at another address, always gets through.
func TestGuesses(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	const limit, window, connections, workers = 5, time.Minute, 8, 2 // limit and window by default
	e := withSessions(t, "--verdict.allow-ttl=10m")
	const right = 1294
	k := e.awaitToken("dev", fmt.Sprintf("%04d", right), "telemetry.write")
	e.awaitPushed()
	good := credential("dev", fmt.Sprintf("%04d", right))
	own := clientFrom(10)
	stop := keepCalling(t, func() error {
		if err := e.sendFromAll([]*http.Client{own, shared}, let, "POST /v1/telemetry", good...); err != nil {
			return fmt.Errorf("the device itself: %w", err)
		}
		return e.sendFromAll([]*http.Client{clientFrom(2)}, let, "POST /v1/telemetry", k.headerLine())
	})
	for i, what := range []string{"POST /v1/telemetry", "POST /v1/session"} {
		address := 20 + i
		var next, judged, refused atomic.Int64
		all := int64(pickSize(10_000, 2_000))
		begin := time.Now()
		var wg sync.WaitGroup
		for range connections {
			client := clientFrom(address)
			wg.Go(func() {
				for n := next.Add(1) - 1; n < all; n = next.Add(1) - 1 {
					secret := fmt.Sprintf("%04d", (n+100*int64(i))%all) // one that was judged before doesn't count again
					a, err := e.try(client, what, credential("dev", secret)...)
					retry, _ := strconv.Atoi(a.header.Get("Retry-After"))
					switch {
					case err == nil && a.status == 401:
						judged.Add(1)
					case err == nil && a.status == 503 && 0 < retry && retry <= 12:
						refused.Add(1)
					default:
						t.Errorf("%s with secret %s: got %d, Retry-After %d, %v", what, secret, a.status, retry, err)
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(begin)
		// Each worker refuses one guess by itself before the first call, and one guess is forgiven in each part of the
		// window.
		most := int64(limit + workers + int(took/(window/limit)) + 1)
		if n := judged.Load(); n < limit || n > most {
			t.Errorf("%s: %d wrong secrets were judged in %v, want %d to %d", what, n, took, limit, most)
		}
		t.Logf("%s: %d of %d judged, in %v", what, judged.Load(), judged.Load()+refused.Load(), took)
		network := fmt.Sprintf("127.0.0.%d/32", address)
		var held []struct {
			Network, Device string
			Own             bool
			WaitS           float64 `json:"wait_s"`
		}
		e.decodeCtl(&held, "held")
		listed := false
		for _, h := range held {
			listed = listed || h.Device == "dev" && h.Network == network && h.WaitS > 0 && !h.Own
		}
		if !listed {
			t.Errorf("%s isn't listed as held back; listed are %+v", network, held)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := e.metric(`gatehouse_guesses_limited_total{network="other"}`); n < 2 {
		t.Errorf("%v guesses were beyond the limit, want at least those before the throttles", n)
	}
	await(t, "the edge counts what it has refused by itself", patience, func() error {
		if n := e.edgeMetric("gatehouse_auth_requests_total", `outcome="throttled"`); n < pickSize(10_000, 2_000) {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	// At the device's own address the right secret is accepted, even among wrong guesses.
	for i := range 100 {
		if a := e.send("POST /v1/telemetry", credential("dev", fmt.Sprint("wrong", i))...); a.status != 401 {
			t.Errorf("wrong secret from the device's own address: got %d, want 401", a.status)
		}
		if a := e.send("POST /v1/telemetry", good...); a.status != 200 {
			t.Errorf("the device, beside one that guesses: got %d, want 200", a.status)
		}
	}
}
