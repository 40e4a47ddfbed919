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

// firstAgent and secondAgent are the node's agents: their releases, and the namespaces in which each is alone.
const firstAgent, secondAgent = "agent", "agent-two"

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
		{"to an agent of another namespace of Redis under traffic", c.moveToSecondAgent},
		{"another revocation there", func(t *testing.T) { c.revokeAtBoth(t, "8080") }},
		{"back to sidecars under traffic", c.moveToSidecars},
		{"uninstall", func(t *testing.T) { uninstallAgent(t, secondAgent); c.uninstall(t) }},
	})
}

func (c *cluster) installAgent(t *testing.T) { c.installAgentAs(t, firstAgent) }

// installAgentAs installs an agent in a namespace that admits privileged pods.
func (c *cluster) installAgentAs(t *testing.T, name string, values ...string) {
	run(t, "", "kubectl", "create", "namespace", name)
	run(t, "", "kubectl", "label", "namespace", name, "pod-security.kubernetes.io/enforce=privileged")
	run(t, "", "helm", slices.Concat([]string{"--namespace", name, "install", name, chartDir}, c.values, []string{
		"--set", "mode=agent", "--set", "nodeAgent.namespaces={" + namespace + "}",
		// Of the test's cluster, beside its other files.
		"--set", "nodeAgent.kubeletDirectory=" + filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "kubelet"),
		"--wait", "--timeout", "120s"}, values)...)
}

func uninstallAgent(t *testing.T, name string) {
	run(t, "", "helm", "--namespace", name, "uninstall", name, "--wait")
	run(t, "", "kubectl", "delete", "namespace", name)
}

// kubectlAtAgent runs kubectl in the namespace of the agent that the edges have; its DaemonSet is agentSet.
func (c *cluster) kubectlAtAgent(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "", "kubectl", append([]string{"--namespace", c.agent}, args...)...)
}

func (c *cluster) agentSet() string { return "daemonset/" + c.agent + "-gatehouse" }

// moveTo returns a step that moves the pods of a mesh to an agent, "": to sidecars. upgrade upgrades the release.
func (c *cluster) moveTo(agent string, upgrade func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) {
		where := "node"
		if agent == "" {
			where = "pod"
		}
		c.values = append(c.values, "--set", "agent="+where)
		upgrade(t)
		c.agent = agent
		c.checkSameAnswers(t)
	}
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
	c.agent = firstAgent
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

// moveToSecondAgent moves the edges to an agent that follows another namespace of Redis, with another number of shards,
// as docs/agent.md describes, and removes the first agent.
func (c *cluster) moveToSecondAgent(t *testing.T) {
	const volume = "gatehouse-two"
	c.installAgentAs(t, secondAgent, "--set", "nodeAgent.volume="+volume, "--set", "redis.namespace=two",
		"--set", "redis.shards=8")
	c.agent = secondAgent // gatehousectl writes to its namespace of Redis
	for _, path := range []string{"/products/1", "/config"} {
		c.ctl(t, body, "put", path, "--file=-", "--content-type=application/json")
	}
	c.ctl(t, secret, "device", "put", device, "--secret-file=-", "--permissions=config.read")
	c.requestDuring(t, func() {
		c.upgradeWith(t, "--set", "agent=node", "--set", "replicaCount=2", "--set", "nodeAgent.volume="+volume)
		uninstallAgent(t, firstAgent)
	})
	c.checkSameAnswers(t)
}

func (c *cluster) moveToSidecars(t *testing.T) {
	c.requestDuring(t, func() { c.upgradeWith(t) })
	c.agent = ""
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
		c.kubectlAtAgent(t, "rollout", "restart", c.agentSet())
		c.kubectlAtAgent(t, "rollout", "status", c.agentSet(), "--timeout=60s")
		await(t, "one agent is left", func() error {
			pods := c.kubectlAtAgent(t, "get", "pods", "--output", "name")
			if len(strings.Fields(pods)) != 1 {
				return errors.New(pods)
			}
			return nil
		})
		c.awaitSettled(t)
	})
	t.Logf("the new agent: %s", c.kubectlAtAgent(t, "logs", c.agentSet()))
	c.checkSameAnswers(t)
}

// removeAgentMeanwhile takes the agent away: the pods stay ready, and their edges go on.
func (c *cluster) removeAgentMeanwhile(t *testing.T) {
	patch := func(node string) {
		c.kubectlAtAgent(t, "patch", c.agentSet(), "--type=merge",
			"--patch", `{"spec": {"template": {"spec": {"nodeSelector": `+node+`}}}}`)
	}
	patch(`{"no-such": "label"}`)
	c.kubectlAtAgent(t, "wait", "--for=delete", "pod", "--all", "--timeout=60s")
	c.awaitSettled(t) // 2 s of hits
	for _, pod := range c.edgePods(t) {
		if !pod.ready() {
			t.Errorf("pod %s isn't ready without an agent", pod.Metadata.Name)
		}
	}
	patch("null")
	c.kubectlAtAgent(t, "rollout", "status", c.agentSet(), "--timeout=60s")
	await(t, "the agent has filled the edges", func() error {
		_, err := runProgram(t.Context(), "", "kubectl", "--namespace", c.agent, "exec", c.agentSet(), "--",
			"gatehousectl", "ready")
		return err
	})
}
