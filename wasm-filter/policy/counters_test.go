package policy

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestCountersAreDocumented compares the README's list with the counters.
func TestCountersAreDocumented(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented, real []string
	for line := range strings.Lines(string(readme)) {
		if name, ok := strings.CutPrefix(line, "| `gatehouse."); ok {
			name, _, _ = strings.Cut(name, "`")
			documented = append(documented, "gatehouse."+name)
		}
	}
	for c := None + 1; c < Counters; c++ {
		real = append(real, c.String())
	}
	if !slices.Equal(documented, real) {
		t.Errorf("README documents %v\nthe filter has %v", documented, real)
	}
}
