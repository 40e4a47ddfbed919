package routers

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// bits are inserted into paths: some servers cut, drop, decode, fold or resolve a bit.
var bits = []string{
	// Control characters, blanks, and characters that end a path.
	"%00", "%01", "%08", "%09", "%0a", "%0b", "%0c", "%0d", "%0d%0a", "%0a%0a", "%1b", "%1f", "%20",
	"%20%20", "+", "%7f", "%80", "%85", "%a0",
	"%3F", "%3f.css", "%23", "%23x", "?", "?x", "?x=/../y", "?a=1&lang=b", "?rev=1", "#", "#x", "%3F%0a",
	"??", "%26", "&", "%3d",
	// Dots, slashes and characters that some servers read as dots or slashes.
	".", "..", "...", "%2e", "%2E", "%2e%2e", ".%2e", "%252e", "%252e%252e", "%2e%00", ".%20", ".%0a",
	"..%00", "..%0a", "..%20", "%20..",
	"/", "//", "/.", "/./", "/..", "/../", "/x/..", "/x/../", "/.//", "%2f", "%2F", "%252f", "%255c",
	`\`, "%5c", "%5C", "/%2e/", "/%2e%2e/", "/..;/", "/.;/", "/;/",
	"/..%3b/", "/.%3b/", "/..%0a/", "/..%09/", "/..%23/", "/..%3f/", "/..%00/", "/..%ff/",
	"%c0%af", "%c0%ae", "%c0%ae%c0%ae", "%e0%80%af", "%e0%80%ae", "%f0%80%80%af", "%c1%9c", "%c0%8a",
	"%c0%bf", "%c0%a3", "%c1%bb",
	// Parameters and suffixes.
	";", ";x", ";x=y", ";/", ";x/", ";.css", "%3b", "%3Bx", "%3bx=y", "%253b", ";%2f", ";%2e%2e",
	";x=/../", ";a;b;c", ".json", ".html", ".css", ".do", "~", "!", "*", ":", "::$DATA", "@", "$",
	"|", "'", `"`, "<", "[", "]", "^", "`", "{", "}", ",",
	// Incomplete escapes, or escapes of another kind.
	"%", "%%", "%2", "%zz", "%u002f", "%u0061", "%25", "%2500", "%250a", "%2520", "%253f", "%2523",
	"%25%30%61", "%%30%61", "%0", "&#47;", "&sol;", "=?",
	// Unicode: blanks, zero-width marks, byte order marks, forms that fold, halves of surrogates, invalid bytes.
	"%c2%a0", "%c2%85", "%c2%ad", "%e2%80%8b", "%e2%80%8d", "%e2%80%a8", "%e2%80%a9", "%e2%81%a0",
	"%e3%80%80", "%e1%9a%80", "%ef%bb%bf", "%ef%bf%bf", "%ef%bf%bd",
	"%ef%bc%8f", "%ef%bc%8e", "%ef%bc%9b", "%ef%bc%9f", "%ef%bc%83", "%e2%88%95", "%e2%81%84", "%e2%a7%b8",
	"%cc%81", "%cd%8f", "%e2%80%ae", "%f3%a0%80%a0",
	"%ed%a0%80", "%ed%bf%bf", "%f4%90%80%80", "%ff", "%fe%ff", "%c3", "%c3%28", "%e2%28%a1", "%f8%88%80%80%80",
	"%c4%8a", "%c4%a0", "%e5%98%8a", "%e5%98%8d",
	"\t", " ", "\x00", "\x0b", "\x0c", "\x7f", "\x80", "\xa0", "\xff", "é", "\r", "\n",
}

// fronts are inserted before a path: some servers resolve, merge, drop or misread a front.
var fronts = []string{
	"/x/..", "/.", "/", "//", "/;", "/;x", "/.;", "/x;/..", "/%2e", "/%2e%2e", "/x/%2e%2e", "/x/..;", "/x/..%3b",
	"/x/%2e%2e%3b", "/%20", "/%0a", "/%00", "/%09", `/\`, "/%5c",
	"/files/..", "/files/%2e%2e", "/files/..;", "/files/..;x", "/files/..%3b", "/files/..%2f..",
	"/files/a/../..", "/files/..%0a", "/files/..%09", "/files/..%5c..", "/files/a%2f..%2f..",
	"/v1/admin/health/../../..", "/v1/admin/health/..;/..;/..;", "/v1/admin/health/%2e%2e/%2e%2e/%2e%2e",
	"/v1/products/../..", "/v1/products/..;/..;", "/v1/products/%2e%2e%2f..",
	"http://edge.example", "http://other.example", "http:", "http:/", "http://", "https://edge.example",
	"HTTP://edge.example", "http://edge.example/x/..", "http://edge.example//", "http://edge.example:80",
	"http://u:p@edge.example", "//edge.example", "*", "x:", "%2f", "?", "#", ".", "", "/@reader", "/@root", "@",
}

// changePath makes one change.
func changePath(r *rand.Rand, path string) string {
	if path == "" {
		return pick(r, bits)
	}
	switch r.IntN(16) {
	case 0, 1, 2:
		return path + pick(r, bits)
	case 3, 4:
		return insertText(path, r.IntN(len(path)+1), pick(r, bits))
	case 5:
		return atSlash(r, path, pick(r, bits))
	case 6:
		return pick(r, fronts) + path
	case 7:
		return escapeSome(r, path)
	case 8:
		return strings.Replace(path, "/", pick(r, bits), 1+r.IntN(3))
	case 9:
		return replaceOne(r, path, "/", pick(r, bits))
	case 10:
		return foldLetters(r, path)
	case 11:
		return insertText(path, r.IntN(len(path)+1), escapeByte(byte(r.IntN(256))))
	case 12:
		return path + escapeByte(byte(r.IntN(256))) + pick(r, []string{"", escapeByte(byte(r.IntN(256))), pick(r, bits)})
	case 13:
		return insertText(path, r.IntN(len(path)+1), string([]byte{byte(r.IntN(256))}))
	case 14:
		return editByte(r, path)
	default:
		return doubleEscape(r, path)
	}
}

func insertText(path string, at int, text string) string { return path[:at] + text + path[at:] }

// atSlash inserts text before or after a random slash.
func atSlash(r *rand.Rand, path, text string) string {
	at := slashIndexes(path)
	if len(at) == 0 {
		return text + path
	}
	return insertText(path, pick(r, at)+r.IntN(2), text)
}

func slashIndexes(path string) (at []int) {
	for i := range len(path) {
		if path[i] == '/' {
			at = append(at, i)
		}
	}
	return at
}

// replaceOne replaces one random occurrence of before by after.
func replaceOne(r *rand.Rand, path, before, after string) string {
	parts := strings.Split(path, before)
	if len(parts) < 2 {
		return path + after
	}
	i := 1 + r.IntN(len(parts)-1)
	return strings.Join(parts[:i], before) + after + strings.Join(parts[i:], before)
}

// escapeSome escapes each byte except slashes with some probability, in hexadecimal of either case.
func escapeSome(r *rand.Rand, path string) string {
	chance := 1 + r.IntN(len(path))
	return mapBytes(path, func(b byte) string {
		if b == '/' || r.IntN(len(path)) >= chance {
			return string([]byte{b})
		}
		if r.IntN(2) == 0 {
			return strings.ToUpper(escapeByte(b))
		}
		return escapeByte(b)
	})
}

// doubleEscape escapes a byte two or three times, or every percent sign.
func doubleEscape(r *rand.Rand, path string) string {
	if strings.Contains(path, "%") && r.IntN(2) == 0 {
		return strings.ReplaceAll(path, "%", "%25")
	}
	at := r.IntN(len(path))
	percent := strings.Repeat("%25", 1+r.IntN(2))
	return path[:at] + percent + escapeByte(path[at])[1:] + path[at+1:]
}

// folds are letters that case folding or normalization may convert to the ASCII letter.
var folds = map[byte][]string{
	's': {"%c5%bf", "%ef%bd%93", "ſ"}, 'k': {"%e2%84%aa"}, 'i': {"%c4%b1", "%c4%b0", "%ef%bd%89"},
	'f': {"%ef%bd%86"}, '1': {"%c2%b9", "%ef%bc%91"},
	'v': {"%ef%bd%96"}, 'c': {"%ef%bd%83", "%d1%81"}, 'e': {"e%cc%81", "%c3%a9", "%d0%b5"}, 't': {"%ef%bd%94"},
	'a': {"%d0%b0", "%ef%bd%81"}, '/': {"%ef%bc%8f"}, 'u': {"u%cc%88"},
}

// foldLetters changes the case of letters, or replaces a letter by a letter of folds.
func foldLetters(r *rand.Rand, path string) string {
	if at := r.IntN(len(path)); r.IntN(2) == 0 && folds[path[at]] != nil {
		return path[:at] + pick(r, folds[path[at]]) + path[at+1:]
	}
	chance := 1 + r.IntN(4)
	return mapBytes(path, func(b byte) string {
		if r.IntN(4) < chance {
			return strings.ToUpper(string([]byte{b}))
		}
		return string([]byte{b})
	})
}

// editByte drops, doubles or changes one byte, or repeats a part.
func editByte(r *rand.Rand, path string) string {
	at := r.IntN(len(path))
	switch r.IntN(4) {
	case 0:
		return path[:at] + path[at+1:]
	case 1:
		return insertText(path, at, path[at:at+1])
	case 2:
		return path[:at] + string([]byte{path[at] ^ 1<<r.IntN(8)}) + path[at+1:]
	default:
		return path + path[at:]
	}
}

func mapBytes(text string, f func(byte) string) string {
	var b strings.Builder
	for i := range len(text) {
		b.WriteString(f(text[i]))
	}
	return b.String()
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND",
	"QUERY", "CONNECT", "PRI", "X"}

// spellMethod returns the method in different case, or a different method.
func spellMethod(r *rand.Rand, method string) string {
	switch r.IntN(6) {
	case 0, 1:
		return strings.ToLower(method)
	case 2:
		return mapBytes(method, func(b byte) string {
			if r.IntN(2) == 0 {
				return strings.ToLower(string([]byte{b}))
			}
			return string([]byte{b})
		})
	case 3:
		return pick(r, []string{method + pick(r, []string{" ", "\t", "%20", "\x00", ".", "\r", "X"}), " " + method})
	default:
		return pick(r, methods)
	}
}

// Headers that replace a request's method, path or prefix at some upstreams.
var (
	methodOverrides = []string{"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "x-http-method-override",
		"X_HTTP_METHOD_OVERRIDE", "X-Http-Method_Override"}
	pathOverrides = []string{
		"X-Original-URL", "X-Rewrite-URL", "x-original-url", "X-Original-URI", "X-Original-Path", "X-Forwarded-URI",
		"X-Forwarded-Path", "X-Forwarded-Url",
		"X-Envoy-Original-Path", "X-Accel-Redirect", "X_ORIGINAL_URL", "X-Original_URL", "PATH_INFO",
		"REQUEST_URI", "Path-Info", "Request-URI", "Destination", "X-Override-URL", "Base-Url",
	}
	prefixes = []string{"X-Forwarded-Prefix", "X-Script-Name", "SCRIPT_NAME", "Script-Name",
		"X-Forwarded-Context", "X-Ingress-Path"}
	innocent = []string{"/", "/files/a", "/v1/admin/health", "/v1/products/42", "/v1/devices/7", "/none"}
)

// disguiseRequest moves the intended method, path or prefix into a header and changes the request itself.
func disguiseRequest(r *rand.Rand, s *spelling) {
	switch r.IntN(3) {
	case 0:
		value := s.method
		if r.IntN(4) == 0 {
			value = spellMethod(r, value)
		}
		s.headers = append(s.headers, header{pick(r, methodOverrides), value})
		s.method = pick(r, slices.DeleteFunc([]string{"GET", "POST", "HEAD", "OPTIONS"}, func(m string) bool {
			return m == s.method
		}))
	case 1:
		s.headers = append(s.headers, header{pick(r, pathOverrides), strings.Map(dropInvisible, s.path)})
		s.path = pick(r, innocent)
	default:
		prefix := pick(r, []string{"/x", "/v1", "/v1/fleet", "/v1/admin", "/", "//", "x", "/x;y", "/x%2f",
			"/..", "http://a", "/files", "", s.path})
		s.headers = append(s.headers, header{pick(r, prefixes), prefix})
		if trimmed := strings.TrimPrefix(s.path, prefix); trimmed != s.path && trimmed != "" {
			s.path = trimmed
		} else {
			s.path = prefix + s.path
		}
	}
}

// dropInvisible removes bytes that are invalid in headers: otherwise parsers would refuse the request.
func dropInvisible(c rune) rune {
	if c < ' ' || c > '~' {
		return -1
	}
	return c
}

// sideHeaders are headers that forge an identity, remove a header from the request, or control a cache.
var sideHeaders = []header{
	{"x-gatehouse-device", "root"}, {"X-Gatehouse-Device", "reader"}, {"x_gatehouse_device", "root"},
	{"x-gatehouse_device", "root"}, {"x-gatehouse-permissions", "admin,config.read"},
	{"connection", "x-gatehouse-device"}, {"connection", "keep-alive, x-gatehouse-device, x-gatehouse-permissions"},
	{"connection", "x-device-id"},
	{"if-none-match", "*"}, {"if-none-match", `"cached:fleet-config"`}, {"if-none-match", `W/"cached:me-config:reader"`},
	{"cache-control", "no-cache"}, {"range", "bytes=0-"},
	{"x-device-id", "reader"}, {"x-device-token", "reader-secret"}, {"authorization", "Bearer x"},
	{"authorization", "Basic cm9vdDpyb290LXNlY3JldA=="},
	{"forwarded", "for=127.0.0.1;host=internal;proto=https"}, {"x-forwarded-host", "internal/v1"},
	{"x-forwarded-for", "127.0.0.1"}, {"x-forwarded-proto", "https"}, {"x-envoy-internal", "true"},
	{"upgrade", "h2c"}, {"upgrade", "websocket"}, {"expect", "100-continue"}, {"te", "trailers"},
	{"content-type", "application/grpc"}, {"accept-encoding", "gzip"},
}

var authorities = []string{"other.example", "edge.example/v1/fleet/config", "edge.example/x?",
	"edge.example#", "@edge.example", "edge.example:80", "[::1]", "", "EDGE.EXAMPLE", "edge.example.",
	"127.0.0.1/../", "a b"}
