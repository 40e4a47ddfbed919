package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestEnvoyReload uses a stand-in for Envoy's admin, which applies the filter's file unless a rule is named refused.
// e2e has a test with Envoy.
func TestEnvoyReload(t *testing.T) {
	s := newShell(t)
	content, err := os.ReadFile("../../../envoy/envoy.yaml")
	require.NoError(t, err)
	whole := string(content)
	dir := filepath.Join(t.TempDir(), "parts")
	config := s.file("envoy.yaml", whole)
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(text)
	}
	var applied string
	rejected := 3
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text := read("gatehouse.yaml")
		version := regexp.MustCompile(`version_info: (\w+)`).FindStringSubmatch(text)[1]
		if strings.Contains(text, "name: refused") {
			rejected++
		} else {
			applied = version
		}
		fmt.Fprintf(w, "extension_config_discovery.http_filter.gatehouse.version_text: %q\n"+
			"extension_config_discovery.http_filter.gatehouse.update_rejected: %d\n"+
			"extension_config_discovery.http_filter.other.update_rejected: 9\n", applied, rejected)
	}))
	defer admin.Close()
	reload := []string{"envoy", "reload", config, "--dir", dir, "--admin", strings.TrimPrefix(admin.URL, "http://")}
	s.fails(2, "envoy.yaml: no such file or directory: let Envoy start with what gatehousectl envoy render writes", "",
		reload...)
	s.ok("", "envoy", "render", config, "--dir", dir)
	modes := func(want os.FileMode) {
		t.Helper()
		for _, name := range []string{"envoy.yaml", "gatehouse.yaml"} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
				t.Errorf("%s: got mode %v, %v, want %v", name, info.Mode(), err, want)
			}
		}
	}
	modes(0o600) // the configuration's
	first := read("gatehouse.yaml")
	if got := s.ok("", reload...); got != "gatehouse: unchanged\n" {
		t.Errorf("got %q", got)
	}
	change := func(before, after string) {
		t.Helper()
		text := strings.Replace(whole, before, after, 1)
		if text == whole {
			t.Fatalf("envoy.yaml has no %q", before)
		}
		require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	}
	for _, tt := range []struct {
		before, after, want string
		code                int
	}{
		{"name: products", "nam: products", "unknown field", 2},
		{"stat_prefix: edge", "stat_prefix: other", `nothing is applied: other parts than the rules differ from what Envoy ` +
			`started with, first "stat_prefix: other"; restart Envoy`, 2},
		{"name: products", "name: refused", "gatehouse: Envoy refuses it and goes on as before; its log tells why", 1},
	} {
		change(tt.before, tt.after)
		s.fails(tt.code, tt.want, "", reload...)
		if read("gatehouse.yaml") != first {
			t.Errorf("%s: the file of the filter was left changed", tt.after)
		}
	}
	change("name: products", "name: goods")
	if got := s.ok("", reload...); !regexp.MustCompile(`^gatehouse: applied in \d+ ms\n$`).MatchString(got) ||
		!strings.Contains(read("gatehouse.yaml"), "name: goods") {
		t.Errorf("got %q", got)
	}
	modes(0o600)
	s.fails(1, "Say where Envoy's admin is by --admin or $GATEHOUSE_EDGE_ADMIN", "", append(reload[:len(reload)-1],
		"127.0.0.1:1")...)
	require.NoError(t, os.Chmod(config, 0o640))
	s.ok("", "envoy", "render", config, "--dir", dir)
	modes(0o640)
	s.ok(whole, "envoy", "render", "-", "--dir", dir)
	modes(0o600)
	s.fails(2, "has no filter of Gatehouse", "static_resources: {}", "envoy", "render", "-", "--dir", dir)
}
