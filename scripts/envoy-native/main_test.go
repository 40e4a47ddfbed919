package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../envoy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestGenerated compares envoy-native.yaml with the conversion of envoy.yaml.
func TestGenerated(t *testing.T) {
	want, err := toNative(readFile(t, "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if readFile(t, "envoy-native.yaml") != want {
		t.Error("envoy-native.yaml is outdated: go run ./scripts/envoy-native >envoy/envoy-native.yaml")
	}
}

// TestTested compares envoy-native.yaml with the native edge's configuration in tests, made of envoy.yaml, also with
// session tokens and with a different source.
func TestTested(t *testing.T) {
	for _, remove := range []string{"#nothing", "#session ", "#source "} {
		t.Run(strings.TrimSpace(remove), func(t *testing.T) {
			variant := func(name string) string {
				path := filepath.Join(t.TempDir(), name)
				if err := os.WriteFile(path, []byte(strings.ReplaceAll(readFile(t, name), remove, "")), 0o600); err != nil {
					t.Fatal(err)
				}
				return path
			}
			tested, err := stack.LoadConfig(variant("envoy.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if err := tested.MakeNative("/usr/lib/gatehouse/libgatehouse.so"); err != nil {
				t.Fatal(err)
			}
			shipped, err := stack.LoadConfig(variant("envoy-native.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := sortedValues(t, shipped), sortedValues(t, tested); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// sortedValues returns a configuration without comments and aliases, with sorted names.
func sortedValues(t *testing.T, c *stack.Config) string {
	t.Helper()
	text, err := c.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	text, err = yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
