package policy

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestReasonsAreDocumented compares docs/requests.md's list with the reasons.
func TestReasonsAreDocumented(t *testing.T) {
	readme, err := os.ReadFile("../../docs/requests.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`gatehouse_.*?`) \\|").FindAllSubmatch(readme, -1) {
		for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllSubmatch(row[1], -1) {
			documented = append(documented, string(name[1]))
		}
	}
	real := slices.Sorted(maps.Keys(ExplainReasons()))
	slices.Sort(documented)
	if slices.Contains(slices.Collect(maps.Values(ExplainReasons())), "") {
		t.Errorf("got %q, want an explanation for each reason", ExplainReasons())
	}
	if !slices.Equal(documented, real) {
		t.Errorf("docs/requests.md documents %v\nthe filter has %v", documented, real)
	}
}
