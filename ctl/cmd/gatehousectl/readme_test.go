package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReadme compares docs/operate.md with the program: flags with variables, and exit codes.
func TestReadme(t *testing.T) {
	source, err := os.ReadFile("../../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(source), "\n## gatehousectl\n")
	if !found {
		t.Fatal("no section gatehousectl")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	rows := func(pattern string) (out []string) {
		for _, row := range regexp.MustCompile(pattern).FindAllStringSubmatch(section, -1) {
			out = append(out, row[1]+" "+row[2])
		}
		return out
	}
	var codes []string
	for _, exit := range exitCodes {
		codes = append(codes, fmt.Sprint(exit.code, " ", exit.meaning))
	}
	if got := rows("(?m)^\\| `([0-9])` \\| (.*) \\|$"); !slices.Equal(got, codes) {
		t.Errorf("exit codes: %q, want %q", got, codes)
	}
	flags := map[string]bool{}
	for _, node := range grammar(t).everything() {
		for _, flag := range node.Flags {
			for _, name := range flagVariables(flag.Value) {
				flags["--"+flag.Name+" "+name] = true
			}
		}
	}
	got := rows("(?m)^\\| `(--[a-z-]+)` \\| `(GATEHOUSE_[A-Z_]+)` \\|")
	slices.Sort(got)
	if want := slices.Sorted(maps.Keys(flags)); !slices.Equal(got, want) {
		t.Errorf("flags with variables:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
