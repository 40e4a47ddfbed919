// Package clients has the tests of the module as a whole.
package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestReadme: the README's example is package publish's tested example.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	example, err := os.ReadFile("publish/example_test.go")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) != 1 || !strings.HasSuffix(string(example), "\n\n"+string(blocks[0][1])) {
		t.Error("README.md: want one example, the last function of publish/example_test.go")
	}
}

// TestOutside: a program of another module that requires only this module builds with the Go of this module's go line,
// by the modules here. The module graph has no module that only the product needs.
func TestOutside(t *testing.T) {
	module, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	sums, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^go (.*)$`).FindSubmatch(module)
	dir := t.TempDir()
	const name = "github.com/gatehouse/gatehouse/clients/go"
	for file, text := range map[string]string{
		"go.mod": "module example.org/writer\n\ngo " + string(line[1]) + "\n\nrequire " + name + " v0.0.0\n\nreplace " +
			name + " => " + here + "\n",
		"go.sum": string(sums),
		"main.go": `package main

import (
	"context"

	"` + name + `/publish"
	"` + name + `/redisurl"
)

func main() {
	client, err := redisurl.Connect("redis://127.0.0.1:1")
	if err != nil {
		panic(err)
	}
	publish.New(client).Delete(context.Background(), "/a", 0)
}
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOTOOLCHAIN=go"+string(line[1]), "GOFLAGS=-mod=mod", "GOWORK=off")
		var problems strings.Builder
		cmd.Stderr = &problems
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &problems)
		}
		return string(out)
	}
	run("build", "-o", os.DevNull, ".")

	compiled := []string{
		"example.org/writer",
		"github.com/andybalholm/brotli", "github.com/cespare/xxhash/v2", name, "github.com/klauspost/compress",
		"github.com/redis/go-redis/v9", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/trace", "go.uber.org/atomic",
		"golang.org/x/crypto", "golang.org/x/sync", "golang.org/x/sys",
	}
	got := strings.Fields(run("list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "."))
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, compiled) {
		t.Errorf("a writer compiles packages of %q, want %q", got, compiled)
	}
	product, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	graph := strings.Fields(run("list", "-m", "-f", "{{.Path}}", "all"))
	ours := 0
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(product), -1) {
		if strings.HasPrefix(m[1], "golang.org/x/") || m[1] == name || strings.Contains(string(module), m[1]+" ") {
			continue
		}
		if ours++; slices.Contains(graph, m[1]) {
			t.Errorf("a writer's module graph has %s, which only the product needs", m[1])
		}
	}
	if ours < 10 || slices.Contains(graph, "github.com/gatehouse/gatehouse") {
		t.Errorf("%d modules are the product's alone, in a graph of %q", ours, graph)
	}
}
