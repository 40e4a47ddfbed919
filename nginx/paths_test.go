package nginx_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// pathRule is a rule as the plugin has it.
type pathRule struct {
	Path    string   `json:"path,omitempty"`
	Prefix  string   `json:"prefix,omitempty"`
	Methods []string `json:"methods,omitempty"`
}

func (r pathRule) text() string { return r.Path + r.Prefix }

// pathEngine returns an edge with rules; false if they are no configuration.
func pathEngine(rules []pathRule, deny bool) (*policy.Engine, bool) {
	list := []any{}
	for _, r := range rules {
		match := map[string]any{}
		if r.Path != "" {
			match["path"] = r.Path
		} else {
			match["prefix"] = r.Prefix
		}
		if r.Methods != nil {
			methods := []any{}
			for _, m := range r.Methods {
				methods = append(methods, m)
			}
			match["methods"] = methods
		}
		list = append(list, map[string]any{"match": match})
	}
	fallback := "pass"
	if deny {
		fallback = "deny"
	}
	c, err := policy.Parse(map[string]any{"rules": list, "default": fallback})
	if err != nil {
		return nil, false
	}
	return policy.NewEngine(c), true
}

// The plugin's result for an ambiguous path, as text_cases.lua has it.
const ambiguousRule = 10_000

// governedBy returns the rule that governs a request in Go, as text_cases.lua does. It may have a header that no upstream
// gets.
func governedBy(t testing.TB, e *policy.Engine, removes bool, method, target string) int {
	t.Helper()
	headers := [][2]string{{":method", method}, {":path", target}}
	if removes {
		headers = append(headers, [2]string{policy.DeviceHeader, "x"})
	}
	fields, ok := headermap.ParseFields(headermap.Append(nil, headers))
	if !ok {
		t.Fatal("malformed headers")
	}
	at, r := e.Locate(fields), e.Read(fields, nil)
	if at.Passes {
		return 0
	}
	e.Govern(&r, &at)
	rule, ambiguous := r.Rule()
	rule++
	if ambiguous {
		rule += ambiguousRule
	}
	return rule
}

// pathRules are rules that have been difficult.
var pathRules = [][]pathRule{
	nil,
	{{Prefix: "/"}},
	{{Path: "/"}},
	{{Path: "/v1/fleet/config"}, {Prefix: "/v1/products/"}, {Prefix: "/v1/telemetry", Methods: []string{"POST"}}, {Prefix: "/café/"}, {Prefix: "/in/a"}, {Prefix: "/in/"}},
	{{Path: "/v1/fleet/config"}, {Prefix: "/v1/products/"}, {Prefix: "/v1/telemetry", Methods: []string{"POST"}}, {Prefix: "/in/a"}, {Prefix: "/in/"}},
	{{Prefix: "/v1/admin/"}, {Prefix: "/v1/public/"}, {Prefix: "/v1/"}},
	{{Prefix: "/t", Methods: []string{"POST"}}, {Prefix: "/p", Methods: []string{"GET"}}, {Prefix: "/p"}},
	{{Path: "/a/", Methods: []string{"HEAD"}}, {Path: "/a", Methods: []string{"GET", "PUT"}}, {Prefix: "/a", Methods: []string{"POST"}}, {Prefix: "/a/"}, {Path: "/ab"}, {Prefix: "/"}},
	{{Prefix: "/v1/v1/v1/"}, {Prefix: "/v1/v1/"}, {Prefix: "/v1/"}, {Path: "/v1v1"}},
	{{Prefix: "/ÿ/é"}, {Path: "/Ã/"}, {Prefix: "/%"}, {Path: "/50%"}, {Prefix: "/.x/..y"}, {Path: "/a..b/c."}, {Prefix: "/..."}},
	{{Path: "/..."}, {Path: "/.../.../..."}, {Prefix: "/x.y"}, {Path: "/x..y"}, {Path: "/x"}},
	{{Path: "/" + strings.Repeat("a/", 500) + "b"}, {Prefix: "/" + strings.Repeat("a/", 100)}, {Prefix: "/" + strings.Repeat("a", 1000)}},
}

