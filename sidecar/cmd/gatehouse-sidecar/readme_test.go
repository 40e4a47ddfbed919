package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/internal/config"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// TestReadme compares what sidecar/README.md lists with what there is.
func TestReadme(t *testing.T) {
	source, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(source)
	flags, variables, settings := settings(t)
	for _, test := range []struct {
		what      string
		got, want []string
	}{
		{"metrics", listedMetrics(text), metricNames(t)},
		{"flags", listed(text, "(?m)^\\| `--([a-z-]+\\.[a-z-]+)`"), flags},
		{"variables", listed(text, "(?m)^\\| `--[a-z-]+\\.[a-z-]+` \\| `(GATEHOUSE_[A-Z_]+)`"), variables},
		{"settings", listed(text, "(?m)^\\| `--[a-z-]+\\.[a-z-]+` \\| `GATEHOUSE_[A-Z_]+` \\| `([a-z_.]+)`"), settings},
	} {
		slices.Sort(test.got)
		slices.Sort(test.want)
		if got, want := strings.Join(test.got, "\n"), strings.Join(test.want, "\n"); got != want {
			t.Errorf("%s listed:\n%s\nwant:\n%s", test.what, got, want)
		}
	}
}

// listed is what the pattern's group matches.
func listed(text, pattern string) []string {
	var names []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	return names
}

// listedMetrics is each name with its labels.
func listedMetrics(text string) []string {
	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(gatehouse_\\w+)` \\|[^|]*\\| ([^|]*) \\|").FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Join(append([]string{row[1]}, listed(row[2], "`(\\w+)`:")...), " "))
	}
	return names
}

// metricNames is likewise of the registry.
func metricNames(t *testing.T) []string {
	t.Helper()
	m := metrics.New()
	m.Registry.MustRegister(edgemem.New(edgemem.Config{}).Collector(), metrics.BuildInfo("v0"))
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, family := range families {
		name := family.GetName()
		if !strings.HasPrefix(name, "gatehouse_") {
			continue
		}
		for _, pair := range family.GetMetric()[0].GetLabel() {
			name += " " + pair.GetName()
		}
		names = append(names, name)
	}
	return names
}

// settings is every setting by its three names.
func settings(t *testing.T) (flags, variables, settings []string) {
	t.Helper()
	var usage bytes.Buffer
	if err := config.Usage(&usage); err != nil {
		t.Fatal(err)
	}
	for _, flag := range listed(usage.String(), `--([a-z-]+\.[a-z-]+)=`) {
		flags = append(flags, flag)
		variables = append(variables, "GATEHOUSE_"+strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(flag)))
		settings = append(settings, strings.ReplaceAll(flag, "-", "_"))
	}
	return flags, variables, settings
}
