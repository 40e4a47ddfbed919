package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestInstallModule(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from.wasm"), filepath.Join(dir, "volume", "to.wasm")
	require.NoError(t, os.Mkdir(filepath.Dir(to), 0o700))
	install := func(from, to string) (int, string) {
		var out bytes.Buffer
		return run([]string{"install-module", from, to}, nil, &out, &out, func(string) string { return "" }), out.String()
	}
	for _, text := range []string{"old module", "new"} { // the second replaces the first
		require.NoError(t, os.WriteFile(from, []byte(text), 0o600))
		if code, out := install(from, to); code != 0 {
			t.Fatalf("exit code %d: %s", code, out)
		}
		if got, err := os.ReadFile(to); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	info, err := os.Stat(to)
	require.NoError(t, err)
	if got := info.Mode().Perm(); got != 0o644 {
		t.Errorf("mode %v: another user's Envoy must be able to read it", got)
	}
	for name, paths := range map[string][2]string{
		"no source": {from + "x", to}, "no volume": {from, filepath.Join(dir, "none", "to.wasm")}, "directory": {dir, to},
	} {
		if code, out := install(paths[0], paths[1]); code != 1 || out == "" {
			t.Errorf("%s: exit code %d, %q, want 1 and a reason", name, code, out)
		}
	}
	left, err := os.ReadDir(filepath.Dir(to))
	if err != nil || len(left) != 1 {
		t.Errorf("left in the volume: %v, %v, want the module alone", left, err)
	}
}

// TestNginxInstall installs the plugin with a library, twice. Without a library, or with mistaken rules, nothing is
// installed.
func TestNginxInstall(t *testing.T) {
	dir := t.TempDir()
	to, library, rules := filepath.Join(dir, "plugin"), filepath.Join(dir, "library.so"), filepath.Join(dir, "rules.yaml")
	install := func(args ...string) (int, string) {
		var out bytes.Buffer
		return run(append([]string{"nginx", "install", to}, args...), nil, &out, &out, func(string) string {
			return ""
		}), out.String()
	}
	require.NoError(t, os.WriteFile(rules, []byte("rulez: []"), 0o600))
	for _, args := range [][]string{nil, {"--library", library}, {"--library", rules, "--rules", rules}} {
		if code, out := install(args...); code == 0 {
			t.Errorf("%q: got no error: %s", args, out)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%q: a part was installed", args)
		}
	}
	require.NoError(t, os.WriteFile(rules, []byte("rules: [{match: {path: /a}, cache: {}}]"), 0o600))
	for _, text := range []string{"old library", "new"} {
		require.NoError(t, os.WriteFile(library, []byte(text), 0o600))
		if code, out := install("--library", library, "--rules", rules); code != 0 {
			t.Fatalf("exit code %d: %s", code, out)
		}
		if got, err := os.ReadFile(filepath.Join(to, libraryName)); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	for _, name := range []string{"lua/gatehouse/edge.lua", "http.conf", "server.conf", "push.conf", "rules.json"} {
		if _, err := os.Stat(filepath.Join(to, name)); err != nil {
			t.Error(err)
		}
	}
}