// rules returns random rules.
func (p textPicker) rules() (rules []pathRule) {
	for range 1 + p.IntN(8) {
		var text string
		for range 1 + p.IntN(4) {
			text += "/" + p.of("v1", "a", "b", "ab", "config", "é", "ÿ", "x.y", ".z", "a..b", "...", "c.", "in", "%", "産", "v") + p.some(1, "v1", "é", ".", "a")
		}
		text += p.of("", "", "/")
		r := pathRule{Path: text}
		if p.IntN(2) == 0 {
			r = pathRule{Prefix: text}
		}
		if p.IntN(3) == 0 {
			r.Methods = []string{p.of("GET", "HEAD", "POST", "PUT", "SIS", "M-SEARCH")}
			if p.IntN(2) == 0 {
				r.Methods = append(r.Methods, p.of("GET", "POST", "X", "DELETE"))
			}
		}
		rules = append(rules, r)
	}
	return rules
}

// spellings are what an attacker may put into a path: odd bytes, in several spellings, and what is decoded twice.
var spellings = []string{
	"%0A", "%0d%0a", "\n", "\r", "%09", "%20", " ", "%3F", "%23", "#", "%00", "\x00", "%7f", "\x7f", ".", "..", "...", "/.", "./", "/", "//", `\`, "%5C", "%2F", "%2f%2f", ";", ";a=b", ";/", "%3B", "?", "?/",
	"%c0%af", "%c0%ae", "%c1%a3", "%e0%80%af", "%f0%80%80%af", "%c0%8a", "%c0%8d", "%c0%80", "%e0%80%8a", "%c1%9c", "%e0%80%ae", "%c0%bb", "%e0%9f%bf", "%f0%8f%bf%bf", "%c0", "%e0%80", "%f0%80%80", "\xc0\xaf", "\xc0\xae",
	"\xc0\x8a", "\xff", "%ff", "%80", "\x80", "%bf", "%C2%A0", "%C2%85", "\u0085", "\u00a0", "\u2028", "%E2%80%A9", "\ufeff", "%EF%BB%BF", "\u3000", "\u1680", "\u200a", "\u200b", "\u202f", "\u205f", "\ufffd", "\ud7ff",
	"\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf4\x8f\xbf\xbf", "\xf5\x80\x80\x80", "\xf0\x9f\x98\x80", "\xe2\x82", "\xe2", "\xc3", "%25", "%250A", "%252e", "%2e", "%252e%252e", "%25%32%65", "%252F", "%25c0%25af", "%%32%65",
	"%", "%2", "%zz", "/..", "/x/..", "/..;/", "/.%85", "/..\u0085x", "/.\u0085x/..\u0085x", "/.%C2%85x", "/zz/........\u0085x/..\u0085x", ".......", "........", "é", "%E9", "\xe9", "%C3%A9", "x", "//h", "//host/", "/h:80", "http://h", "*", "&", "=", "~", "@", ":", "%41", "a", "v1", "config", "/v1",
}

// escape escapes some bytes of s, once or twice.
func (p textPicker) escape(s string, one int) string {
	var b strings.Builder
	for i := range len(s) {
		switch {
		case p.IntN(one) > 0:
			b.WriteByte(s[i])
		case p.IntN(3) == 0:
			fmt.Fprintf(&b, "%%25%02x", s[i])
		default:
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}

// target returns a path, often spelled differently from a rule's, with a query or not.
func (p textPicker) target(rules []pathRule) string {
	path := p.of("/", "/x", "/v1", "/files/x.txt", "")
	if len(rules) > 0 && p.IntN(5) > 0 {
		path = rules[p.IntN(len(rules))].text()
	}
	if p.IntN(3) == 0 {
		path += p.of("/", "x", "/x", "/x/y", ".json", "//")
	}
	if p.IntN(12) == 0 && len(path) > 1 {
		path = path[:p.IntN(len(path))]
	}
	switch p.IntN(8) {
	case 0: // as it is
	case 1:
		path = p.some(8, spellings...)
	case 2:
		path = p.some(3, spellings...) + path + p.some(3, spellings...)
	case 3:
		path = p.long(path)
	default:
		for range 1 + p.IntN(6) {
			at := p.IntN(len(path) + 1)
			path = path[:at] + p.of(spellings...) + path[at:]
		}
	}
	switch p.IntN(8) {
	case 0:
		path = p.escape(path, 1+p.IntN(6))
	case 1:
		path = p.escape(path, 20)
	case 2:
		at := p.IntN(len(path) + 1)
		path = path[:at] + p.bytes(4) + path[at:]
	}
	if p.IntN(6) == 0 {
		path += "?" + p.some(3, spellings...)
	}
	return path
}

// long returns a path near a bound of the readings: their length, segments, choices, lines or spots.
func (p textPicker) long(path string) string {
	unit := p.of(p.of(spellings...), p.of(spellings...), p.of(spellings...)+p.of("", "a", "/", "."), "a", "/a", "/", ".a", "aaaaaaaaaaaaaaaa.", "/%0a", ";a", "%20a", "%ff", "x.")
	count := p.of("4", "5", "9", "10", "11", "63", "64", "65", "254", "255", "256", "257", "")
	n := 0
	if _, err := fmt.Sscan(count, &n); err != nil || n == 0 {
		n = ([]int{512, 2048, 4096, 8192}[p.IntN(4)] - len(path)) / len(unit)
	}
	middle := strings.Repeat(unit, max(0, n+p.IntN(3)-1))
	at := []int{0, len(path), p.IntN(len(path) + 1)}[p.IntN(3)]
	path = path[:at] + middle + path[at:]
	if p.IntN(2) == 0 {
		path += p.some(4, spellings...)
	}
	if p.IntN(4) == 0 { // to the byte
		path += strings.Repeat("a", max(0, []int{512, 4096, 8192}[p.IntN(3)]-len(path)+p.IntN(3)-1))
	}
	return path
}

// method returns a method, sometimes as only HTTP/2 allows it.
func (p textPicker) method() string {
	switch p.IntN(6) {
	case 0:
		return p.some(4, "GET", "post", "P", "o", "S", "t", "head", " ", "\t", "\v", "\u0085", "\u00a0", "\u2003", "\u200b", "po\u017ft", "\u017f\u0131s", "\u0131", "K", "\xff", "\xc2", "-", "m-search", "é", "\x00", "sis")
	case 1:
		return p.of("\u2028post\u3000", "get ", " HEAD", "Post", "\u1680put", strings.Repeat("get", 21), strings.Repeat("g", 64), strings.Repeat("g", 65), strings.Repeat("G", 65), "", "si\u017f", "\u017fIS", "m-SEARCH", "M-SEARCH")
	}
	return p.of("GET", "HEAD", "POST", "PUT", "DELETE", "SIS")
}

// TestGovern compares the rules of requests, most of which are hostile.
func TestGovern(t *testing.T) {
	const batch = 500
	p := newTextPicker(20)
	kinds := map[string]int{}
	for left, round := textCases(t, 25_000), 0; left > 0; round++ {
		var rules []pathRule
		if round%2 == 0 {
			rules = pathRules[round/2%len(pathRules)]
		} else {
			rules = p.rules()
		}
		deny := p.IntN(2) == 0
		e, ok := pathEngine(rules, deny)
		if !ok {
			if round%2 == 0 {
				t.Fatalf("%v are no rules", rules)
			}
			continue
		}
		var cases []string
		for range min(left, batch) {
			cases = append(cases, p.method(), p.target(rules))
		}
		left -= batch
		comparePaths(t, e, rules, deny, cases, kinds)
	}
	for _, kind := range []string{"a rule", "none", "ambiguous"} {
		if kinds[kind] == 0 {
			t.Errorf("no request is of the kind %q", kind)
		}
	}
	t.Logf("%v", kinds)
}

// comparePaths compares the rules of requests, a method and a target in turn, and counts their kinds.
func comparePaths(t *testing.T, e *policy.Engine, rules []pathRule, deny bool, cases []string, kinds map[string]int) {
	t.Helper()
	if rules == nil {
		rules = []pathRule{}
	}
	var got [][]int
	removes := len(rules)%2 == 0
	call(t, &got, "text_cases", "govern", rules, deny, removes, packTexts(cases...))
	for i := 0; i < len(cases); i += 2 {
		want := governedBy(t, e, removes, cases[i], cases[i+1])
		if got[0][i/2] != want {
			t.Fatalf("%q %.300q (%d bytes), rules %.300v, deny: %v: got %d, want %d", cases[i], cases[i+1], len(cases[i+1]), rules, deny, got[0][i/2], want)
		}
		switch {
		case want >= ambiguousRule:
			kinds["ambiguous"]++
		case want == 0:
			kinds["none"]++
		default:
			kinds["a rule"]++
		}
	}
}

// TestGovernBytes compares all paths of a rule in which one or two bytes are any others, escaped or not.
func TestGovernBytes(t *testing.T) {
	if *coverage {
		t.Skip("TestGovern runs the same lines")
	}
	for _, rules := range [][]pathRule{{{Path: "/a/b"}}, {{Prefix: "/a/"}, {Path: "/é"}}} {
		e, ok := pathEngine(rules, false)
		if !ok {
			t.Fatal("no rules")
		}
		kinds := map[string]int{}
		for c := range 256 {
			var cases []string
			for _, form := range []string{"/a%s/b", "/a/b%s", "%s/a/b", "/x%s", "/x/.%s./a", "/x/..%s", "/a/%sb%[1]s", "%s", "/é%s", "/x%s/a/b"} {
				for _, text := range []string{string([]byte{byte(c)}), fmt.Sprintf("%%%02x", c), fmt.Sprintf("%%25%02X", c), string(rune(c)), string([]byte{0xc0, byte(c)}), string([]byte{0xc1, byte(c)}), string([]byte{0xe0, 0x80, byte(c)}),
					string([]byte{0xe2, 0x80, byte(c)}), string([]byte{0xf0, 0x80, 0x80, byte(c)}), string([]byte{0xe0, byte(c), 0x80}), string([]byte{0xed, byte(c), 0x80}), string([]byte{0xf4, byte(c), 0x80, 0x80}), string([]byte{byte(c), 0x80}), string([]byte{byte(c), 0x80, 0x80})} {
					cases = append(cases, "GET", fmt.Sprintf(form, text))
				}
			}
			comparePaths(t, e, rules, false, cases, kinds)
		}
	}
}

// maxPathCost bounds what a path may cost, in microseconds of processor time. The most that was found is 2800, without
// the compiler.
const maxPathCost = 20_000

// TestGovernCost searches for paths that cost much, compiled or not: a client may send any of them.
func TestGovernCost(t *testing.T) {
	if *coverage {
		t.Skip("the measurement of coverage costs more")
	}
	p := newTextPicker(21)
	repeat := func(unit string, size int) string { return strings.Repeat(unit, size/len(unit)) }
	hostile := []string{
		"/v1/products/17", "/v1/products/17?lang=de&page=2", "/static/js/app.0a1b2c3d.js", "/v1/products/caf%C3%A9",
		"/" + repeat("a", 8191), "//" + repeat("a", 8190), "/" + repeat("\u00e9", 8190), "/" + repeat("\xff", 8191), "/ " + repeat("\xff", 8190), "/." + repeat("\u0085", 8190),
		"/" + repeat("%61", 4095), "/" + repeat("%2561", 4095), "/%2561" + repeat("a", 4090), "/v1/%2561" + repeat("\xc1\xa1", 4080), "/%2561." + repeat(".\u00a0", 4080), "/." + repeat("%25ff", 4090),
		"/a%0a/a%0a/a%0a/a%0a" + repeat("/a", 500), "/a\n/a\n/a\n/a\n" + repeat("/a", 500), "/.a%0a/a.%0a/a%0a//%0a" + repeat("/a", 480), "/" + repeat("a/", 500), "/" + repeat("a.", 60), repeat("/", 256),
		"/%0a/%0a/%0a/%2561" + repeat("a", 4070), "//a/\n//a/\n//a/\n//a/\n/" + repeat("a", 1000), "\\" + repeat("\\a", 500), "/a" + repeat("\\a", 500), repeat("%5ca", 1020),
	}
	worst := map[bool]float64{}
	for round, rules := range pathRules {
		cases := make([]string, 0, 2*len(hostile))
		for _, target := range hostile {
			cases = append(cases, "GET", target)
		}
		for range textCases(t, 500) / len(pathRules) {
			cases = append(cases, "GET", p.long(p.target(rules)))
		}
		if rules == nil {
			rules = []pathRule{}
		}
		for _, compiled := range []bool{true, false} {
			var got [][]float64
			call(t, &got, "text_cases", "cost", rules, true, packTexts(cases...), 3, compiled)
			for i, cost := range got[0] {
				if cost > maxPathCost {
					t.Errorf("%.100q of %d bytes costs %.0f µs", cases[2*i+1], len(cases[2*i+1]), cost)
				}
				if cost > worst[compiled] {
					worst[compiled] = cost
					t.Logf("compiled: %v: %6.0f µs: %.60q of %d bytes, rules %.60v", compiled, cost, cases[2*i+1], len(cases[2*i+1]), rules)
				}
			}
			if round == 3 {
				t.Logf("compiled: %v: usual paths: %.2f µs", compiled, got[0][:4])
			}
		}
	}
}
