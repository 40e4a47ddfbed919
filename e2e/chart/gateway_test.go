//go:build linux

package chart

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/e2e/k8s"
)

const (
	body   = `{"price": 42}`
	device = "meter-1"
	secret = "correct horse battery staple"
)

// TestGateway covers the life of a release in mode gateway, in a namespace that only admits restricted pods. The steps
// build on each other.
func TestGateway(t *testing.T) {
	c := newCluster(t, "wasm")
	c.runSteps(t, []step{
		{"install", c.install},
		{"publish and answer", c.checkAnswers},
		{"helm test", c.helmTest},
		{"sidecar killed", func(t *testing.T) { c.killContainer(t, "gatehouse-sidecar"); c.checkSameAnswers(t) }},
		{"envoy killed", func(t *testing.T) { c.killContainer(t, "envoy"); c.checkSameAnswers(t) }},
		{"upgrade under traffic", c.upgradeRelease},
		{"rollback under traffic", c.rollback},
		{"scale under traffic", c.scale},
		{"TLS, and another certificate", c.changeCertificate},
		{"uninstall", c.uninstall},
		{"install with a Redis of its own", c.installTrial},
		{"publish and answer with that", c.checkAnswers},
		{"that Redis replaced", c.replaceRedis},
		{"uninstall with that", c.uninstall},
	})
}

// TestNative is the same with the filter as a dynamic module of Envoy.
func TestNative(t *testing.T) {
	c := newCluster(t, "native")
	c.runSteps(t, []step{
		{"install", func(t *testing.T) { c.install(t); c.checkConfined(t) }},
		{"publish and answer", c.checkAnswers},
		{"revocation", c.revokeDevice},
		{"envoy killed", func(t *testing.T) { c.killContainer(t, "envoy"); c.checkSameAnswers(t) }},
		{"upgrade under traffic", c.upgradeRelease},
		{"rollback under traffic", func(t *testing.T) { c.rollback(t); c.checkConfined(t) }},
		{"uninstall", c.uninstall},
	})
}

// TestNginx is the same with the edge in nginx.
func TestNginx(t *testing.T) {
	c := newCluster(t, "nginx")
	c.runSteps(t, []step{
		{"install", c.install},
		{"publish and answer", c.checkAnswers},
		{"helm test", c.helmTest},
		{"sidecar killed", func(t *testing.T) { c.killContainer(t, "gatehouse-sidecar"); c.checkSameAnswers(t) }},
		{"nginx killed", func(t *testing.T) { c.killContainer(t, "nginx"); c.checkSameAnswers(t) }},
		{"upgrade under traffic", c.upgradeRelease},
		{"rollback under traffic", c.rollback},
		{"rules with a mistake", c.upgradeToBadRules},
		{"TLS, and another certificate", c.changeCertificate},
		{"uninstall", c.uninstall},
	})
}

type step struct {
	name string
	do   func(*testing.T)
}

// runSteps runs the parts until one fails.
func (c *cluster) runSteps(t *testing.T, steps []step) {
	t.Cleanup(func() { c.printState(t) })
	for _, step := range steps {
		if !t.Run(step.name, step.do) {
			return
		}
	}
}

func (c *cluster) install(t *testing.T) {
	createNamespace(t)
	run(t, "", "kubectl", "label", "--overwrite", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted",
		"pod-security.kubernetes.io/enforce-version=latest")
	_, err := runProgram(t.Context(), "", "kubectl", "--namespace", namespace, "run", "loose",
		"--image=localhost/pause:dev", "--dry-run=server")
	if err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Errorf("a pod that is not restricted: got %v, want it refused", err)
	}
	c.helmInstall(t)
}

// checkConfined checks that Envoy has the dynamic module, under the runtime's seccomp profile.
func (c *cluster) checkConfined(t *testing.T) {
	t.Helper()
	pid := c.processID(t, "envoy")
	for file, want := range map[string]string{"maps": "/usr/lib/gatehouse/libgatehouse.so", "status": "Seccomp:\t2"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		require.NoError(t, err)
		if !strings.Contains(string(text), want) {
			t.Errorf("Envoy's /proc/%d/%s has no %q", pid, file, want)
		}
	}
}

