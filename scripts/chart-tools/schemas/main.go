// Command schemas writes the JSON schemas for kubeconform's checks of the chart's manifests: of Kubernetes, from the
// OpenAPI document, and of the chart's custom resources. The resources' definitions are copied, too, for a cluster. All
// sources are Go modules, pinned by sums. Usage: schemas SCHEMAS DEFINITIONS
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// source is a module with definitions of kinds.
type source struct {
	module, sum string // as go mod download takes and prints them
	files       string // pattern below the module's directory
	convert     func(file []byte) (schemas, error)
	defines     bool // the files are custom resource definitions
}

var sources = []source{
	{"k8s.io/kubernetes@v1.36.3", "h1:qDQdoMiluAE2Eab6Fa52YV+WjiGz9mZFFoagEA6cI+o=", "api/openapi-spec/swagger.json",
		fromOpenAPI, false},
	{"istio.io/api@v1.31.1", "h1:5Yb5ihcz4YQsCkciusK7DnFpBMwRB6EFWeUKH1Atuyk=",
		"kubernetes/customresourcedefinitions.gen.yaml", fromCRDs, true},
	{"sigs.k8s.io/gateway-api@v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=",
		"config/crd/standard/gateway.networking.k8s.io_[gh]*.yaml", fromCRDs, true},
	{"github.com/envoyproxy/gateway@v1.9.1", "h1:vAVp6/AlBXJ1aOhp1mxL7fNEzVEfjADUguUhm2wzxQY=",
		"charts/gateway-helm/charts/crds/crds/generated/*.yaml", fromCRDs, true},
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
		"example/prometheus-operator-crd/*.yaml", fromCRDs, true},
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: schemas SCHEMAS DEFINITIONS")
		os.Exit(2)
	}
	for _, s := range sources {
		if err := s.writeSchemas(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintf(os.Stderr, "schemas: %s: %v\n", s.module, err)
			os.Exit(1)
		}
	}
}

// writeSchemas writes the schemas of all files of the module into directory, and files of custom resource definitions
// into definitions.
func (s source) writeSchemas(directory, definitions string) error {
	root, err := s.downloadModule()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, s.files))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("has no file %s", s.files)
	}
	for _, name := range files {
		file, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		converted, err := s.convert(file)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := converted.writeFiles(directory); err != nil {
			return err
		}
		if !s.defines {
			continue
		}
		if err := os.WriteFile(filepath.Join(definitions, filepath.Base(name)), file, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// downloadModule returns the directory of the module, after a check of the sum.
func (s source) downloadModule() (string, error) {
	command := exec.Command("go", "mod", "download", "-json", s.module)
	command.Dir = os.TempDir() // outside of any module
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go mod download: %w: %s", err, output)
	}
	var module struct{ Dir, Sum string }
	if err := json.Unmarshal(output, &module); err != nil {
		return "", err
	}
	if module.Sum != s.sum {
		return "", fmt.Errorf("has the sum %s, want %s", module.Sum, s.sum)
	}
	return module.Dir, nil
}

// schemas are the schemas of kinds, by file name.
type schemas map[string]any

func (s schemas) writeFiles(directory string) error {
	for name, schema := range s {
		content, err := json.Marshal(schema)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, name+".json"), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fileName returns kubeconform's {{.ResourceKind}}{{.KindSuffix}}.
func fileName(group, version, kind string) string {
	group, _, _ = strings.Cut(group, ".")
	parts := []string{kind, group, version}
	if group == "" {
		parts = []string{kind, version}
	}
	return strings.ToLower(strings.Join(parts, "-"))
}
