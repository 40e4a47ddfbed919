package policy

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCountersAreDocumented compares docs/monitoring.md's list of metrics, with their labels, with the counters.
func TestCountersAreDocumented(t *testing.T) {
	readme, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## Counters\n")
	var documented, real []string
	metric := ""
	for _, row := range regexp.MustCompile("(?m)^\\| (?:`(gatehouse_[a-z_]+_total)` )?\\| "+
		"(?:`([a-z]+)=\"([a-z_]+)\"`|–) \\|").FindAllStringSubmatch(section, -1) {
		if row[1] != "" {
			metric = row[1]
		}
		documented = append(documented, fmt.Sprintf("%s %s=%s", metric, row[2], row[3]))
	}
	for c := None + 1; c < Counters; c++ {
		s := counterSeries[c]
		real = append(real, fmt.Sprintf("gatehouse_%s %s=%s", s.metric, s.label, s.value))
	}
	real = append(real, "gatehouse_panics_total =") // the dynamic module's own, panicsStat
	if !slices.Equal(documented, real) {
		t.Errorf("docs/monitoring.md documents %v\nthe filter has %v", documented, real)
	}
}

func TestStatName(t *testing.T) {
	for c, want := range map[Counter][2]string{
		CacheNotModified: {"cache_not_modified", "gatehouse.rule=.=a-b;.;outcome=.=not_modified;.;cache_requests_total"},
		CallVerify:       {"calls_verify", "gatehouse.rule=.=a-b;.;call=.=verify;.;calls_total"},
		SessionIssued:    {"sessions_issued", "gatehouse.sessions_issued_total"},
		BatchRefused:     {"batches_refused", "gatehouse.result=.=refused;.;batches_total"},
	} {
		if got := [2]string{c.String(), c.StatName("a-b")}; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
