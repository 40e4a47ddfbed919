//go:build linux

package chart

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// TestIstio installs the chart under a real istiod as docs/install/istio.md describes: at a gateway, with the module
// from the pod and by a patch of the Deployment; then in a workload, with the module from a registry and by an
// injection template. Istio's proxy is a plain Envoy: see testdata/istiod.yaml. The steps build on each other.
func TestIstio(t *testing.T) {
	c := newMesh(t, "istio", "app=web")
	c.runSteps(t, []step{{"a mesh without the chart", c.installIstio}})
	for _, at := range []struct{ context, app, module string }{{"gateway", "web", "pod"},
		{"sidecar", "shop", "registry"}} {
		in := *c // with values of its own
		in.selector = "app=" + at.app
		in.values = append([]string{}, c.values...)
		in.values = append(in.values, "--set", "istio.context="+at.context, "--set", "istio.workloadSelector.app="+at.app,
			"--set", "istio.module="+at.module, "--set", "sidecar.image.repository="+sidecarImage)
		w := &workload{cluster: &in, name: at.app, injected: at.module == "registry"}
		t.Run(at.context, func(t *testing.T) {
			steps := []step{
				{"install", w.install},
				{"publish and answer", w.checkAnswers},
				{"another team under traffic", func(t *testing.T) { w.addTeam(t); w.checkSameAnswers(t) }},
				{"revocation", w.revokeDevice},
				{"other rules under traffic", w.upgradeRules},
				{"another release and sessions under traffic", w.upgradeToSessions},
				{"patch removed", w.breakPatch},
				{"uninstall", w.uninstallFromWorkload},
			}
			if w.injected {
				steps = slices.Insert(steps, 2, step{"other than HTTP", w.otherThanHTTP})
				steps = slices.Insert(steps, 4, step{"module missing under traffic", w.withoutModule})
				if !testing.Short() {
					steps = slices.Insert(steps, 6,
						step{"install the agent", w.installAgent},
						// It runs as another user than Istio's proxy.
						step{"from sidecars to the agent under traffic", w.moveTo(firstAgent, w.upgradeUnderTraffic)},
						step{"a second workload", w.addWorkload},
						step{"a revocation reaches both workloads", func(t *testing.T) { w.revokeAtBoth(t, "3000") }},
						step{"rollout of the agent under traffic", w.rolloutAgent},
						step{"without an agent", w.removeAgentMeanwhile},
						step{"remove the second workload", w.removeWorkload},
						step{"back to sidecars under traffic", w.moveTo("", w.upgradeUnderTraffic)},
						step{"uninstall the agent", func(t *testing.T) { uninstallAgent(t, firstAgent) }},
					)
				}
			}
			in.runSteps(t, steps)
		})
	}
}

type workload struct {
	*cluster
	name     string
	injected bool   // by a template of Istio's, not by a patch
	template string // of its pods, before it was patched
}

// installIstio installs Istio, a gateway and a workload, and waits until both serve.
func (c *cluster) installIstio(t *testing.T) {
	importImage(t, "localhost/pilot:dev", "pilot-discovery", nil)
	importImage(t, "localhost/proxyv2:dev", "pilot-agent", proxyFiles(t))
	pushImage(t, "gatehouse-sidecar", sidecarImage+":dev")
	run(t, "", "ctr", "images", "tag", "localhost/gatehouse-sidecar:dev", sidecarImage+":dev")
	charts := filepath.Join(meshDir(t), "charts")
	const system = "istio-system"
	run(t, "", "helm", "install", "base", filepath.Join(charts, "base"), "--namespace", system, "--create-namespace")
	run(t, "", "helm", "install", "istiod", filepath.Join(charts, "istio-discovery"), "--namespace", system,
		"--values", "testdata/istiod.yaml", "--wait", "--timeout", "120s")
	c.kubectl(t, "apply", "--filename", "testdata/shop.yaml")
	c.helm(t, "install", "web", filepath.Join(charts, "gateway"), "--values", "testdata/istio-gateway.yaml",
		"--wait", "--timeout", "120s")
	c.kubectl(t, "rollout", "status", "deployment/shop", "--timeout=60s")
	c.awaitForwarding(t)
}

