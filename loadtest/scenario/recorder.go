//go:build linux

package scenario

import (
	"bytes"
	"fmt"
	"io"

	"github.com/gatehouse/gatehouse/loadtest/report"
)

// Recorder takes what a scenario has seen. Lines that are written to it are printed at
// once; tables are printed when the scenario is over.
type Recorder struct {
	report.Section
	out, progress io.Writer
	line          []byte // not complete yet
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

// doing says on the terminal what is being measured.
func (r *Recorder) doing(format string, args ...any) {
	fmt.Fprintf(r.progress, "loadtest: "+r.Scenario+": "+format+"\n", args...)
}

// row takes a row, unless there is an error; it returns the error.
func (r *Recorder) row(row report.Row, err error) error {
	if err == nil {
		r.Rows = append(r.Rows, row)
	}
	return err
}
