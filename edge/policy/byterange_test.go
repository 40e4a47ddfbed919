package policy

import (
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/wire"
)

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		line      string
		size      int
		from, end int
		extent    extent
	}{
		{"bytes=0-0", 10, 0, 1, partial}, {"bytes=0-9", 10, 0, 10, partial}, {"bytes=9-9", 10, 9, 10, partial},
		{"bytes=0-10", 10, 0, 10, partial}, {"bytes=5-", 10, 5, 10, partial}, {"bytes=0-", 10, 0, 10, partial},
		{"bytes=-1", 10, 9, 10, partial}, {"bytes=-10", 10, 0, 10, partial}, {"bytes=-11", 10, 0, 10, partial},
		{"bytes=-99999999999999999999999", 10, 0, 10, partial}, {"bytes=1-99999999999999999999999", 10, 1, 10, partial},
		{"bytes=-01", 10, 9, 10, partial}, {"bytes=0001-0002", 10, 1, 3, partial}, {"BYTES=1-2", 10, 1, 3, partial},
		{"bytes=,1-2", 10, 1, 3, partial}, {"bytes=1-2 ,, ", 10, 1, 3, partial}, {"bytes= 1-2", 10, 1, 3, partial},
		{"bytes=10-", 10, 0, 10, unsatisfiable}, {"bytes=10-20", 10, 0, 10, unsatisfiable},
		{"bytes=18446744073709551616-", 10, 0, 10, unsatisfiable}, {"bytes=-0", 10, 0, 10, unsatisfiable},
		{"bytes=4294967296-", 10, 0, 10, unsatisfiable}, {"bytes=-000", 10, 0, 10, unsatisfiable},
		{"bytes=0-0,2-2", 10, 0, 10, whole}, {"bytes=0-0,0-0", 10, 0, 10, whole}, {"bytes=0-0,x", 10, 0, 10, whole},
		{"bytes=5-4", 10, 0, 10, whole}, {"bytes=20-10", 10, 0, 10, whole}, {"bytes=-", 10, 0, 10, whole},
		{"bytes=--1", 10, 0, 10, whole}, {"bytes=1--2", 10, 0, 10, whole}, {"bytes=1-2-3", 10, 0, 10, whole},
		{"bytes=1", 10, 0, 10, whole}, {"bytes=", 10, 0, 10, whole}, {"bytes", 10, 0, 10, whole}, {"", 10, 0, 10, whole},
		{"bytes=+1-2", 10, 0, 10, whole}, {"bytes=1 -2", 10, 0, 10, whole}, {"bytes=0x1-2", 10, 0, 10, whole},
		{"bytes=1.0-2", 10, 0, 10, whole}, {"bytes =1-2", 10, 0, 10, whole}, {"items=1-2", 10, 0, 10, whole},
		{"byteſ=1-2", 10, 0, 10, whole}, {"bytes=1-٢", 10, 0, 10, whole}, {"none=1-2", 10, 0, 10, whole},
		{"bytes=0-0", 1, 0, 1, partial}, {"bytes=1-", 1, 0, 1, unsatisfiable}, {"bytes=-1", 1, 0, 1, partial},
		{"bytes=0-0", 0, 0, 0, whole}, {"bytes=-1", 0, 0, 0, whole}, {"bytes=0-", 0, 0, 0, whole},
		{"bytes=1048575-", 1 << 20, 1<<20 - 1, 1 << 20, partial}, {"bytes=1048576-", 1 << 20, 0, 1 << 20, unsatisfiable},
	} {
		if from, end, e := parseRange(tt.line, tt.size); from != tt.from || end != tt.end || e != tt.extent {
			t.Errorf("%q of %d: got %d to %d, %d; want %d to %d, %d", tt.line, tt.size, from, end, e, tt.from, tt.end, tt.extent)
		}
	}
}

// The grammar of RFC 9110, sections 14.1 to 14.2, with one range-spec: int-range and suffix-range.
var oneRange = regexp.MustCompile(`^(?i:bytes)=[ \t,]*(?:([0-9]+)-([0-9]*)|-([0-9]+))[ \t]*(?:,[ \t,]*)?$`)