// proxyFiles are the files in the image of Istio's proxy beside pilot-agent. Debian's iptables are links to one
// program, which acts by the name of the link.
func proxyFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{
		"/usr/local/bin/envoy":                           "../../build/images/envoy/usr/local/bin/envoy",
		"/var/lib/istio/envoy/envoy_bootstrap_tmpl.json": filepath.Join(meshDir(t), "envoy_bootstrap.json"),
	}
	for _, program := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables",
		"ip6tables-save", "ip6tables-restore"} {
		path, err := exec.LookPath(program)
		require.NoError(t, err)
		files["/usr/sbin/"+program] = path
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil || len(extensions) == 0 {
		t.Fatalf("no extensions of iptables: %v", err)
	}
	for _, path := range extensions {
		files[path] = path
	}
	return files
}

func (w *workload) install(t *testing.T) {
	before := w.onlyPod(t)
	w.template = w.kubectl(t, "get", "deployment", w.name, "--output", "jsonpath={.spec.template}")
	w.requestUnruledDuring(t, func() {
		w.helm(t, append(append([]string{"install", release, chartDir}, w.values...), withSidecar...)...)
		w.patchPods(t)
		w.awaitReplacement(t, before)
	})
	w.helm(t, append([]string{"upgrade", release, chartDir}, w.values...)...)
}

// withSidecar selects only pods that have the sidecar, while pods come and go.
var withSidecar = []string{"--set", "istio.workloadSelector.gatehouse=enabled"}

// requestUnruledDuring sends requests without a rule while f runs. No request may fail.
func (w *workload) requestUnruledDuring(t *testing.T, f func()) {
	t.Helper()
	sendDuring(t, w.edgeAddress(t), []ask{{"/other", nil, http.StatusOK}}, f)
}

// patchPods gives the workload's new pods the sidecar as the chart's notes describe.
func (w *workload) patchPods(t *testing.T) {
	t.Helper()
	if w.injected {
		w.injectTemplate(t)
		return
	}
	w.kubectl(t, "patch", "deployment", w.name, "--patch-file", w.configMapFile(t, `patch\.yaml`))
}

// configMapFile returns the path of a file with a part of the chart's ConfigMap for workloads.
func (w *workload) configMapFile(t *testing.T, key string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "part.yaml")
	text := w.kubectl(t, "get", "configmap", release+"-gatehouse-workload-patch", "--output", "jsonpath={.data."+key+"}")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// injectionAnnotations are the label and the annotations of docs/install/istio.md.
const injectionAnnotations = `{"metadata": {"labels": {"gatehouse": "enabled"}, "annotations": {"inject.istio.io/templates": "sidecar,` + release + `-gatehouse",
	"traffic.sidecar.istio.io/excludeInboundPorts": "9102", "sidecar.istio.io/extraStatTags": "rule,outcome,call,result"}}}`

// injectTemplate gives istiod the chart's injection template, and the workload pods from the template.
func (w *workload) injectTemplate(t *testing.T) {
	t.Helper()
	values := w.configMapFile(t, `istiod-values\.yaml`)
	run(t, "", "helm", "upgrade", "istiod", filepath.Join(meshDir(t), "charts", "istio-discovery"),
		"--namespace", "istio-system", "--values", "testdata/istiod.yaml", "--values", values, "--wait", "--timeout", "120s")
	text, err := os.ReadFile(values)
	require.NoError(t, err)
	const field = "checksum/gatehouse: "
	_, rest, _ := strings.Cut(string(text), field)
	checksum, _, _ := strings.Cut(rest, "\n")
	await(t, "istiod has the template", func() error {
		out, err := runProgram(t.Context(),
			`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "labels": {"sidecar.istio.io/inject": "true"},
			"annotations": {"inject.istio.io/templates": "sidecar,`+release+
				`-gatehouse"}}, "spec": {"containers": [{"name": "probe", "image": "localhost/pause:dev"}]}}`,
			"kubectl", "--namespace", namespace, "create", "--dry-run=server", "--output=yaml", "--filename", "-")
		if err == nil && !strings.Contains(out, field+checksum) {
			err = errors.New("not this one")
		}
		return err
	})
	if strings.Contains(w.kubectl(t, "get", "deployment", w.name,
		"--output", "jsonpath={.spec.template.metadata.annotations}"), "inject.istio.io/templates") {
		w.kubectl(t, "rollout", "restart", "deployment", w.name)
	} else {
		w.kubectl(t, "patch", "deployment", w.name, "--patch", `{"spec": {"template": `+injectionAnnotations+`}}`)
	}
}

