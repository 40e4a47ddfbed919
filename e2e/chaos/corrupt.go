package chaos

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/gatehouse/gatehouse/wire"
)

// corruptEvery is how often a batch is sent that the push listener must refuse.
const corruptEvery = 5 * time.Millisecond

// corrupt sends the push listener at socket batches that it must refuse, until ctx ends: bytes at random, batches that are cut
// off, and whole ones of another epoch that would blank objects and verdicts.
func corrupt(ctx context.Context, socket string) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: time.Second}
	defer client.CloseIdleConnections()
	for wait(ctx, corruptEvery) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gatehouse-push/v1/apply", bytes.NewReader(badBatch()))
		if err != nil {
			panic(err) // the URL is ours
		}
		if response, err := client.Do(request); err == nil { // else Envoy is down
			_ = response.Body.Close()
		}
	}
}

func badBatch() []byte {
	epoch := rand.Uint64()
	batch := wire.BeginBatch(nil, epoch, epoch)
	for range 1 + rand.IntN(64) {
		batch = wire.AppendOp(batch, wire.RegionObjects, rand.Uint32N(4096), func(dst []byte) []byte { return wire.FinishRecord(wire.AppendObjectsHeader(dst, epoch, 0), len(dst)) })
		batch = wire.AppendOp(batch, wire.RegionVerdicts, rand.Uint32N(4096), func(dst []byte) []byte { return wire.AppendVerdicts(dst, epoch, nil, nil) })
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
