package report

import (
	"bytes"
	_ "embed"
	"html/template"
)

//go:embed report.html.tmpl
var page string

var pageTemplate = template.Must(template.New("report").Parse(page))

// HTML returns the report as one file without external resources.
func (r *Report) HTML() ([]byte, error) {
	type block struct {
		Section
		Rows, Pairs [][]string
	}
	var blocks []block
	for _, s := range r.Sections {
		b := block{Section: s}
		for _, row := range s.Rows {
			b.Rows = append(b.Rows, row.Cells())
		}
		for _, pair := range s.Pairs {
			b.Pairs = append(b.Pairs, pair.cells())
		}
		blocks = append(blocks, b)
	}
	var charts []template.HTML
	for _, chart := range r.charts() {
		charts = append(charts, template.HTML(chart)) // made here, with all text escaped
	}
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, map[string]any{
		"Style": template.CSS(chartCSS), "Facts": r.Machine.Facts(), "Charts": charts, "Blocks": blocks,
		"Columns": Columns, "PairColumns": pairColumns,
	})
	return out.Bytes(), err
}
