//go:build linux

package scenario

import (
	"bytes"
	"fmt"
	"io"

	"github.com/gatehouse/gatehouse/loadtest/report"
)

// Recorder records the results of a scenario. Lines are printed at once, tables at the end of the scenario.
type Recorder struct {
	report.Section
	out, progress io.Writer
	line          []byte // incomplete
}

// Write prints p and keeps its lines.
func (r *Recorder) Write(p []byte) (int, error) {
	r.line = append(r.line, p...)
	for {
		line, rest, found := bytes.Cut(r.line, []byte("\n"))
		if !found {
			break
		}
		r.Notes = append(r.Notes, string(line))
		r.line = rest
	}
	return r.out.Write(p)
}

// printProgress prints progress on the terminal.
func (r *Recorder) printProgress(format string, args ...any) {
	fmt.Fprintf(r.progress, "loadtest: "+r.Scenario+": "+format+"\n", args...)
}

// addRow records a row, unless err is set, and returns err.
func (r *Recorder) addRow(row report.Row, err error) error {
	if err == nil {
		r.Rows = append(r.Rows, row)
	}
	return err
}