// rangeByRFC returns the answer of a server with support for a valid range of a body: "first-last" for a 206, "416", or
// "200".
func rangeByRFC(line string, size int) string {
	m := oneRange.FindStringSubmatch(line)
	if m == nil || size == 0 {
		return "200"
	}
	number := func(digits string) *big.Int {
		n, _ := new(big.Int).SetString(digits, 10)
		return n
	}
	length, first, last := big.NewInt(int64(size)), new(big.Int), big.NewInt(int64(size-1))
	if m[3] != "" {
		suffix := number(m[3])
		switch {
		case suffix.Sign() == 0:
			return "416"
		case suffix.Cmp(length) < 0: // otherwise the entire representation is used (14.1.2)
			first.Sub(length, suffix)
		}
		return fmt.Sprintf("%s-%s", first, last)
	}
	first = number(m[1])
	if m[2] != "" {
		to := number(m[2])
		if to.Cmp(first) < 0 {
			return "200" // invalid (14.1.1), so it may be ignored
		}
		if to.Cmp(last) < 0 {
			last = to
		}
	}
	if first.Cmp(length) >= 0 {
		return "416"
	}
	return fmt.Sprintf("%s-%s", first, last)
}

func FuzzCut(f *testing.F) {
	for _, line := range []string{"bytes=0-0", "bytes=-5", "bytes=5-", "bytes=,7-9, ", "bytes=9-8", "Bytes=1-2,3-4",
		"x=1-2", "bytes=99999999999-99999999998", "bytes=-0"} {
		f.Add(line, uint32(10))
	}
	f.Fuzz(func(t *testing.T, line string, size uint32) {
		n := int(size % (1<<20 + 1))
		from, end, e := parseRange(line, n)
		got := map[extent]string{whole: "200", partial: fmt.Sprintf("%d-%d", from, end-1), unsatisfiable: "416"}[e]
		want := rangeByRFC(line, n)
		// A position far beyond the end counts as any other.
		invalid := want == "200" && got == "416" && strings.Count(line, "-") == 1 && oneRange.MatchString(line)
		if got != want && !invalid {
			t.Errorf("%q of %d: got %s, want %s", line, n, got, want)
		}
		if e == partial && (from < 0 || from >= end || end > n) || e != partial && (from != 0 || end != n) {
			t.Errorf("%q of %d: %d to %d, %d", line, n, from, end, e)
		}
	})
}

