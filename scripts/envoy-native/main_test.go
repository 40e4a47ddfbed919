package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../envoy", name))
	require.NoError(t, err)
	return string(text)
}

// TestGenerated compares envoy-native.yaml with the conversion of envoy.yaml.
func TestGenerated(t *testing.T) {
	want, err := toNative(readFile(t, "envoy.yaml"))
	require.NoError(t, err)
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
				require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(readFile(t, name), remove, "")), 0o600))
				return path
			}
			tested, err := stack.LoadConfig(variant("envoy.yaml"))
			require.NoError(t, err)
			require.NoError(t, tested.MakeNative("/usr/lib/gatehouse/libgatehouse.so"))
			shipped, err := stack.LoadConfig(variant("envoy-native.yaml"))
			require.NoError(t, err)
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
	require.NoError(t, err)
	var tree any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	text, err = yaml.Marshal(tree)
	require.NoError(t, err)
	return string(text)
}
