package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// A terminal gets lines that fit, and escape sequences that move the cursor. Other outputs get plain text. Nothing is
// coloured.

// terminalSize returns the size of the terminal behind w: 0 columns and rows if unknown.
func terminalSize(w io.Writer) (columns, rows int, ok bool) {
	file, ok := w.(*os.File)
	if !ok {
		return 0, 0, false
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return int(size.Col), int(size.Row), true
}

// newTable returns a writer that, when flushed, aligns columns. Columns end at tabs.
func (c *console) newTable() *tabwriter.Writer {
	out := c.stdout
	if columns, _, ok := terminalSize(out); ok && columns > 0 {
		out = &wrapWriter{to: out, columns: columns}
	}
	return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
}

// showProgress replaces the last line on the terminal of stderr by line; "" removes the line.
func (c *console) showProgress(line string) {
	columns, _, ok := terminalSize(c.stderr)
	if !ok || c.dumb {
		return
	}
	if columns > 0 {
		line = truncateLine(line, columns-1)
	}
	fmt.Fprintf(c.stderr, "\r%s\x1b[K", line)
}

// truncateLine returns the first columns of a line.
func truncateLine(line string, columns int) string {
	if utf8.RuneCountInString(line) <= columns {
		return line
	}
	return string([]rune(line)[:max(columns-1, 0)]) + "…"
}

// wrapWriter wraps long lines: the last column continues below the column's begin.
type wrapWriter struct {
	to      io.Writer
	columns int
	rest    []byte // an incomplete line
}

func (w *wrapWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, whole := bytes.Cut(w.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		if _, err := io.WriteString(w.to, wrapLine(string(line), w.columns)+"\n"); err != nil {
			return 0, err
		}
		w.rest = rest
	}
}

// wrapLine breaks a line at blanks of the last column.
func wrapLine(text string, columns int) string {
	line := []rune(text)
	indent := 0
	for i := 2; i < min(len(line), columns*2/3); i++ {
		if line[i-2] == ' ' && line[i-1] == ' ' && line[i] != ' ' {
			indent = i
		}
	}
	var out strings.Builder
	for from := 0; ; {
		width := columns - indent
		if from == 0 {
			width = columns
		}
		if len(line)-from <= width {
			out.WriteString(string(line[from:]))
			return out.String()
		}
		end := from + width
		for end > from+1 && (line[end] != ' ' || from == 0 && end <= indent) {
			end--
		}
		if end == from+1 { // a word longer than the column
			end = from + width
		}
		out.WriteString(strings.TrimRight(string(line[from:end]), " ") + "\n" + strings.Repeat(" ", indent))
		for from = end; from < len(line) && line[from] == ' '; from++ {
		}
	}
}