func createNamespace(t *testing.T) {
	t.Helper()
	manifest := run(t, "", "kubectl", "create", "namespace", namespace, "--dry-run=client", "--output=yaml")
	run(t, manifest, "kubectl", "apply", "--filename", "-")
}

// installPublished matches the command that installs the published chart.
var installPublished = regexp.MustCompile(`(?m)^    helm (install ` + release + ` oci://ghcr\.io/gatehouse/.* --wait)$`)

// helmInstall installs the release from the registry by the command of docs/install, and waits until the release's
// service works: pods are ready before kube-proxy has rules for the address of a new service.
func (c *cluster) helmInstall(t *testing.T, values ...string) {
	t.Helper()
	c.pushChart(t)
	page, err := os.ReadFile("../../docs/install/README.md")
	require.NoError(t, err)
	command := installPublished.FindSubmatch(page)
	if command == nil {
		t.Fatalf("docs/install/README.md has no command that matches %s", installPublished)
	}
	here := strings.NewReplacer("ghcr.io/gatehouse", registryAddress, "values.yaml", "testdata/values.yaml")
	args := slices.Concat(strings.Fields(here.Replace(string(command[1]))), []string{"--plain-http", "--timeout", "120s"},
		c.values, values)
	t.Log("helm", args)
	c.helm(t, args...)
	await(t, "connected to the service", func() error {
		conn, err := net.DialTimeout("tcp", c.edgeAddress(t), time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}

// pushChart pushes the chart to the registry, and returns the chart's address.
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

// installTrial installs the trial of the chart's README.
func (c *cluster) installTrial(t *testing.T) {
	c.helmInstall(t, "--values", "testdata/trial.yaml", "--set", "redis.url=")
}

// replaceRedis ends the trial's Redis, whose data are lost with the pod: the edge no longer answers the published
// objects, and the objects can be published again.
func (c *cluster) replaceRedis(t *testing.T) {
	c.kubectl(t, "delete", "pod", "--selector", "app.kubernetes.io/component=redis", "--wait")
	await(t, "the object is gone", func() error {
		if answer, _ := c.get(t, "/products/1", nil); answer.Header.Get("Cache-Status") != "gatehouse; fwd=uri-miss" {
			return fmt.Errorf("Cache-Status %q", answer.Header.Get("Cache-Status"))
		}
		return nil
	})
	c.checkAnswers(t)
}

// helmTest runs the chart's own test. helm test also passes for a chart without a test, so the output must report a
// success.
func (c *cluster) helmTest(t *testing.T) {
	if out := c.helm(t, "test", release, "--timeout", "60s"); !strings.Contains(out, "Phase:          Succeeded") {
		t.Errorf("no test of the chart has succeeded: %s", out)
	}
}

func (c *cluster) edgeAddress(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "service", "--selector", cmp.Or(c.entry, c.selector),
		"--output", fmt.Sprintf("jsonpath={.items[0].spec.clusterIP}:{.items[0].spec.ports[%d].port}", c.listener))
}

var credential = http.Header{"X-Device-Id": {device}, "X-Device-Token": {secret}}

// get sends a request to the service.
func (c *cluster) get(t *testing.T, path string, header http.Header) (*http.Response, string) {
	t.Helper()
	return get(t, c.edgeAddress(t), path, header)
}

// get sends a request. A header Host is the request's host.
func get(t *testing.T, address, path string, header http.Header) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	require.NoError(t, err)
	request.Header, request.Host = header, header.Get("Host")
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer, string(text)
}

// checkAnswers publishes from the sidecar's container and sends requests through the service.
func (c *cluster) checkAnswers(t *testing.T) {
	c.ctl(t, body, "put", "/products/1", "--file=-", "--content-type=application/json")
	c.ctl(t, body, "put", "/config", "--file=-", "--content-type=application/json")
	c.ctl(t, secret, "device", "put", device, "--secret-file=-", "--permissions=config.read")
	await(t, "the object is at the edge", func() error {
		if answer, _ := c.get(t, "/products/1", nil); !isHit(answer) {
			return fmt.Errorf("Cache-Status %q", answer.Header.Get("Cache-Status"))
		}
		return nil
	})
	c.checkSameAnswers(t)
}

func isHit(answer *http.Response) bool {
	return strings.Contains(answer.Header.Get("Cache-Status"), "hit")
}

// checkSameAnswers sends requests whose answers must never change.
func (c *cluster) checkSameAnswers(t *testing.T) {
	t.Helper()
	upstream := c.upstream.Requests()
	answer, text := c.get(t, "/products/1", nil)
	if answer.StatusCode != http.StatusOK || text != body || !isHit(answer) {
		t.Errorf("object: got %d, %q, Cache-Status %q, want 200, %q, a hit", answer.StatusCode, text,
			answer.Header.Get("Cache-Status"), body)
	}
	answer, _ = c.get(t, "/products/1", http.Header{"If-None-Match": {answer.Header.Get("ETag")}})
	if answer.StatusCode != http.StatusNotModified {
		t.Errorf("object, as known: got %d, want 304", answer.StatusCode)
	}
	answer, _ = c.get(t, "/config", nil)
	if answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("configuration, no credential: got %d, want 401", answer.StatusCode)
	}
	answer, text = c.get(t, "/config", credential)
	if answer.StatusCode != http.StatusOK || text != body {
		t.Errorf("configuration, device: got %d, %q, want 200, %q", answer.StatusCode, text, body)
	}
	if got := c.upstream.Requests() - upstream; got != 0 {
		t.Errorf("the upstream saw %d of these requests, want none", got)
	}
	answer, text = c.get(t, "/other", nil)
	if answer.StatusCode != http.StatusOK || !strings.Contains(text, `"path":"/other"`) {
		t.Errorf("no rule: got %d, %q, want the upstream's answer", answer.StatusCode, text)
	}
}

