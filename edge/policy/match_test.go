package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

func TestCanonicalPath(t *testing.T) {
	tests := []struct{ path, want string }{
		{"/", "/"},
		{"/v1/telemetry", "/v1/telemetry"},
		{"/v1/telemetry/", "/v1/telemetry/"},
		{"//v1/telemetry", "/v1/telemetry"},
		{"/v1//telemetry", "/v1/telemetry"},
		{"/v1/./telemetry", "/v1/telemetry"},
		{"/v1/x/../telemetry", "/v1/telemetry"},
		{"/../../v1/telemetry", "/v1/telemetry"},
		{"/v1/%74elemetry", "/v1/telemetry"},
		{"/v1%2Ftelemetry", "/v1/telemetry"},
		{"/v1/%2e%2E/v1/telemetry", "/v1/telemetry"},
		{"/v1/telemetry;a=b", "/v1/telemetry"},
		{"/v1;a/telemetry", "/v1/telemetry"},
		{"/v1/x/..;a/telemetry", "/v1/telemetry"},
		{`/v1\telemetry`, "/v1/telemetry"},
		{"/v1/telemetry%3Ba", "/v1/telemetry"},
		{"/v1/telemetry/.", "/v1/telemetry/"},
		{"/v1/telemetry/x/..", "/v1/telemetry/"},
		{"/V1/telemetry", "/V1/telemetry"},
		{"/v1/%zz", "/v1/%zz"},
		{"/v1/%", "/v1/%"},
		{"/v1/%2574elemetry", "/v1/%74elemetry"}, // decoded once, as an upstream does
		{"/.well-known/x", "/.well-known/x"},
	}
	for _, tt := range tests {
		if got := CanonicalPath(tt.path); got != tt.want {
			t.Errorf("CanonicalPath(%q): got %q, want %q", tt.path, got, tt.want)
		}
	}
}

// TestRuleOf spells paths in ways that upstreams read differently: Go's ServeMux and nginx take most paths literally,
// servlets remove parameters and then climb.
func TestRuleOf(t *testing.T) {
	const none, refused = -1, -2
	rules := `"credentials": {"basic": true}, "rules": [
		{"match": {"prefix": "/v1/admin/"}, "auth": {"permissions": ["admin"]}},
		{"match": {"prefix": "/v1/public/"}, "cache": {}},
		{"match": {"prefix": "/v1/"}, "auth": {}}]`
	tests := []struct {
		target     string
		pass, deny int
	}{
		{"/v1/admin/x", 0, 0},
		{"/v1/public/x", 1, 1},
		{"/v1/x", 2, 2},
		{"/v1", 2, 2},
		{"/x", none, none},
		{"/v2/admin/x", none, none},
		{"//v1/admin/x", 0, refused}, // where the listener doesn't merge slashes
		{"/v1/admin/..;/x", refused, refused},
		{"/v1/admin/..%3Bjsession/x", refused, refused},
		{"/v1/admin/%2e%2e/x", refused, refused},
		{"/v1/admin/x%2f..%2f..%2fx", refused, refused},
		{`/v1/admin/x\..\..\x`, refused, refused},
		{"/v1/admin/../x", refused, refused}, // if the listener doesn't normalize
		{"/x/..;/y", refused, refused},
		{"/v1/admin/..x/y", 0, 0},
		{"/v1/admin/x;v=1", 0, 0},
		{"/v1/admin/%41", 0, 0},
		{"/v1/public;x/y", refused, refused}, // literally it falls under the last rule
		{"/v1/public/.;/y", 1, 1},
		{"/v1/%70ublic/y", refused, refused},
		{"/%761/x", 2, refused}, // literally it has no rule
		{"/x;y", none, none},
	}
	for _, tt := range tests {
		for fallback, want := range map[string]int{"pass": tt.pass, "deny": tt.deny} {
			r := read(newEdge(t, `{"default": "`+fallback+`", `+rules+`}`), "GET "+tt.target)
			if r.ambiguous && r.rule == none {
				r.rule = refused
			}
			if r.rule != want {
				t.Errorf("%s, default %s: got rule %d, want %d", tt.target, fallback, r.rule, want)
			}
		}
	}
	m := newMemory()
	if d := decide(t, m, `{`+rules+`}`, Answers{}, "GET /v1/admin/..;/x"); d.Action != Reply ||
		d.Status != 403 || d.Auth != AuthForbidden {
		t.Errorf("got action %d, status %d, %q; want a 403", d.Action, d.Status, d.Auth)
	}
}

// TestRuleOfMethod spells methods as HTTP/2 allows: to some upstreams "post" is POST.
func TestRuleOfMethod(t *testing.T) {
	const none, refused = -1, -2
	rules := `"credentials": {"basic": true}, "rules": [
		{"match": {"prefix": "/t", "methods": ["POST"]}, "auth": {}},
		{"match": {"prefix": "/p", "methods": ["GET"]}, "cache": {}},
		{"match": {"prefix": "/p"}, "auth": {}}]`
	for request, want := range map[string][2]int{ // by default: pass, deny
		"POST /t":    {0, 0},
		"post /t":    {0, refused}, // literally it has no rule
		"Post /t":    {0, refused},
		"get /t":     {none, none},
		"get /p":     {refused, refused}, // literally it falls under the last rule
		"head /p":    {refused, refused},
		"put /p":     {2, 2},
		"post /t;x":  {0, refused},
		"post /t/..": {refused, refused},
	} {
		for i, fallback := range []string{"pass", "deny"} {
			r := read(newEdge(t, `{"default": "`+fallback+`", `+rules+`}`), request)
			if r.ambiguous && r.rule == none {
				r.rule = refused
			}
			if r.rule != want[i] {
				t.Errorf("%s, default %s: got rule %d, want %d", request, fallback, r.rule, want[i])
			}
		}
	}
}

