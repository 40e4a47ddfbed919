package rehearse

import (
	"strings"
	"testing"
)

// lines have a line of each format.
var lines = map[string]struct {
	text string
	want Request
}{
	"envoy.yaml": {`{"bytes":26,"cache":"gatehouse; fwd=uri-miss","device":null,"duration_ms":3,"flags":"-","method":"GET",` +
		`"path":"/v1/me/config","reason":"via_upstream","request_id":"d1a7c6a0-5c4b-4ad8-9a6c-3f2b1d0e9c8b","rule":null,` +
		`"source":"127.0.0.1","status":200,"time":"2026-11-27T10:08:06.123Z"}`, Request{"GET", "", "/v1/me/config"}},
	"Envoy": {`[2026-11-27T10:08:06.123Z] "POST /v1/orders?a=1 HTTP/1.1" 200 - 12 26 3 2 "10.0.0.1" "curl/8 \"x\"" ` +
		`"d1a7c6a0-5c4b-4ad8-9a6c-3f2b1d0e9c8b" "shop.example:8080" "127.0.0.1:8081"`,
		Request{"POST", "shop.example:8080", "/v1/orders?a=1"}},
	"nginx.conf": {`{"time":"2026-11-27T10:08:06+00:00","request_id":"0f","method":"GET","path":"/v1/\u0022x",` +
		`"status":"200","reason":"","rule":"","cache":"","device":"","source":"127.0.0.1","duration_s":"0.000","bytes":"1"}`,
		Request{"GET", "", `/v1/"x`}},
	"combined": {`192.0.2.7 - a ] b [27/Nov/2026:10:08:06 +0000] "GET /v1/me\x22\x5Cx?q HTTP/2.0" 200 612 "-" "Mozilla/5.0"`,
		Request{"GET", "", `/v1/me"\x?q`}},
}

