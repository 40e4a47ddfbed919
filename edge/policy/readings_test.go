package policy

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

const (
	none    = -1
	refused = -2
)

const readingRules = `"credentials": {"basic": true}, "rules": [
	{"match": {"path": "/v1/fleet/config"}, "auth": {"permissions": ["config.read"]}},
	{"match": {"prefix": "/v1/products/"}, "cache": {}},
	{"match": {"prefix": "/v1/telemetry", "methods": ["POST"]}, "auth": {}},
	{"match": {"prefix": "/café/"}, "auth": {}},
	{"match": {"prefix": "/in/a"}, "auth": {}},
	{"match": {"prefix": "/in/"}, "auth": {"permissions": ["in"]}}]}`

func readingEdge(t testing.TB, fallback string) *Engine {
	t.Helper()
	return newEdge(t, `{"default": "`+fallback+`", `+readingRules)
}

// ruled returns the rule of a request, none or refused.
func ruled(e *Engine, method, target string) int {
	r := readHeaders(e, [][2]string{{":method", method}, {":path", target}})
	if !r.Governed() {
		return none
	}
	if r.rule < 0 {
		return refused
	}
	return r.rule
}

// TestReadings spells paths with different readings by some routers.
func TestReadings(t *testing.T) {
	pass, deny := readingEdge(t, "pass"), readingEdge(t, "deny")
	tests := []struct {
		name, target string
		pass, deny   int
	}{
		{"as it is", "/v1/fleet/config", 0, 0},
		{"line feed at the end", "/v1/fleet/config%0A", 0, refused}, // Starlette: $ matches before it
		{"both", "/v1/fleet/config%0d%0a", 0, refused},
		{"tab", "/v1/fleet/config%09", 0, refused},
		{"space", "/v1/fleet/config%20", 0, refused},
		{"NUL", "/v1/fleet/config%00.png", 0, refused},
		{"DEL", "/v1/fleet/config%7F", 0, refused},
		{"question mark", "/v1/fleet/config%3Fx", 0, refused},
		{"fragment", "/v1/fleet/config%23x/y", 0, refused},
		{"fragment, not escaped", "/v1/fleet/config#x", 0, refused},
		{"not escaped", "/v1/fleet/config ", 0, refused},
		{"in between", "/v1/fl%0Aeet/config", 0, refused},
		{"of each segment", "/%20v1/fleet%20/%09config", 0, refused},
		{"on a line of its own", "/x%0a/v1/fleet/config", 0, refused}, // Ruby: ^ matches after it
		{"cut in each segment", "/v1%00x/fleet%20y/config", 0, refused},
		{"last dot", "/v1/fleet/config.", 0, refused},
		{"last dots, slash", "/v1/fleet/config../", 0, refused},
		{"last dot of a segment", "/v1/fleet./config", 0, refused},
		{"dots and space", "/v1/fleet/config.%20.", 0, refused},
		{"overlong slash", "/v1/fleet%c0%afconfig", 0, refused},
		{"overlong slash in three", "/v1/fleet%e0%80%afconfig", 0, refused},
		{"overlong slash in four", "/v1/fleet%f0%80%80%afconfig", 0, refused},
		{"overlong slash at the end", "/v1/fleet/config%c0%af", 0, refused},
		{"overlong letter", "/v1/fleet/%c1%a3onfig", 0, refused},
		{"overlong dots", "/x/%c0%ae%c0%ae/v1", refused, refused},
		{"an overlong dot of two", "/x/%c0%ae./v1", refused, refused},
		{"no UTF-8", "/v1/fleet/config%ff", 0, refused},
		{"no UTF-8 in between", "/v1/fl%ffeet/config", 0, refused},
		{"cut UTF-8", "/v1/fleet/config%e2%82", 0, refused},
		{"space of Unicode", "/v1/fleet/config%C2%A0", 0, refused},
		{"byte order mark", "/%EF%BB%BFv1/fleet/config", 0, refused},
		{"twice", "/v1/%2566leet/config", 0, refused},
		{"twice, odd", "/v1/fleet/config%250A", 0, refused},
		{"twice, digits too", "/v1/fleet/config%25%30%41", 0, refused},
		{"twice, climbing", "/x/%252e%252e/y", refused, refused},
		{"parameter in the middle", "/v1;x=y/fleet/config;z", 0, refused},
		{"parameter and the rest cut", "/v1/fleet/config;x/y", 0, refused},
		{"backslash", `/v1/fleet\config`, 0, refused},
		{"escaped backslash", `/v1/fleet%5Cconfig`, 0, refused},
		{"slashes", "/v1//fleet///config//", 0, refused},
		{"slash at the end", "/v1/fleet/config/", 0, 0},
		{"slashes at the end", "/v1/fleet/config//", 0, 0},
		{"host", "//host/v1/fleet/config", 0, refused}, // new URL(request.url, base)
		{"host, backslash", `/\host/v1/fleet/config`, 0, refused},
		{"absolute", "http://host/v1/fleet/config", 0, refused},
		{"no slash", "v1/fleet/config", 0, refused},
		{"climbing", "/x/..;a/y", refused, refused},
		{"climbing and odd", "/x/..%00/y", refused, refused},
		{"climbing around odd", "/x/.%0d./y", refused, refused},
		{"climbing at the end", "/x/..", refused, refused},
		{"climbing, cut, behind the same", "/x/.%C2%85x/..%C2%85x/v1/fleet/config", refused, refused},
		{"climbing, cut otherwise", "/x/.%C2%85x/..%20x/v1/fleet/config", refused, refused},
		{"line, behind what no rule has", "/x%0a/v1/fleet/config", 0, refused},
		{"line, parameter", "/x%0A;a=b/v1/fleet/config", 0, refused},
		{"overlong line, behind what no rule has", "/x%c0%8a/v1/fleet/config", 0, refused},
		{"overlong return, behind what no rule has", "/x%c0%8d/v1/fleet/config", 0, refused},
		{"Latin-1", "/caf%E9/x", 3, refused},
		{"UTF-8", "/caf%C3%A9/x", 3, refused}, // literally it has no rule

		{"ordinary space", "/files/a%20b%20c.txt", none, refused},
		{"ordinary space below a rule", "/v1/products/a%20b", 1, 1},
		{"ordinary space beside a rule", "/v1/fleet/con%20fig2", none, refused},
		{"ordinary UTF-8", "/files/%E4%BA%A7%E5%93%81.json", none, refused},
		{"ordinary UTF-8 below a rule", "/v1/products/%E4%BA%A7%E5%93%81", 1, 1},
		{"ordinary UTF-8 behind what a rule names", "/v1/fleet/config%C3%A9", none, refused},
		{"percent", "/files/50%25", none, refused},
		{"percent below a rule", "/v1/products/50%25%20off", 1, 1},
		{"GBK", "/files/%B2%FA%C6%B7", none, refused},
		{"dots", "/files/a..b/.c/d...e", none, refused},
		{"dots below a rule", "/v1/products/..a/.b", 1, 1},
		{"fullwidth", "/v1/fleet/%EF%BD%83onfig", none, refused},
		{"another case", "/V1/fleet/%43onfig", none, refused},
		{"two rules", "/in%00/a", refused, refused},
		{"two rules, left out", "/in/%00a", refused, refused},
		{"one of two rules", "/in/%00b", 5, 5},
		{"two rules, cut and as it stands", "/in/a/%20", 4, 4},
		{"two rules, decoded", "/in/%61", refused, refused},
		{"the server", "*", none, refused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := ruled(pass, "GET", tt.target); got != tt.pass {
				t.Errorf("%s, default pass: got rule %d, want %d", tt.target, got, tt.pass)
			}
			if got := ruled(deny, "GET", tt.target); got != tt.deny {
				t.Errorf("%s, default deny: got rule %d, want %d", tt.target, got, tt.deny)
			}
		})
	}
}

