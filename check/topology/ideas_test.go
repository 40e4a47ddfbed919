package topology_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/envoyconfig"
	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/nginxconfig"
	"github.com/gatehouse/gatehouse/check/topology"
)

// TestPage: the page has one row for each idea, with codes and severities, and no unknown one.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/analysis.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed, want []string
	for _, row := range regexp.MustCompile(`(?m)^(\| (?:GH0\d{3}|–) \| (?:GH1\d{3}|–) \| [^|]+) \| [^|]+ \|$`).
		FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, row[1])
	}
	row := func(envoy, nginx, severity string) { want = append(want, "| "+envoy+" | "+nginx+" | "+severity) }
	for _, idea := range topology.Ideas() {
		envoy, nginx := idea[findings.Envoy], idea[findings.Nginx]
		severity := string(envoy.Severity)
		if nginx.Severity != envoy.Severity {
			severity += "; nginx: " + string(nginx.Severity)
		}
		row(envoy.Code, nginx.Code, severity)
	}
	for _, kind := range envoyconfig.Kinds() {
		row(kind.Code, "–", string(kind.Severity))
	}
	slices.Sort(want)
	for _, kind := range nginxconfig.Kinds() {
		row("–", kind.Code, string(kind.Severity))
	}
	if !slices.Equal(listed, want) {
		t.Errorf("docs/analysis.md lists\n%s\nwant\n%s", strings.Join(listed, "\n"), strings.Join(want, "\n"))
	}
}
