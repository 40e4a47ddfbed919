//go:build linux

package chart

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestEnvoyGateway installs the chart under a real Envoy Gateway as docs/install/envoy-gateway.md describes. Its steps
// build on each other.
func TestEnvoyGateway(t *testing.T) {
	c := newMesh(t, "envoy-gateway", "gateway.envoyproxy.io/owning-gateway-name=eg")
	c.values = append(c.values, "--set", "envoyGateway.gateway=eg", "--set", "envoyGateway.xdsListeners={"+
		namespace+"/eg/http,"+namespace+"/eg/second}",
		"--set", "envoyGateway.wasm.image="+moduleImage)
	steps := []step{
		{"a gateway, and an edge behind it", c.gateway},
		{"another team under traffic at that edge", c.teamsBehind},
		{"install", c.installAtGateway},
		{"publish and answer", c.answers},
		{"another listener", c.second().same},
		{"another team under traffic", func(t *testing.T) { c.addTeam(t); c.same(t) }},
		{"both teams at another listener", c.second().bothTeams},
		{"the administrator's settings", c.keepsDefaults},
		{"revocation", c.revoke},
		{"other rules under traffic", c.upgradeRules},
		{"another release under traffic", c.upgradeSidecar},
		{"patches removed", c.unpatched},
		{"rules removed", c.ruleless},
		{"uninstall", c.uninstallFromGateway},
	}
	if !testing.Short() { // the policies and the sidecar are the same
		steps = append(steps, []step{
			{"install the dynamic module", c.installNative},
			{"publish and answer with that", c.answers},
			{"another listener with that", c.second().same},
			{"both teams with that", c.bothTeams},
			{"revocation with that", c.revoke},
			{"other rules under traffic with that", c.upgradeRules},
			{"rules removed with that", c.ruleless},
			{"uninstall with that", c.uninstallFromGateway},
		}...)
	}
	c.steps(t, steps)
}

// gateway installs Envoy Gateway and a Gateway, which serves. The edge behind it starts meanwhile.
func (c *cluster) gateway(t *testing.T) {
	c.serveImage(t, "gatehouse-module", moduleImage)
	load(t, "localhost/envoy-gateway:dev", "envoy-gateway", nil)
	run(t, "", "helm", "install", "eg", filepath.Join(meshDir(t), "charts", "gateway-helm"),
		"--namespace", "envoy-gateway-system",
		"--create-namespace", "--values", "testdata/envoy-gateway.yaml", "--wait", "--timeout", "120s")
	edge := c.behind()
	edge.helm(t, append([]string{"install", release, chartDir}, edge.values...)...)
	c.kubectl(t, "apply", "--filename", "testdata/gateway.yaml")
	await(t, "the gateway's service", func() error {
		if c.kubectl(t, "get", "service", "--selector", c.selector, "--output", "name") == "" {
			return errors.New("none")
		}
		return nil
	})
	c.forwards(t)
}

func (c *cluster) installAtGateway(t *testing.T) {
	c.kubectl(t, "apply", "--filename", "testdata/team-routes.yaml")
	c.helm(t, append([]string{"install", release, c.pushChart(t), "--plain-http"}, c.values...)...)
	c.refer(t)
}

// refer makes the Gateway use the chart's EnvoyProxy, and waits for the pod that it then gets.
func (c *cluster) refer(t *testing.T) {
	before := c.pod(t)
	c.kubectl(t, "patch", "gateway", "eg", "--type", "merge", "--patch",
		`{"spec": {"infrastructure": {"parametersRef": {"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": "`+
			release+`-gatehouse"}}}}`)
	c.replaced(t, before)
}

// installNative installs with the filter as a dynamic module, which comes with the sidecar's image. The Gateway must
// not load it, nor serve without it, before it uses the EnvoyProxy that allows it.
func (c *cluster) installNative(t *testing.T) {
	c.values = append(c.values, "--set", "edge=native")
	c.helm(t, append([]string{"install", release, c.pushChart(t), "--plain-http"}, c.values...)...)
	c.answersWith(t, "/unruled", http.StatusForbidden)
	c.refer(t)
	c.confined(t)
}

// pushChart pushes the chart to the registry, and returns its address there.
func (c *cluster) pushChart(t *testing.T) string {
	dir := t.TempDir()
	c.helm(t, "package", chartDir, "--destination", dir)
	archives, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("helm package: got %v, %v", archives, err)
	}
	c.helm(t, "push", archives[0], "oci://"+registryAddress+"/charts", "--plain-http")
	return "oci://" + registryAddress + "/charts/gatehouse"
}