// TestTooManyParts: a path with unusually many segments and parameters is refused, plain or not.
func TestTooManyParts(t *testing.T) {
	e := readingEdge(t, "pass")
	for _, tt := range []struct {
		name, target string
		want         int
	}{
		{"segments", strings.Repeat("/a", maxParts), none},
		{"too many segments", strings.Repeat("/a", maxParts+1), refused},
		{"segments below a rule", "/v1/products" + strings.Repeat("/a", maxParts-2), 1},
		{"too many segments below a rule", "/v1/products" + strings.Repeat("/a", maxParts-1), refused},
		{"too many slashes", strings.Repeat("/", maxParts+1), refused},
		{"parameters", "/a" + strings.Repeat(";", maxParts-1), none},
		{"too many parameters", "/a" + strings.Repeat(";", maxParts), refused},
		{"too many parameters, escaped", "/a" + strings.Repeat("%3b", maxParts), refused},
		{"too many lines", strings.Repeat("/%0a", maxLines+1), refused},
		{"spaces where a rule may be met", "/v1" + strings.Repeat("%20", 4*maxChoices), none},
		{"too many choices", "/v1" + strings.Repeat("%20.", maxChoices), refused},
		{"too much that is overlong", "/v1" + strings.Repeat("%c1%a1", 20), refused},
		// For rules with non-ASCII characters.
		{"no UTF-8 where a rule may be met", "/v1" + strings.Repeat("%ff", 4*maxChoices), refused},
		{"escaped", "/files/" + strings.Repeat("%41", (maxEscaped-7)/3), none},
		{"escaped, too long", "/files/" + strings.Repeat("%41", (maxEscaped-7)/3+1), refused},
		{"spaces elsewhere", "/files/" + strings.Repeat("%20a", 2*maxChoices), none},
		{"long", "/" + strings.Repeat("a", maxPath-1), none},
		{"too long", "/" + strings.Repeat("a", maxPath), refused},
		{"long, below a rule", "/v1/products/" + strings.Repeat("a", maxPath-13), 1},
		{"long with its query", "/a?" + strings.Repeat("a", 2*maxPath), none},
		{"long, with dots", "/" + strings.Repeat("a.b", maxParts), none},
		{"too long, with dots", "/" + strings.Repeat("aaaaaaaaaaaaaaaa.", maxParts+1), refused},
		{"query", "/a?" + strings.Repeat("/", 2*maxParts), none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ruled(e, "GET", tt.target); got != tt.want {
				t.Errorf("got rule %d, want %d", got, tt.want)
			}
		})
	}
	if got := ruled(e, strings.Repeat("get", 100), "/v1/products/x"); got != refused {
		t.Errorf("a long method: got rule %d, want it refused", got)
	}
}

