package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestRefusedWithoutACall checks the edge's refusals without a call, while valid credentials are authenticated: of a
// device that is new, rotates, or has a second secret, and of all devices after the sidecar was killed.
func TestRefusedWithoutACall(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	e := reuse(t, stack.Options{SidecarArgs: []string{"--verdict.allow-ttl=10m"}}) // no refresh, which would be a call
	clients := e.workerClients()
	calls := func() float64 { return e.metric("gatehouse_api_requests_total") }
	// in authenticates a device until each worker has read its verdict: a call about a wrong secret would make the worker
	// ask about each secret for a minute.
	in := func(id, secret string) {
		t.Helper()
		await(t, id+" is authenticated with "+secret+" without a call", patience, func() error {
			before := calls()
			if err := e.sendFromAll(clients, let, "POST /v1/telemetry", credential(id, secret)...); err != nil {
				return err
			}
			if n := calls() - before; n != 0 {
				return fmt.Errorf("%v calls", n)
			}
			return nil
		})
	}
	// free sends wrong credentials to both workers: both refuse, and make no calls after they have read the newest state.
	free := func(what string, wrong func(i int) []string) {
		t.Helper()
		e.awaitPushed()
		await(t, what+" cost no call", patience, func() error {
			before := calls()
			for i := range 20 {
				if err := e.sendFromAll(clients, refused, "POST /v1/telemetry", wrong(i)...); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			if n := calls() - before; n != 0 {
				return fmt.Errorf("%v calls for %d requests", n, 20*len(clients))
			}
			return nil
		})
	}
	random := func(id string) func(int) []string {
		return func(i int) []string { return credential(id, fmt.Sprint("wrong", i)) }
	}
	unknown := func(i int) []string { return credential(fmt.Sprint("unknown", i), "right") }
	all := func(when string) {
		t.Helper()
		free(when+", unknown devices", unknown)
		free(when+", wrong secrets of a device that is in", random("in"))
		free(when+", a re-keyed device's old secret", func(int) []string { return credential("changed", "before") })
		free(when+", a revoked device", func(int) []string { return credential("revoked", "right") })
	}

	e.putDevice("in", "right", 4, "telemetry.write")
	e.putDevice("changed", "before", 4, "telemetry.write")
	e.putDevice("revoked", "right", 4, "telemetry.write")
	for id, secret := range map[string]string{"in": "right", "changed": "before", "revoked": "right"} {
		in(id, secret)
	}
	free("at first, unknown devices", unknown)
	free("at first, wrong secrets", random("in"))
	e.putDevice("changed", "after", 4, "telemetry.write")
	in("changed", "after")
	e.putDevice("new", "right", 4, "telemetry.write")
	in("new", "right")
	free("wrong secrets of the new device", random("new"))
	e.ctl("device", "revoke", "revoked")
	e.putTwoSecrets("rotated", "old", "next")
	in("rotated", "old")
	in("rotated", "next")
	all("before")

	require.NoError(t, e.KillSidecar())
	require.NoError(t, e.StartSidecar(t.Context()))
	for _, c := range [][2]string{{"in", "right"}, {"changed", "after"}, {"new", "right"}, {"rotated", "old"},
		{"rotated", "next"}} {
		in(c[0], c[1])
	}
	all("after the sidecar was killed")
	free("the same, wrong secrets of the new device", random("new"))
	if err := e.sendFromAll([]*http.Client{shared}, refused, "POST /v1/telemetry",
		credential("rotated", "wrong")...); err != nil {
		t.Error(err)
	}
}

func (e *edge) putTwoSecrets(id string, secrets ...string) {
	e.t.Helper()
	d := publish.Device{ID: id, Permissions: []string{"telemetry.write"}}
	for _, secret := range secrets {
		hash, err := bcrypt.GenerateFromPassword([]byte(secret), 4)
		require.NoError(e.t, err)
		d.Hashes = append(d.Hashes, string(hash))
	}
	if _, err := e.publisher.PutDevice(e.t.Context(), d); err != nil {
		e.t.Fatal(err)
	}
}

// TestHeldSource sends wrong secrets from an address until the sidecar throttles the address: then the edge itself
// refuses the address's credentials for devices that were never authenticated. The state ends with the sidecar.
func TestHeldSource(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{SidecarArgs: []string{"--verdict.allow-ttl=10m", "--limit.source=3", "--limit.window=1h"}})
	const devices = 8
	for i := range devices {
		e.putDevice(fmt.Sprint("new", i), "right", 4, "telemetry.write")
	}
	e.awaitRecords(devices)
	bad, good := clientFrom(9), clientFrom(10) // each has one connection, and so one worker
	show := func(client *http.Client, device, secret string, status int) answer {
		t.Helper()
		a, err := e.try(client, "POST /v1/telemetry", credential(device, secret)...)
		if err != nil || a.status != status {
			t.Fatalf("%s, %q: got %d, %v; want %d", device, secret, a.status, err, status)
		}
		return a
	}
	for i := range 3 {
		show(bad, fmt.Sprint("new", i), "wrong", 401)
	}
	show(bad, "new0", "wrong again", 503)
	// Not reports of hits, which a reused Envoy may still make for an earlier test.
	const calls = `gatehouse_api_requests_total{call="verify",result="ok"}`
	before := e.metric(calls)
	for i := range 100 {
		a := show(bad, fmt.Sprint("new", i%devices), fmt.Sprint("guess", i), 503)
		if s, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || s < 1100 || s > 1200 {
			t.Errorf("got Retry-After %q, want the rest of 20 minutes in seconds", a.header.Get("Retry-After"))
		}
	}
	if n := e.metric(calls) - before; n != 0 {
		t.Errorf("%v calls for 100 attempts from a throttled address", n)
	}
	show(bad, "new5", "right", 503)
	show(good, "new5", "right", 200) // other addresses are not throttled
	e.awaitPushed()
	show(bad, "new5", "right", 200)
	show(bad, "new5", "wrong", 401)
	show(bad, "new6", "right", 503)
	require.NoError(t, errors.Join(e.KillSidecar(), e.StartSidecar(t.Context())))
	await(t, "the address is listened to again", patience, func() error {
		return e.sendFromAll([]*http.Client{bad}, let, "POST /v1/telemetry", credential("new6", "right")...)
	})
}
