package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/text/encoding/unicode"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/internal/strictjson"
)

// maxDeviceLine bounds a line of devices, in bytes; the largest device takes some 10,000.
const maxDeviceLine = 64 << 10

// deviceColumns are the columns of a CSV of devices.
var deviceColumns = []string{"id", "secret", "hash", "permissions", "labels", "not_after"}

// otherColumns maps deviceColumns to the names in other programs' files, without underscores.
var otherColumns = map[string][]string{
	"id":          {"ids", "device", "deviceid", "user", "userid", "username", "clientid", "name", "login"},
	"secret":      {"secrets", "password", "pass", "token", "key"},
	"hash":        {"hashes", "passwordhash", "hashedpassword", "encryptedpassword", "secrethash", "digest"},
	"permissions": {"permission", "scope", "scopes", "role", "roles", "groups"},
	"labels":      {"label", "tags", "attributes"},
	"not_after":   {"notafter", "expires", "expiresat", "expiry", "expiration", "validuntil", "end"},
}

// deviceLine is a device as JSON. Other fields of an export are ignored.
type deviceLine struct {
	deviceView
	Secret string `json:"secret"`
	Hash   string `json:"hash"`
}

// deviceLines reads devices line by line. Memory is bounded, whatever the input.
type deviceLines struct {
	in      *bufio.Reader
	columns []string // of a CSV, "" for unnamed columns; nil for JSON lines
	comma   byte     // between the fields of a CSV
	line    int      // the number of the last record's first line
	lines   int      // number of lines read
	first   []byte   // a line to read again
	width   int64    // bytes of the input for each of in, roughly
	bytes   int64    // bytes of the input read
	now     time.Time
}

// newDeviceLines detects the format: JSON lines begin with a brace; a CSV begins with the names of its columns; lines
// "id:hash", as htpasswd and mosquitto_passwd write, have no header line.
func newDeviceLines(r io.Reader) (*deviceLines, error) {
	l := &deviceLines{in: bufio.NewReaderSize(r, maxDeviceLine), width: 1, now: time.Now()}
	switch mark, _ := l.in.Peek(4); {
	case bytes.HasPrefix(mark, []byte("\xef\xbb\xbf")):
		_, _ = l.in.Discard(3)
	case bytes.HasPrefix(mark, []byte("\xff\xfe")), bytes.HasPrefix(mark, []byte("\xfe\xff")):
		utf16 := unicode.UTF16(unicode.LittleEndian, unicode.ExpectBOM).NewDecoder()
		l.in, l.width = bufio.NewReaderSize(utf16.Reader(l.in), maxDeviceLine), 2
	case bytes.HasPrefix(mark, []byte("PK\x03\x04")):
		return nil, errors.New("is a workbook or another zip archive: save it as CSV UTF-8")
	case bytes.IndexByte(mark, 0) >= 0:
		return nil, errors.New("is not text, or UTF-16 without a byte order mark: save it as UTF-8")
	}
	line, err := l.readFirstLine()
	if errors.Is(err, io.EOF) {
		err = errors.New("is empty")
	}
	if err == nil && line != nil {
		err = l.parseHeader(line)
	}
	if err != nil {
		return nil, fmt.Errorf("line %d: %w: want JSON lines, or a CSV whose first line has names of %s", max(l.line, 1),
			err, strings.Join(deviceColumns, ","))
	}
	return l, nil
}

// readFirstLine returns the header line of a CSV, or nil if the file has no header.
func (l *deviceLines) readFirstLine() ([]byte, error) {
	for {
		line, err := l.readRecord()
		text := strings.TrimRight(string(line), "\r\n")
		_, rest, colon := strings.Cut(text, ":")
		separator, excel := strings.CutPrefix(text, "sep=")
		switch {
		case err != nil:
			return nil, err
		case strings.Trim(text, " \t,;|") == "": // spreadsheets have empty lines
		case excel && len(separator) == 1:
			l.comma = separator[0]
		case text[0] == '{':
			l.first = bytes.Clone(line)
			return nil, nil
		case l.comma == 0 && colon && rest != "" && strings.Contains("${", rest[:1]):
			l.first, l.comma, l.columns = bytes.Clone(line), ':', []string{"id", "hash"}
			return nil, nil
		case strings.Contains(text, "\r"):
			return nil, errors.New("ends with CR: save the file with LF or CRLF as line ends")
		default:
			return line, nil
		}
	}
}