// second returns the cluster with requests to the Gateway's other listener.
func (c *cluster) second() *cluster {
	other := *c
	other.listener = 1
	return &other
}

// replaced waits until another pod has taken the place of this one.
func (c *cluster) replaced(t *testing.T, before string) {
	t.Helper()
	c.gone(t, before)
	await(t, "the other pod is ready", func() error {
		if pods := c.pods(t); len(pods) != 1 || !pods[0].ready() {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
}

// keepsDefaults checks that our EnvoyProxy is merged with the one that Envoy Gateway's administrator configured for all
// proxies.
func (c *cluster) keepsDefaults(t *testing.T) {
	for path, want := range map[string]string{
		`pods={.items[0].spec.containers[?(@.name=="envoy")].image}`:                      "localhost/gatehouse-envoy:dev",
		`pods={.items[0].spec.containers[?(@.name=="envoy")].resources.requests.cpu}`:     "50m",
		`pods={.items[0].spec.initContainers[?(@.name=="gatehouse-sidecar")].command[0]}`: "gatehouse-sidecar",
		`services={.items[0].spec.type}`:                                                  "ClusterIP",
	} {
		kind, path, _ := strings.Cut(path, "=")
		if got := c.kubectl(t, "get", kind, "--selector", c.selector, "--output", "jsonpath="+path); got != want {
			t.Errorf("%s of %s: got %q, want %q", path, kind, got, want)
		}
	}
}

// upgradeSidecar upgrades to other settings of the sidecar: Envoy Gateway replaces the pod.
func (c *cluster) upgradeSidecar(t *testing.T) {
	before := c.pod(t)
	c.values = append(c.values, "--set", "sidecar.settings.log.level=debug")
	c.load(t, func() {
		c.helm(t, append([]string{"upgrade", release, chartDir}, c.values...)...)
		c.replaced(t, before)
	})
	c.same(t)
}

// unpatched removes the EnvoyPatchPolicy: neither the running pod nor a new one, which has only the rules and so no
// sidecar to ask, answers what needs a credential. The next upgrade brings it back.
func (c *cluster) unpatched(t *testing.T) {
	before := c.pod(t)
	c.closed(t, func() {
		c.kubectl(t, "delete", "envoypatchpolicy", release+"-gatehouse")
		c.kubectl(t, "delete", "pod", before, "--grace-period=1")
		c.gone(t, before)
		port := c.kubectl(t, "get", "service", "--selector", c.selector,
			"--output", "jsonpath={.items[0].spec.ports[0].targetPort}")
		await(t, "the new pod refuses a device", func() error {
			// The service doesn't send requests there: the sidecar isn't ready.
			address := c.kubectl(t, "get", "pods", "--selector", c.selector, "--output", "jsonpath={.items[0].status.podIP}")
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
				"http://"+net.JoinHostPort(address, port)+"/config", nil)
			if err != nil {
				return err
			}
			request.Header = credential
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusServiceUnavailable {
				return fmt.Errorf("got %s", answer.Status)
			}
			return nil
		})
	})
	c.helm(t, append([]string{"upgrade", release, chartDir}, c.values...)...)
	c.settled(t)
	c.same(t)
}

// ruleless removes the EnvoyExtensionPolicy: what has a route is denied, also without a rule. The next upgrade brings
// it back.
func (c *cluster) ruleless(t *testing.T) {
	c.answersWith(t, "/unruled", http.StatusOK)
	c.closed(t, func() {
		c.kubectl(t, "delete", "envoyextensionpolicy", release+"-gatehouse")
		c.answersWith(t, "/config", http.StatusForbidden)
	})
	c.answersWith(t, "/unruled", http.StatusForbidden)
	c.second().answersWith(t, "/config", http.StatusForbidden)
	c.helm(t, append([]string{"upgrade", release, chartDir}, c.values...)...)
	c.answersWith(t, "/unruled", http.StatusOK)
	c.settled(t)
	c.same(t)
}

func (c *cluster) uninstallFromGateway(t *testing.T) {
	before := c.pod(t)
	c.kubectl(t, "patch", "gateway", "eg", "--type", "json", "--patch",
		`[{"op": "remove", "path": "/spec/infrastructure"}]`)
	c.uninstall(t)
	c.replaced(t, before)
	c.forwards(t)
}
