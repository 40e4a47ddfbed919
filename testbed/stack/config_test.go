package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

const sample = `# first
a:
- name: one
  address: {socket_address: {address: 127.0.0.1, port_value: 1}} # kept
- name: two # also kept
  path: &p /old
b: *p
c: {d: /old}
`

func load(t *testing.T, text string) *Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	config, err := LoadConfig(path)
	require.NoError(t, err)
	return config
}

func text(t *testing.T, c *Config) string {
	t.Helper()
	b, err := c.Bytes()
	require.NoError(t, err)
	return string(b)
}

func TestConfigRefuses(t *testing.T) {
	config := load(t, sample)
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"missing element", config.Set(1, "a", "three", "x"), `no "three" in ["a"]`},
		{"field of a scalar", config.Set(1, "a", "one", "name", "x"), `no "x" in ["a" "one" "name"]`},
		{"new element", config.Set(1, "a", "9"), `no "9" in ["a"]`},
		{"missing address", config.SetAddress("127.0.0.1:1", "a", "two"), `no "address" in ["a" "two"]`},
		{"bad address", config.SetAddress("127.0.0.1", "a", "one"), "missing port"},
		{"nothing to replace", config.Replace("/none", "/new"), `no value "/none"`},
		{"rules that aren't there", config.SetRules("default: deny"), `no "static_resources" in []`},
		{"empty rules", config.SetRules("# nothing"), "no YAML mapping"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", c.err, c.want)
			}
		})
	}
	if got, want := text(t, config), text(t, load(t, sample)); got != want {
		t.Errorf("refused edits changed the configuration: got\n%s\nwant\n%s", got, want)
	}
	for name, content := range map[string]string{"empty": "", "not YAML": "a: [b"} {
		path := filepath.Join(t.TempDir(), "envoy.yaml")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
	}
}