// parseHeader reads the names of the columns, in any case. The separator that gives the most known columns wins.
func (l *deviceLines) parseHeader(line []byte) error {
	commas := []byte(",;\t|")
	if l.comma != 0 {
		commas = []byte{l.comma}
	}
	most := -1
	var failed error
	for _, comma := range commas {
		columns, err := splitFields(line, comma)
		known := 0
		for i, name := range columns {
			name = strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(strings.TrimSpace(name)))
			if columns[i] = name; slices.Contains(deviceColumns, name) {
				known++
			}
		}
		if err == nil && known > most {
			most, l.comma, l.columns = known, comma, columns
		}
		failed = err
	}
	if most < 0 {
		return failed
	}
	return checkColumns(l.columns)
}

func checkColumns(columns []string) error {
	for i, name := range columns {
		if name == "" {
			continue
		}
		if slices.Contains(columns[:i], name) {
			return fmt.Errorf("column %.40q comes twice", name)
		}
		if slices.Contains(deviceColumns, name) {
			continue
		}
		for meant, others := range otherColumns {
			if slices.Contains(others, strings.ReplaceAll(name, "_", "")) {
				return fmt.Errorf("column %.40q is unknown: name it %s, if it is that", name, meant)
			}
		}
		if name == "salt" {
			return errors.New("column \"salt\" is unknown: want it within the hash; salted digests such as EMQX's are no " +
				"hashes that sidecars verify")
		}
		return fmt.Errorf("column %.40q is unknown: remove it", name)
	}
	if !slices.Contains(columns, "id") {
		return errors.New("no column id")
	}
	return nil
}

// errLine marks an error of a single line. Later lines can be read.
var errLine = errors.New("line")

type lineError struct{ error }

func (lineError) Is(target error) bool { return target == errLine }

// nextDevice returns the next device, maybe without secret and hash. Errors: [io.EOF], errLine, or an error of the
// file.
func (l *deviceLines) nextDevice() (publish.Device, error) {
	for {
		line, err := l.readRecord()
		if err != nil {
			return publish.Device{}, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		d, err := l.parseDevice(line)
		if errors.Is(err, errEmpty) {
			continue
		}
		if err != nil {
			return publish.Device{}, lineError{err}
		}
		return d, nil
	}
}

// errQuote is the error of a quote that isn't closed at the line's end.
var errQuote = errors.New("a quoted field has a line end: no value of a device has one; is a quote missing?")

// readRecord returns the next line, valid until the next call. If a quoted field spans several lines, readRecord skips
// all of them and returns errQuote: the quoted lines would otherwise be read as devices.
func (l *deviceLines) readRecord() ([]byte, error) {
	if line := l.first; line != nil {
		l.first = nil
		return line, nil
	}
	line, err := l.readLine()
	l.line = l.lines
	if l.columns == nil || l.comma == ':' || !endsInQuote(line, l.comma, false) {
		return line, err
	}
	for size := len(line); err == nil; {
		if line, err = l.readLine(); err != nil {
			break
		}
		if size += len(line); size > maxDeviceLine {
			break
		}
		if !endsInQuote(line, l.comma, true) {
			return nil, lineError{errQuote}
		}
	}
	return nil, fmt.Errorf("line %d: a quote is not closed: nothing behind it was read", l.line)
}

// endsInQuote reports whether line ends inside a quoted field. quoted: whether the line before ended inside a quoted
// field. Each line is scanned once, since a record may have thousands of lines.
func endsInQuote(line []byte, comma byte, quoted bool) bool {
	begins := !quoted
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case !quoted:
			quoted = c == '"' && begins
			begins = c == comma
		case c == '"' && i+1 < len(line) && line[i+1] == '"':
			i++
		case c == '"':
			quoted = false
		}
	}
	return quoted
}

