package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

var let, refused = hasStatus(200), hasStatus(401)

// awaitRecords waits until the sidecar has n credential records, and the edge has their devices.
func (e *edge) awaitRecords(n int) {
	e.t.Helper()
	defer e.awaitPushed()
	await(e.t, "devices are known", patience, func() error {
		if got := e.metric("gatehouse_credentials"); got != float64(n) {
			return fmt.Errorf("%v credentials", got)
		}
		return nil
	})
}

// awaitPushed waits until the edge has acknowledged all changes that the sidecar has now.
func (e *edge) awaitPushed() {
	e.t.Helper()
	await(e.t, "nothing waits to be pushed", patience, func() error {
		if n := e.metric("gatehouse_edge_memory_dirty_buckets"); n != 0 {
			return fmt.Errorf("%v buckets", n)
		}
		return nil
	})
	before := e.metric("gatehouse_pushes_total") // the last push may be under way
	await(e.t, "a push is acknowledged", patience, func() error {
		if e.metric("gatehouse_pushes_total") == before {
			return fmt.Errorf("none yet")
		}
		return nil
	})
}

// clientFrom returns a client whose address is 127.0.0.n.
func clientFrom(n int) *http.Client {
	c := newClient()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(n))}}
	c.Transport.(*http.Transport).DialContext = dialer.DialContext
	return c
}

// startFlood sends wrong credentials from 127.0.0.2 and up, on this many connections from each address, until stop is
// called, which returns the number of requests. None may be authenticated.
func (e *edge) startFlood(addresses, connections int, next func() []string) (stop func() int) {
	var done atomic.Bool
	var sent atomic.Int64
	var wg sync.WaitGroup
	for i := range addresses * connections {
		client := clientFrom(2 + i%addresses)
		wg.Go(func() {
			for !done.Load() {
				a, err := e.try(client, "POST /v1/telemetry", next()...)
				if err != nil || a.status != 401 && a.status != 503 || a.status == 503 && a.header.Get("Retry-After") == "" {
					e.t.Errorf("wrong credential: got %d, %v", a.status, err)
				}
				sent.Add(1)
			}
		})
	}
	return func() int {
		done.Store(true)
		wg.Wait()
		return int(sent.Load())
	}
}

func randomSecret() string { return fmt.Sprint("wrong", rand.Uint64()) }

// TestLockout sends wrong secrets for a device's id from many addresses. The device, which was never authenticated,
// succeeds; also with a new secret.
func TestLockout(t *testing.T) {
	leaveToNative(t)
	const addresses, limit = 24, 10 * time.Second
	e := reuse(t, stack.Options{})
	e.putDevice("target", "right", 8, "telemetry.write")
	e.awaitRecords(1)
	stop := e.startFlood(addresses, 2, func() []string { return credential("target", randomSecret()) })
	await(t, "the flood is here", patience, func() error {
		if n := e.metric("gatehouse_bcrypt_total"); n < 3 {
			return fmt.Errorf("%v runs of bcrypt", n)
		}
		return nil
	})
	in := func(what, secret string) {
		t.Helper()
		took := await(t, what, limit, func() error {
			return e.sendFromAll([]*http.Client{shared}, let, "POST /v1/telemetry", credential("target", secret)...)
		})
		t.Logf("%s: %s, after %v runs of bcrypt", what, took, e.metric("gatehouse_bcrypt_total"))
	}
	in("new device is let in", "right")
	for range 200 {
		if a := e.send("POST /v1/telemetry", credential("target", "right")...); !let(a) {
			t.Fatalf("an authenticated device: got %d", a.status)
		}
	}
	e.putDevice("target", "changed", 8, "telemetry.write")
	in("device with a new secret is let in", "changed")
	t.Logf("%d wrong secrets meanwhile", stop())
}

