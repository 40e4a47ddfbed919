//go:build linux

package chart

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	agentNamespace = "gatehouse-agent"
	agentRelease   = "agent"
	agentSet       = "daemonset/agent-gatehouse"
)

// TestAgent moves a gateway from sidecars to the node's agent and back while requests are sent. The gateway's namespace
// admits only restricted pods.
func TestAgent(t *testing.T) {
	c := newCluster(t, "wasm")
	c.runSteps(t, []step{
		{"install with sidecars", c.install},
		{"publish and answer", c.checkAnswers},
		{"install the agent", c.installAgent},
		{"from sidecars to the agent under traffic", c.moveToAgent},
		{"publish and answer with the agent", c.checkAnswers},
		{"a revocation reaches both edges", func(t *testing.T) { c.revokeAtBoth(t, "8080") }},
		{"an edge in another namespace", c.refuseForeignEdge},
		{"rollout of the agent under traffic", c.rolloutAgent},
		{"without an agent", c.removeAgentMeanwhile},
		{"envoy killed", func(t *testing.T) { c.killContainer(t, "envoy"); c.checkSameAnswers(t) }},
		{"a third pod, and to nginx, under traffic", c.moveToNginx},
		{"another revocation", func(t *testing.T) { c.revokeAtBoth(t, "8080") }},
		{"back to sidecars under traffic", c.moveToSidecars},
		{"uninstall the agent", c.uninstallAgent},
		{"uninstall", c.uninstall},
	})
}

// installAgent installs the agent in a namespace that admits privileged pods.
func (c *cluster) installAgent(t *testing.T) {
	run(t, "", "kubectl", "create", "namespace", agentNamespace)
	run(t, "", "kubectl", "label", "namespace", agentNamespace, "pod-security.kubernetes.io/enforce=privileged")
	install := append([]string{"--namespace", agentNamespace, "install", agentRelease, chartDir}, c.values...)
	run(t, "", "helm", append(install, "--set", "mode=agent", "--set", "nodeAgent.namespaces={"+namespace+"}",
		// Of the test's cluster, beside its other files.
		"--set", "nodeAgent.kubeletDirectory="+filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "kubelet"),
		"--wait", "--timeout", "120s")...)
}

func (c *cluster) uninstallAgent(t *testing.T) {
	run(t, "", "helm", "--namespace", agentNamespace, "uninstall", agentRelease, "--wait")
	run(t, "", "kubectl", "delete", "namespace", agentNamespace)
}

// upgradeWith upgrades the gateway, and returns once the earlier pods are gone.
func (c *cluster) upgradeWith(t *testing.T, values ...string) {
	t.Helper()
	var before []string
	for _, pod := range c.edgePods(t) {
		before = append(before, pod.Metadata.Name)
	}
	c.helm(t, slices.Concat([]string{"upgrade", release, chartDir, "--wait", "--timeout", "120s"}, c.values, values)...)
	for _, pod := range before {
		c.awaitDeletion(t, pod)
	}
}

func (c *cluster) moveToAgent(t *testing.T) {
	c.requestDuring(t, func() { c.upgradeWith(t, "--set", "agent=node", "--set", "replicaCount=2") })
	c.agent = true
	c.checkSameAnswers(t)
}

func (c *cluster) moveToNginx(t *testing.T) {
	c.requestDuring(t, func() {
		c.upgradeWith(t, "--set", "agent=node", "--set", "replicaCount=3", "--set", "edge=nginx")
	})
	if pods := c.edgePods(t); len(pods) != 3 {
		t.Errorf("got %d pods, want 3", len(pods))
	}
	c.checkSameAnswers(t)
}

func (c *cluster) moveToSidecars(t *testing.T) {
	c.requestDuring(t, func() { c.upgradeWith(t) })
	c.agent = false
	c.checkSameAnswers(t)
}