// upgradeUnderTraffic upgrades the release and the workload's pods.
func (w *workload) upgradeUnderTraffic(t *testing.T) {
	before := w.onlyPod(t)
	w.requestDuring(t, func() {
		w.helm(t, append([]string{"upgrade", release, chartDir}, w.values...)...)
		w.patchPods(t)
		w.awaitReplacement(t, before)
	})
}

// addWorkload adds a copy of the workload's Deployment, an edge of the same agent and of the same Service.
func (w *workload) addWorkload(t *testing.T) {
	var deployment map[string]any
	text := w.kubectl(t, "get", "deployment", w.name, "--output", "json")
	require.NoError(t, json.Unmarshal([]byte(text), &deployment))
	deployment["metadata"] = map[string]any{"name": w.name + "-two"}
	copied, err := json.Marshal(deployment)
	require.NoError(t, err)
	run(t, string(copied), "kubectl", "--namespace", namespace, "create", "--filename", "-")
	w.kubectl(t, "rollout", "status", "deployment/"+w.name+"-two", "--timeout=60s")
	w.awaitSettled(t)
	w.checkSameAnswers(t)
}

func (w *workload) removeWorkload(t *testing.T) {
	w.kubectl(t, "delete", "deployment", w.name+"-two", "--cascade=foreground")
	w.awaitSettled(t)
}

// restoreTemplate restores the workload's earlier pod template: by the chart's second patch, or as a tool does that
// restores a Deployment.
func (w *workload) restoreTemplate(t *testing.T) {
	t.Helper()
	if !w.injected {
		w.kubectl(t, "patch", "deployment", w.name, "--patch-file", w.configMapFile(t, `remove\.yaml`))
		got := w.kubectl(t, "get", "deployment", w.name, "--output", "jsonpath={.spec.template}")
		if strings.Contains(got, "gatehouse") {
			t.Errorf("the template still has: %s", got)
		}
		return
	}
	w.kubectl(t, "patch", "deployment", w.name, "--type", "json", "--patch",
		`[{"op": "replace", "path": "/spec/template", "value": `+w.template+`}]`)
}

