package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// forger publishes events, and has no further permission.
type forger struct {
	*edge
	epoch string
	seq   atomic.Uint64 // of the last event, or of one before it
}

func (f *forger) send(ahead int, m contract.Member, fields map[string]string) error {
	payload := contract.AppendEvent(nil, contract.Event{
		DataEpoch: f.epoch, Seq: f.seq.Load() + uint64(ahead), Digest: strings.Repeat("ab", 20), Member: m, Fields: fields,
	})
	return f.redis.Publish(context.WithoutCancel(f.t.Context()), contract.Keys{}.EventsChannel(), payload).Err()
}

// TestForgedEvents forges events with the numbers of the next writes, one by one and then as a flood: a device that is
// revoked meanwhile is refused, and neither an invented device nor an invented secret is ever authenticated.
func TestForgedEvents(t *testing.T) {
	leaveToNative(t)
	e := reuse(t, stack.Options{})
	for i := range 5 {
		e.putDevice(fmt.Sprint("dev", i), "secret", 4, "telemetry.write")
	}
	status := func(id, secret string, want int) func() error {
		return func() error {
			return e.sendFromAll([]*http.Client{shared}, func(a answer) bool {
				return a.status == want
			}, "POST /v1/telemetry", credential(id, secret)...)
		}
	}
	for i := range 5 {
		await(t, "authenticated", patience, status(fmt.Sprint("dev", i), "secret", 200))
	}
	f := &forger{edge: e, epoch: e.redis.Get(t.Context(), contract.Keys{}.DataEpochKey()).Val()}
	f.keepUp()
	hash, err := bcrypt.GenerateFromPassword([]byte("forged"), 4)
	require.NoError(t, err)
	grant := contract.Credential{Version: 99, PublishedMS: time.Now().UnixMilli(), Hashes: []string{string(hash)},
		Permissions: []string{"telemetry.write"}}.Fields()

	var let atomic.Int64 // wrongly authenticated
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer func() { stop(); running.Wait() }()
	for _, id := range []string{"dev4", "nobody"} {
		running.Go(func() {
			client := newClient()
			for ctx.Err() == nil {
				if a, err := e.try(client, "POST /v1/telemetry", credential(id, "forged")...); err == nil &&
					a.status == http.StatusOK {
					let.Add(1)
				}
			}
		})
	}
	revoke := func(id string, limit time.Duration) {
		t.Helper()
		if _, err := e.publisher.RevokeDevice(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		took := await(t, id+" is refused", patience, status(id, "secret", 401))
		t.Logf("%s: refused after %v", id, took)
		if took > limit {
			t.Errorf("%s: refused after %v, want at most %v", id, took, limit)
		}
	}
	for i := range 3 {
		f.keepUp()
		for _, id := range []string{"dev4", "nobody"} {
			require.NoError(t, f.send(1, contract.CredentialMember(id), grant))
		}
		revoke(fmt.Sprint("dev", i), 2*time.Second)
	}
	await(t, "it is counted and logged", patience, func() error {
		if n := e.metric("gatehouse_chain_breaks_total"); n < 3 ||
			!strings.Contains(e.readLog("sidecar"), "not of the history that redis had") {
			return fmt.Errorf("got %v breaks, and %s", n, e.readLog("sidecar"))
		}
		return nil
	})

	running.Go(func() { // some thousands a second
		for i := 0; ctx.Err() == nil; i++ {
			id := []string{"dev4", "nobody"}[i%2]
			if i%100 == 0 {
				f.keepUp()
			}
			if f.send(i%3, contract.CredentialMember(id), grant) != nil {
				return
			}
		}
	})
	catchups, began := e.metric("gatehouse_catchups_total"), time.Now()
	revoke("dev3", 3*time.Second)
	await(t, "seconds of it", patience, func() error {
		if took := time.Since(began); took < 5*time.Second {
			return fmt.Errorf("%v", took)
		}
		return nil
	})
	took := time.Since(began)
	got := e.metric("gatehouse_catchups_total") - catchups
	t.Logf("under a flood of forged events: %.1f catch-ups a second", got/took.Seconds())
	if most := 8 + 6*took.Seconds(); got > most {
		t.Errorf("got %v catch-ups in %v, want at most %.0f", got, took, most)
	}
	stop()
	running.Wait()
	if n := let.Load(); n != 0 {
		t.Errorf("a forged secret was authenticated %d times", n)
	}
	await(t, "the good secret still is", patience, status("dev4", "secret", 200))
}

// keepUp reads the last number, like an attacker who can read, before the next event is forged.
func (f *forger) keepUp() {
	seq, err := f.redis.Get(context.WithoutCancel(f.t.Context()), contract.Keys{}.SeqKey()).Uint64()
	if err == nil {
		f.seq.Store(seq)
	}
}
