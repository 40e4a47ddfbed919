package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/admin"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/config"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edges"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// TestReadme compares the lists in docs/settings.md and docs/monitoring.md with the program's settings and metrics.
func TestReadme(t *testing.T) {
	text := ""
	for _, page := range []string{"settings", "monitoring"} {
		source, err := os.ReadFile("../../../docs/" + page + ".md")
		require.NoError(t, err)
		sidecar, _, _ := strings.Cut(string(source), "\n## Counters\n") // the edge's
		text += sidecar
	}
	for _, test := range []struct {
		what      string
		got, want []string
	}{
		{"metrics", listedMetrics(text), metricNames(t)},
		{"flags", listed(text, "(?m)^\\| `--([a-z-]+\\.[a-z-]+)`"), flags(t)},
		{"attributes of logs", listedAttributes(text), attributes(t)},
	} {
		slices.Sort(test.got)
		slices.Sort(test.want)
		if got, want := strings.Join(test.got, "\n"), strings.Join(test.want, "\n"); got != want {
			t.Errorf("%s listed:\n%s\nwant:\n%s", test.what, got, want)
		}
	}
}

// listed returns the matches of the pattern's group.
func listed(text, pattern string) []string {
	var names []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	return names
}

// listedMetrics returns the metrics' names with their labels.
func listedMetrics(text string) []string {
	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(gatehouse_\\w+)` \\| ([^|]*) \\|").
		FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Join(append([]string{row[1]}, listed(row[2], "`(\\w+)`:")...), " "))
	}
	return names
}

// metricNames is likewise of the registry.
func metricNames(t *testing.T) []string {
	t.Helper()
	m := metrics.New()
	credential.New(credential.Config{}, nil, m, nil)
	m.Registry.MustRegister(edgemem.New(edgemem.Config{}).Collector(), admin.BuildInfo("v0"))
	families, err := m.Registry.Gather()
	require.NoError(t, err)
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
	edge := make(chan *prometheus.Desc, 100) // of edges in directories, of which there is none here
	edges.New(edges.Config{}).Collector().Describe(edge)
	close(edge)
	for description := range edge {
		match := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: {(\w+)}`).FindStringSubmatch(description.String())
		names = append(names, match[1]+" "+match[2])
	}
	return names
}

// listedAttributes returns the names in the table of logs.
func listedAttributes(text string) []string {
	_, table, _ := strings.Cut(text, "\n## Logs\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var names []string
	for _, row := range listed(table, "(?m)^\\| (`[^|]*`) \\|") {
		names = append(names, listed(row, "`(\\w+)`")...)
	}
	return names
}

// attributes returns the names of the attributes that sidecar, verify and publisher log.
func attributes(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, dir := range []string{".", "../../internal", "../../../verify", "../../../internal",
		"../../../publisher/internal"} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.Name() == "cmd": // other programs
				return fs.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				names = append(names, logged(call)...)
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// logged returns the names of the attributes of a call of a logger.
func logged(call *ast.CallExpr) (names []string) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	var logger string
	switch x := method.X.(type) {
	case *ast.Ident:
		logger = x.Name
	case *ast.SelectorExpr:
		logger = x.Sel.Name
	}
	first, found := map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "Log": 3, "With": 0}[method.Sel.Name]
	if logger != "log" || !found {
		return nil
	}
	for i := first; i < len(call.Args); i += 2 {
		if literal, ok := call.Args[i].(*ast.BasicLit); ok {
			names = append(names, strings.Trim(literal.Value, `"`))
		}
	}
	return names
}

// flags returns the names of all settings.
func flags(t *testing.T) []string {
	t.Helper()
	var usage bytes.Buffer
	require.NoError(t, config.PrintUsage(&usage))
	return listed(usage.String(), `--([a-z-]+\.[a-z-]+)\b`)
}
