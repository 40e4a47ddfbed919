package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

// TestSourceBehindProxies has a listener that believes X-Forwarded-For, as those in a mesh do, and a client that writes it. With the
// lines of envoy.yaml for that, neither does the client evade the limits, nor does it use up another one's.
func TestSourceBehindProxies(t *testing.T) {
	const limit = 5
	shipped, err := os.ReadFile("../envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(shipped), "#source ") < 8 {
		t.Fatal("envoy.yaml has no lines for sources")
	}
	for _, direct := range []bool{true, false} { // without the lines it is as the client says
		text := string(shipped)
		if direct {
			text = strings.ReplaceAll(text, "#source ", "")
		}
		text = strings.Replace(text, "use_remote_address: true", "use_remote_address: false", 1)
		e := start(t, stack.Options{ConfigPath: writeFile(t, "envoy.yaml", text),
			SidecarArgs: []string{fmt.Sprintf("--limit.source=%d", limit), "--limit.device=0"}})
		const devices = 4 * limit
		for i := range devices {
			e.device(fmt.Sprintf("dev-%d", i), "secret", 4, "telemetry.write")
		}
		e.known(devices)
		// Wrong secrets, each as if it came from elsewhere.
		refused := 0
		for i := range devices {
			a := e.send("POST /v1/telemetry", append(credential(fmt.Sprintf("dev-%d", i), "wrong"), fmt.Sprintf("x-forwarded-for: 203.0.113.%d", i))...)
			if a.status == 503 {
				refused++
			}
		}
		if limited := refused > 0; limited != direct {
			t.Errorf("source of the connection: %v: %d of %d wrong secrets from one address met a limit", direct, refused, devices)
		}
	}
}

// TestSourceIsNotWhatAClientSays: nobody is locked out by who writes his address.
func TestSourceIsNotWhatAClientSays(t *testing.T) {
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
		e.device(fmt.Sprintf("dev-%d", i), "secret", 4, "telemetry.write")
	}
	e.known(devices + 1)
	limited := 0
	for i := range devices {
		lines := append(credential(fmt.Sprintf("dev-%d", i), "wrong"), "x-real-ip: 203.0.113.9, 198.51.100.1", "x-forwarded-for: 203.0.113.9")
		if a := e.send("POST /v1/telemetry", lines...); a.status == 503 {
			limited++
		}
	}
	if limited == 0 {
		t.Errorf("%d wrong secrets from one address met no limit", devices)
	}
	last := credential(fmt.Sprintf("dev-%d", devices), "secret")
	if err := e.everyone([]*http.Client{shared}, func(a answer) bool { return a.status == 200 }, "POST /v1/telemetry", append(last, victim)...); err != nil {
		t.Errorf("a new device at the address that the others wrote: %v", err)
	}
}
