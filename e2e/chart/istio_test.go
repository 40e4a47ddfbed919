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

	"github.com/gatehouse/gatehouse/edge/policy"
)

// TestIstio installs the chart under a real istiod as docs/install/istio.md describes: at a gateway, with the module
// from the pod and by a patch of the Deployment; then in a workload, with the module from a registry and by an
// injection template. Istio's proxy is a plain Envoy: see testdata/istiod.yaml. The steps build on each other.
func TestIstio(t *testing.T) {
	c := newMesh(t, "istio", "app=web")
	c.steps(t, []step{{"a mesh without the chart", c.mesh}})
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
				{"publish and answer", w.answers},
				{"another team under traffic", func(t *testing.T) { w.addTeam(t); w.same(t) }},
				{"revocation", w.revoke},
				{"other rules under traffic", w.upgradeRules},
				{"another release and sessions under traffic", w.upgradeToSessions},
				{"patch removed", w.unpatched},
				{"uninstall", w.uninstallFromWorkload},
			}
			if w.injected {
				steps = slices.Insert(steps, 2, step{"other than HTTP", w.otherThanHTTP})
				steps = slices.Insert(steps, 4, step{"module missing under traffic", w.withoutModule})
			}
			in.steps(t, steps)
		})
	}
}

// workload is a Deployment with Istio's proxy.
type workload struct {
	*cluster
	name     string
	injected bool   // by a template of Istio's, not by a patch
	template string // of its pods, before it was patched
}

// mesh installs Istio, a gateway and a workload, which serve.
func (c *cluster) mesh(t *testing.T) {
	load(t, "localhost/pilot:dev", "pilot-discovery", nil)
	load(t, "localhost/proxyv2:dev", "pilot-agent", proxyFiles(t))
	c.serveImage(t, "gatehouse-sidecar", sidecarImage+":dev")
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
	c.forwards(t)
}

// proxyFiles are the files in the image of Istio's proxy beside pilot-agent. Debian's iptables are links to one
// program, which goes by its own name.
func proxyFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{
		"/usr/local/bin/envoy":                           "../../build/images/envoy/usr/local/bin/envoy",
		"/var/lib/istio/envoy/envoy_bootstrap_tmpl.json": filepath.Join(meshDir(t), "envoy_bootstrap.json"),
	}
	for _, program := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables",
		"ip6tables-save", "ip6tables-restore"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
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
	before := w.pod(t)
	w.template = w.kubectl(t, "get", "deployment", w.name, "--output", "jsonpath={.spec.template}")
	w.open(t, func() {
		w.helm(t, append(append([]string{"install", release, chartDir}, w.values...), withSidecar...)...)
		w.patch(t)
		w.replaced(t, before)
	})
	w.helm(t, append([]string{"upgrade", release, chartDir}, w.values...)...)
}

// withSidecar selects only pods that have the sidecar, while they come and go.
var withSidecar = []string{"--set", "istio.workloadSelector.gatehouse=enabled"}

// open requests what has no rule while f runs. No request may fail.
func (w *workload) open(t *testing.T, f func()) {
	t.Helper()
	during(t, w.edge(t), []ask{{"/other", nil, http.StatusOK}}, f)
}

// patch gives the workload's new pods the sidecar as the chart's notes describe.
func (w *workload) patch(t *testing.T) {
	t.Helper()
	if w.injected {
		w.inject(t)
		return
	}
	w.kubectl(t, "patch", "deployment", w.name, "--patch-file", w.part(t, `patch\.yaml`))
}

// part returns the path of a file with a part of the chart's ConfigMap for workloads.
func (w *workload) part(t *testing.T, key string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "part.yaml")
	text := w.kubectl(t, "get", "configmap", release+"-gatehouse-workload-patch", "--output", "jsonpath={.data."+key+"}")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// injectionAnnotations are the label and those that docs/install/istio.md asks for.
const injectionAnnotations = `{"metadata": {"labels": {"gatehouse": "enabled"}, "annotations": {"inject.istio.io/templates": "sidecar,` + release + `-gatehouse",
	"traffic.sidecar.istio.io/excludeInboundPorts": "9102", "sidecar.istio.io/extraStatTags": "rule,outcome,call,result"}}}`