// router is one way to read a path; each step applies to the whole path, in this order.
type router []func(string) string

func (r router) read(path string) string {
	for _, step := range r {
		path = step(path)
	}
	return path
}

func isOdd(c rune) bool {
	return c <= ' ' || c == 0x7f || strings.ContainsRune("?#;\u0085\u00a0\ufffd", c)
}

// segmentwise returns f, applied to each segment of a path.
func segmentwise(f func(string) string) func(string) string {
	return func(path string) string {
		all := strings.Split(path, "/")
		for i := range all {
			all[i] = f(all[i])
		}
		return strings.Join(all, "/")
	}
}

func cutOdd(s string) string {
	if i := strings.IndexFunc(s, isOdd); i >= 0 {
		return s[:i]
	}
	return s
}

func dropOdd(s string) string {
	return strings.Map(func(c rune) rune {
		if isOdd(c) {
			return -1
		}
		return c
	}, s)
}

func trimOdd(s string) string { return strings.TrimFunc(s, isOdd) }

func same(s string) string { return s }

// latin1 returns the text of bytes that are not UTF-8 as a whole.
func latin1(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	all := make([]rune, len(s))
	for i := range len(s) {
		all[i] = rune(s[i])
	}
	return string(all)
}

// resolve resolves dot segments according to RFC 3986, section 5.2.4.
func resolve(path string) string {
	var kept []string
	all := strings.Split(path, "/")
	for i, s := range all {
		switch {
		case s == ".." && len(kept) > 1:
			kept = kept[:len(kept)-1]
		case s != "." && s != "..":
			kept = append(kept, s)
			continue
		}
		if i == len(all)-1 {
			kept = append(kept, "")
		}
	}
	return strings.Join(kept, "/")
}

func mergeSlashes(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	return path
}

// dropHost reads "//host/path" as a URL without a scheme.
func dropHost(path string) string {
	if rest, ok := strings.CutPrefix(path, "//"); ok {
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			return rest[i:]
		}
	}
	return path
}

// lastLine reads the path at the start of a line, as an expression with ^ does.
func lastLine(path string) string {
	if i := strings.LastIndexAny(path, "\r\n"); i >= 0 && strings.HasPrefix(path[i+1:], "/") {
		return path[i+1:]
	}
	return path
}