// readLine returns the next line, valid until the next call.
func (l *deviceLines) readLine() ([]byte, error) {
	line, err := l.in.ReadSlice('\n')
	l.bytes += l.width * int64(len(line))
	l.lines++
	long := errors.Is(err, bufio.ErrBufferFull)
	for errors.Is(err, bufio.ErrBufferFull) {
		line, err = l.in.ReadSlice('\n')
		l.bytes += l.width * int64(len(line))
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

// parseDevice parses a line. Errors quote no secret and no hash.
func (l *deviceLines) parseDevice(line []byte) (publish.Device, error) {
	if !utf8.Valid(line) {
		return publish.Device{}, errors.New("is not UTF-8: save the file as UTF-8")
	}
	var d deviceLine
	var err error
	if l.columns == nil {
		err = d.parseJSON(line)
	} else {
		err = d.parseCSV(l, line)
	}
	if err != nil {
		return publish.Device{}, err
	}
	out, err := d.toDevice()
	if err == nil && d.State == "" && !out.NotAfter.IsZero() && !out.NotAfter.After(l.now) {
		err = fmt.Errorf("not_after: %s is in the past: correct it, or remove the line", d.NotAfter)
	}
	return out, err
}

func (d *deviceLine) parseJSON(line []byte) error {
	if err := strictjson.Decode(bytes.NewReader(line), d); err != nil {
		return fmt.Errorf("%.200s", err) // the JSON error quotes its input
	}
	return nil
}

// splitFields returns the fields of a line of a CSV; none can contain a line end.
func splitFields(line []byte, comma byte) ([]string, error) {
	lines := csv.NewReader(bytes.NewReader(line))
	lines.Comma = rune(comma)
	record, err := lines.Read()
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		err = parse.Err // without csv's own line number
	}
	return record, err
}

// errEmpty is the error of a record with empty fields only. Spreadsheets write such records.
var errEmpty = errors.New("is empty")

// damagedValue matches an id or a secret that a spreadsheet has damaged: a rounded number, or a formula's error.
var damagedValue = regexp.MustCompile(`^[+-]?[0-9]+([.,][0-9]+)?E[+-]?[0-9]+$|^#(NAME\?|REF!|VALUE!|NUM!|DIV/0!|N/A|NULL!)$`)

func (d *deviceLine) parseCSV(l *deviceLines, line []byte) error {
	values, err := splitFields(line, l.comma)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(values, func(value string) bool { return value != "" }) {
		return errEmpty
	}
	if len(values) < len(l.columns) {
		return fmt.Errorf("%d fields, want %d", len(values), len(l.columns))
	}
	for i, value := range values {
		column := ""
		if i < len(l.columns) {
			column = l.columns[i]
		}
		if damagedValue.MatchString(value) {
			return fmt.Errorf("%s: a spreadsheet made a rounded number or an error of the value: make text the column's "+
				"format, and enter the values again", cmp.Or(column, "a field"))
		}
		switch column {
		case "":
			if value != "" {
				return fmt.Errorf("field %d has no column in the first line: quote values with separators, or remove it", i+1)
			}
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
				d.Permissions = strings.Split(strings.ReplaceAll(value, ", ", ","), ",")
			}
		case "labels":
			if value != "" {
				if d.Labels, err = contract.ParseLabels(strings.ReplaceAll(value, ", ", ",")); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// toDevice converts d for the publisher. Hashes of other programs are translated.
func (d *deviceLine) toDevice() (publish.Device, error) {
	out := publish.Device{ID: d.ID, Secret: d.Secret, Hashes: d.Hashes, Permissions: d.Permissions, Labels: d.Labels}
	if d.Hash != "" {
		out.Hashes = append(out.Hashes, d.Hash)
	}
	for i, hash := range out.Hashes {
		var err error
		if out.Hashes[i], err = translateHash(hash); err != nil {
			return publish.Device{}, err
		}
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
		if *t.to, err = parseEnd(t.text); err != nil {
			return publish.Device{}, fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return out, nil
}

// parseEnd parses a time of RFC 3339, or a database's form with a blank for the T. A date means its first moment in
// UTC.
func parseEnd(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05-07", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	if _, err := time.Parse(time.DateTime, strings.Replace(text, "T", " ", 1)); err == nil {
		return time.Time{}, errors.New("has no time zone: append Z, if it is UTC")
	}
	return time.Time{}, errors.New("want a time such as 2030-01-31T00:00:00Z or a date such as 2030-01-31")
}
