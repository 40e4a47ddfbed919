package envoyconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// twoEdges returns the shipped configuration with a second edge: a filter with this name and these rules.
func twoEdges(t *testing.T, name, rules string) []byte {
	t.Helper()
	second := `  - name: second
    address: {socket_address: {address: 127.0.0.1, port_value: 8082}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/` + envoyrules.ManagerType + `
          http_filters:
          - name: ` + name + `
            typed_config:
              "@type": type.googleapis.com/` + envoyrules.WasmType + `
              config: {vm_config: {vm_id: gatehouse, configuration: {"@type": type.googleapis.com/` + envoyrules.StructType +
		`, value: ` + rules + `}}}
`
	return shippedConfig(t, "  # The sidecar pushes to this listener.", second+"  # The sidecar pushes to this listener.")
}

// write writes the parts of a configuration into a directory.
func (s *Split) write(t *testing.T, dir string) (bootstrap string) {
	t.Helper()
	bootstrap = filepath.Join(dir, "envoy.yaml")
	files := map[string][]byte{bootstrap: s.Bootstrap}
	for _, f := range s.Filters {
		files[filepath.Join(dir, f.File())] = f.Text
	}
	for name, text := range files {
		require.NoError(t, os.WriteFile(name, text, 0o600))
	}
	return bootstrap
}

// TestSplit splits configurations. The files that Envoy reads afterwards have the same findings, at the lines of the
// files.
func TestSplit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		file    []byte
		filters []string
		err     string
	}{
		{"shipped", shippedConfig(t), []string{"gatehouse"}, ""},
		{"native", changedConfig(t, "envoy-native.yaml"), []string{"gatehouse"}, ""},
		{"an unknown field", shippedConfig(t, "cache: {query: [lang]}", "cache: {queri: [lang]}"),
			[]string{"gatehouse"}, ""},
		{"named like Envoy's file", twoEdges(t, "envoy", "{rules: []}"), nil, `a filter with rules is named "envoy"`},
		{"named like a path", twoEdges(t, "../gatehouse", "{rules: []}"), nil, `a filter with rules is named "../gatehouse"`},
		{"two edges", twoEdges(t, "second", "{rules: []}"), []string{"gatehouse", "second"}, ""},
		{"two edges of one name", twoEdges(t, "gatehouse", "{rules: []}"), nil, "give each a name"},
		{"no filter", []byte("static_resources: {listeners: []}"), nil, "has no filter of Gatehouse"},
		{"no bootstrap", []byte("- a"), nil, "Envoy's bootstrap"},
		{"no YAML", []byte("{"), nil, "did not find"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			split, err := SplitFilters(tt.file, "/nowhere/"+filepath.Base(dir))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, want %q", err, tt.err)
				}
				return
			}
			require.NoError(t, err)
			var names []string
			for _, f := range split.Filters {
				names = append(names, f.Name)
			}
			if strings.Join(names, " ") != strings.Join(tt.filters, " ") {
				t.Fatalf("got filters %q, want %q", names, tt.filters)
			}
			bootstrap := split.write(t, dir)
			got, want := Analyze(bootstrap, split.Bootstrap), Analyze("whole.yaml", tt.file)
			if got.Rules != want.Rules || len(got.Findings) != len(want.Findings) {
				t.Fatalf("got %d rules, %+v; of the whole file %d, %+v", got.Rules, got.Findings, want.Rules, want.Findings)
			}
			for i, f := range got.Findings {
				w := want.Findings[i]
				if f.Code != w.Code || f.Message != w.Message || f.Path != w.Path || !strings.HasPrefix(w.Corrected, f.Corrected) {
					t.Errorf("got %+v, want %+v", f, w)
				}
				if w.Rule == "" && f.File == "" {
					continue // not in the rules
				}
				text, err := os.ReadFile(filepath.Join(dir, "gatehouse.yaml"))
				require.NoError(t, err)
				line := func(text []byte, n int) string { // ignores comments: Split doesn't copy comments
					line, _, _ := strings.Cut(strings.Split(string(text), "\n")[n-1], " #")
					return strings.TrimSpace(line)
				}
				if f.File != filepath.Join(dir, "gatehouse.yaml") || line(text, f.Line) != line(tt.file, w.Line) {
					t.Errorf("%s: found in %s:%d, %q; want %q", f.Code, f.File, f.Line, line(text, f.Line), line(tt.file, w.Line))
				}
			}
			all, err := envoyrules.RulesOf(bootstrap, split.Bootstrap)
			require.NoError(t, err)
			whole, err := envoyrules.RulesOf("whole.yaml", tt.file)
			require.NoError(t, err)
			for i := range whole {
				if string(all[i].JSON) != string(whole[i].JSON) || all[i].Listener != whole[i].Listener {
					t.Errorf("got rules %s, want %s", all[i].JSON, whole[i].JSON)
				}
			}
			again, err := SplitFilters(split.Bootstrap, dir)
			if err == nil {
				t.Errorf("the parts were split again: %s", again.Bootstrap)
			}
		})
	}
}

// TestScalarsAsWritten: Split leaves scalars unchanged, since YAML parsers read some words differently.
func TestScalarsAsWritten(t *testing.T) {
	t.Parallel()
	split, err := SplitFilters(append(shippedConfig(t), "flags_path: yes\nhidden_envoy_deprecated: 0o17\n"...), "/d")
	require.NoError(t, err)
	for _, want := range []string{"\nflags_path: yes\n", "\nhidden_envoy_deprecated: 0o17\n"} {
		if !strings.Contains(string(split.Bootstrap), want) {
			t.Errorf("no %q in %s", want, split.Bootstrap)
		}
	}
	if strings.Contains(string(split.Bootstrap), "*code") || strings.Contains(string(split.Bootstrap), "&code") {
		t.Error("the bootstrap has an alias, whose anchor may be in another file")
	}
}

// TestFilterFile: a filter's file is at the configured path or else beside the configuration, and has a single filter.
func TestFilterFile(t *testing.T) {
	t.Parallel()
	dir, away := t.TempDir(), t.TempDir()
	split, err := SplitFilters(shippedConfig(t), away)
	require.NoError(t, err)
	check := func(what string, rules int, codes ...string) {
		t.Helper()
		report := Analyze(filepath.Join(dir, "envoy.yaml"), split.Bootstrap)
		var got []string
		for _, f := range report.Findings {
			got = append(got, f.Code)
		}
		if report.Rules != rules || strings.Join(got, " ") != strings.Join(codes, " ") {
			t.Errorf("%s: got %d rules, %+v; want %d, %q", what, report.Rules, report.Findings, rules, codes)
		}
	}
	file := filepath.Join(away, "gatehouse.yaml")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	// A push listener without an edge.
	check("no file", 0, noFile.Code)
	write(string(split.Filters[0].Text))
	check("where the configuration says", 4)
	write("resources: []\n")
	check("no filter", 0, noFile.Code)
	write(strings.Replace(string(split.Filters[0].Text), "name: gatehouse", "name: other", 1))
	check("another filter", 0, noFile.Code)
	write("{")
	check("no YAML", 0, noFile.Code)
	file = filepath.Join(dir, "gatehouse.yaml")
	write(string(split.Filters[0].Text))
	check("another one beside the configuration", 0, noFile.Code)
	require.NoError(t, os.Remove(filepath.Join(away, "gatehouse.yaml")))
	check("beside the configuration", 4)
}
