// Package yamltext reads a document of YAML or JSON, and locates mistakes.
package yamltext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// SyntaxError is the error of a text with invalid YAML or JSON.
type SyntaxError struct {
	Line int // line of the mistake, from 1; 0 if unknown
	text string
	// Fix is the recommended change.
	Fix string
}

// Error returns what is wrong.
func (e *SyntaxError) Error() string { return e.text }

// Parse reads a text with one document. Its error is a [SyntaxError], also for duplicate keys.
func Parse(text []byte) (*yaml.Node, error) {
	document, err := parseYAML(text)
	if errors.Is(err, io.EOF) {
		return nil, &SyntaxError{text: "is empty", Fix: "write one YAML or JSON document"}
	} else if err != nil {
		return nil, newSyntaxError(text, err)
	}
	return document.Content[0], nil
}

// maxLocated bounds the size, bytes, of a text in which the line of an error is searched: each step parses the text
// again.
const maxLocated = 1 << 20

// parseYAML reads the only document of a text.
func parseYAML(text []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	var tree any
	if err := document.Decode(&tree); err != nil { // duplicate keys
		return nil, err
	}
	if err := decoder.Decode(&second); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	} else if err == nil {
		return nil, errSecondDocument
	}
	return &document, nil
}

var errSecondDocument = errors.New("has more than one YAML document; Envoy reads only one")

var (
	lineOfError = regexp.MustCompile(`\bline ([0-9]+)(: )?`)
	yamlPrefix  = regexp.MustCompile(`^yaml: (unmarshal errors:\s*)?`)
)

// newSyntaxError returns the error of a text that YAML's parser refuses, with the line of the mistake. The parser
// itself names the first line of the enclosing block, or the line before the mistake.
func newSyntaxError(text []byte, err error) *SyntaxError {
	message, _, _ := strings.Cut(yamlPrefix.ReplaceAllString(err.Error(), ""), "\n")
	message = strings.TrimSpace(message)
	found := lineOfError.FindStringSubmatch(message)
	if found == nil {
		return &SyntaxError{text: message, Fix: adviseOn(message)}
	}
	e := &SyntaxError{text: "is not YAML: " + strings.Replace(message, found[0], "", 1), Fix: adviseOn(message)}
	e.Line, _ = strconv.Atoi(found[1]) // 0 if too large
	if strings.Contains(message, "already defined") || len(text) > maxLocated {
		return e
	}
	if first := bytes.TrimSpace(text); len(first) > 0 && first[0] == '{' {
		if wrong, is := errors.AsType[*json.SyntaxError](json.Unmarshal(text, new(any))); is {
			e.Line = 1 + bytes.Count(text[:max(wrong.Offset-1, 0)], []byte("\n"))
			e.text = "is not JSON: " + wrong.Error()
			e.Fix = "correct the JSON in this line or the one before: a comma, a quote, a bracket"
			return e
		}
	}
	begin, noticed := locateError(text, err)
	if begin > 1 && lacksColon(splitLines(text)[begin-2]) {
		begin, e.Fix = begin-1, adviseOn("could not find expected ':'")
	}
	if e.Line = begin; noticed > begin+1 {
		e.text += fmt.Sprintf(" up to line %d", noticed)
	}
	return e
}

// lacksColon reports whether a line has a text, and no key with a value.
func lacksColon(line []byte) bool {
	text, _, _ := bytes.Cut(line, []byte(" #"))
	text = bytes.TrimSpace(text)
	return len(text) > 0 && text[0] != '#' && text[len(text)-1] != ':' && !bytes.Contains(text, []byte(": ")) &&
		!bytes.HasPrefix(text, []byte("---"))
}

func splitLines(text []byte) [][]byte { return bytes.SplitAfter(text, []byte("\n")) }

// locateError returns the first line after the longest valid beginning of a text, and the line at which the error
// appears.
func locateError(text []byte, err error) (begin, noticed int) {
	ends := []int{0}
	for _, line := range splitLines(text) {
		ends = append(ends, ends[len(ends)-1]+len(line))
	}
	failure := func(n int) string {
		if _, err := parseYAML(text[:ends[n]]); err != nil && !errors.Is(err, io.EOF) {
			return err.Error()
		}
		return ""
	}
	low, high := 0, len(ends)-1 // the first low lines are without the error, the first high lines have it
	for high-low > 1 {
		if middle := (low + high) / 2; failure(middle) == err.Error() {
			high = middle
		} else {
			low = middle
		}
	}
	const most = 100 // lines of a mapping in brackets
	for n := high - 1; n >= max(high-most, 1); n-- {
		if failure(n) == "" {
			return n + 1, high
		}
	}
	return high, high
}

// adviseOn returns advice about an error of YAML's parser.
func adviseOn(message string) string {
	for _, advice := range [][2]string{
		{"tab character", "indent with blanks: YAML takes no tabs there"},
		{"cannot start any token", "put the value in quotes; indent with blanks, not tabs"},
		{"end of stream", "close the quote that begins here"},
		{"already defined", "remove one of the two"},
		{"expected ',' or", "close the bracket that begins here, or put a comma between its entries"},
		{"expected node content", "close the bracket that begins here, or remove a comma"},
		{"expected '-' indicator", "begin the line with - as the entries before it, or indent it as they do"},
		{"could not find expected ':'", "put a colon and a blank behind the key, and indent the line as the other keys"},
		{"mapping values are not allowed", "indent the line as the other keys; put quotes around a value with a colon"},
		{"expected key", "indent this line and the one before as the keys beside them"},
		{"unknown escape", `write \\ in double quotes, or use single quotes`},
		{"unknown anchor", "name an anchor that is defined above, or put the value in quotes"},
		{"more than one", "keep one document"},
	} {
		if strings.Contains(message, advice[0]) {
			return advice[1]
		}
	}
	return "write one YAML or JSON document"
}
