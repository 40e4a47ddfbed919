package rehearse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// LogStats counts the lines read from access logs.
type LogStats struct {
	Lines      int `json:"lines"`
	Unreadable int `json:"unreadable"`
	// First is the number of the first unreadable line, 0 for none.
	First int `json:"-"`
}

// maxLine bounds a line in bytes. Longer lines are unreadable: no proxy accepts headers of this size.
const maxLine = 1 << 20

// AddLog adds the requests of an access log. host is the host of requests without one. AddLog calls progress after each
// line.
func (c *Comparison) AddLog(log io.Reader, host string, progress func(*LogStats)) (read LogStats, err error) {
	reader := bufio.NewReaderSize(log, maxLine)
	for long := false; ; {
		line, err := reader.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = true
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return read, err
		}
		if long || len(bytes.TrimSpace(line)) > 0 {
			read.Lines++
			if r, ok := ParseLine(line); ok && !long {
				if r.Host == "" {
					r.Host = host
				}
				c.Add(&r)
			} else if read.Unreadable++; read.First == 0 {
				read.First = read.Lines
			}
			progress(&read)
		}
		if err != nil {
			return read, nil
		}
		long = false
	}
}
