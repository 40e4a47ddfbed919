package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestFullRedis uses up the memory of Redis: a sidecar that starts then becomes ready, the edge goes on, and devices
// can be revoked and objects deleted. Only what would be stored is refused.
func TestFullRedis(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.put("/v1/products/42", "body")
	e.put("/v1/products/43", "to be deleted")
	e.device("good", "secret", 4, "telemetry.write")
	e.device("bad", "secret", 4, "telemetry.write")
	e.device("other", "secret", 4, "telemetry.write")
	if err := e.redis.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := e.KillSidecar(); err != nil {
		t.Fatal(err)
	}
	if err := e.StartSidecar(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	clients := []*http.Client{shared}
	await(t, "the same answers", patience, func() error {
		for key, body := range map[string]string{"/v1/products/42": "body", "/v1/products/43": "to be deleted"} {
			if err := e.everyone(clients, says(body), "GET "+key); err != nil {
				return err
			}
		}
		for _, id := range []string{"good", "bad", "other"} {
			if err := e.everyone(clients, status(200), "POST /v1/telemetry", credential(id, "secret")...); err != nil {
				return err
			}
		}
		return nil
	})
	e.ctl("device", "revoke", "bad")
	e.until("the revoked device is refused", status(401), "POST /v1/telemetry", credential("bad", "secret")...)
	e.ctl("delete", "/v1/products/43")
	e.until("the deleted object goes upstream", func(a answer) bool {
		return !says("to be deleted")(a)
	}, "GET /v1/products/43")
	if out, err := python(t, "", pythonExample, e.RedisURL(), "revoke", "other"); err != nil {
		t.Errorf("revoked by another writer: got %v, %s", err, out)
	}
	e.until("the device of the other writer is refused", status(401), "POST /v1/telemetry",
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
