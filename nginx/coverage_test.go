package nginx_test

import (
	"embed"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

var coverage = flag.Bool("lua-coverage", false, "measure which lines of the plugin run, and fail if they are too few")

// sources has the Lua that nginx reads. Since it is in the test binary, Go's cache of results notices changes.
//
//go:embed lua testdata/*.lua http.conf server.conf push.conf
var sources embed.FS

// minCoverage is the share of a module's lines that the tests must run, in per cent.
const minCoverage = 90

// coverageFile has the lines run so far, and coverageFile.all the runnable lines: coverage.lua appends to both.
var coverageFile string

// startCoverage returns the begin of a configuration's init_by_lua_block.
func startCoverage() string {
	if !*coverage {
		return ""
	}
	root, err := filepath.Abs("lua/gatehouse")
	if err != nil {
		return fmt.Sprintf("error(%q)", err)
	}
	return fmt.Sprintf("require(%q).start(%q, %q) ", "coverage", coverageFile, root)
}

// reportCoverage prints the lines of each module that haven't run, and fails if a module has too many.
func reportCoverage(out io.Writer) error {
	text, err := os.ReadFile(coverageFile)
	if err != nil {
		return err
	}
	ran := map[string]bool{}
	for _, line := range strings.Fields(string(text)) {
		ran[line] = true
	}
	can, err := os.ReadFile(coverageFile + ".all")
	if err != nil {
		return err
	}
	modules, err := fs.Glob(sources, "lua/gatehouse/*.lua")
	if err != nil {
		return err
	}
	lines := map[string]map[string]bool{}
	for _, line := range strings.Fields(string(can)) {
		name, number, _ := strings.Cut(line, ":")
		if lines[name] == nil {
			lines[name] = map[string]bool{}
		}
		lines[name][number] = true
	}
	var all, allRan int
	var low []string
	for _, module := range modules {
		name := filepath.Base(module)
		var missed []string
		for line := range lines[name] {
			if !ran[name+":"+line] {
				missed = append(missed, line)
			}
		}
		slices.Sort(missed)
		total := len(lines[name])
		n := total - len(missed)
		all, allRan = all+total, allRan+n
		if 100*n < minCoverage*total {
			low = append(low, name)
		}
		fmt.Fprintf(out, "%-16s %4d of %4d lines, %3d %%; not: %s\n", name, n, total, 100*n/max(total, 1),
			strings.Join(missed, " "))
	}
	fmt.Fprintf(out, "%-16s %4d of %4d lines, %3d %%\n", "the plugin", allRan, all, 100*allRan/max(all, 1))
	if len(low) > 0 {
		return fmt.Errorf("the tests in nginx/ run less than %d %% of the lines of %s: add tests",
			minCoverage, strings.Join(low, ", "))
	}
	return nil
}