// TestRange has an object of 12 bytes, published at 22:13:15, with the entity-tag "v1", and asks at 22:13:20.
func TestRange(t *testing.T) {
	const modified = "Tue, 14 Nov 2023 22:13:17 GMT"
	rules := `{"rules": [{"match": {"prefix": "/"}, "cache": {}}]}`
	answer := func(status uint16, headers string) func(m *memory) {
		return func(m *memory) {
			m.putObject(wire.Object{Key: "/a", Version: 1, PublishedMS: now - 5000, ETag: `"v1"`, ContentType: "application/json",
				Status: status, Headers: headers}, true)
		}
	}
	redirect := answer(301, "location: /b")
	dated := func(date string) func(m *memory) { return answer(0, "last-modified: "+date) }
	for _, tt := range []struct {
		name   string
		setup  func(m *memory)
		lines  string // after "range: bytes=2-4"; or with another Range
		status int
		body   string
	}{
		{"a range", nil, "", 206, "key"},
		{"it is of the identity encoding", nil, "accept-encoding: gzip", 206, "key"},
		{"which isn't acceptable", nil, "accept-encoding: gzip, identity;q=0", 200, "gz:/a"},
		{"the tag", nil, `if-range: "v1"`, 206, "key"},
		{"the tag, and it prefers gzip", nil, "if-range: \"v1\"\naccept-encoding: gzip", 206, "key"},
		{"a weak tag", nil, `if-range: W/"v1"`, 200, ""},
		{"another tag", nil, `if-range: "v2"`, 200, ""},
		{"a list of tags", nil, `if-range: "v2", "v1"`, 200, ""},
		{"any tag", nil, "if-range: *", 200, ""},
		{"an empty If-Range", nil, "if-range: ", 200, ""},
		{"two lines of it", nil, "if-range: \"v1\"\nif-range: \"v1\"", 200, ""},
		{"the date", nil, "if-range: " + modified, 206, "key"},
		{"an earlier date", nil, "if-range: Tue, 14 Nov 2023 22:13:16 GMT", 200, ""},
		{"a later date", nil, "if-range: Tue, 14 Nov 2023 22:13:18 GMT", 200, ""},
		{"the date in another form", nil, "if-range: Tuesday, 14-Nov-23 22:13:17 GMT", 200, ""},
		{"the date before it was sent", func(m *memory) { m.state.InStepMS = now - 5000 }, "if-range: " + modified, 200, ""},
		{"the publisher's date", dated("Tue, 14 Nov 2023 22:13:18 GMT"), "if-range: Tue, 14 Nov 2023 22:13:18 GMT", 206,
			"key"},
		{"of the last second", dated("Tue, 14 Nov 2023 22:13:19 GMT"), "if-range: Tue, 14 Nov 2023 22:13:19 GMT", 200, ""},
		{"none such", dated("Xxx, 99 Xxx 2023 22:13:18 GMT"), "if-range: Xxx, 99 Xxx 2023 22:13:18 GMT", 200, ""},
		{"If-None-Match comes first", nil, `if-none-match: "v1"`, 304, ""},
		{"and doesn't match", nil, `if-none-match: "v2"`, 206, "key"},
		{"If-Modified-Since comes first", nil, "if-modified-since: " + modified, 304, ""},
		{"beyond the end", nil, "range: bytes=99-", 416, ""},
		{"beyond the end, If-None-Match comes first", nil, "range: bytes=99-\nif-none-match: \"v1\"", 304, ""},
		{"beyond the end of another version", nil, "range: bytes=99-\nif-range: \"v2\"", 200, ""},
		{"beyond the end, without its body", func(m *memory) { m.bodyGone = true }, "range: bytes=99-", 416, ""},
		{"two Range lines", nil, "range: bytes=2-4\nrange: bytes=2-4", 200, ""},
		{"of a redirect", redirect, "", 301, ""},
		{"beyond the end of a redirect", redirect, "range: bytes=99-", 301, ""},
	} {
		m := newMemory()
		m.put("/a", 0)
		m.guard = 1 << 8
		if tt.setup != nil {
			tt.setup(m)
		}
		e := newEdge(t, rules)
		e.SetState(now, m.state)
		for i := range 4 { // also after a whole answer was kept
			lines := strings.Split(tt.lines, "\n")
			if tt.lines == "" {
				lines = nil
			}
			if !strings.HasPrefix(tt.lines, "range: ") {
				lines = append(lines, "range: bytes=2-4")
			}
			d := decideRequest(m, read(e, append([]string{"GET /a"}, lines...)...))
			body := tt.body
			if body == "" && (tt.status == 200 || tt.status == 301) {
				body = `{"key":"/a"}`
			}
			contentRange := map[int]string{206: "bytes 2-4/12", 416: "bytes */12"}[tt.status]
			if got, _ := headerOf(d, "content-range"); d.Status != tt.status || string(d.Body) != body || got != contentRange {
				t.Fatalf("%s, request %d: got %d %q, Content-Range %q; want %d %q, %q", tt.name, i, d.Status, d.Body, got,
					tt.status, body, contentRange)
			}
			if tt.status == 206 {
				checkPart(t, tt.name, &d, e, m)
			}
			for _, name := range []string{"cache-control", "content-type", "last-modified"} {
				if got, found := headerOf(d, name); tt.status == 416 && found {
					t.Errorf("%s: a 416 has %s: %s", tt.name, name, got)
				}
			}
			if d = decideRequest(m, read(e, "GET /a")); m.bodyGone == (d.Status != 0 && d.Status != 206) {
				t.Fatalf("%s: without a range: %d", tt.name, d.Status)
			}
			d = decideRequest(m, read(e, append([]string{"HEAD /a"}, lines...)...))
			if d.Status == 206 || d.Status == 416 {
				t.Errorf("%s: HEAD is answered with %d", tt.name, d.Status)
			}
		}
	}
}

// checkPart compares a 206 with the 200: the 206 has all headers (RFC 9110, section 15.3.7) and shares the 200's body.
func checkPart(t *testing.T, name string, part *Decision, e *Engine, m *memory) {
	t.Helper()
	fields := func(d *Decision) string { // which is valid until the next decision
		return fmt.Sprintf("%q", slices.DeleteFunc(fieldsOf(*d), func(h [2]string) bool { return h[0] == "content-range" }))
	}
	got, body := fields(part), part.Body
	d := decideRequest(m, read(e, "GET /a"))
	if want := fields(&d); got != want {
		t.Errorf("%s: the 206 has %s, the 200 %s", name, got, want)
	}
	if &body[0] != &d.Body[2] {
		t.Errorf("%s: the body is a copy", name)
	}
}