// requestDuring sends requests while f makes pods come and go.
func (c *cluster) requestDuring(t *testing.T, f func()) {
	t.Helper()
	answer, _ := c.get(t, "/products/1", nil)
	sendDuring(t, c.edgeAddress(t), []ask{
		{"/products/1", nil, http.StatusOK},
		{"/products/1", http.Header{"If-None-Match": {answer.Header.Get("ETag")}}, http.StatusNotModified},
		{"/config", credential, http.StatusOK},
		{"/other", nil, http.StatusOK},
	}, f)
}

// upgradeRelease upgrades to new rules and a new release.
func (c *cluster) upgradeRelease(t *testing.T) {
	before := c.onlyPod(t)
	loadNextRelease(t)
	c.requestDuring(t, func() {
		c.helm(t, append(append([]string{"upgrade", release, chartDir, "--wait", "--timeout", "120s"}, c.values...),
			"--values", "testdata/upgrade.yaml", "--set", "sidecar.image.tag=next")...)
		c.awaitDeletion(t, before)
	})
	if answer, _ := c.get(t, "/reports", nil); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("/reports under the new rules: got %d, want 401", answer.StatusCode)
	}
	if got := c.releaseVersion(t); got != nextRelease {
		t.Errorf("after the upgrade: got release %q, want %q", got, nextRelease)
	}
	c.checkSameAnswers(t)
}

// rollback rolls back to the earlier rules and the earlier release.
func (c *cluster) rollback(t *testing.T) {
	before := c.onlyPod(t)
	c.requestDuring(t, func() {
		c.helm(t, "rollback", release, "--wait", "--timeout", "120s")
		c.awaitDeletion(t, before)
	})
	if answer, _ := c.get(t, "/reports", nil); answer.StatusCode != http.StatusOK {
		t.Errorf("/reports under the old rules: got %d, want 200", answer.StatusCode)
	}
	if got := c.releaseVersion(t); got == nextRelease {
		t.Errorf("after the rollback: got release %q, want the earlier one", got)
	}
	c.checkSameAnswers(t)
}