// TestFlood sends random credentials for known and unknown devices from many addresses while good devices send
// requests.
func TestFlood(t *testing.T) {
	leaveToLongForm(t, "TestLockout")
	const (
		devices, addresses = 20, 40
		enough             = 5000     // wrong credentials
		limit              = 64 << 20 // growth of the sidecar, bytes
	)
	e := reuse(t, stack.Options{SidecarArgs: []string{"--bcrypt.workers=1"}})
	for i := range devices {
		e.putDevice(fmt.Sprint("good", i), "right", 6, "telemetry.write")
		e.putDevice(fmt.Sprint("idle", i), "right", 10, "telemetry.write") // never sends a request
	}
	e.awaitRecords(2 * devices)
	round := func() {
		for i := range devices {
			if a := e.send("POST /v1/telemetry", credential(fmt.Sprint("good", i), "right")...); !let(a) {
				t.Errorf("good device: got %d %q", a.status, a.body)
			}
		}
	}
	round()
	before, pushed := e.sidecarRSS(), e.metric("gatehouse_push_operations_total")
	begin := time.Now()
	var tries atomic.Int64
	stop := e.startFlood(addresses, 2, func() []string {
		tries.Add(1)
		switch n := rand.IntN(20); {
		case n < 10:
			return credential(randomSecret(), randomSecret())
		case n < 19:
			return credential(fmt.Sprint("good", rand.IntN(devices)), randomSecret())
		default: // only these need bcrypt, and wait
			return credential(fmt.Sprint("idle", rand.IntN(devices)), randomSecret())
		}
	})
	for tries.Load() < enough {
		round()
		if n := e.metric("gatehouse_bcrypt_running"); n > 1 {
			t.Errorf("%v runs of bcrypt at once, want at most 1", n)
		}
	}
	sent, took, after := stop(), time.Since(begin), e.sidecarRSS()
	t.Logf("%d wrong credentials in %s (%.0f/s): %v runs of bcrypt, %v push operations, sidecar's RSS %d KiB before, %d "+
		"KiB after",
		sent, took.Round(time.Millisecond), float64(sent)/took.Seconds(), e.metric("gatehouse_bcrypt_total"),
		e.metric("gatehouse_push_operations_total")-pushed, before>>10, after>>10)
	if after-before > limit {
		t.Errorf("the sidecar's RSS grew by %d KiB, want at most %d", (after-before)>>10, limit>>10)
	}
}

// sidecarRSS returns the sidecar's resident set in bytes.
func (e *edge) sidecarRSS() int { return int(e.metric("process_resident_memory_bytes")) }

// TestRevocationDuringVerification revokes a device while bcrypt runs for the device.
func TestRevocationDuringVerification(t *testing.T) { // not in parallel: a run of cost 13 must end within a call's 2 s
	leaveToNative(t)
	e := reuse(t, stack.Options{})
	e.putDevice("dev", "right", 13, "telemetry.write")
	e.awaitRecords(1)
	status := make(chan int, 1)
	go func() {
		a, err := e.try(newClient(), "POST /v1/telemetry", credential("dev", "right")...)
		if err != nil {
			a.status = -1
		}
		status <- a.status
	}()
	await(t, "bcrypt runs", patience, func() error {
		if e.metric("gatehouse_bcrypt_running") == 0 {
			return fmt.Errorf("it doesn't")
		}
		return nil
	})
	e.ctl("device", "revoke", "dev")
	running := e.metric("gatehouse_bcrypt_running")
	if got := <-status; got != 401 {
		t.Errorf("the request that waited: got %d, want 401", got)
	}
	if running == 0 {
		t.Error("bcrypt ended before the revocation was there: nothing was shown")
	}
	if err := e.sendFromAll(e.workerClients(), refused, "POST /v1/telemetry", credential("dev", "right")...); err != nil {
		t.Error(err)
	}
}

