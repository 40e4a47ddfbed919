package e2e

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestReplica runs an edge whose objects come from a replica, and whose devices have a namespace of their own, with the
// documented permissions: while the replica stands still, devices are put, let in and revoked.
func TestReplica(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	master := redistest.StartServer(t)
	replica := redistest.StartServer(t, "--replicaof", "127.0.0.1 "+master.Port())
	devices := contract.Keyspace{Namespace: "devices"}
	for _, server := range []*redistest.Server{master, replica} {
		namespacedUsers(t, server.Client(t), contract.Keyspace{})
		setUser(t, server.Client(t), "reader", "~{gatehouse.devices:*}:*", "&{gatehouse.devices:*}:events")
	}
	e := reuse(t, stack.Options{
		RedisURL: "redis://" + master.Address, SidecarRedisURL: userURL(master, "reader", ""), Concurrency: 1,
		SidecarArgs: []string{"--redis.read=" + replica.Address, "--redis.device-namespace=devices",
			"--verdict.secret-file=" + writeFile(t, "fleet", fleetSecret)},
		Seed: func(ctx context.Context, url string) error {
			return errors.Join(stack.AcceptLoss(contract.Keyspace{})(ctx, url), stack.AcceptLoss(devices)(ctx, url))
		},
	})
	ofDevices := *e
	ofDevices.publisher = publish.New(master.Client(t), publish.Namespace(devices.Namespace))
	e.put("/v1/products/1", "first")
	e.awaitAnswer("the object", hasBody("first"), "GET /v1/products/1")

	replica.Signal(syscall.SIGSTOP)
	e.put("/v1/products/1", "second")
	ofDevices.putDevice("dev", "secret", 4, "telemetry.write")
	e.awaitAnswer("a new device", hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	if _, err := ofDevices.publisher.RevokeDevice(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	e.awaitAnswer("the revoked device", hasStatus(401), "POST /v1/telemetry", credential("dev", "secret")...)
	if a := e.send("GET /v1/products/1"); a.body == "second" {
		t.Error("the object didn't come from the replica")
	}
	replica.Signal(syscall.SIGCONT)
	e.awaitAnswer("the object's next version", hasBody("second"), "GET /v1/products/1")
	out, err := gatehousectl(t, "explain", "/v1/telemetry", "--method", "POST", "--device", "dev", "--sidecar",
		strings.TrimPrefix(e.SidecarAdminURL(), "http://"))
	if err != nil || !strings.Contains(out, "version 2, revoked, of") {
		t.Errorf("explain: %v: %s", err, out)
	}
	log := e.readLog("sidecar")
	if strings.Contains(log, "NOPERM") || !strings.Contains(log, "objects are read from a replica") {
		t.Errorf("got log %s", log)
	}
}