// pickRouter returns a random router: first the decodings, then the reading of bytes, then the rest in any order.
func pickRouter(r *rand.Rand) router {
	pick := func(of ...func(string) string) func(string) string { return of[r.IntN(len(of))] }
	twice := func(s string) string { return objectkey.PercentDecode(objectkey.PercentDecode(s)) }
	overlong := func(s string) string {
		return strings.NewReplacer("\xc0\xaf", "/", "\xc0\xae", ".", "\xe0\x80\xaf", "/", "\xc1\xa3",
			"c", "\xc0\x8a", "\n").Replace(s)
	}
	picked := router{
		pick(same, objectkey.PercentDecode, objectkey.PercentDecode, twice),
		pick(same, overlong),
		pick(latin1, func(s string) string {
			return strings.ToValidUTF8(s, "\ufffd")
		}, func(s string) string { return strings.ToValidUTF8(s, "") }),
	}
	rest := router{
		pick(same, func(s string) string { return strings.ReplaceAll(s, `\`, "/") }),
		pick(same, cutOdd, dropOdd, trimOdd, segmentwise(cutOdd), segmentwise(trimOdd), func(s string) string {
			return strings.TrimSuffix(s, "\n")
		}, lastLine),
		pick(same, segmentwise(func(s string) string { s, _, _ = strings.Cut(s, ";"); return s })),
		pick(same, mergeSlashes, dropHost),
		pick(same, segmentwise(func(s string) string {
			if bare := strings.TrimRight(s, "."); bare != "" {
				return bare
			}
			return s
		})),
		pick(same, resolve),
	}
	r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	return append(picked, rest...)
}

// spell spells a path differently, in ways that an attacker may try.
func spell(r *rand.Rand, path string) string {
	odd := []string{"%0A", "%0d%0a", "%09", "%20", "%3F", "%23", "%00", "%7f", ".", "..", "/.", "./", "/", `\`, "%5C",
		"%2F", ";", ";a=b", ";/", "%3B",
		"%c0%af", "%c0%ae", "%C2%85", "%c1%a3", "%e0%80%af", "%ff", "%C2%A0", "%25", "%250A", "%2e",
		"%252e", "/..", "/x/..", "/..;/", "é", "%E9", "x", "//h", "%c0%8a"}
	if r.IntN(4) == 0 { // behind what no rule has
		for range 1 + r.IntN(5) {
			path = append(odd, "x", "/", "/x/", ".", "..", "/..")[r.IntN(len(odd)+6)] + path
		}
		path = "/x" + path
	}
	for range 1 + r.IntN(3) {
		at := r.IntN(len(path) + 1)
		switch c := r.IntN(8); {
		case c < 5:
			path = path[:at] + odd[r.IntN(len(odd))] + path[at:]
		case at == len(path):
			path += odd[r.IntN(len(odd))]
		case c < 7:
			path = path[:at] + "%" + strconv.FormatUint(uint64(path[at])+0x100, 16)[1:] + path[at+1:]
		default:
			path = path[:at] + "%25" + strconv.FormatUint(uint64(path[at])+0x100, 16)[1:] + path[at+1:]
		}
	}
	return path
}

// TestNoRouterGetsAround spells paths at random and reads the paths with random routers: if a router reads a path under
// a rule, the request is judged by the rule, or refused.
func TestNoRouterGetsAround(t *testing.T) {
	const seed = 18
	r := rand.New(rand.NewPCG(seed, 0))
	e := readingEdge(t, "pass")
	paths := []string{"/v1/fleet/config", "/v1/products/7", "/v1/telemetry", "/v1/telemetry/", "/caf%C3%A9/x",
		"/in/a", "/in/b", "/v1/x", "/", "/files/x"}
	covered := 0
	spellings := 200_000
	if testing.Short() {
		spellings = 50_000
	}
	for range spellings {
		target := spell(r, paths[r.IntN(len(paths))])
		seen := pickRouter(r).read(target)
		g := e.hosts.absent.governor
		want := g.firstRule("POST", seen, g.findCandidate(seen, 0))
		if want < 0 {
			continue
		}
		covered++
		if got := ruled(e, "POST", target); got != want && got != refused {
			t.Fatalf("%q: got rule %d, but a router takes it for %q, which has rule %d", target, got, seen, want)
		}
	}
	if covered < spellings/10 {
		t.Errorf("only %d spellings were taken for a path that a rule covers", covered)
	}
}

// TestLettersOnly compares eight bytes at a time with one at a time.
func TestLettersOnly(t *testing.T) {
	for at := range 8 {
		for c := range 256 {
			eight := []byte("aZ09-_~%")
			eight[at] = byte(c)
			want := classes[c] == letter || classes[c] == escape
			if got := lettersOnly(binary.LittleEndian.Uint64(eight)); got != want {
				t.Errorf("%q: got %v, want %v", eight, got, want)
			}
		}
	}
}
