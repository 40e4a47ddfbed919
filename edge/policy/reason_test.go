package policy

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestReasonsAreDocumented compares docs/rules.md's list with the reasons.
func TestReasonsAreDocumented(t *testing.T) {
	readme, err := os.ReadFile("../../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	list, _, _ := bytes.Cut(readme, []byte("\n## Counters"))
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`gatehouse_.*?`) \\|").FindAllSubmatch(list, -1) {
		for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllSubmatch(row[1], -1) {
			documented = append(documented, string(name[1]))
		}
	}
	real := Reasons()
	slices.Sort(documented)
	slices.Sort(real)
	if !slices.Equal(documented, real) {
		t.Errorf("docs/rules.md documents %v\nthe filter has %v", documented, real)
	}
}
