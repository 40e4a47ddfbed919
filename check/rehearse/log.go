package rehearse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// Read is what was read of access logs.
type Read struct {
	Lines      int `json:"lines"`
	Unreadable int `json:"unreadable"`
	// First is the number of the first unreadable line, 0 if there is none.
	First int `json:"-"`
}

// maxLine bounds a line in bytes. Longer ones are unreadable: no proxy accepts such headers.
const maxLine = 1 << 20

// AddLog adds the requests of an access log. Those without a host have the given one. It calls progress after each
// line.
func (c *Comparison) AddLog(log io.Reader, host string, progress func(*Read)) (read Read, err error) {
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
