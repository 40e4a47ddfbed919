package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestSourceBehindProxies has a listener that trusts X-Forwarded-For, like a mesh's listeners, and a client that forges
// the header. With envoy.yaml's lines for proxies, the client neither evades the limits nor uses up the limits of
// another address.
func TestSourceBehindProxies(t *testing.T) {
	t.Parallel()
	const limit = 5
	shipped, err := os.ReadFile("../envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(shipped), "#source ") < 8 {
		t.Fatal("envoy.yaml has no lines for sources")
	}
	text := strings.ReplaceAll(string(shipped), "#source ", "")
	text = strings.Replace(text, "use_remote_address: true", "use_remote_address: false", 1)
	e := start(t, stack.Options{ConfigPath: writeFile(t, "envoy.yaml", text),
		SidecarArgs: []string{fmt.Sprintf("--limit.source=%d", limit), "--limit.device=0"}})
	const devices = 4 * limit
	for i := range devices {
		e.putDevice(fmt.Sprintf("dev-%d", i), "secret", 4, "telemetry.write")
	}
	e.awaitRecords(devices)
	// Wrong secrets, each with another claimed address.
	refused := 0
	for i := range devices {
		a := e.send("POST /v1/telemetry", append(credential(fmt.Sprintf("dev-%d", i), "wrong"),
			fmt.Sprintf("x-forwarded-for: 203.0.113.%d", i))...)
		if a.status == 503 {
			refused++
		}
	}
	if refused == 0 {
		t.Errorf("%d wrong secrets from one address met no limit", devices)
	}
}

// TestSourceIsNotWhatAClientSays: a client can't lock out a second client by claiming the second one's address.
func TestSourceIsNotWhatAClientSays(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	const victim = "x-real-ip: 203.0.113.9"
	e := start(t, stack.Options{
		Rules: `
credentials: {id_header: x-device-id, secret_header: x-device-token}
source: {header: x-real-ip}
rules:
- match: {prefix: /v1/telemetry}
  auth: {}
`,
		SidecarArgs: []string{"--limit.source=5", "--limit.device=0"}})
	const devices = 20
	for i := range devices + 1 {
		e.putDevice(fmt.Sprintf("dev-%d", i), "secret", 4, "telemetry.write")
	}
	e.awaitRecords(devices + 1)
	limited := 0
	for i := range devices {
		lines := append(credential(fmt.Sprintf("dev-%d", i), "wrong"), "x-real-ip: 203.0.113.9, 198.51.100.1",
			"x-forwarded-for: 203.0.113.9")
		if a := e.send("POST /v1/telemetry", lines...); a.status == 503 {
			limited++
		}
	}
	if limited == 0 {
		t.Errorf("%d wrong secrets from one address met no limit", devices)
	}
	last := credential(fmt.Sprintf("dev-%d", devices), "secret")
	if err := e.sendFromAll([]*http.Client{shared}, hasStatus(200), "POST /v1/telemetry",
		append(last, victim)...); err != nil {
		t.Errorf("a new device at the address that the others wrote: %v", err)
	}
}
