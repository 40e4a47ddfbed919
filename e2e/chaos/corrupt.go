package chaos

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// corruptEvery is the interval of batches that the push listener must refuse.
const corruptEvery = 5 * time.Millisecond

// sendCorruptBatches sends invalid batches to the push listener at socket until ctx ends: random bytes, truncated
// batches, and whole batches of another epoch, which would clear objects and verdicts. The listener must refuse all.
func sendCorruptBatches(ctx context.Context, socket string) {
	client := overSocket(socket)
	defer client.CloseIdleConnections()
	for wait(ctx, corruptEvery) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, pushURL, bytes.NewReader(badBatch()))
		if err != nil {
			panic(err) // the URL is ours
		}
		if response, err := client.Do(request); err == nil { // otherwise Envoy is down
			_ = response.Body.Close()
		}
	}
}

// pushURL is the URL of the push listener.
const pushURL = "http://gatehouse-push/v1/apply"

// overSocket returns an HTTP client of a server on a unix socket.
func overSocket(socket string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: time.Second}
}

func badBatch() []byte {
	epoch := rand.Uint64()
	batch := wire.BeginBatch(nil, epoch, epoch)
	for range 1 + rand.IntN(64) {
		batch = wire.AppendOp(batch, wire.RegionObjects, rand.Uint32N(4096), func(dst []byte) []byte {
			return wire.FinishRecord(wire.AppendObjectsHeader(dst, epoch, 0), len(dst))
		})
		batch = wire.AppendOp(batch, wire.RegionVerdicts, rand.Uint32N(4096), func(dst []byte) []byte {
			return wire.AppendVerdicts(dst, epoch, nil, nil)
		})
	}
	switch rand.IntN(3) {
	case 0:
		for i := range batch {
			batch[i] = byte(rand.Uint32())
		}
	case 1:
		batch = batch[:rand.IntN(len(batch))]
	}
	return batch
}
