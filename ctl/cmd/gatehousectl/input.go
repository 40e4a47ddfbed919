package main

import (
	"fmt"
	"io"
	"os"
)

// readInput reads the file, or standard input for "-". A file of more than limit bytes is refused as too large for
// what.
func (c *console) readInput(name string, limit int64, what string) ([]byte, error) {
	r := c.stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		r = file
	}
	content, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(content)) > limit {
		return nil, usagef("%s: over %d bytes, too large for %s", name, limit, what)
	}
	return content, nil
}
