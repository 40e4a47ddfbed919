package observe

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

const dashboardFile = "../../charts/gatehouse/files/dashboard.json"

// units are the ones of Grafana that the dashboard uses.
var units = []string{"percentunit", "percent", "reqps", "ops", "s", "bytes", "short"}

// TestDashboardFile checks what Grafana would show without an error, but wrong.
func TestDashboardFile(t *testing.T) {
	d, err := ReadDashboard(dashboardFile)
	require.NoError(t, err)
	if d.UID != "gatehouse" || d.SchemaVersion != 39 {
		t.Errorf("uid %q, schemaVersion %d, want gatehouse, 39", d.UID, d.SchemaVersion)
	}
	var variables, linked []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "namespace", "pod", "rule"}; !slices.Equal(variables, want) {
		t.Errorf("variables %q, want %q", variables, want)
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%s: id %d is 0 or given twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s: %+v is beyond 24 columns", p.Title, p.GridPos)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := cells[cell]; other != "" {
					t.Fatalf("%s is above %s", p.Title, other)
				}
				cells[cell] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || !slices.Contains(units, p.FieldConfig.Defaults.Unit) || len(p.Targets) == 0 {
			t.Errorf("%s: description %q, unit %q, %d queries", p.Title, p.Description,
				p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || target.Datasource.Type != "prometheus" || target.Datasource.UID != "${datasource}" {
				t.Errorf("%s: query %s twice, or not of the data source: %+v", p.Title, target.RefID, target.Datasource)
			}
			refs[target.RefID] = true
			if n := strings.Count(target.Expr, "{"); n != strings.Count(target.Expr, `namespace=~"$namespace", pod=~"$pod"`) {
				t.Errorf("%s: %s: want $namespace and $pod in each selector", p.Title, target.Expr)
			}
		}
		for _, link := range p.Links {
			linked = append(linked, link.URL)
		}
	}
	runbooks, err := os.ReadFile("../../docs/runbooks.md")
	require.NoError(t, err)
	var sections []string
	for _, section := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(runbooks), -1) {
		sections = append(sections, "https://github.com/gatehouse/gatehouse/blob/main/docs/runbooks.md#"+
			strings.ToLower(section[1]))
	}
	slices.Sort(sections)
	slices.Sort(linked)
	if got := slices.Compact(linked); !slices.Equal(got, sections) {
		t.Errorf("panels link to:\n%s\nwant a link to each runbook:\n%s", strings.Join(got, "\n"),
			strings.Join(sections, "\n"))
	}
}
