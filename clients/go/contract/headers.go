package contract

import (
	"regexp"
	"strconv"
	"strings"
	"unique"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// Header is a header line of an object's response.
type Header struct {
	// Name is as limits.ValidHeaderName says, and none of limits.RefusedHeader.
	Name string `json:"name"`
	// Value is printable ASCII without a blank at an end, not empty.
	Value string `json:"value"`
}

// Headers are header lines "name: value", joined by LF: at most limits.MaxHeaders bytes and limits.MaxHeaderLines
// lines, each name once, except link.
type Headers string

// JoinHeaders returns the lines in their order. [CheckAnswer] checks them.
func JoinHeaders(headers []Header) Headers {
	lines := make([]string, len(headers))
	for i, h := range headers {
		lines[i] = h.Name + ": " + h.Value
	}
	return Headers(strings.Join(lines, "\n"))
}

// List returns the lines, in the publisher's order; nil if there are none.
func (h Headers) List() (list []Header) {
	if h == "" {
		return nil
	}
	for line := range strings.SplitSeq(string(h), "\n") {
		name, value, _ := strings.Cut(line, ": ")
		list = append(list, Header{name, value})
	}
	return list
}

// CheckAnswer returns an error if an object can't have the status (0 for 200) and the headers.
func CheckAnswer(status int, headers []Header) error {
	if !limits.ValidStatus(status) && status != 0 {
		return refuse(ReasonMalformed, "status: %d: want 200, 301, 302, 307, 308, 404 or 410", status)
	}
	if size := len(JoinHeaders(headers)); size > limits.MaxHeaders {
		return refuse(ReasonLimit, "headers: %d bytes, at most %d are allowed", size, limits.MaxHeaders)
	}
	if len(headers) > limits.MaxHeaderLines {
		return refuse(ReasonLimit, "headers: %d lines, at most %d are allowed", len(headers), limits.MaxHeaderLines)
	}
	seen := map[string]bool{}
	for _, h := range headers {
		switch {
		case !limits.ValidHeaderName(h.Name):
			return refuse(ReasonMalformed, "headers: name %s: want 1 to %d of a-z, 0-9 and -", quote(h.Name),
				limits.MaxHeaderName)
		case !limits.ValidHeaderValue(h.Value):
			return refuse(ReasonMalformed, "headers: %s: value %s: want printable ASCII, not empty, without a blank at an end",
				h.Name, quote(h.Value))
		case limits.RefusedHeader(h.Name):
			return refuse(ReasonConflict, "headers: %s is not allowed: Gatehouse or the proxy sets it, or it is for one client",
				h.Name)
		case seen[h.Name] && h.Name != "link":
			return refuse(ReasonConflict, "headers: %s comes twice", h.Name)
		case h.Name == "last-modified" && !imfFixdate.MatchString(h.Value):
			return refuse(ReasonMalformed, "headers: last-modified: %s: want the form of Sun, 06 Nov 1994 08:49:37 GMT",
				quote(h.Value))
		}
		seen[h.Name] = true
	}
	redirects := status/100 == 3
	switch {
	case redirects && !seen["location"]:
		return refuse(ReasonMissing, "headers: location is missing, which status %d needs", status)
	case !redirects && seen["location"]:
		return refuse(ReasonConflict, "headers: location is only for status 301, 302, 307 and 308")
	}
	return nil
}

// imfFixdate is the form of an IMF-fixdate (RFC 9110, section 5.6.7). The edge only compares dates.
var imfFixdate = regexp.MustCompile(`^[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT$`)

// parseAnswer reads the fields status and headers, which may be absent.
func parseAnswer(fields map[string]string) (status int, headers Headers, err error) {
	if text, found := fields[FieldStatus]; found {
		if status, err = strconv.Atoi(text); err != nil || strconv.Itoa(status) != text || status == 0 || status == 200 {
			return 0, "", refuse(ReasonMalformed, "status: %s: want 301, 302, 307, 308, 404 or 410, or no such field",
				quote(text))
		}
	}
	if text, found := fields[FieldHeaders]; found {
		if text == "" {
			return 0, "", refuse(ReasonMalformed, `headers: empty, want lines "name: value" or no such field`)
		}
		if len(text) > limits.MaxHeaders { // before the lines are split
			return 0, "", refuse(ReasonLimit, "headers: %d bytes, at most %d are allowed", len(text), limits.MaxHeaders)
		}
		headers = unique.Make(Headers(text)).Value() // few distinct headers, in many objects
	}
	return status, headers, CheckAnswer(status, headers.List())
}
