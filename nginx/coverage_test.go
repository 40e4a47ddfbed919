package nginx_test

import (
	"embed"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

var coverage = flag.Bool("lua-coverage", false, "measure which lines of the plugin run, and fail if they are too few")

// sources has the Lua that nginx reads. Since it is in the test binary, Go's cache of results notices changes.
//
//go:embed lua testdata/*.lua
var sources embed.FS

// minCoverage is the share of a module's lines that the tests must run, in per cent.
const minCoverage = 90

// coverageFile has the lines that have run: coverage.lua appends to it.
var coverageFile string

// startCoverage returns what a configuration's init_by_lua_block begins with.
func startCoverage() string {
	if !*coverage {
		return ""
	}
	return fmt.Sprintf("require(%q).start(%q) ", "coverage", coverageFile)
}

// reportCoverage prints the lines of each module that haven't run. It fails if a module has too many.
func reportCoverage(out io.Writer) error {
	text, err := os.ReadFile(coverageFile)
	if err != nil {
		return err
	}
	ran := map[string]bool{}
	for _, line := range strings.Fields(string(text)) {
		ran[line] = true
	}
	modules, err := fs.Glob(sources, "lua/gatehouse/*.lua")
	if err != nil {
		return err
	}
	var all, allRan int
	var low []string
	for _, module := range modules {
		path, err := filepath.Abs(module)
		if err != nil {
			return err
		}
		var lines []int
		if err := callLua(&[]any{&lines}, "coverage", "lines", path); err != nil {
			return err
		}
		name := filepath.Base(module)
		var missed []string
		for _, line := range lines {
			if !ran[fmt.Sprint(name, ":", line)] {
				missed = append(missed, fmt.Sprint(line))
			}
		}
		n := len(lines) - len(missed)
		all, allRan = all+len(lines), allRan+n
		if 100*n < minCoverage*len(lines) {
			low = append(low, name)
		}
		fmt.Fprintf(out, "%-16s %4d of %4d lines, %3d %%; not: %s\n", name, n, len(lines), 100*n/max(len(lines), 1), strings.Join(missed, " "))
	}
	fmt.Fprintf(out, "%-16s %4d of %4d lines, %3d %%\n", "the plugin", allRan, all, 100*allRan/max(all, 1))
	if len(low) > 0 {
		return fmt.Errorf("the tests in nginx/ run less than %d %% of the lines of %s: add tests", minCoverage, strings.Join(low, ", "))
	}
	return nil
}
