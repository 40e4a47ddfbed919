package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestTeams: a team registers devices with as many, as long permission names as the contract allows, each with its own,
// and all of them authenticate. Another team's devices and objects are as before, at the edge itself.
func TestTeams(t *testing.T) {
	t.Parallel()
	const verdicts = 1500
	e := reuse(t, stack.Options{SidecarArgs: []string{fmt.Sprint("--memory.verdicts=", verdicts),
		"--verdict.allow-ttl=10m"}})
	hash, err := bcrypt.GenerateFromPassword([]byte("s"), bcrypt.MinCost)
	require.NoError(t, err)
	put := func(id string, status int, names ...string) {
		t.Helper()
		_, err := e.publisher.PutDevice(t.Context(),
			publish.Device{ID: id, Hashes: []string{string(hash)}, Permissions: names})
		require.NoError(t, err)
		e.awaitAnswer(id, hasStatus(status), "POST /v1/telemetry", credential(id, "s")...)
	}
	post := func(id string, status int, names ...string) {
		t.Helper()
		a := e.send("POST /v1/telemetry", credential(id, "s")...)
		if a.status != status {
			t.Fatalf("%s: got %d, want %d", id, a.status, status)
		}
		if status != 200 {
			return
		}
		seen := strings.Join(a.seenByUpstream(t).Headers["x-gatehouse-permissions"], ",")
		if want := strings.Join(names, ","); seen != want {
			t.Fatalf("%s: the upstream saw permissions %q, want %q", id, seen, want)
		}
	}
	const own = 50
	for i := range own {
		put(fmt.Sprint("b", i), 200, fmt.Sprint("b.own:", i), "telemetry.write")
	}
	put("b-reader", 403, "config.read")
	e.put("/v1/products/1", `{"id":1}`)
	e.awaitAnswer("object", func(a answer) bool { return strings.Contains(a.header.Get("Cache-Status"), "hit") },
		"GET /v1/products/1")
	verified := func() float64 { return e.metric("gatehouse_verifications_total") }
	asBefore := func() (calls float64) {
		t.Helper()
		before := verified()
		for i := range own {
			post(fmt.Sprint("b", i), 200, fmt.Sprint("b.own:", i), "telemetry.write")
		}
		post("b-reader", 403)
		if a := e.send("GET /v1/products/1"); a.body != `{"id":1}` {
			t.Errorf("got %d %q, want the object", a.status, a.body)
		}
		return verified() - before
	}
	asBefore()
	devices := pickSize(1000, 150)
	for i := range devices {
		names := make([]string, limits.MaxPermissions)
		for n := range names {
			names[n] = fmt.Sprintf("a%0*d", limits.MaxPermissionName-1, i*limits.MaxPermissions+n)
		}
		status := 403
		if i%10 == 0 {
			names[limits.MaxPermissions-1], status = "telemetry.write", 200
		}
		id := fmt.Sprint("a", i)
		put(id, status, names...)
		post(id, status, names...)
	}
	if calls := asBefore(); calls != 0 {
		t.Errorf("%v credentials of the other team were verified again, want none", calls)
	}
}