// upgradeToSessions upgrades to sessions, which need a new patch of the workload, and gets and sends a token.
func (w *workload) upgradeToSessions(t *testing.T) {
	w.kubectl(t, "create", "secret", "generic", "sessions", "--from-literal=secret="+strings.Repeat("0123456789abcdef", 4))
	w.values = append(w.values, "--values", "testdata/sessions.yaml")
	w.upgradeUnderTraffic(t)
	w.checkSameAnswers(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.edgeAddress(t)+"/v1/session", nil)
	require.NoError(t, err)
	request.Header = credential.Clone()
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	var session struct {
		Token string `json:"token"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&session); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("session: got %s, %v", answer.Status, err)
	}
	for token, want := range map[string]int{session.Token: http.StatusOK, session.Token + "x": http.StatusUnauthorized} {
		if answer, _ := w.get(t, "/config", http.Header{"Authorization": {"Bearer " + token}}); answer.StatusCode != want {
			t.Errorf("token %q: got %s, want %d", token, answer.Status, want)
		}
	}
}

// breakPatch removes the patch from the workload, as a tool does that restores a Deployment: the new pod has no module,
// or no directory for the push socket, so the pod's Envoy refuses a listener and never becomes ready, and the earlier
// pod goes on. A second patch repairs the workload.
func (w *workload) breakPatch(t *testing.T) {
	before := w.onlyPod(t)
	w.refuseDuring(t, func() {
		w.restoreTemplate(t)
		await(t, "the new pod's Envoy refuses the listeners", func() error {
			for _, pod := range w.edgePods(t) {
				if pod.Metadata.Name == before {
					continue
				}
				log, err := runProgram(t.Context(), "", "kubectl", "--namespace", namespace, "logs", pod.Metadata.Name,
					"--container", "istio-proxy")
				if err == nil && !strings.Contains(log, "config received from XDS server, but was rejected") {
					err = errors.New("not yet")
				}
				return err
			}
			return errors.New("no new pod")
		})
		time.Sleep(5 * time.Second)
	})
	for _, pod := range w.edgePods(t) {
		if pod.ready() != (pod.Metadata.Name == before) {
			t.Errorf("pod %s: ready: %t", pod.Metadata.Name, pod.ready())
		}
	}
	w.checkSameAnswers(t)
	w.patchPods(t)
	await(t, "one pod", func() error {
		if pods := w.edgePods(t); len(pods) != 1 || !pods[0].ready() {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	w.awaitSettled(t)
}

// otherThanHTTP sends requests to ports whose protocol Istio detects: one of the Service, and one of no Service. HTTP
// is judged on both ports. A connection that Istio takes for TCP is closed, unless values permit TCP at a port.
func (w *workload) otherThanHTTP(t *testing.T) {
	detected := w.kubectl(t, "get", "service", w.name, "--output", "jsonpath={.spec.clusterIP}") + ":81"
	undeclared := w.kubectl(t, "get", "pod", w.onlyPod(t), "--output", "jsonpath={.status.podIP}") + ":3002"
	asks := []ask{
		{"/config", nil, http.StatusUnauthorized},
		{"/config", credential, http.StatusOK},
		{"/other", nil, http.StatusOK},
	}
	for _, address := range []string{detected, undeclared} {
		for _, ask := range asks {
			conn, err := (*connection)(nil).do(address, ask)
			conn.close()
			if err != nil {
				t.Errorf("%s%s: %v", address, ask.path, err)
			}
		}
		if got := sendDisguised(t, address); got != "" {
			t.Errorf("%s: a disguised request was answered: %q", address, got)
		}
	}
	w.helm(t, append(append([]string{"upgrade", release, chartDir}, w.values...), "--set", "istio.tcpPorts={3001}")...)
	await(t, "TCP reaches the workload", func() error {
		if got := sendDisguised(t, detected); !strings.HasPrefix(got, "HTTP/1.1 400 ") { // the upstream's
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	if got := sendDisguised(t, undeclared); got != "" {
		t.Errorf("%s, as TCP is permitted at another port: a disguised request was answered: %q", undeclared, got)
	}
	w.helm(t, append([]string{"upgrade", release, chartDir}, w.values...)...)
	await(t, "TCP is closed", func() error {
		if got := sendDisguised(t, detected); got != "" {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// sendDisguised sends a request with a forged identity behind an empty line, so that Istio doesn't detect HTTP, and
// returns all octets until the connection is closed.
func sendDisguised(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, answerTimeout)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(answerTimeout)))
	request := "\r\nPOST /config HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n" + policy.DeviceHeader +
		": " + device + "\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%s: still open, after %q", address, answer)
	}
	return string(answer)
}

// withoutModule upgrades to a missing image: Istio's agent can't fetch the module, and the running Envoy goes on with
// the old rules.
func (w *workload) withoutModule(t *testing.T) {
	before := w.onlyPod(t)
	w.requestDuring(t, func() {
		w.helm(t, append(append([]string{"upgrade", release, chartDir}, w.values...), "--set", "sidecar.image.tag=missing",
			"--values", "testdata/upgrade.yaml")...)
		await(t, "Istio's agent can't fetch the module", func() error {
			log := w.kubectl(t, "logs", before, "--container", "istio-proxy")
			if !strings.Contains(log, "gatehouse-sidecar:missing: could not fetch") {
				return errors.New("not yet")
			}
			return nil
		})
		w.answersWith(t, "/reports", http.StatusOK) // a path that the new rules protect
	})
	w.checkSameAnswers(t)
	w.helm(t, append([]string{"upgrade", release, chartDir}, w.values...)...)
}

func (w *workload) uninstallFromWorkload(t *testing.T) {
	before := w.onlyPod(t)
	w.requestUnruledDuring(t, func() {
		w.helm(t, append(append([]string{"upgrade", release, chartDir}, w.values...), withSidecar...)...)
		w.restoreTemplate(t)
		w.awaitReplacement(t, before)
		w.uninstall(t)
	})
	w.awaitForwarding(t)
	w.kubectl(t, "delete", "secret", "sessions")
}
