//go:build linux

package chart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const meshNamespace = "mesh"

// mesh is a mode for the Envoys of a mesh.
type mesh struct {
	mode string
	// patch changes an Envoy's configuration as the mesh's control plane does with the manifests.
	patch func(*testing.T, *envoyConfig, []manifest)
	// valid is a part of the manifests; the CEL rules refuse the manifests when this part is invalid.
	valid, invalid, refusal string
	values                  []string // in addition to the mode's example
}

var meshes = []mesh{
	{"istio", patchAsIstio, "app: shop", `app: "*"`, "wildcard is not supported in selector",
		[]string{"--set", "istio.workloadSelector.app=shop", "--set", "istio.module=pod"}},
	{"envoy-gateway", patchAsEnvoyGateway, "kind: Gateway", "kind: Service", "targetRefs",
		[]string{"--set", "envoyGateway.gateway=eg", "--set", "envoyGateway.xdsListeners={" + gatewayListener + "}"}},
}

// definitions are the files of the chart's custom resource definitions.
var definitions = []string{
	"customresourcedefinitions.gen.yaml", "gateway.envoyproxy.io_envoyextensionpolicies.yaml",
	"gateway.envoyproxy.io_envoypatchpolicies.yaml", "gateway.envoyproxy.io_envoyproxies.yaml",
	"monitoring.coreos.com_podmonitors.yaml", "monitoring.coreos.com_prometheusrules.yaml",
}

// TestMesh tests these modes without the control planes: the API server accepts the manifests by the real definitions,
// CEL rules included, and a real Envoy serves with the configuration as patched by the manifests.
func TestMesh(t *testing.T) {
	apply := []string{"apply", "--server-side"}
	for _, name := range definitions {
		apply = append(apply, "--filename", filepath.Join(filepath.Dir(toolsDir(t)), "definitions", name))
	}
	run(t, "", "kubectl", apply...)
	run(t, "", "kubectl", "wait", "--for=condition=Established", "customresourcedefinitions", "--all", "--timeout=60s")
	run(t, "", "kubectl", "create", "namespace", meshNamespace)
	for _, m := range meshes {
		t.Run(m.mode, func(t *testing.T) {
			t.Run("manifests", m.applyManifests)
			t.Run("serves", m.checkServing)
		})
	}
	t.Run("istio/workload", patchWorkload)
}

// toolsDir returns the directory of helm; the further results of scripts/chart-tools.sh are beside helm.
func toolsDir(t *testing.T) string {
	t.Helper()
	helm, err := exec.LookPath("helm")
	if err != nil {
		t.Fatalf("%v: run make chart-e2e", err)
	}
	return filepath.Dir(helm)
}

func (m mesh) exampleFile() string { return filepath.Join(chartDir, "ci", m.mode+"-values.yaml") }

func (m mesh) renderChart(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "", "helm", append([]string{"template", release, chartDir, "--namespace", meshNamespace}, args...)...)
}

// applyManifests applies the example, and an invalid manifest.
func (m mesh) applyManifests(t *testing.T) {
	text := m.renderChart(t, "--values", m.exampleFile())
	apply := []string{"apply", "--server-side", "--validate=strict", "--namespace", meshNamespace, "--filename", "-"}
	for line := range strings.Lines(run(t, text, "kubectl", apply...)) {
		t.Log(strings.TrimSpace(line))
	}
	if !strings.Contains(text, m.valid) {
		t.Fatalf("the manifests don't have %q", m.valid)
	}
	invalid := strings.ReplaceAll(text, m.valid, m.invalid)
	if out, err := runProgram(t.Context(), invalid, "kubectl", append(apply, "--dry-run=server")...); err == nil ||
		!strings.Contains(err.Error(), m.refusal) {
		t.Errorf("%s for %s: got %q, %v, want a refusal with %q", m.invalid, m.valid, out, err, m.refusal)
	}
	run(t, text, "kubectl", "delete", "--namespace", meshNamespace, "--filename", "-")
}

// patchWorkload patches a Deployment as the notes of mode istio describe: a workload, to which Istio adds the
// istio-proxy container, and an Istio gateway, which has this container already. A second patch follows, for values
// that need less.
func patchWorkload(t *testing.T) {
	for _, tt := range []struct{ context, container, get, want string }{
		{"sidecar", "shop", `{.metadata.annotations.sidecar\.istio\.io/nativeSidecar}`, "false"},
		{"gateway", "istio-proxy", "{.spec.containers[*].volumeMounts[*].name}", "gatehouse-run gatehouse-module"},
	} {
		kubectl := func(stdin string, args ...string) string {
			return run(t, stdin, "kubectl", append([]string{"--namespace", meshNamespace}, args...)...)
		}
		deployment := fmt.Sprintf(
			`{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": %[1]q}, "spec": {"replicas": 0,
			"selector": {"matchLabels": {"app": %[1]q}}, "template": {"metadata": {"labels": {"app": %[1]q}},
			"spec": {"containers": [{"name": %[1]q, "image": "localhost/pause:dev"}]}}}}`, tt.container)
		kubectl(deployment, "apply", "--filename", "-")
		patch := func(values ...string) {
			text := ""
			for _, m := range parseManifests(t,
				meshes[0].renderChart(t,
					append([]string{"--values", meshes[0].exampleFile(), "--set", "istio.context=" + tt.context,
						"--set", "istio.module=pod"}, values...)...)) {
				if strings.HasSuffix(m.name(), "-workload-patch") {
					text = m.mappingAt("data")["patch.yaml"].(string)
				}
			}
			path := filepath.Join(t.TempDir(), "patch.yaml")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			kubectl("", "patch", "deployment", tt.container, "--patch-file", path)
		}
		names := func() string {
			const pod = "{.spec.template.spec"
			return kubectl("", "get", "deployment", tt.container, "--output",
				"jsonpath="+pod+".volumes[*].name} "+pod+".initContainers[*].env[*].name} "+pod+
					".initContainers[*].volumeMounts[*].name}")
		}
		patch()
		all := names()
		patch("--values", "testdata/less-redis.yaml", "--set", "istio.module=registry")
		for _, gone := range []string{"gatehouse-redis", "GATEHOUSE_REDIS_USERNAME", "gatehouse-module"} {
			if got := names(); !strings.Contains(all, gone) || strings.Contains(got, gone) {
				t.Errorf("%s: got %s, then %s; want it there, and gone when the values have none", gone, all, got)
			}
		}
		patch()
		if got := names(); got != all {
			t.Errorf("patched once more: got %s, want %s", got, all)
		}
		for get, want := range map[string]string{"{.spec.initContainers[*].name}": "gatehouse-module gatehouse-sidecar",
			tt.get: tt.want} {
			get = strings.Replace(get, "{", "{.spec.template", 1)
			if got := kubectl("", "get", "deployment", tt.container, "--output", "jsonpath="+get); got != want {
				t.Errorf("%s of the patched %s: got %q, want %q", get, tt.context, got, want)
			}
		}
	}
}