// revokeAtBoth revokes the device: each pod's edge, at this port, refuses it.
func (c *cluster) revokeAtBoth(t *testing.T, port string) {
	addresses := strings.Fields(c.kubectl(t, "get", "pods", "--selector", c.selector,
		"--output", "jsonpath={.items[*].status.podIP}"))
	if len(addresses) < 2 {
		t.Fatalf("got the pods %q, want at least two", addresses)
	}
	awaitStatus := func(want int) {
		t.Helper()
		for _, address := range addresses {
			await(t, fmt.Sprintf("%s answers %d", address, want), func() error {
				if answer, _ := get(t, address+":"+port, "/config", credential); answer.StatusCode != want {
					return fmt.Errorf("got %s", answer.Status)
				}
				return nil
			})
		}
	}
	awaitStatus(http.StatusOK)
	c.ctl(t, "", "device", "revoke", device)
	awaitStatus(http.StatusUnauthorized)
	c.ctl(t, secret, "device", "put", device, "--secret-file=-", "--permissions=config.read")
	awaitStatus(http.StatusOK)
}

// refuseForeignEdge creates a pod that would be an edge, where none may be.
func (c *cluster) refuseForeignEdge(t *testing.T) {
	manifest := func(volume string) string {
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreign", "namespace": "default"},
			"spec": {"containers": [{"name": "pause", "image": "localhost/pause:dev"}],
			"volumes": [{"name": %q, "emptyDir": {}}]}}`, volume)
	}
	create := []string{"create", "--dry-run=server", "--filename", "-"}
	if _, err := runProgram(t.Context(), manifest("gatehouse"), "kubectl", create...); err == nil ||
		!strings.Contains(err.Error(), "is an edge of Gatehouse's agent") {
		t.Errorf("a pod with the agent's volume: got %v, want it refused", err)
	}
	run(t, manifest("other"), "kubectl", create...)
}

// rolloutAgent replaces the agent. The new agent fills each edge anew. Requests for objects may go upstream meanwhile,
// so no request asks for a 304.
func (c *cluster) rolloutAgent(t *testing.T) {
	sendDuring(t, c.edgeAddress(t), []ask{
		{"/products/1", nil, http.StatusOK}, {"/config", credential, http.StatusOK}, {"/other", nil, http.StatusOK},
	}, func() {
		run(t, "", "kubectl", "--namespace", agentNamespace, "rollout", "restart", agentSet)
		run(t, "", "kubectl", "--namespace", agentNamespace, "rollout", "status", agentSet, "--timeout=60s")
		await(t, "one agent is left", func() error {
			pods := run(t, "", "kubectl", "--namespace", agentNamespace, "get", "pods", "--output", "name")
			if len(strings.Fields(pods)) != 1 {
				return errors.New(pods)
			}
			return nil
		})
		c.awaitSettled(t)
	})
	t.Logf("the new agent: %s", run(t, "", "kubectl", "--namespace", agentNamespace, "logs", agentSet))
	c.checkSameAnswers(t)
}

// removeAgentMeanwhile takes the agent away: the pods stay ready, and their edges go on.
func (c *cluster) removeAgentMeanwhile(t *testing.T) {
	patch := func(node string) {
		run(t, "", "kubectl", "--namespace", agentNamespace, "patch", agentSet, "--type=merge",
			"--patch", `{"spec": {"template": {"spec": {"nodeSelector": `+node+`}}}}`)
	}
	patch(`{"no-such": "label"}`)
	run(t, "", "kubectl", "--namespace", agentNamespace, "wait", "--for=delete", "pod", "--all", "--timeout=60s")
	c.awaitSettled(t) // 2 s of hits
	for _, pod := range c.edgePods(t) {
		if !pod.ready() {
			t.Errorf("pod %s isn't ready without an agent", pod.Metadata.Name)
		}
	}
	patch("null")
	run(t, "", "kubectl", "--namespace", agentNamespace, "rollout", "status", agentSet, "--timeout=60s")
	await(t, "the agent has filled the edges", func() error {
		_, err := runProgram(t.Context(), "", "kubectl", "--namespace", agentNamespace, "exec", agentSet, "--",
			"gatehousectl", "ready")
		return err
	})
}
