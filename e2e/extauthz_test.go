package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

type opa struct {
	t               *testing.T
	binary, address string
	policy          string // a file
	child           *stack.Child
}

func startOPA(t *testing.T, policy string) *opa {
	t.Helper()
	binary, err := exec.CommandContext(t.Context(), "../scripts/install-opa.sh").Output()
	if err != nil {
		t.Fatalf("install-opa.sh: %v", err)
	}
	o := &opa{t: t, binary: strings.TrimSpace(string(binary)), address: redistest.FreeAddress(t),
		policy: filepath.Join(t.TempDir(), "devices.rego")}
	o.writePolicy(policy)
	o.start()
	t.Cleanup(func() { o.kill() })
	return o
}

func (o *opa) writePolicy(policy string) {
	require.NoError(o.t, os.WriteFile(o.policy, []byte(policy), 0o600))
}

func (o *opa) start() {
	o.t.Helper()
	child, err := stack.StartChild("opa", o.binary, []string{"run", "--server", "--addr=" + redistest.FreeAddress(o.t),
		"--set=plugins.envoy_ext_authz_grpc.addr=" + o.address, "--set=plugins.envoy_ext_authz_grpc.path=devices/answer",
		"--disable-telemetry", o.policy}, nil, o.policy+".log", func(error) {})
	require.NoError(o.t, err)
	o.child = child
	await(o.t, "OPA listens", patience, func() error {
		conn, err := new(net.Dialer).DialContext(o.t.Context(), "tcp", o.address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

func (o *opa) signal(signal syscall.Signal) {
	o.t.Helper()
	require.NoError(o.t, syscall.Kill(o.child.PID(), signal))
}

func (o *opa) kill() {
	o.signal(syscall.SIGKILL)
	_ = o.child.Stop() // it was killed
}

// TestExternalAuthorization authenticates devices by the policy in docs/authority.md, which OPA evaluates: while OPA is
// well, and before and after OPA hangs, is killed, or evaluates a policy that gives no answer.
func TestExternalAuthorization(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/authority.md")
	require.NoError(t, err)
	policy := codeBlock(t, string(text), "rego")
	o := startOPA(t, policy)
	e := start(t, stack.Options{
		SidecarArgs: []string{"--authority.url=grpc://" + o.address, "--verdict.allow-ttl=2s", "--verdict.deny-ttl=0s"},
		Rules: "verdict_grace: 60s\n" + strings.ReplaceAll(basicRules, "{basic: true}",
			"{id_header: x-device-id, secret_header: x-device-token}"),
	})
	good := credential("truck-7", "s3cret")
	e.awaitAnswer("the device is let in", hasStatus(200), "POST /v1/telemetry", good...)
	denied := func() {
		t.Helper()
		for _, wrong := range [][]string{credential("truck-7", "wrong"), credential("truck-8", "s3cret")} {
			e.awaitAnswer("OPA denies", hasStatus(401), "POST /v1/telemetry", wrong...)
		}
	}
	denied()
	grace := func(while string) {
		t.Helper()
		before := e.edgeMetric("gatehouse_auth_requests_total", `outcome="grace"`)
		await(t, "the verdict has expired and stands", patience, func() error {
			if got := e.send("POST /v1/telemetry", good...); got.status != 200 {
				t.Fatalf("%s: got %d %q, want 200 by verdict_grace", while, got.status, got.body)
			}
			if e.edgeMetric("gatehouse_auth_requests_total", `outcome="grace"`) < before+2 {
				return fmt.Errorf("not yet")
			}
			return nil
		})
		for _, lines := range [][]string{credential("truck-9", "s3cret"), credential("truck-7", "guess")} {
			if got := e.send("POST /v1/telemetry", lines...); got.status != 503 || got.header.Get("Retry-After") == "" {
				t.Errorf("%s, %q: got %d, want 503 with Retry-After", while, lines, got.status)
			}
		}
	}
	o.signal(syscall.SIGSTOP)
	grace("OPA hangs")
	o.signal(syscall.SIGCONT)
	denied()
	o.kill()
	grace("OPA is killed")
	o.writePolicy("package devices\n\nanswer := 7\n")
	o.start()
	await(t, "OPA is asked", patience, func() error {
		if got := e.send("POST /v1/telemetry", credential("truck-9", "s3cret")...); got.status != 503 {
			t.Fatalf("an answer that is none: %d", got.status)
		}
		if e.metric("gatehouse_authority_broken") != 0 {
			return fmt.Errorf("still skipped")
		}
		return nil
	})
	o.kill()
	o.writePolicy(strings.Replace(policy, "s3cret", "new", 1))
	o.start()
	e.awaitAnswer("OPA lets the new secret in", hasStatus(200), "POST /v1/telemetry", credential("truck-7", "new")...)
	e.awaitAnswer("the former one is refused", hasStatus(401), "POST /v1/telemetry", good...)
	if log := e.readLog("sidecar"); strings.Contains(log, "s3cret") || strings.Contains(log, "guess") {
		t.Error("the log has a secret")
	}
}
