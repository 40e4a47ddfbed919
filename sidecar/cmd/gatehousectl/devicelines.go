package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/sidecar/internal/strictjson"
)

// maxDeviceLine bounds a line of devices, in bytes; the largest device takes some 10,000.
const maxDeviceLine = 64 << 10

// deviceColumns are the columns of a CSV of devices.
var deviceColumns = []string{"id", "secret", "hash", "permissions", "labels", "not_after"}

// deviceLine is a device as JSON. What an export tells besides is ignored.
type deviceLine struct {
	deviceView
	Secret string `json:"secret"`
	Hash   string `json:"hash"`
}

// deviceLines reads devices, one a line, in memory that doesn't depend on the input.
type deviceLines struct {
	in      *bufio.Reader
	columns []string // of a CSV; nil for JSON lines
	line    int      // the number of the last line
	bytes   int64    // read so far
}

// newDeviceLines reads the first line of a CSV. JSON lines begin with a brace.
func newDeviceLines(r io.Reader) (*deviceLines, error) {
	l := &deviceLines{in: bufio.NewReaderSize(r, maxDeviceLine)}
	if mark, _ := l.in.Peek(3); string(mark) == "\ufeff" {
		_, _ = l.in.Discard(3)
	}
	if first, err := l.in.Peek(1); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	} else if string(first) == "{" {
		return l, nil
	}
	line, err := l.read()
	if err == nil {
		l.columns, err = fields(line)
	}
	if err == nil {
		err = checkColumns(l.columns)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("line 1: %w: want JSON lines, or a CSV whose first line has names of %s", err,
			strings.Join(deviceColumns, ","))
	}
	return l, nil
}

func checkColumns(columns []string) error {
	for i, name := range columns {
		if !slices.Contains(deviceColumns, name) || slices.Contains(columns[:i], name) {
			return fmt.Errorf("column %.40q is unknown or comes twice", name)
		}
	}
	if !slices.Contains(columns, "id") {
		return errors.New("no column id")
	}
	return nil
}

// errLine marks an error of one line only.
var errLine = errors.New("line")

type lineError struct{ error }

func (lineError) Is(target error) bool { return target == errLine }

// next returns the next device; it may have neither a secret nor a hash. Its errors are [io.EOF], an errLine, or an
// error of the file.
func (l *deviceLines) next() (publish.Device, error) {
	for {
		line, err := l.read()
		if err != nil {
			return publish.Device{}, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		d, err := l.parse(line)
		if err != nil {
			return publish.Device{}, lineError{err}
		}
		return d, nil
	}
}

// read returns a line, which is valid until the next call.
func (l *deviceLines) read() ([]byte, error) {
	line, err := l.in.ReadSlice('\n')
	l.bytes += int64(len(line))
	l.line++
	long := errors.Is(err, bufio.ErrBufferFull)
	for errors.Is(err, bufio.ErrBufferFull) {
		line, err = l.in.ReadSlice('\n')
		l.bytes += int64(len(line))
	}
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case long:
		return nil, lineError{fmt.Errorf("over %d bytes", maxDeviceLine)}
	case err != nil && len(line) == 0:
		return nil, io.EOF
	}
	return line, nil
}

// parse parses a line. Its errors quote no secret and no hash.
func (l *deviceLines) parse(line []byte) (publish.Device, error) {
	if !utf8.Valid(line) {
		return publish.Device{}, errors.New("is not UTF-8")
	}
	var d deviceLine
	var err error
	if l.columns == nil {
		err = d.parseJSON(line)
	} else {
		err = d.parseCSV(l.columns, line)
	}
	if err != nil {
		return publish.Device{}, err
	}
	return d.device()
}

func (d *deviceLine) parseJSON(line []byte) error {
	if err := strictjson.Decode(bytes.NewReader(line), d); err != nil {
		return fmt.Errorf("%.200s", err) // it quotes what it read
	}
	return nil
}

// fields returns the fields of a line of a CSV; none can contain a line end.
func fields(line []byte) ([]string, error) {
	record, err := csv.NewReader(bytes.NewReader(line)).Read()
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		err = parse.Err // its line is not ours
	}
	return record, err
}

func (d *deviceLine) parseCSV(columns []string, line []byte) error {
	values, err := fields(line)
	if err != nil {
		return err
	}
	if len(values) != len(columns) {
		return fmt.Errorf("%d fields, want %d", len(values), len(columns))
	}
	for i, value := range values {
		switch columns[i] {
		case "id":
			d.ID = value
		case "secret":
			d.Secret = value
		case "hash":
			d.Hash = value
		case "not_after":
			d.NotAfter = value
		case "permissions":
			if value != "" {
				d.Permissions = strings.Split(value, ",")
			}
		case "labels":
			if value != "" {
				if d.Labels, err = contract.ParseLabels(value); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// device returns d as it is written.
func (d *deviceLine) device() (publish.Device, error) {
	out := publish.Device{ID: d.ID, Secret: d.Secret, Hashes: d.Hashes, Permissions: d.Permissions, Labels: d.Labels}
	if d.Hash != "" {
		out.Hashes = append(out.Hashes, d.Hash)
	}
	switch d.State {
	case "", "enabled", "expired":
	case "revoked":
		out.Disabled, out.Revoked = true, true
	case "disabled":
		out.Disabled = true
	default:
		return publish.Device{}, fmt.Errorf("state %.40q: want enabled, expired, revoked or disabled", d.State)
	}
	for _, t := range []struct {
		name, text string
		to         *time.Time
	}{{"not_after", d.NotAfter, &out.NotAfter}, {"old_until", d.OldUntil, &out.OldUntil}} {
		if t.text == "" {
			continue
		}
		var err error
		if *t.to, err = time.Parse(time.RFC3339, t.text); err != nil {
			return publish.Device{}, fmt.Errorf("%s: want a time such as 2030-01-31T00:00:00Z", t.name)
		}
	}
	return out, nil
}
