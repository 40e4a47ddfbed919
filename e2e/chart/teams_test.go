//go:build linux

package chart

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/e2e/k8s"
	"github.com/gatehouse/gatehouse/testbed/upstream"
)

// team has a virtual host of the team's name, by a file of values, and a device with the permission that the rules
// require.
type team struct{ name, permission string }

// Both teams have the same paths. Each path is protected for one team, and open for the other.
var (
	shop  = team{"shop", "orders.read"}
	fleet = team{"fleet", "telemetry.read"}
)

func (tm team) host() string   { return tm.name + ".example" }
func (tm team) device() string { return tm.name + "-1" }
func (tm team) object() string { return fmt.Sprintf(`{"of": %q}`, tm.name) }
func (tm team) values() []string {
	return []string{"--values", filepath.Join(chartDir, "ci", "team-"+tm.name+".yaml")}
}

// ownUpstream are the values for the team's own upstream, at the address that pods can reach.
func (tm team) ownUpstream(port string) []string {
	at := "virtualHosts." + tm.name + ".upstream."
	return []string{"--set", at + "host=" + k8s.Gateway, "--set", at + "port=" + port}
}

// headerTo is the header of a request to a host, and by a device unless device is empty.
func headerTo(host, device string) http.Header {
	header := http.Header{"Host": {host}}
	if device != "" {
		header["X-Device-Id"], header["X-Device-Token"] = []string{device}, []string{secret}
	}
	return header
}

// publishTeams writes the objects and devices of the teams' services.
func publishTeams(t *testing.T, redisURL string) {
	client, err := redisurl.Connect(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	await(t, "Redis answers", func() error { return client.Ping(t.Context()).Err() })
	writer := publish.New(client)
	for _, tm := range []team{shop, fleet} {
		for _, path := range []string{"/products/1", "/products/only-" + tm.name} {
			object := publish.Object{Key: publish.KeyOfVirtualHost(tm.name, "", path), Body: []byte(tm.object()),
				ContentType: "application/json"}
			if _, err := writer.Put(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
		device := publish.Device{ID: tm.device(), Secret: secret, Permissions: []string{tm.permission},
			Cost: contract.MinCost} // so that a busy machine verifies it in time
		if _, err := writer.PutDevice(t.Context(), device); err != nil {
			t.Fatal(err)
		}
	}
}

// addTeam adds the second team's rules to the first one's, by one more file of values and these settings. The first
// team's requests are answered as before, all the time.
func (c *cluster) addTeam(t *testing.T, settings ...string) {
	orders := []ask{
		{"/orders", headerTo(shop.host(), ""), http.StatusUnauthorized},
		{"/orders", headerTo(shop.host(), shop.device()), http.StatusOK},
	}
	for _, ask := range orders {
		c.answersTo(t, ask.path, ask.header, ask.want)
	}
	c.answersTo(t, "/products/1", headerTo(fleet.host(), ""), http.StatusOK)
	answer, _ := c.get(t, "/products/1", headerTo(shop.host(), ""))
	known := headerTo(shop.host(), "")
	known["If-None-Match"] = answer.Header["Etag"] // answered with 304 for this object alone
	before := c.onlyPod(t)
	c.values = append(append(c.values, fleet.values()...), settings...)
	sendDuring(t, c.edgeAddress(t), append(orders, ask{"/products/1", known, http.StatusNotModified}), func() {
		c.helm(t, append([]string{"upgrade", release, chartDir}, c.values...)...)
		c.answersTo(t, "/products/1", headerTo(fleet.host(), ""), http.StatusUnauthorized)
		if c.entry != "" { // edges of our own are replaced
			c.awaitDeletion(t, before)
		}
	})
	if got := c.onlyPod(t); c.entry == "" && got != before {
		t.Errorf("got another pod, %s for %s", got, before)
	}
	c.bothTeams(t)
	said := c.kubectl(t, "exec", c.onlyPod(t), "--container", "gatehouse-sidecar", "--", "gatehousectl", "explain",
		"http://truck.fleet.example/products/1")
	if !strings.Contains(said, "fleet, by the domain *.fleet.example") {
		t.Errorf("gatehousectl explain: got %s, want the second team's virtual host", said)
	}
}

// bothTeams sends requests for which the host decides.
func (c *cluster) bothTeams(t *testing.T) {
	address := c.edgeAddress(t)
	for _, tt := range []struct {
		host, path, device string
		want               int
		object             string // "": the upstream's answer, or a refusal
	}{
		{"shop.example", "/products/1", "", http.StatusOK, shop.object()},
		{"SHOP.Example:8080", "/products/1", "", http.StatusOK, shop.object()},
		{"shop.example", "/products/only-shop", "", http.StatusOK, shop.object()},
		{"shop.example", "/products/only-fleet", "", http.StatusOK, ""},
		{"shop.example", "/orders", "", http.StatusUnauthorized, ""},
		{"shop.example", "/orders", fleet.device(), http.StatusForbidden, ""},
		{"shop.example", "/orders", shop.device(), http.StatusOK, ""},
		{"fleet.example", "/products/1", "", http.StatusUnauthorized, ""},
		{"Fleet.Example:8080", "/products/1", "", http.StatusUnauthorized, ""},
		{"fleet.example", "/products/1", shop.device(), http.StatusForbidden, ""},
		{"fleet.example", "/products/1", fleet.device(), http.StatusOK, fleet.object()},
		{"truck.fleet.example", "/products/1", "", http.StatusUnauthorized, ""},
		{"truck.fleet.example", "/products/1", fleet.device(), http.StatusOK, fleet.object()},
		{"fleet.example", "/products/only-shop", fleet.device(), http.StatusOK, ""},
		{"fleet.example", "/orders", "", http.StatusOK, ""},
	} {
		answer, text := get(t, address, tt.path, headerTo(tt.host, tt.device))
		good := answer.StatusCode == tt.want && isHit(answer) == (tt.object != "")
		if tt.object != "" {
			good = good && text == tt.object
		} else if tt.want == http.StatusOK {
			good = good && strings.Contains(text, fmt.Sprintf(`"path":%q`, tt.path))
		}
		if !good {
			t.Errorf("%s%s, device %q: got %d, %q, Cache-Status %q, want %d, object %q", tt.host, tt.path, tt.device,
				answer.StatusCode, text, answer.Header.Get("Cache-Status"), tt.want, tt.object)
		}
	}
}

// edgeBehindGateway returns the cluster with an edge of mode gateway, which receives the teams' requests from the
// Gateway.
func (c *cluster) edgeBehindGateway() *cluster {
	edge := *c
	edge.entry, edge.selector = c.selector, "app.kubernetes.io/component=gateway"
	edge.values = append(append([]string{}, c.values...), "--set", "mode=gateway", "--set", "envoy.trustedHops=1",
		"--set", "httpRoute.enabled=true", "--set", "httpRoute.parentRefs[0].name=eg",
		"--set", "httpRoute.hostnames={shop.example,fleet.example,*.fleet.example}")
	return &edge
}

// teamsBehind adds a team, with its own upstream, to the edge behind the Gateway.
func (c *cluster) teamsBehind(t *testing.T) {
	const port = "3003"
	edge, own := c.edgeBehindGateway(), new(upstream.Handler)
	edge.serve(port, own)
	edge.addTeam(t, fleet.ownUpstream(port)...)
	if got := own.Requests(); got != 2 { // of bothTeams
		t.Errorf("the second team's upstream saw %d requests, want 2", got)
	}
	edge.helm(t, "uninstall", release)
}
