package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReadme compares the flags of Redis that docs/operate.md lists with what there is.
func TestReadme(t *testing.T) {
	source, err := os.ReadFile("../../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed, offered []string
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| `(GATEHOUSE_[A-Z_]+)` \\|").FindAllStringSubmatch(
		string(source), -1) {
		listed = append(listed, row[1]+" "+row[2])
	}
	help := strings.Join(strings.Fields(newShell(t).ok("", "--help")), " ")
	for _, flag := range regexp.MustCompile(`--((?:redis|shards|namespace)[a-z-]*)=`).FindAllStringSubmatchIndex(help, -1) {
		name := help[flag[2]:flag[3]]
		variable := regexp.MustCompile(`\$(GATEHOUSE_[A-Z_]+)`).FindStringSubmatch(help[flag[1]:])
		offered = append(offered, name+" "+variable[1])
	}
	slices.Sort(listed)
	slices.Sort(offered)
	if !slices.Equal(listed, offered) {
		t.Errorf("listed:\n%s\nwant:\n%s", strings.Join(listed, "\n"), strings.Join(offered, "\n"))
	}
}
