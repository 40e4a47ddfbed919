//go:build linux

package chart

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEnvoyGateway installs the chart under a real Envoy Gateway as docs/install/envoy-gateway.md describes. The steps
// build on each other.
func TestEnvoyGateway(t *testing.T) {
	c := newMesh(t, "envoy-gateway", "gateway.envoyproxy.io/owning-gateway-name=eg")
	c.values = append(c.values, "--set", "envoyGateway.gateway=eg", "--set", "envoyGateway.xdsListeners={"+
		namespace+"/eg/http,"+namespace+"/eg/second}",
		"--set", "envoyGateway.wasm.image="+moduleImage)
	steps := []step{
		{"a gateway, and an edge behind it", c.installEnvoyGateway},
		{"another team under traffic at that edge", c.teamsBehind},
		{"install", c.installAtGateway},
		{"publish and answer", c.checkAnswers},
		{"another listener", c.secondListener().checkSameAnswers},
		{"another team under traffic", func(t *testing.T) { c.addTeam(t); c.checkSameAnswers(t) }},
		{"both teams at another listener", c.secondListener().bothTeams},
		{"the administrator's settings", c.keepsDefaults},
		{"revocation", c.revokeDevice},
		{"other rules under traffic", c.upgradeRules},
		{"another release under traffic", c.upgradeSidecar},
		{"patches removed", c.removePatchPolicy},
		{"rules removed", c.removeExtensionPolicy},
		{"uninstall", c.uninstallFromGateway},
	}
	if !testing.Short() { // the policies and the sidecar are the same
		steps = slices.Insert(steps, len(steps)-1, []step{
			{"install the agent", c.installAgent},
			{"from the sidecar to the agent under traffic", c.moveTo(firstAgent, c.upgradeGateway)},
			{"revocation with the agent", c.revokeDevice},
			{"rollout of the agent under traffic", c.rolloutAgent},
			{"without an agent", c.removeAgentMeanwhile},
			{"back to the sidecar under traffic", c.moveTo("", c.upgradeGateway)},
			{"uninstall the agent", func(t *testing.T) { uninstallAgent(t, firstAgent) }},
		}...)
		steps = append(steps, []step{
			{"install the dynamic module", c.installNative},
			{"publish and answer with that", c.checkAnswers},
			{"another listener with that", c.secondListener().checkSameAnswers},
			{"both teams with that", c.bothTeams},
			{"revocation with that", c.revokeDevice},
			{"other rules under traffic with that", c.upgradeRules},
			{"rules removed with that", c.removeExtensionPolicy},
			{"uninstall with that", c.uninstallFromGateway},
		}...)
	}
	c.runSteps(t, steps)
}

// installEnvoyGateway installs Envoy Gateway and a Gateway, and waits until the Gateway serves. The edge behind the
// Gateway starts meanwhile.
func (c *cluster) installEnvoyGateway(t *testing.T) {
	pushImage(t, "gatehouse-module", moduleImage)
	importImage(t, "localhost/envoy-gateway:dev", "envoy-gateway", nil)
	run(t, "", "helm", "install", "eg", filepath.Join(meshDir(t), "charts", "gateway-helm"),
		"--namespace", "envoy-gateway-system",
		"--create-namespace", "--values", "testdata/envoy-gateway.yaml", "--wait", "--timeout", "120s")
	edge := c.edgeBehindGateway()
	edge.helm(t, append([]string{"install", release, chartDir}, edge.values...)...)
	c.kubectl(t, "apply", "--filename", "testdata/gateway.yaml")
	await(t, "the gateway's service", func() error {
		if c.kubectl(t, "get", "service", "--selector", c.selector, "--output", "name") == "" {
			return errors.New("none")
		}
		return nil
	})
	c.awaitForwarding(t)
}

func (c *cluster) installAtGateway(t *testing.T) {
	c.kubectl(t, "apply", "--filename", "testdata/team-routes.yaml")
	c.helm(t, append([]string{"install", release, c.pushChart(t), "--plain-http"}, c.values...)...)
	c.referToEnvoyProxy(t)
}