// inject gives istiod the chart's injection template, and the workload pods that have it.
func (w *workload) inject(t *testing.T) {
	t.Helper()
	values := w.part(t, `istiod-values\.yaml`)
	run(t, "", "helm", "upgrade", "istiod", filepath.Join(meshDir(t), "charts", "istio-discovery"),
		"--namespace", "istio-system",
		"--values", "testdata/istiod.yaml", "--values", values, "--wait", "--timeout", "120s")
	text, err := os.ReadFile(values)
	if err != nil {
		t.Fatal(err)
	}
	const field = "checksum/gatehouse: "
	_, rest, _ := strings.Cut(string(text), field)
	checksum, _, _ := strings.Cut(rest, "\n")
	await(t, "istiod has the template", func() error {
		out, err := try(t.Context(),
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

// unpatch gives the workload's pods the template again that they had before: by the chart's other patch, or as a tool
// does that restores a Deployment.
func (w *workload) unpatch(t *testing.T) {
	t.Helper()
	if !w.injected {
		w.kubectl(t, "patch", "deployment", w.name, "--patch-file", w.part(t, `remove\.yaml`))
		got := w.kubectl(t, "get", "deployment", w.name, "--output", "jsonpath={.spec.template}")
		if strings.Contains(got, "gatehouse") {
			t.Errorf("the template still has: %s", got)
		}
		return
	}
	w.kubectl(t, "patch", "deployment", w.name, "--type", "json", "--patch",
		`[{"op": "replace", "path": "/spec/template", "value": `+w.template+`}]`)
}

// upgradeToSessions upgrades to what needs another patch of the workload, and gets and shows a token.
func (w *workload) upgradeToSessions(t *testing.T) {
	w.kubectl(t, "create", "secret", "generic", "sessions", "--from-literal=secret="+strings.Repeat("0123456789abcdef", 4))
	w.values = append(w.values, "--values", "testdata/sessions.yaml")
	before := w.pod(t)
	w.load(t, func() {
		w.helm(t, append([]string{"upgrade", release, chartDir}, w.values...)...)
		w.patch(t)
		w.replaced(t, before)
	})
	w.same(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.edge(t)+"/v1/session", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = credential.Clone()
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
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

// unpatched takes the patch out of the workload, as a tool does that restores a Deployment: the new pod has no module,
// or no place for the push socket, so its Envoy refuses a listener and never becomes ready, and the earlier pod goes
// on. Patching again repairs it.
func (w *workload) unpatched(t *testing.T) {
	before := w.pod(t)
	w.closed(t, func() {
		w.unpatch(t)
		await(t, "the new pod's Envoy refuses the listeners", func() error {
			for _, pod := range w.pods(t) {
				if pod.Metadata.Name == before {
					continue
				}
				log, err := try(t.Context(), "", "kubectl", "--namespace", namespace, "logs", pod.Metadata.Name,
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
	for _, pod := range w.pods(t) {
		if pod.ready() != (pod.Metadata.Name == before) {
			t.Errorf("pod %s: ready: %t", pod.Metadata.Name, pod.ready())
		}
	}
	w.same(t)
	w.patch(t)
	await(t, "one pod", func() error {
		if pods := w.pods(t); len(pods) != 1 || !pods[0].ready() {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	w.settled(t)
}

// otherThanHTTP asks at ports whose protocol Istio detects: one of the Service, and one that is in none. HTTP is judged
// there. What Istio takes for TCP is closed, unless values permit it at a port.
func (w *workload) otherThanHTTP(t *testing.T) {
	detected := w.kubectl(t, "get", "service", w.name, "--output", "jsonpath={.spec.clusterIP}") + ":81"
	undeclared := w.kubectl(t, "get", "pod", w.pod(t), "--output", "jsonpath={.status.podIP}") + ":3002"
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
		if got := disguised(t, address); got != "" {
			t.Errorf("%s: a disguised request was answered: %q", address, got)
		}
	}
	w.helm(t, append(append([]string{"upgrade", release, chartDir}, w.values...), "--set", "istio.tcpPorts={3001}")...)
	await(t, "TCP reaches the workload", func() error {
		if got := disguised(t, detected); !strings.HasPrefix(got, "HTTP/1.1 400 ") { // the upstream's
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	if got := disguised(t, undeclared); got != "" {
		t.Errorf("%s, as TCP is permitted at another port: a disguised request was answered: %q", undeclared, got)
	}
	w.helm(t, append([]string{"upgrade", release, chartDir}, w.values...)...)
	await(t, "TCP is closed", func() error {
		if got := disguised(t, detected); got != "" {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// disguised sends a request with forged identity behind an empty line, so that Istio doesn't detect it as HTTP, and
// returns what comes back until the connection is closed.
func disguised(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, answerTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
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

// withoutModule upgrades to an image that isn't there: Istio's agent can't fetch the module, and the running Envoy goes
// on with the rules that it has.
func (w *workload) withoutModule(t *testing.T) {
	before := w.pod(t)
	w.load(t, func() {
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
	w.same(t)
	w.helm(t, append([]string{"upgrade", release, chartDir}, w.values...)...)
}

func (w *workload) uninstallFromWorkload(t *testing.T) {
	before := w.pod(t)
	w.open(t, func() {
		w.helm(t, append(append([]string{"upgrade", release, chartDir}, w.values...), withSidecar...)...)
		w.unpatch(t)
		w.replaced(t, before)
		w.uninstall(t)
	})
	w.forwards(t)
	w.kubectl(t, "delete", "secret", "sessions")
}