// TestRevokeAll revokes all devices with one command.
func TestRevokeAll(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	const devices = 300
	e := reuse(t, stack.Options{SidecarArgs: []string{"--verdict.allow-ttl=10m"}})
	for i := range devices {
		e.putDevice(fmt.Sprint("dev", i), "right", 4, "telemetry.write")
	}
	e.awaitRecords(devices)
	each := func(ok func(answer) bool) error {
		for i := range devices {
			if err := e.sendFromAll([]*http.Client{shared}, ok, "POST /v1/telemetry",
				credential(fmt.Sprint("dev", i), "right")...); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(t, each(let))
	if out := e.ctl("device", "revoke", "--all"); out != "all devices: 300 revoked\n" {
		t.Errorf("got %q, want the count", out)
	}
	await(t, "every device is refused", patience, func() error { return each(refused) })
}

// TestPermissionChange removes a permission, and restores the permission, while a verdict with a long life exists.
func TestPermissionChange(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	e := reuse(t, stack.Options{SidecarArgs: []string{"--verdict.allow-ttl=10m"}})
	clients := e.workerClients()
	all := func(status int) func() error {
		return func() error {
			return e.sendFromAll(clients, func(a answer) bool {
				return a.status == status
			}, "POST /v1/telemetry", credential("dev", "right")...)
		}
	}
	e.putDevice("dev", "right", 4, "telemetry.write", "config.read")
	await(t, "device is authenticated", patience, all(200))
	for range 3 {
		e.putDevice("dev", "right", 4, "config.read")
		t.Logf("permission taken away: 403 everywhere after %s", await(t, "permission is gone", limit, all(403)))
		e.putDevice("dev", "right", 4, "telemetry.write", "brand.new")
		t.Logf("permission given: 200 everywhere after %s", await(t, "permission is back", limit, all(200)))
	}
}

// TestVerdictGrace kills the sidecar: verdict_grace keeps an expired verdict valid, and nothing else.
func TestVerdictGrace(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	e := start(t, stack.Options{
		SidecarArgs: []string{"--verdict.allow-ttl=1s"},
		Rules: "verdict_grace: 60s\nmax_staleness: 1s\n" + strings.ReplaceAll(basicRules, "{basic: true}",
			"{id_header: x-device-id, secret_header: x-device-token}"),
	})
	e.putDevice("known", "secret", 4, "telemetry.write")
	e.putDevice("new", "secret", 4, "telemetry.write")
	e.awaitRecords(2)
	good := credential("known", "secret")
	e.awaitAnswer("device is authenticated", let, "POST /v1/telemetry", good...)
	awaitVerdict(t, e)
	require.NoError(t, e.KillSidecar())
	await(t, "the verdict has expired and stands", patience, func() error {
		if a := e.send("POST /v1/telemetry", good...); a.status != 200 {
			t.Fatalf("got %d %q, want 200 by verdict_grace", a.status, a.body)
		}
		if e.edgeMetric("gatehouse_auth_requests_total", `outcome="grace"`) < 10 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	if a := e.send("POST /v1/telemetry", credential("new", "secret")...); a.status != 503 ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("new device without the sidecar: got %d, want 503 with Retry-After", a.status)
	}
	other := clientFrom(9) // who guesses while there is no sidecar gets no secret accepted
	// The edge's own refusals may change after the sidecar was silent for max_staleness.
	for name, lines := range map[string][]string{"wrong secret": credential("known", "wrong"),
		"unknown device": credential("nobody", "secret")} {
		await(t, name+" is not refused any more", patience, func() error {
			a, err := e.try(other, "POST /v1/telemetry", lines...)
			if err != nil || a.status == 401 {
				return fmt.Errorf("it is")
			}
			if a.status != 503 || a.header.Get("Retry-After") == "" {
				t.Errorf("%s without the sidecar: got %d, want 503 with Retry-After", name, a.status)
			}
			return nil
		})
	}
	e.ctl("device", "revoke", "known")
	if a := e.send("POST /v1/telemetry", good...); a.status != 200 {
		t.Errorf("revoked while the sidecar is away: got %d; the docs say that its verdict stays valid", a.status)
	}
	require.NoError(t, e.StartSidecar(t.Context()))
	await(t, "the revocation holds", patience, func() error {
		return e.sendFromAll(e.workerClients(), refused, "POST /v1/telemetry", good...)
	})
}

// TestRefreshAhead covers several lives of a verdict: no request waits for the next one.
func TestRefreshAhead(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	const lives = 3
	for _, pin := range []string{"1h", "0s"} {
		t.Run("pin "+pin, func(t *testing.T) {
			e := reuse(t, stack.Options{SidecarArgs: []string{"--verdict.allow-ttl=3s", "--verdict.pin-ttl=" + pin}})
			e.putDevice("known", "secret", 8, "telemetry.write")
			e.awaitRecords(1)
			good := credential("known", "secret")
			e.awaitAnswer("device is authenticated", let, "POST /v1/telemetry", good...)
			awaitVerdict(t, e)
			clients := e.workerClients()
			verified := e.metric("gatehouse_verifications_total")
			renewed := func(times float64) {
				t.Helper()
				await(t, "verdict is renewed", patience, func() error {
					require.NoError(t, e.sendFromAll(clients, let, "POST /v1/telemetry", good...))
					if got := e.metric("gatehouse_verifications_total") - verified; got < times {
						return fmt.Errorf("%v verifications", got)
					}
					return nil
				})
			}
			renewed(1) // by then Envoy's counters include the beginning, too
			waited := e.edgeMetric("gatehouse_calls_total", `call="verify"`)
			renewed(1 + lives)
			if got := e.edgeMetric("gatehouse_calls_total", `call="verify"`); got != waited {
				t.Errorf("%d requests have waited for a verification, want none", got-waited)
			}
			want := 1.0
			if pin == "0s" {
				want += e.metric("gatehouse_verifications_total") - verified
			}
			if got := e.metric("gatehouse_bcrypt_total"); got < 1 || got > want {
				t.Errorf("got %v runs of bcrypt, want at most %v", got, want)
			}
		})
	}
}