func TestParseLine(t *testing.T) {
	for name, tt := range lines {
		if got, ok := ParseLine([]byte(tt.text)); !ok || got != tt.want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, ok, tt.want)
		}
	}
	for text, want := range map[string]Request{
		`{"method":"GET","path":"/a","authority":"a.example","host":"b.example"}`:               {"GET", "a.example", "/a"},
		`  {"method":"GET","path":"/a","authority":"-","host":"b.example"}` + "\r\n":            {"GET", "b.example", "/a"},
		`{"method":"GET","path":"/a","authority":null,"host":{"name":"node"}}`:                  {"GET", "", "/a"},
		`{"method":"GET","path":"http://a.example/x"}`:                                          {"GET", "a.example", "/x"},
		`{"method":"OPTIONS","path":"*"}`:                                                       {"OPTIONS", "", "*"},
		`{"method":"GET","path":"/u?to=http://b.example/"}`:                                     {"GET", "", "/u?to=http://b.example/"},
		`[t] "GET / HTTP/2" 200 - 0 0 0 - "-" "x" "y" "a.example" "b.example" "-" "id" "-" "-"`: {"GET", "", "/"},
		`[t] "GET / HTTP/2" 200 - 0 0`:                                                          {"GET", "", "/"},
		`[t] "GET /"x" HTTP/1.0" 200 - 0 0 0 - "-" "-" "-" "a.example" "-"`:                     {"GET", "a.example", `/"x"`},
		`::1 - - [t] "GET / HTTP/1.1" 200 1`:                                                    {"GET", "", "/"},
		`::1 - - [t] "GET /a b HTTP/1.1" 200 1`:                                                 {"GET", "", "/a b"},
		`::1 - - [t] "GET /old" 200 1`:                                                          {"GET", "", "/old"},
		`::1 - - [t] "GET HTTPS://a.example:443?q HTTP/1.1" 200 1`:                              {"GET", "a.example:443", "/?q"},
		`::1 - - [t] "GET /\xC3\xA4\x2 HTTP/1.1" 200 1`:                                         {"GET", "", `/ä\x2`},
	} {
		if got, ok := ParseLine([]byte(text)); !ok || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "\n", "x", "{", `{"method":"GET"}`, `{"path":"/"}`, `{"method":"-","path":"/"}`,
		`{"method":null,"path":null}`, `{"method":"GET","path":""}`, `{"method":"CONNECT","path":"a.example:443"}`,
		`[t] "- - HTTP/1.1" 400 DPE 0 11 0 - "-" "-" "-" "-" "-"`, `[t] "GET /a b HTTP/1.1" 200`, `[t] "GET /`,
		`::1 - - [t] "\x16\x03\x01" 400 1`, `::1 - - [t] "-" 400 0`, `::1 - - [t] "" 400 0`, `::1 - - [t] "GET / HTTP/1.1`,
		`time="x" level=info msg="GET / HTTP/1.1"`} {
		if got, ok := ParseLine([]byte(text)); ok {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}

func TestAddLog(t *testing.T) {
	from, to := mustParseRules(t, base), mustParseRules(t, strings.Replace(base, "[strict.example]", "[x.example]", 1))
	c := NewComparison(from, to)
	log := `{"method":"GET","path":"/a"}` + "\n\n" + strings.Repeat("x", 3*maxLine) + "\nnoise\r\n" +
		`{"method":"GET","path":"/b","host":"c.example"}` + "\n" + `{"method":"GET","path":"/a","host":"-"}`
	calls := 0
	read, err := c.AddLog(strings.NewReader(log), "strict.example", func(*LogStats) { calls++ })
	if err != nil || read != (LogStats{5, 2, 2}) || calls != 5 {
		t.Errorf("got %+v, %v, %d calls", read, err, calls)
	}
	want := Change{Opens, "strict/all", "none", "/a", 2, Request{"GET", "strict.example", "/a"}}
	if got := c.Changes(); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// FuzzParseLine checks that a parsed request can be judged, and is part of the line.
func FuzzParseLine(f *testing.F) {
	for _, l := range lines {
		f.Add(l.text)
	}
	f.Add(`::1 - - [t] "GET http://a?x HTTP/1.1" 200 1`)
	f.Add(`[t] "GET / HTTP/2" 200 - 0 0 "a" "b"`)
	from, to := mustParseRules(f, base), mustParseRules(f, "default: deny")
	f.Fuzz(func(t *testing.T, line string) {
		r, ok := ParseLine([]byte(line))
		if !ok {
			return
		}
		if r.Method == "" || r.Path == "" || strings.Contains(r.Method, " ") {
			t.Errorf("%q: got %+v", line, r)
		}
		if line[0] == '[' && !(strings.Contains(line, r.Method) && strings.Contains(line, r.Host)) {
			t.Errorf("%q: got %+v, which isn't in it", line, r)
		}
		NewComparison(from, to).Add(&r)
	})
}

// FuzzLines writes requests in each format, between client-controlled texts, and parses the lines.
func FuzzLines(f *testing.F) {
	f.Add("GET", "/a", "a.example", `curl "x" "b.example" "-"`)
	f.Fuzz(func(t *testing.T, method, path, host, agent string) {
		plain := func(s string) bool {
			return strings.IndexFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '\\' }) < 0
		}
		if !plain(method+path+host) || method == "" || method == "-" || host == "-" || host == "" ||
			strings.ContainsAny(agent, "\n\r") {
			return
		}
		path = "/" + path
		text := `[2026-11-27T10:08:06.123Z] "` + method + " " + path + ` HTTP/2" 200 - 0 1 2 - "-" "` + agent + `" "` + agent +
			`" "` + host + `" "127.0.0.1:8081"`
		if got, ok := ParseLine([]byte(text)); !ok || got != (Request{method, host, path}) {
			t.Errorf("%q: got %+v, %v", text, got, ok)
		}
		if strings.Contains(agent, `"`) { // nginx escapes quotes
			return
		}
		text = `::1 - ` + agent + ` [27/Nov/2026:10:08:06 +0000] "` + method + " " + path + ` HTTP/1.1" 200 1 "` + agent + `"`
		if got, ok := ParseLine([]byte(text)); !strings.HasPrefix(text, "{") && (!ok || got != (Request{method, "", path})) {
			t.Errorf("%q: got %+v, %v", text, got, ok)
		}
	})
}