func FuzzCanonicalPath(f *testing.F) {
	f.Add("/a/%2e%2e/;b//c\\d")
	f.Fuzz(func(t *testing.T, path string) {
		got := CanonicalPath(path)
		if path != "" && path[0] == '/' && (got == "" || got[0] != '/') {
			t.Errorf("CanonicalPath(%q): got %q, want a path that begins with /", path, got)
		}
		plain, usual := plainPath(path)
		if want, _, _ := strings.Cut(path, "?"); plain != want {
			t.Errorf("plainPath(%q): got %q, want %q", path, plain, want)
		}
		if got := CanonicalPath(plain); usual && got != plain {
			t.Errorf("CanonicalPath(%q): got %q for a usual path", plain, got)
		}
	})
}

func TestMatches(t *testing.T) {
	post := []string{"POST"}
	tests := []struct {
		name         string
		match        Match
		method, path string
		want         bool
	}{
		{"path", Match{Path: "/a/b"}, "GET", "/a/b", true},
		{"path, slash at the end", Match{Path: "/a/b"}, "GET", "/a/b/", true},
		{"path with a slash, without", Match{Path: "/a/b/"}, "GET", "/a/b", true},
		{"path, longer", Match{Path: "/a/b"}, "GET", "/a/bc", false},
		{"path, below", Match{Path: "/a/b"}, "GET", "/a/b/c", false},
		{"path, other case", Match{Path: "/a/b"}, "GET", "/A/b", false},
		{"root", Match{Path: "/"}, "GET", "/", true},
		{"root only", Match{Path: "/"}, "GET", "/a", false},
		{"prefix", Match{Prefix: "/a/"}, "GET", "/a/b", true},
		{"prefix itself", Match{Prefix: "/a/"}, "GET", "/a/", true},
		{"prefix without its slash", Match{Prefix: "/a/"}, "GET", "/a", true},
		{"prefix, other", Match{Prefix: "/a/"}, "GET", "/ab", false},
		{"prefix without slash is plain", Match{Prefix: "/a"}, "GET", "/ab", true},
		{"prefix of all", Match{Prefix: "/"}, "GET", "/x", true},
		{"prefix of all, no path", Match{Prefix: "/"}, "OPTIONS", "*", false},
		{"method", Match{Prefix: "/", Methods: post}, "POST", "/x", true},
		{"other method", Match{Prefix: "/", Methods: post}, "GET", "/x", false},
		{"GET covers HEAD", Match{Prefix: "/", Methods: []string{"POST", "GET"}}, "HEAD", "/x", true},
		{"HEAD doesn't cover GET", Match{Prefix: "/", Methods: []string{"HEAD"}}, "GET", "/x", false},
		{"methods are case-sensitive; but see findRuleOfReadings", Match{Prefix: "/", Methods: post}, "post", "/x", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.match.matches(tt.method, tt.path); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if e := NewEngine(&Config{Rules: []Rule{{Match: tt.match}}}); tt.want && passes(e, tt.path) {
				t.Error("the path is said to pass")
			}
		})
	}
}

// passes returns Locate's result for a target.
func passes(e *Engine, target string) bool {
	fields, ok := headermap.ParseFields(headermap.Append(nil, [][2]string{{":path", target}}))
	return ok && e.Locate(fields).Passes
}

// TestLocate: no rule covers a target that passes, and most targets without a rule pass.
func TestLocate(t *testing.T) {
	const rules = `"credentials": {"basic": true}, "rules": [
		{"match": {"prefix": "/v1/admin/"}, "auth": {}},
		{"match": {"path": "/v1/me/", "methods": ["GET"]}, "auth": {}}]}`
	tests := []struct {
		target string
		want   bool
	}{
		{"/v2/x", true},
		{"/v2/x?a=/v1/admin", true},
		{"/v1/adm", true},
		{"/v1/admin", false},
		{"/v1/admin?x", false},
		{"/v1/admin/x", false},
		{"/v1/me", false},
		{"/v2/%76", false},
		{"//v1/admin/x", false},
		{"/v2/..;/x", false},
		{`/v2\x`, false},
	}
	pass, deny := newEdge(t, `{`+rules), newEdge(t, `{"default": "deny", `+rules)
	for _, tt := range tests {
		if got := passes(pass, tt.target); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.target, got, tt.want)
		}
		if passes(deny, tt.target) {
			t.Errorf("%s: is said to pass where the default is to deny", tt.target)
		}
	}
}

// TestCovers compares covers with the results of matches for many requests: a rule is hidden exactly if no request
// distinguishes the two.
func TestCovers(t *testing.T) {
	paths := []string{"/", "/a", "/a/", "/a/b", "/a/b/", "/a/b/c", "/ab", "/b", "/b/"}
	methods := []string{"GET", "HEAD", "POST", "PUT"}
	var matches []Match
	for _, m := range [][]string{nil, {"GET"}, {"HEAD"}, {"POST", "GET"}} {
		for _, p := range []string{"/", "/a", "/a/", "/a/b", "/b"} {
			matches = append(matches, Match{Path: p, Methods: m}, Match{Prefix: p, Methods: m})
		}
	}
	for _, a := range matches {
		for _, b := range matches {
			want := true
			for _, path := range append(slices.Clone(paths), "/a/zz", "/azz", "/zz", "/b/zz", "/bzz", "/a/bzz") {
				for _, method := range methods {
					want = want && (!b.matches(method, path) || a.matches(method, path))
				}
			}
			if got := a.Covers(&b); got != want {
				t.Errorf("%+v covers %+v: got %v, want %v", a, b, got, want)
			}
		}
	}
}