// referToEnvoyProxy makes the Gateway use the chart's EnvoyProxy, and waits for the Gateway's new pod.
func (c *cluster) referToEnvoyProxy(t *testing.T) {
	before := c.onlyPod(t)
	c.kubectl(t, "patch", "gateway", "eg", "--type", "merge", "--patch",
		`{"spec": {"infrastructure": {"parametersRef": {"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": "`+
			release+`-gatehouse"}}}}`)
	c.awaitReplacement(t, before)
}

// installNative installs with the filter as a dynamic module, which comes with the sidecar's image. Before the Gateway
// uses the EnvoyProxy that allows the module, the Gateway must neither load the module nor serve without the module.
func (c *cluster) installNative(t *testing.T) {
	c.values = append(c.values, "--set", "edge=native")
	c.helm(t, append([]string{"install", release, c.pushChart(t), "--plain-http"}, c.values...)...)
	c.answersWith(t, "/unruled", http.StatusForbidden)
	c.referToEnvoyProxy(t)
	c.checkConfined(t)
}

// secondListener returns the cluster with requests to the Gateway's second listener.
func (c *cluster) secondListener() *cluster {
	other := *c
	other.listener = 1
	return &other
}

// awaitReplacement waits until a new pod has replaced the pod before.
func (c *cluster) awaitReplacement(t *testing.T, before string) {
	t.Helper()
	c.awaitDeletion(t, before)
	await(t, "the other pod is ready", func() error {
		if pods := c.edgePods(t); len(pods) != 1 || !pods[0].ready() {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
}

// keepsDefaults checks that our EnvoyProxy is merged with the EnvoyProxy that Envoy Gateway's administrator configured
// for all proxies.
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

func (c *cluster) upgradeSidecar(t *testing.T) {
	c.values = append(c.values, "--set", "sidecar.settings.log.level=debug")
	c.upgradeGateway(t)
	c.checkSameAnswers(t)
}

// upgradeGateway upgrades under traffic to values for which Envoy Gateway replaces the pod.
func (c *cluster) upgradeGateway(t *testing.T) {
	before := c.onlyPod(t)
	c.requestDuring(t, func() {
		c.helm(t, append([]string{"upgrade", release, chartDir}, c.values...)...)
		c.awaitReplacement(t, before)
	})
}

// removePatchPolicy removes the EnvoyPatchPolicy: neither the running pod nor a new one, which has only the rules and
// therefore no sidecar to ask, answers requests that need a credential. The next upgrade restores the policy.
func (c *cluster) removePatchPolicy(t *testing.T) {
	before := c.onlyPod(t)
	c.refuseDuring(t, func() {
		c.kubectl(t, "delete", "envoypatchpolicy", release+"-gatehouse")
		c.kubectl(t, "delete", "pod", before, "--grace-period=1")
		c.awaitDeletion(t, before)
		port := c.kubectl(t, "get", "service", "--selector", c.selector,
			"--output", "jsonpath={.items[0].spec.ports[0].targetPort}")
		await(t, "the new pod refuses a device", func() error {
			// The service doesn't send requests to this pod: the sidecar isn't ready.
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
	c.awaitSettled(t)
	c.checkSameAnswers(t)
}

// removeExtensionPolicy removes the EnvoyExtensionPolicy: every request with a route is denied, also without a rule.
// The next upgrade restores the policy.
func (c *cluster) removeExtensionPolicy(t *testing.T) {
	c.answersWith(t, "/unruled", http.StatusOK)
	c.refuseDuring(t, func() {
		c.kubectl(t, "delete", "envoyextensionpolicy", release+"-gatehouse")
		c.answersWith(t, "/config", http.StatusForbidden)
	})
	c.answersWith(t, "/unruled", http.StatusForbidden)
	c.secondListener().answersWith(t, "/config", http.StatusForbidden)
	c.helm(t, append([]string{"upgrade", release, chartDir}, c.values...)...)
	c.answersWith(t, "/unruled", http.StatusOK)
	c.awaitSettled(t)
	c.checkSameAnswers(t)
}

func (c *cluster) uninstallFromGateway(t *testing.T) {
	before := c.onlyPod(t)
	c.kubectl(t, "patch", "gateway", "eg", "--type", "json", "--patch",
		`[{"op": "remove", "path": "/spec/infrastructure"}]`)
	c.uninstall(t)
	c.awaitReplacement(t, before)
	c.awaitForwarding(t)
}