const nextRelease = "9.9.9"

var nextReleaseLoaded bool // by an earlier test; they run one after the other

// loadNextRelease builds a second release of the sidecar's image, with the tag next, once.
func loadNextRelease(t *testing.T) {
	t.Helper()
	if nextReleaseLoaded {
		return
	}
	dir := t.TempDir()
	t.Setenv("VERSION", nextRelease)
	run(t, "", "../../scripts/build-static.sh", dir+"/")
	run(t, "", "../../scripts/build-wasm.sh", filepath.Join(dir, "gatehouse.wasm"))
	files := map[string]string{"/plugin.wasm": filepath.Join(dir, "gatehouse.wasm")}
	for kind, path := range map[string]string{
		"native": "/libgatehouse.so", "nginx": "/usr/local/lib/gatehouse/libgatehouse-nginx.so",
	} {
		files[path] = filepath.Join(dir, filepath.Base(path))
		run(t, "", "env", "ARCH="+runtime.GOARCH, "../../scripts/build-library.sh", kind, files[path])
	}
	for _, program := range []string{"gatehouse-sidecar", "gatehousectl"} {
		files["/usr/local/bin/"+program] = filepath.Join(dir, program)
	}
	archive := filepath.Join(dir, "next.tar")
	require.NoError(t, k8s.WriteImage(archive, "localhost/gatehouse-sidecar:next", "/usr/local/bin/gatehouse-sidecar",
		files))
	run(t, "", "ctr", "images", "import", archive)
	nextReleaseLoaded = true
}

func (c *cluster) releaseVersion(t *testing.T) string {
	t.Helper()
	said := c.kubectl(t, "exec", c.onlyPod(t), "--container", "gatehouse-sidecar", "--", "gatehouse-sidecar", "--version")
	return strings.TrimSpace(said[strings.LastIndex(said, " ")+1:])
}

// upgradeToBadRules upgrades to rules that gatehousectl refuses: the earlier pod goes on.
func (c *cluster) upgradeToBadRules(t *testing.T) {
	before := c.onlyPod(t)
	upgrade := append(append([]string{"upgrade", release, chartDir, "--namespace", namespace,
		"--wait", "--timeout", "15s"}, c.values...),
		"--set-json", `rules=[{"match":{"path":"/a/../b"},"auth":{}}]`)
	if _, err := runProgram(t.Context(), "", "helm", upgrade...); err == nil {
		t.Error("the upgrade succeeded, want the new pod kept from starting")
	}
	log := c.kubectl(t, "logs", "--selector", c.selector, "--container", "gatehouse-module", "--tail=5")
	if !strings.Contains(log, "rules[0].match.path") {
		t.Errorf("the log of the init container: got %q, want the field that has the mistake", log)
	}
	c.checkSameAnswers(t)
	c.helm(t, "rollback", release, "--wait", "--timeout", "120s")
	await(t, "the new pod has gone", func() error {
		if pods := c.edgePods(t); len(pods) != 1 || pods[0].Metadata.Name != before {
			return fmt.Errorf("got %d pods", len(pods))
		}
		return nil
	})
}

// scale scales to two pods and back to one.
func (c *cluster) scale(t *testing.T) {
	c.requestDuring(t, func() {
		for _, replicas := range []string{"2", "1"} {
			c.helm(t, append(append([]string{"upgrade", release, chartDir, "--wait", "--timeout", "120s"}, c.values...),
				"--set", "replicaCount="+replicas)...)
			await(t, replicas+" pods", func() error {
				pods := strings.Fields(c.kubectl(t, "get", "pods", "--selector", c.selector, "--output", "name"))
				if fmt.Sprint(len(pods)) != replicas { // pods that are terminating count, too
					return fmt.Errorf("got %q", pods)
				}
				return nil
			})
		}
	})
	c.checkSameAnswers(t)
}

