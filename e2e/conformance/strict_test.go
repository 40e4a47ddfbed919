package conformance

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// The grammars of fields in answers, each by its section.
var (
	entityTag   = regexp.MustCompile(`^(W/)?"[^\x00-\x20"\x7f]*"$`)                                                                                                                                 // 9110 8.8.3
	mediaType   = regexp.MustCompile(`^[!#$%&'*+.^_|~0-9A-Za-z-]+/[!#$%&'*+.^_|~0-9A-Za-z-]+(\s*;\s*[^;=\s]+=[^;]+)*$`)                                                                             // 9110 8.3.1
	tokens      = regexp.MustCompile(`^[!#$%&'*+.^_|~0-9A-Za-z-]+( ?, ?[!#$%&'*+.^_|~0-9A-Za-z-]+)*$`)                                                                                              // 9110 5.6.1
	directives  = regexp.MustCompile(`^(private|no-cache|no-store|public|must-revalidate|(s-)?max-?age=\d+)(,[ \t]*(private|no-cache|no-store|public|must-revalidate|(s-)?max-?age=\d+))*$`)        // 9111 5.2
	challenges  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*( [a-z]+="[ !#-\[\]-~]*"(, [a-z]+="[ !#-\[\]-~]*")*)?(, [A-Za-z][A-Za-z0-9-]*( [a-z]+="[ !#-\[\]-~]*"(, [a-z]+="[ !#-\[\]-~]*")*)?)*$`) // 9110 11.6.1
	cacheStatus = regexp.MustCompile(`^[A-Za-z*][A-Za-z0-9:/!#$%&'*+.^_|~-]*(; ?[a-z*][a-z0-9_.*-]*(=([A-Za-z*][A-Za-z0-9:/!#$%&'*+.^_|~-]*|-?\d+|"[ !#-\[\]-~]*"|\?[01]))?)*$`)                    // 9211 2, 8941
	delta       = regexp.MustCompile(`^\d+$`)                                                                                                                                                       // 9110 10.2.3
)

// singletons are the fields that may appear only on one line (RFC 9110, section 5.3).
var singletons = []string{
	"age", "content-length", "content-location", "content-range", "content-type", "date", "etag", "expires",
	"last-modified", "location", "retry-after", "server",
}

func (s *server) checkStrictly(t *testing.T, version string, q request, r *response) {
	t.Helper()
	failed := func(section, format string, args ...any) {
		t.Helper()
		t.Errorf("RFC %s: %s %s %s: %s\n%s", section, version, q.method, q.target, fmt.Sprintf(format, args...), r)
	}
	for _, name := range singletons {
		if lines := r.fieldLines(name); len(lines) > 1 {
			failed("9110 5.3", "%s: %q", name, lines)
		}
	}
	if version == "HTTP/1.0" && (r.get("transfer-encoding") != "" || len(r.interim) > 0) {
		failed("9112 6.1", "a client of HTTP/1.0 got what it can't read")
	}
	if date, err := time.Parse(http.TimeFormat, r.get("date")); err != nil || time.Since(date).Abs() > time.Minute {
		failed("9110 6.6.1", "date %q: %v", r.get("date"), err)
	}
	for name, grammar := range map[string]*regexp.Regexp{
		"etag": entityTag, "content-type": mediaType, "vary": tokens, "retry-after": delta, "age": delta,
		"www-authenticate": challenges, "cache-control": directives,
	} {
		if value := r.get(name); len(r.fieldLines(name)) > 0 && !grammar.MatchString(value) {
			failed("9110 5.5", "%s: %q", name, value)
		}
	}
	for _, line := range r.fieldLines("cache-status") {
		if !cacheStatus.MatchString(line) {
			failed("9211 2", "cache-status: %q", line)
		}
	}
	if (r.status == 401) != (r.get("www-authenticate") != "") {
		failed("9110 11.6.1", "a %d with www-authenticate %q", r.status, r.get("www-authenticate"))
	}
	if r.status == 503 && r.source() == "edge" && r.get("retry-after") == "" {
		failed("9110 15.6.4", "no retry-after")
	}
	if r.get("accept-ranges") == "bytes" && r.source() == "hit" {
		failed("9110 14.3", "ranges are announced, and not given")
	}
	if vary := strings.Split(strings.ToLower(r.get("vary")),
		", "); len(slices.Compact(slices.Sorted(slices.Values(vary)))) != len(vary) {
		failed("9110 12.5.5", "vary: %q names one field twice", r.get("vary"))
	}
	if r.source() == "hit" {
		s.compareStored(failed, q, r)
	}
}

// compareStored compares a hit with the published object of the same entity-tag.
func (s *server) compareStored(failed func(section, format string, args ...any), q request, r *response) {
	tag := strings.TrimPrefix(r.get("etag"), "W/")
	o, ok := s.objects[tag]
	if !ok {
		failed("9110 8.8.3", "nothing was published with the entity-tag %s", tag)
		return
	}
	if r.status == 416 {
		for _, name := range []string{"cache-control", "expires", "content-encoding"} {
			if value := r.get(name); value != "" {
				failed("9111 3", "%s: %q: a cache could store it for the object", name, value)
			}
		}
		return
	}
	if r.get("cache-control") == "" {
		failed("9111 4.2.2", "without cache-control a cache keeps it as long as it likes")
	}
	if age, err := strconv.Atoi(r.get("age")); err != nil || age > 10 {
		failed("9111 5.1", "age %q: the edge was in step with the origin just now", r.get("age"))
	}
	own := slices.ContainsFunc(o.Headers, func(h publish.Header) bool { return h.Name == "cache-control" })
	left := maxAge.FindString(r.get("cache-control"))
	if seconds, _ := strconv.Atoi(strings.TrimPrefix(left, "max-age=")); !own && (left == "") != o.until.IsZero() ||
		!own && left != "" && time.Duration(seconds)*time.Second > time.Until(o.until)+time.Second {
		failed("9111 5.2.2.1", "%s: clients would keep it for longer than it lives, until %s", left, o.until)
	}
	if date := r.get("last-modified"); date != "" {
		at, err := time.Parse(http.TimeFormat, date)
		if sent, _ := time.Parse(http.TimeFormat, r.get("date")); err != nil || at.After(sent) {
			failed("9110 8.8.2.1", "last-modified %q, date %q: %v", date, r.get("date"), err)
		}
	}
	if o.private && !strings.Contains(r.get("cache-control"), "private") {
		failed("9111 5.2.2.7", "what needs a credential isn't private")
	}
	coding := r.get("content-encoding")
	if weak := strings.HasPrefix(r.get("etag"), "W/"); r.status != 304 && weak != (coding != "") {
		failed("9110 8.8.1", "coding %q with etag %s: strong tags of two codings must differ", coding, r.get("etag"))
	}
	if o.coded && !strings.Contains(strings.ToLower(r.get("vary")), "accept-encoding") {
		failed("9110 12.5.5", "what was chosen by Accept-Encoding doesn't vary")
	}
	if r.status == 304 {
		return
	}
	if got := r.get("content-type"); got != o.ContentType && len(o.Body) > 0 {
		failed("9110 8.3", "content-type %q, want %q", got, o.ContentType)
	}
	if q.method == "HEAD" {
		if n := r.get("content-length"); coding == "" && n != strconv.Itoa(len(o.Body)) && len(o.Body) > 0 {
			failed("9110 8.6", "content-length %q of HEAD, want %d", n, len(o.Body))
		}
		return
	}
	if r.status == 206 {
		s.checkPart(failed, &o, r)
		return
	}
	body, err := decodeContent(coding, r.content)
	if err != nil || !bytes.Equal(body, o.Body) {
		failed("9110 8.4", "%s: %v: the content isn't what was published", coding, err)
	}
}

func decodeContent(coding string, content []byte) ([]byte, error) {
	var r io.Reader = bytes.NewReader(content)
	var err error
	switch coding {
	case "":
	case "gzip":
		r, err = gzip.NewReader(r)
	case "br":
		r = brotli.NewReader(r)
	case "zstd":
		r, err = zstd.NewReader(r)
	default:
		err = fmt.Errorf("unknown coding")
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}
