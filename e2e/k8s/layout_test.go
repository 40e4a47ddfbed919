//go:build linux

package k8s

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestLayout(t *testing.T) {
	l := layout{t.TempDir()}
	require.NoError(t, l.writeFiles())
	for path, decode := range map[string]func([]byte, any) error{
		"kubeconfig.yaml": yaml.Unmarshal, "kubelet.yaml": yaml.Unmarshal, "cni/10-bridge.conflist": json.Unmarshal,
		"containerd.toml": nil,
	} {
		text, err := os.ReadFile(l.path(path))
		require.NoError(t, err)
		if strings.Contains(string(text), "{{") || !strings.Contains(string(text), l.Dir) {
			t.Errorf("%s: not filled in:\n%s", path, text)
		}
		var v any
		if decode != nil {
			if err := decode(text, &v); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	info, err := os.Stat(l.path("certs", "service-account.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key: got %v, %v, want mode 0600", info.Mode(), err)
	}
}

func TestRemoveDirs(t *testing.T) {
	root := filepath.Join(t.TempDir(), "kubepods")
	if err := removeDirs(root); err != nil {
		t.Errorf("what isn't there: %v", err)
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a", "b"), 0o755))
	if err := removeDirs(root); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}

func TestPreflightWithoutPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	got := strings.Join(Preflight(), "\n")
	for _, want := range []string{"containerd", "runc", "iptables"} {
		if os.Geteuid() == 0 && !strings.Contains(got, "no "+want+": apt-get install ") {
			t.Errorf("nothing of %s in %q", want, got)
		}
	}
	if got == "" {
		t.Error("nothing is missing")
	}
}
