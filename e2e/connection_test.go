package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestConnectionKeepsIdentity has clients name the identity headers in Connection. Between edge and service, a second
// proxy removes the headers that Connection names (RFC 9110, section 7.6.1): the service still learns the device, and
// WebSocket still works.
func TestConnectionKeepsIdentity(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(answerIdentity))
	defer service.Close()
	target, err := url.Parse(service.URL)
	if err != nil {
		t.Fatal(err)
	}
	hop := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	defer hop.Close()
	address := strings.TrimPrefix(hop.URL, "http://")
	e := start(t, stack.Options{Rules: upstreamRules, ModifyConfig: func(c *stack.Config) error {
		upgrades := []any{map[string]any{"upgrade_type": "websocket"}}
		if err := c.Set(upgrades, append(edgeManager, "upgrade_configs")...); err != nil {
			return err
		}
		return c.SetAddress(address, "static_resources", "clusters", "upstream", "load_assignment", "endpoints", "0",
			"lb_endpoints", "0", "endpoint")
	}, ModifyNginx: func(config string) string {
		config = regexp.MustCompile(`server 127[.0-9:]*;`).ReplaceAllString(config, "server "+address+";")
		return strings.Replace(config, "Connection $gatehouse_connection;",
			"Connection $http_connection;\n      proxy_set_header Upgrade $http_upgrade;", 1)
	}})
	e.putDevice("dev", "s3cret", 4, "telemetry.write")
	e.awaitAnswer("device", let, "POST /v1/telemetry", credential("dev", "s3cret")...)
	var checks sync.WaitGroup
	defer checks.Wait()
	for _, connection := range [][]string{
		{"Upgrade"},
		{"Upgrade, x-gatehouse-device"},
		{"x-gatehouse-permissions,X-Gatehouse-Device ,upgrade"},
		{"x-gatehouse-device", "Upgrade", "x-gatehouse-permissions"},
		{"keep-alive, x-gatehouse-device, Upgrade, , x-other"},
		{"keep-alive, x-gatehouse-device"},
		{"close, x-gatehouse-device"},
		{"x-gatehouse-device"},
	} {
		for _, forged := range []bool{false, true} {
			lines := credential("dev", "s3cret")
			for _, value := range connection {
				lines = append(lines, "Connection: "+value)
			}
			upgrade := ""
			if strings.Contains(strings.ToLower(strings.Join(connection, ",")), "upgrade") {
				upgrade = "websocket"
				lines = append(lines, "Upgrade: websocket")
			}
			if forged {
				lines = append(lines, "x-gatehouse-device: other")
			}
			checks.Go(func() { // Envoy ends an upgraded connection after a second
				a, err := e.try(shared, "GET /v1/telemetry", lines...)
				got, want := a.header.Get("x-saw"), strings.TrimSpace("dev telemetry.write "+upgrade)
				if err != nil || got != want {
					t.Errorf("Connection: %q, forged: %v: got %d, %v, the service saw %q, want %q", connection, forged, a.status,
						err, got, want)
				}
			})
		}
	}
}

// answerIdentity answers with the received identity, and accepts an upgrade.
func answerIdentity(w http.ResponseWriter, r *http.Request) {
	upgrade := r.Header.Get("Upgrade")
	saw := strings.TrimSpace(r.Header.Get("x-gatehouse-device") + " " + r.Header.Get("x-gatehouse-permissions") + " " +
		upgrade)
	if upgrade == "" {
		w.Header().Set("x-saw", saw)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // the client has gone
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 \r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Saw: %s\r\n\r\n", upgrade, saw)
}
