package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestNATAcrossRestart kills the sidecar while a client behind the address of good devices sends 20 wrong secrets a
// second, with an id of theirs and with others. After the restart the good devices are authenticated, each after at
// most a few runs of bcrypt, although the address exceeds its limit; with shared verdicts, without any run.
func TestNATAcrossRestart(t *testing.T) {
	leaveToLongForm(t, "TestLockout, and TestKnownAcrossRestart of package credential")
	for name, shared := range map[string]bool{"alone": false, "shared verdicts": true} {
		t.Run(name, func(t *testing.T) { natAcrossRestart(t, shared) })
	}
}

func natAcrossRestart(t *testing.T, sharing bool) {
	const devices, cost, limit = 5, 10, 15 * time.Second
	// The address keeps one attempt a minute, too few to authenticate the good devices in time.
	args := []string{"--bcrypt.workers=1", "--limit.source=10", "--limit.device=5", "--limit.window=10m"}
	if sharing {
		args = append(args, "--verdict.secret-file="+writeFile(t, "fleet", fleetSecret))
	}
	e := reuse(t, stack.Options{SidecarArgs: args})
	for i := range devices {
		e.putDevice(fmt.Sprint("good", i), "right", cost, "telemetry.write")
		e.putDevice(fmt.Sprint("other", i), "right", cost, "telemetry.write")
	}
	e.awaitRecords(2 * devices)
	client := clientFrom(2)
	in := func(id string) error {
		a, err := e.try(client, "POST /v1/telemetry", credential(id, "right")...)
		if err == nil && a.status != 200 {
			err = fmt.Errorf("%s: got %d", id, a.status)
		}
		return err
	}
	all := func() error {
		var failed []error
		for i := range devices {
			failed = append(failed, in(fmt.Sprint("good", i)))
		}
		return errors.Join(failed...)
	}
	await(t, "good devices are authenticated", patience, all)
	stop := e.startGuessing(clientFrom(2), func(n int) string {
		return fmt.Sprint([]string{"good", "other", "nobody"}[n%3], n/3%devices)
	})
	defer stop()
	exceeded := func() {
		t.Helper()
		// On a busy machine bcrypt runs late for an address with failures.
		await(t, "the address is beyond its limit", 3*patience, func() error {
			if n := e.metric(`gatehouse_verifications_total{outcome="unavailable",reason="limited"}`); n < 1 {
				return fmt.Errorf("%v attempts were", n)
			}
			return nil
		})
	}
	exceeded()
	require.NoError(t, e.KillSidecar())
	require.NoError(t, e.StartSidecar(t.Context()))
	exceeded() // before any good device sends a request
	before := e.metric("gatehouse_bcrypt_total")
	took := await(t, "good devices are authenticated again", limit, all)
	runs := e.metric("gatehouse_bcrypt_total") - before
	t.Logf("%d good devices are in after %v and %v runs of bcrypt", devices, took, runs)
	if runs > 3*devices {
		t.Errorf("%v runs of bcrypt, want at most %d", runs, 3*devices)
	}
}

// startGuessing sends a wrong secret 20 times a second, with the device id that id returns, until stop is called.
func (e *edge) startGuessing(client *http.Client, id func(n int) string) (stop func()) {
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for n := 0; !done.Load(); n++ {
			<-tick.C
			if a, err := e.try(client, "POST /v1/telemetry", credential(id(n), randomSecret())...); err == nil &&
				a.status != 401 && a.status != 503 {
				e.t.Errorf("wrong credential: got %d", a.status)
			}
		}
	})
	return func() { done.Store(true); wg.Wait() }
}