// changeCertificate configures the edge's TLS by a Secret, and changes the Secret: the pods stay, and their Envoys
// reload the certificate.
func (c *cluster) changeCertificate(t *testing.T) {
	const secretName = "edge-tls"
	first, second := newCertificate(t, "first"), newCertificate(t, "second")
	apply := func(pair certificate) {
		t.Helper()
		manifest := run(t, "", "kubectl", "--namespace", namespace, "create", "secret", "tls", secretName,
			"--cert", pair.cert, "--key", pair.key, "--dry-run=client", "--output=yaml")
		run(t, manifest, "kubectl", "--namespace", namespace, "apply", "--filename", "-")
	}
	apply(first)
	c.helm(t, append(append([]string{"upgrade", release, chartDir, "--wait", "--timeout", "120s"}, c.values...),
		"--set", c.edgeKind+".tls.existingSecret="+secretName)...)
	c.awaitCertificate(t, "first")
	pod := c.onlyPod(t)
	apply(second)
	// The kubelet updates a pod's Secrets when the pod changes, otherwise about once a minute.
	c.kubectl(t, "annotate", "pod", pod, "example.com/look=again")
	c.awaitCertificate(t, "second")
	if got := c.onlyPod(t); got != pod {
		t.Errorf("got another pod, %s for %s", got, pod)
	}
	c.helm(t, append([]string{"upgrade", release, chartDir, "--wait", "--timeout", "120s"}, c.values...)...)
	c.kubectl(t, "delete", "secret", secretName)
}

// awaitCertificate waits until the edge answers by HTTP/2 with the certificate of this name.
func (c *cluster) awaitCertificate(t *testing.T, name string) {
	t.Helper()
	address := c.edgeAddress(t)
	await(t, "certificate "+name, func() error {
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		defer client.CloseIdleConnections()
		answer, err := client.Get("https://" + address + "/products/1")
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		if got := answer.TLS.PeerCertificates[0].Subject.CommonName; got != name || answer.ProtoMajor != 2 || !isHit(answer) {
			return fmt.Errorf("got certificate %q, %s, Cache-Status %q", got, answer.Proto, answer.Header.Get("Cache-Status"))
		}
		return nil
	})
}

// certificate is the files of a certificate and its key.
type certificate struct{ cert, key string }

func newCertificate(t *testing.T, name string) certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	files := certificate{filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")}
	for path, block := range map[string]*pem.Block{files.cert: {Type: "CERTIFICATE", Bytes: cert},
		files.key: {Type: "PRIVATE KEY", Bytes: private}} {
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	return files
}

func (c *cluster) awaitDeletion(t *testing.T, pod string) {
	t.Helper()
	c.kubectl(t, "wait", "--for=delete", "pod/"+pod, "--timeout=60s")
}

// uninstall must leave nothing with the release's label, in any namespace.
func (c *cluster) uninstall(t *testing.T) {
	c.helm(t, "uninstall", release, "--wait", "--timeout", "120s")
	kinds := strings.Fields(run(t, "", "kubectl", "api-resources", "--verbs=list", "--output=name"))
	await(t, "nothing is left", func() error {
		args := []string{"get", strings.Join(kinds, ","), "--all-namespaces", "--ignore-not-found", "--output=name",
			"--selector", "app.kubernetes.io/instance=" + release}
		if left := strings.TrimSpace(run(t, "", "kubectl", args...)); left != "" {
			return errors.New("left: " + left)
		}
		return nil
	})
}

// printState prints, after a failure, the cluster's state and logs.
func (c *cluster) printState(t *testing.T) {
	if !t.Failed() {
		return
	}
	for _, args := range [][]string{
		{"get", "pods", "--output=wide"}, {"get", "events", "--sort-by=.lastTimestamp"},
		{"logs", "--selector=" + c.selector, "--all-containers", "--tail=40", "--prefix"},
	} {
		out, err := runProgram(context.Background(), "", "kubectl", append([]string{"--namespace", namespace}, args...)...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
