package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestFullRedis uses up the memory of Redis: a sidecar that starts then becomes ready, the edge goes on, devices can be
// revoked, and objects deleted. Redis refuses only writes that need memory.
func TestFullRedis(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.put("/v1/products/42", "body")
	e.put("/v1/products/43", "to be deleted")
	e.putDevice("good", "secret", 4, "telemetry.write")
	e.putDevice("bad", "secret", 4, "telemetry.write")
	e.putDevice("other", "secret", 4, "telemetry.write")
	require.NoError(t, e.redis.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.NoError(t, e.KillSidecar())
	require.NoError(t, e.StartSidecar(t.Context()))
	require.NoError(t, e.AwaitReady(t.Context()))
	clients := []*http.Client{shared}
	await(t, "the same answers", patience, func() error {
		for key, body := range map[string]string{"/v1/products/42": "body", "/v1/products/43": "to be deleted"} {
			if err := e.sendFromAll(clients, hasBody(body), "GET "+key); err != nil {
				return err
			}
		}
		for _, id := range []string{"good", "bad", "other"} {
			if err := e.sendFromAll(clients, hasStatus(200), "POST /v1/telemetry", credential(id, "secret")...); err != nil {
				return err
			}
		}
		return nil
	})
	e.ctl("device", "revoke", "bad")
	e.awaitAnswer("the revoked device is refused", hasStatus(401), "POST /v1/telemetry", credential("bad", "secret")...)
	e.ctl("delete", "/v1/products/43")
	e.awaitAnswer("the deleted object goes upstream", func(a answer) bool {
		return !hasBody("to be deleted")(a)
	}, "GET /v1/products/43")
	if out, err := runPython(t, "", pythonExample, e.RedisURL(), "revoke", "other"); err != nil {
		t.Errorf("revoked by another writer: got %v, %s", err, out)
	}
	e.awaitAnswer("the device of the other writer is refused", hasStatus(401), "POST /v1/telemetry",
		credential("other", "secret")...)
	if out, err := gatehousectl(t, "put", "/v1/products/44", "--file", writeFile(t, "body", "new"),
		"--redis", e.RedisURL()); err == nil || !strings.Contains(out, "redis is full") {
		t.Errorf("put: got %v, %s; want that redis is full", err, out)
	}
	if a := e.send("POST /v1/telemetry", credential("good", "secret")...); a.status != 200 {
		t.Errorf("the other device: got %d, want 200", a.status)
	}
	if got := e.metric("gatehouse_redis_memory_ratio"); got < 1 {
		t.Errorf("got %v of maxmemory, want more than 1", got)
	}
}
