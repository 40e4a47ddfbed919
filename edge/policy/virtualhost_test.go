package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/edge/wire/limits"
)

const twoHosts = `{
	"credentials": {"id_header": "x-id", "secret_header": "x-secret"},
	"source": {"header": "x-client"},
	"default": "deny",
	"rules": [{"name": "a", "match": {"prefix": "/a"}}],
	"virtual_hosts": {
		"shop": {"domains": ["shop.example", "*.shop.example", "[::1]"], "source": {"filter_state": "s"},
			"credentials": {"basic": true}, "default": "would_deny",
			"rules": [{"name": "a", "match": {"path": "/a"}, "auth": {}}, {"match": {"prefix": "/"}, "cache": {"scope": "host"}}]},
		"blog": {"domains": ["blog.example"], "default": "deny",
			"rules": [{"match": {"prefix": "/"}, "auth": {}, "cache": {"scope": ["host", "device"]}}]}
	}}`

func TestParseVirtualHosts(t *testing.T) {
	c, err := parseJSON(t, twoHosts)
	if err != nil {
		t.Fatal(err)
	}
	headers := Credentials{IDHeader: "x-id", SecretHeader: "x-secret"}
	want := []VirtualHost{
		{"blog", []string{"blog.example"}, HostRules{1, 2, headers, Source{Header: "x-client"}, true, false}},
		{"shop", []string{"shop.example", "*.shop.example", "[::1]"},
			HostRules{2, 4, Credentials{Basic: true}, Source{FilterState: "s"}, false, true}},
	}
	if !reflect.DeepEqual(c.VirtualHosts, want) {
		t.Errorf("got %+v\nwant %+v", c.VirtualHosts, want)
	}
	if top := c.HostRules(NoVirtualHost); top != (HostRules{0, 1, headers, Source{Header: "x-client"}, true, false}) {
		t.Errorf("the top level has %+v", top)
	}
	var names, fields []string
	for i := range c.Rules {
		names, fields = append(names, c.RuleName(i)), append(fields, c.RuleField(i))
	}
	if want := []string{"a", "blog/0", "shop/a", "shop/1"}; !slices.Equal(names, want) {
		t.Errorf("got rules %v, want %v", names, want)
	}
	if want := []string{"rules[0]", "virtual_hosts.blog.rules[0]", "virtual_hosts.shop.rules[0]",
		"virtual_hosts.shop.rules[1]"}; !slices.Equal(fields, want) {
		t.Errorf("got fields %v, want %v", fields, want)
	}
	if got, want := *c.Rules[1].Cache, (Cache{PerHost: true, PerDevice: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParseRefusesVirtualHosts(t *testing.T) {
	list := func(n int, item string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, item, i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	with := func(fields string) string { return `{"a": {"domains": ["a.example"], ` + fields + `}}` }
	const rule = `{"match": {"path": "/%d"}},`
	tests := []struct {
		name, hosts, want string // want: the beginning of the only problem
	}{
		{"a list", `[]`, `virtual_hosts: is a list, want an object with a field for each virtual host`},
		{"text", `"a"`, `virtual_hosts: is "a", want an object`},
		{"too many", `{` + list(257, `"h%d": 1,`) + `}`, `virtual_hosts: has 257 entries, at most 256`},
		{"name in upper case", `{"Shop": {"domains": ["a"]}}`, `virtual_hosts.Shop: the name is not 1 to 64 of a-z`},
		{"no name", `{"": {"domains": ["a"]}}`, `virtual_hosts.: the name is not 1 to 64 of a-z`},
		{"name of 65", `{"` + strings.Repeat("n", 65) + `": {}}`, `virtual_hosts.nnn`},
		{"null", `{"a": null}`, `virtual_hosts.a: is missing, want an object with the fields domains, rules`},
		{"a list as one", `{"a": ["a.example"]}`, `virtual_hosts.a: is a list, want an object`},
		{"unknown field", with(`"stale": "serve"`), `virtual_hosts.a.stale: unknown field; known are domains, rules`},
		{"no domains", `{"a": {}}`, `virtual_hosts.a.domains: is missing: name a host`},
		{"empty domains", `{"a": {"domains": []}}`, `virtual_hosts.a.domains: is empty: name a host`},
		{"domain as text", `{"a": {"domains": "a.example"}}`, `virtual_hosts.a.domains: is "a.example", want a list`},
		{"domain as a number", `{"a": {"domains": [1]}}`, `virtual_hosts.a.domains[0]: is 1, want text`},
		{"empty domain", `{"a": {"domains": ["b", ""]}}`, `virtual_hosts.a.domains[1]: is empty`},
		{"too many domains", `{"a": {"domains": [` + list(65, `"h%d",`) + `]}}`, `virtual_hosts.a.domains: has 65 entries, at most 64`},
		{"upper case", `{"a": {"domains": ["Shop.example"]}}`, `virtual_hosts.a.domains[0]: "Shop.example": want lower case`},
		{"port", `{"a": {"domains": ["b:443"]}}`, `virtual_hosts.a.domains[0]: "b:443": want no port`},
		{"address and port", `{"a": {"domains": ["[::1]:443"]}}`, `virtual_hosts.a.domains[0]: "[::1]:443": is no host`},
		{"dot at the end", `{"a": {"domains": ["b."]}}`, `virtual_hosts.a.domains[0]: "b.": want no dot at the end`},
		{"prefix", `{"a": {"domains": ["b.*"]}}`, `virtual_hosts.a.domains[0]: "b.*": want * alone, or before a dot`},
		{"star without a dot", `{"a": {"domains": ["*b"]}}`, `virtual_hosts.a.domains[0]: "*b": want * alone`},
		{"two stars", `{"a": {"domains": ["*.*.b"]}}`, `virtual_hosts.a.domains[0]: "*.*.b": want * alone`},
		{"star and a dot", `{"a": {"domains": ["*."]}}`, `virtual_hosts.a.domains[0]: "*.": is no host`},
		{"star before an address", `{"a": {"domains": ["*.[::1]"]}}`, `virtual_hosts.a.domains[0]: "*.[::1]": is no host`},
		{"scheme", `{"a": {"domains": ["https://b"]}}`, `virtual_hosts.a.domains[0]: "https://b": is no host`},
		{"path", `{"a": {"domains": ["b/c"]}}`, `virtual_hosts.a.domains[0]: "b/c": is no host`},
		{"blank", `{"a": {"domains": ["b "]}}`, `virtual_hosts.a.domains[0]: "b ": is no host`},
		{"not ASCII", `{"a": {"domains": ["bücher.example"]}}`, `virtual_hosts.a.domains[0]: "bücher.example": is no host`},
		{"254 bytes", `{"a": {"domains": ["` + strings.Repeat("a", 254) + `"]}}`, `virtual_hosts.a.domains[0]: "aaa`},
		{"domain of two", `{"a": {"domains": ["b", "c"]}, "d": {"domains": ["c"]}}`,
			`virtual_hosts.d.domains[0]: "c" is also a domain of virtual_hosts.a`},
		{"wildcard of two", `{"a": {"domains": ["*"]}, "d": {"domains": ["*.c", "*"]}}`,
			`virtual_hosts.d.domains[1]: "*" is also a domain of virtual_hosts.a`},
		{"domain twice", `{"a": {"domains": ["b", "b"]}}`, `virtual_hosts.a.domains[1]: "b" is listed twice`},
		{"rules as an object", with(`"rules": {}`), `virtual_hosts.a.rules: is an object, want a list`},
		{"a rule", with(`"rules": [{"match": {"path": "a"}}]`), `virtual_hosts.a.rules[0].match.path: "a": want a path`},
		{"hidden rule", with(`"rules": [{"match": {"prefix": "/"}}, {"match": {"path": "/a"}}]`),
			`virtual_hosts.a.rules[1].match: is never reached: virtual_hosts.a.rules[0] matches`},
		{"hidden rules", with(`"rules": [{"match": {"prefix": "/"}}, {"match": {"path": "/a"}}, {"match": {"path": "/b"}}]`),
			`virtual_hosts.a.rules[0].match: matches everything that these match`},
		{"a name twice", with(`"rules": [{"name": "n", "match": {"path": "/a"}}, {"name": "n", "match": {"path": "/b"}}]`),
			`virtual_hosts.a.rules[1].name: "n" is also the name of virtual_hosts.a.rules[0]`},
		{"a name with a slash", with(`"rules": [{"name": "a/n", "match": {"path": "/a"}}]`),
			`virtual_hosts.a.rules[0].name: "a/n": want at most 64`},
		{"too many rules", with(`"rules": [` + list(1001, rule) + `]`), `virtual_hosts.a.rules: has 1001 entries, at most 1000`},
		{"too many rules in all", `{"a": {"domains": ["a"], "rules": [` + list(999, rule) + `]},
			"b": {"domains": ["b"], "rules": [` + list(2, rule) + `]}}`, `virtual_hosts.b.rules: makes 1001 rules, at most 1000`},
		{"default", with(`"default": "allow"`), `virtual_hosts.a.default: is "allow", want pass or deny`},
		{"credentials", with(`"credentials": {"id_header": "a"}, "rules": [{"match": {"path": "/a"}, "auth": {}}]`),
			`virtual_hosts.a.credentials.secret_header: is missing`},
		{"credentials as text", with(`"credentials": "basic", "rules": [{"match": {"path": "/a"}, "auth": {}}]`),
			`virtual_hosts.a.credentials: is "basic", want an object`},
		{"no credentials", with(`"rules": [{"match": {"path": "/a"}, "auth": {}}]`),
			`credentials: is missing, for virtual_hosts.a.rules[0]`},
		{"source", with(`"source": "client"`), `virtual_hosts.a.source: is "client", want envoy, {header: NAME}`},
		{"source's header", with(`"source": {"header": ":a"}`), `virtual_hosts.a.source.header: ":a" is not a header name`},
		{"scope", with(`"rules": [{"match": {"path": "/a"}, "cache": {"scope": "domain"}}]`),
			`virtual_hosts.a.rules[0].cache.scope: is "domain", want shared or device or host`},
		{"empty scope", with(`"rules": [{"match": {"path": "/a"}, "cache": {"scope": []}}]`),
			`virtual_hosts.a.rules[0].cache.scope: is empty`},
		{"shared in a list", with(`"rules": [{"match": {"path": "/a"}, "cache": {"scope": ["host", "shared"]}}]`),
			`virtual_hosts.a.rules[0].cache.scope[1]: is "shared", want host or device`},
		{"null in a list", with(`"rules": [{"match": {"path": "/a"}, "cache": {"scope": [null]}}]`),
			`virtual_hosts.a.rules[0].cache.scope[0]: is missing, want host or device`},
		{"objects in a list", with(`"rules": [{"match": {"path": "/a"}, "cache": {"scope": [{}]}}]`),
			`virtual_hosts.a.rules[0].cache.scope[0]: is an object, want host or device`},
		{"scope twice", with(`"rules": [{"match": {"path": "/a"}, "cache": {"scope": ["host", "host"]}}]`),
			`virtual_hosts.a.rules[0].cache.scope[1]: "host" is listed twice`},
		{"device in a list, without auth", with(`"rules": [{"match": {"path": "/a"}, "cache": {"scope": ["device"]}}]`),
			`virtual_hosts.a.rules[0].cache.scope: device needs auth`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parseJSON(t, `{"virtual_hosts": `+tt.hosts+`}`); err == nil ||
				!strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one problem: %s…", err, tt.want)
			}
		})
	}
	_, err := parseJSON(t, `{"rules": [{"match": {"path": "/a"}}], "virtual_hosts": {"a": {"domains": ["*"]}}}`)
	const want = "rules: are never reached: virtual_hosts.a has the domain *, which is for all other hosts"
	if err == nil || err.Error() != want {
		t.Errorf("rules beside the domain *: got %v", err)
	}
}

// atHost returns the engine's decision on GET target with these lines of Host.
func atHost(t *testing.T, e *Engine, m *memory, target string, hosts []string,
	more ...[2]string) (d Decision, rule int) {
	t.Helper()
	all := [][2]string{{":method", "GET"}, {":path", target}}
	for i, host := range hosts {
		all = append(all, [2]string{[]string{":authority", "host"}[min(i, 1)], host})
	}
	fields, ok := headermap.ParseFields(headermap.Append(nil, append(all, more...)))
	if !ok {
		t.Fatal("malformed headers")
	}
	at, r := e.Locate(fields), e.Read(fields, nil)
	governed := e.Govern(&r, &at)
	if governed && at.Passes {
		t.Fatalf("said to pass: %s of %q", target, hosts)
	}
	e.Decide(&d, now, &r, m, &Answers{})
	rule, _ = r.Rule()
	return d, rule
}

func newEngine(t testing.TB, m *memory, config string) *Engine {
	t.Helper()
	c, err := parseJSON(t, config)
	if err != nil {
		t.Fatal(err)
	}
	e := NewEngine(c)
	e.SetState(now, m.state)
	return e
}

func TestVirtualHostOfRequest(t *testing.T) {
	const domains = `{"default": "deny", "virtual_hosts": {
		"exact": {"domains": ["shop.example", "[::1]", "127.0.0.1"]},
		"wild": {"domains": ["*.shop.example"]},
		"longer": {"domains": ["*.a.shop.example"]}%s}}`
	m := newMemory()
	without, with := newEngine(t, m, fmt.Sprintf(domains, "")),
		newEngine(t, m, fmt.Sprintf(domains, `, "all": {"domains": ["*"]}`))
	const ambiguous = "ambiguous"
	tests := []struct{ host, want, domain string }{
		{"shop.example", "exact", "shop.example"}, {"SHOP.Example", "exact", "shop.example"},
		{"shop.example:80", "exact", "shop.example"}, {"Shop.example:", "exact", "shop.example"},
		{"shop.example:65535", "exact", "shop.example"},
		{"a.shop.example", "wild", "*.shop.example"}, {"b.shop.example:443", "wild", "*.shop.example"},
		{"x.b.shop.example", "wild", "*.shop.example"}, {"B.SHOP.EXAMPLE", "wild", "*.shop.example"},
		{"b.a.shop.example", "longer", "*.a.shop.example"}, {"..a.shop.example", "longer", "*.a.shop.example"},
		{".a.shop.example", "wild", "*.shop.example"}, {".shop.example", "", ""}, {"xshop.example", "", ""},
		{"shop.example.", "", ""}, {"[::1]", "exact", "[::1]"}, {"[::1]:8080", "exact", "[::1]"}, {"[0::1]", "", ""},
		{"127.0.0.1:80", "exact", "127.0.0.1"}, {"example", "", ""}, {"", "", ""}, {strings.Repeat("h", 253) + ":80", "", ""},
		{"shop.example, shop.example", ambiguous, ""}, {"shop.example,b", ambiguous, ""}, {"u@shop.example", ambiguous, ""},
		{"shop.example@", ambiguous, ""}, {" shop.example", ambiguous, ""}, {"shop.example\t", ambiguous, ""},
		{"shop.example/", ambiguous, ""}, {"http://shop.example", ambiguous, ""}, {"shop.example\x00", ambiguous, ""},
		{"shop.example:http", ambiguous, ""}, {"shop.example:-1", ambiguous, ""}, {"shop.example:000080", ambiguous, ""},
		{"shop.example:80:80", ambiguous, ""}, {"::1", ambiguous, ""}, {":80", ambiguous, ""}, {"[::1", ambiguous, ""},
		{"[::1]x", ambiguous, ""}, {"x[::1]", ambiguous, ""}, {"[]", ambiguous, ""}, {"[::1%25a]", ambiguous, ""},
		{"shöp.example", ambiguous, ""}, {"shop%2eexample", ambiguous, ""}, {"*.shop.example", ambiguous, ""},
		{`shop.example\`, ambiguous, ""}, {"shop.example?", ambiguous, ""}, {"shop.example#", ambiguous, ""},
		{strings.Repeat("h", 254), ambiguous, ""}, {strings.Repeat("h.", 4000), ambiguous, ""},
	}
	for _, tt := range tests {
		for _, e := range []*Engine{without, with} {
			want, domain := tt.want, tt.domain
			if want == "" && e == with {
				want, domain = "all", "*"
			}
			d, _ := atHost(t, e, m, "/", []string{tt.host})
			got := ""
			host, matched := e.VirtualHost()
			if host != NoVirtualHost {
				got = e.config.VirtualHosts[host].Name
			} else if d.Reason == AmbiguousHost && d.Status == 403 {
				got = ambiguous
			}
			if got != want || matched != domain {
				t.Errorf("%.60q: got %q by %q, want %q by %q", tt.host, got, matched, want, domain)
			}
		}
	}
	for _, hosts := range [][]string{{"shop.example", "shop.example"}, {"shop.example", ""}, {"", "shop.example"},
		{"", ""}} {
		if d, _ := atHost(t, without, m, "/", hosts); d.Reason != AmbiguousHost || d.Status != 403 {
			t.Errorf("%q: got %d, %s; want 403 for more than one host", hosts, d.Status, d.Details())
		}
	}
	if d, _ := atHost(t, without, m, "/", nil); d.Reason != DefaultDeny {
		t.Errorf("no host: got %s, want the top level's default", d.Details())
	}
}

// TestAmbiguousHostPassesUnprotected: without auth and deny there is nothing to protect, but no object is served.
func TestAmbiguousHostPassesUnprotected(t *testing.T) {
	m := newMemory()
	m.put("/a", 0)
	m.put("//shop/a", 0)
	for config, want := range map[string]Action{
		`{"rules": [{"match": {"path": "/a"}, "cache": {}}], "virtual_hosts": {"shop": {"domains": ["shop"],
			"rules": [{"match": {"path": "/a"}, "cache": {}}]}}}`: Pass,
		`{"virtual_hosts": {"shop": {"domains": ["shop"], "default": "deny"}}}`: Reply,
		`{"default": "deny", "virtual_hosts": {"shop": {"domains": ["shop"]}}}`: Reply,
		`{"credentials": {"basic": true}, "rules": [{"match": {"path": "/b"}, "auth": {}}],
			"virtual_hosts": {"shop": {"domains": ["shop"]}}}`: Reply,
		`{"credentials": {"basic": true}, "virtual_hosts": {"shop": {"domains": ["shop"],
			"rules": [{"match": {"path": "/b", "methods": ["POST"]}, "session": "issue"}]}}}`: Reply,
	} {
		d, rule := atHost(t, newEngine(t, m, config), m, "/a", []string{"shop,shop"})
		if d.Action != want || rule != NoRule || want == Reply && d.Reason != AmbiguousHost {
			t.Errorf("%s: got %+v under rule %d, want action %d", config, d, rule, want)
		}
	}
	// Without virtual hosts the host decides only about keys.
	e := newEngine(t, m, `{"default": "deny", "rules": [{"match": {"path": "/a"}, "cache": {"scope": "host"}}]}`)
	if d, rule := atHost(t, e, m, "/a", []string{"a,b"}); d.Action != Pass || rule != 0 || d.CacheStatus != statusBypass {
		t.Errorf("without virtual hosts: got %+v under rule %d, want a bypass", d, rule)
	}
}

// TestVirtualHostDecides: rules, default, credentials and secret header are those of one virtual host.
func TestVirtualHostDecides(t *testing.T) {
	m := newMemory()
	m.verdict("dev", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000})
	e := newEngine(t, m, twoHosts)
	id, secret := [2]string{"x-id", "dev"}, [2]string{"x-secret", "s"}
	basic := [2]string{"authorization", "Basic ZGV2OnM="}
	tests := []struct {
		name, host, target string
		more               [][2]string
		rule               int
		status             int // 0: passes
		reason             Reason
		secret             []string
		source             Source
	}{
		{"top level", "other", "/a", nil, 0, 0, 0, nil, Source{Header: "x-client"}},
		{"top level's default", "other", "/b", nil, NoRule, 403, DefaultDeny, nil, Source{Header: "x-client"}},
		{"blog", "blog.example", "/a", [][2]string{id, secret}, 1, 0, 0, []string{"x-secret"}, Source{Header: "x-client"}},
		{"blog, shop's credential", "blog.example", "/a", [][2]string{basic}, 1, 401, NoCredential, nil,
			Source{Header: "x-client"}},
		{"shop", "shop.example", "/a", [][2]string{basic, secret}, 2, 0, 0, []string{"authorization"},
			Source{FilterState: "s"}},
		{"shop, blog's credential", "shop.example", "/a", [][2]string{id, secret}, 2, 401, NoCredential, nil,
			Source{FilterState: "s"}},
		{"shop, below it", "b.shop.example", "/other", nil, 3, 0, 0, nil, Source{FilterState: "s"}},
		{"shop again", "SHOP.example:1", "/a/", nil, 2, 401, NoCredential, nil, Source{FilterState: "s"}},
	}
	for range 2 {
		for _, tt := range tests {
			all := [][2]string{{":method", "GET"}, {":authority", tt.host}, {":path", tt.target}}
			fields, _ := headermap.ParseFields(headermap.Append(nil, append(all, tt.more...)))
			at, r := e.Locate(fields), e.Read(fields, nil)
			e.Govern(&r, &at)
			var d Decision
			e.Decide(&d, now, &r, m, &Answers{})
			rule, _ := r.Rule()
			if rule != tt.rule || d.Status != tt.status || d.Status != 0 && d.Reason != tt.reason || *e.Source() != tt.source {
				t.Errorf("%s: got rule %d, %d, %s, source %+v", tt.name, rule, d.Status, d.Details(), *e.Source())
			}
			if got := e.SecretHeaders(&r); d.Device != "" && !slices.Equal(got, tt.secret) ||
				(d.Device != "") != (tt.secret != nil) {
				t.Errorf("%s: device %q, removes %q; want %q", tt.name, d.Device, got, tt.secret)
			}
			if tt.name == "shop" && e.Vary(&r) != "authorization" {
				t.Errorf("%s: varies by %q", tt.name, e.Vary(&r))
			}
			if d.Status == 401 {
				want := `Device realm="gatehouse"`
				if tt.source.Header == "" {
					want = `Basic realm="gatehouse", charset="UTF-8"`
				}
				if got := fieldsOf(d); !slices.Contains(got, [2]string{"www-authenticate", want}) {
					t.Errorf("%s: got %q, want the challenge %s", tt.name, got, want)
				}
			}
		}
	}
}

func TestVirtualHostKeys(t *testing.T) {
	const config = `{"credentials": {"id_header": "id", "secret_header": "secret"},
		"rules": [{"match": {"path": "/h"}, "cache": {"scope": "host"}},
			{"match": {"path": "/d"}, "auth": {}, "cache": {"scope": "device"}},
			{"match": {"path": "/b"}, "auth": {}, "cache": {"scope": ["host", "device"]}}, {"match": {"prefix": "/"}, "cache": {}}],
		"virtual_hosts": {"shop": {"domains": ["shop", "*.shop", "[::1]"],
			"rules": [{"match": {"path": "/h"}, "cache": {"scope": ["host"]}},
			{"match": {"path": "/d"}, "auth": {}, "cache": {"scope": ["device"]}},
			{"match": {"path": "/b"}, "auth": {}, "cache": {"scope": ["device", "host"]}}, {"match": {"prefix": "/"}, "cache": {}}]},
			"no": {"domains": ["no"]}}}`
	long := "/" + strings.Repeat("x", limits.MaxKey-len("//shop/"))
	tests := []struct{ host, target, want string }{
		{"a", "/x", "/x"}, {"a", "/x%c3?b&a", "/x%C3?a&b"}, {"A.b:80", "/h", "//:a.b/h"}, {"", "/h", ""},
		{"a", "/d?x", "@dev/d?x"}, {"A", "/b", "@dev//:a/b"}, {"", "/b", ""}, {"a", "//shop/x", ""}, {"a", "//x", ""},
		{"a", "//", ""}, {"a", "@dev/x", ""},
		{"shop", "/x", "//shop/x"}, {"A.Shop", "/x?b&a", "//shop/x?a&b"}, {"A.Shop:1", "/h", "//shop:a.shop/h"},
		{"shop", "/d", "@dev//shop/d"}, {"a.shop", "/b", "@dev//shop:a.shop/b"}, {"[::1]:1", "/h", "//shop:[::1]/h"},
		{"shop", "//x", "//shop//x"}, {"shop", "/", "//shop/"}, {"shop", long, "//shop" + long}, {"shop", long + "x", ""},
	}
	for _, tt := range tests {
		e := newEngine(t, newMemory(), config)
		fields, _ := headermap.ParseFields(headermap.Append(nil,
			[][2]string{{":method", "GET"}, {":authority", tt.host}, {":path", tt.target}}))
		at, r := e.Locate(fields), e.Read(fields, nil)
		if e.Govern(&r, &at); r.rule < 0 {
			t.Errorf("%s of %q: no rule", tt.target, tt.host)
		} else if got := e.Key(&r, "dev"); got != tt.want {
			t.Errorf("%.60s of %q: got %.80q, want %.80q", tt.target, tt.host, got, tt.want)
		}
	}
}

// TestVirtualHostsAreApart judges random requests by random virtual hosts, and compares the rule and the answer with
// what the documentation says. Each object tells for whom it is.
func TestVirtualHostsAreApart(t *testing.T) {
	seed, cases := rand.Uint64(), 100_000
	if !testing.Short() {
		cases = 1_000_000
	}
	r := rand.New(rand.NewPCG(seed, 0))
	count := map[string]int{}
	for n := 0; n < cases; {
		o := newOracle(r)
		m := newMemory()
		m.state.ObjectBuckets, m.guard = 1<<30, 1
		for _, id := range oracleDevices {
			m.verdict(id, "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000})
		}
		for range 60 {
			u := o.user(r)
			o.objects[u] = true
			m.putVersion(u.key(), now-5000, 0, `"v1"`, false)
		}
		e := newEngine(t, m, o.config())
		for range 200 {
			n++
			hosts, target, device := o.request(r)
			rule, want := o.expect(hosts, target, device)
			d, got := atHost(t, e, m, target, hosts, [2]string{"id", device}, [2]string{"secret", "s"})
			outcome := "pass"
			switch {
			case d.Action == Reply && d.Status == 200:
				outcome = string(d.Body)
			case d.Action == Reply:
				outcome = fmt.Sprintf("%d %s", d.Status, d.Details())
			}
			name := "none"
			if got != NoRule {
				name = e.config.RuleName(got)
			}
			if strings.HasPrefix(target, "//") {
				o.checkSlashes(t, seed, rule, name, outcome, user{virtual: want, host: e.hosts.host, device: device, path: target})
				continue
			}
			if name != rule || outcome != want {
				t.Fatalf("seed %d: %s\nhosts %q, target %q, device %s: got rule %s, %s; want rule %s, %s", seed, o.config(), hosts,
					target, device, name, outcome, rule, want)
			}
			word, _, _ := strings.Cut(want, ":")
			count[strings.TrimSuffix(word, `"key"`)]++
		}
	}
	t.Logf("seed %d: %v", seed, count)
	for _, outcome := range []string{"pass", "{", "403 gatehouse_forbidden_ambiguous_host",
		"403 gatehouse_forbidden_default"} {
		if count[outcome] < cases/100 {
			t.Errorf("%s: %d of %d, the test shows little", outcome, count[outcome], cases)
		}
	}
}

// oracle is what the documentation says of a configuration.
type oracle struct {
	hosts   map[string]oracleHost // by name, "" for the top level
	strict  bool                  // some rule or default refuses
	objects map[user]bool
}

type oracleHost struct {
	Domains []string     `json:"domains,omitempty"`
	Rules   []oracleRule `json:"rules"`
	Default string       `json:"default"`
}

type oracleRule struct {
	Name  string            `json:"name"`
	Match map[string]string `json:"match"`
	Auth  *struct{}         `json:"auth,omitempty"`
	Cache *oracleCache      `json:"cache,omitempty"`
}

type oracleCache struct {
	Scope any `json:"scope"`
}

// user tells for whom an object is.
type user struct{ device, virtual, host, path string }

// key is the key as docs/publish.md has it.
func (u user) key() string {
	key := u.path
	if u.host != "" {
		key = ":" + u.host + key
	}
	if u.virtual != "" || u.host != "" {
		key = "//" + u.virtual + key
	}
	if u.device != "" {
		key = "@" + u.device + key
	}
	return key
}

var (
	oracleNames   = []string{"shop", "a", "b", "s-1", "s_1", "no"}
	oracleDomains = []string{"a", "b", "a.b", "*.a", "*.b", "*.a.b", "*.b.a.b", "shop", "*.shop", "[::1]", "[1::]",
		"a.a", "*", "x-y.b", "*.x-y.b", "127.0.0.1"}
	oracleHosts = []string{"a", "b", "A", "B.a", "a.b", "x.a", "x.a.b", "c.b.a.b", "C.B.A.B", ".a", ".a.b", "a.",
		"shop", "x.shop", "[::1]", "[1::]", "a.a", "y.x-y.b", "127.0.0.1", "none", "b.b.b.b", "ba", "x.ba", ""}
	oraclePaths   = []string{"/", "/v1", "/v1/x", "/shop", "/shop/v1", "/:a/v1", "/a", "/a/v1", "/@d/v1"}
	oracleDevices = []string{"d", "a", "shop", ":a", "d:a", "x@d"}
)

func oneOf[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func newOracle(r *rand.Rand) *oracle {
	o := &oracle{hosts: map[string]oracleHost{}, objects: map[user]bool{}}
	free := slices.Clone(oracleDomains)
	r.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	all := false
	for _, name := range oracleNames[:1+r.IntN(len(oracleNames))] {
		n := 1 + r.IntN(3)
		if n > len(free) {
			break
		}
		o.hosts[name] = o.host(r, free[:n])
		all = all || slices.Contains(free[:n], "*")
		free = free[n:]
	}
	top := o.host(r, nil)
	if all {
		top.Rules = nil // refused
	}
	o.hosts[""] = top
	for _, h := range o.hosts {
		o.strict = o.strict || h.Default == "deny" || slices.ContainsFunc(h.Rules,
			func(r oracleRule) bool { return r.Auth != nil })
	}
	return o
}

func (o *oracle) host(r *rand.Rand, domains []string) oracleHost {
	h := oracleHost{Domains: domains, Default: oneOf(r, []string{"pass", "pass", "deny"})}
	paths := map[string]bool{}
	for i := range r.IntN(4) {
		rule := oracleRule{Name: fmt.Sprintf("r%d", i)}
		path := oneOf(r, oraclePaths)
		if path == "/" || paths[path] {
			continue
		}
		paths[path] = true
		rule.Match = map[string]string{"path": path}
		h.Rules = append(h.Rules, o.policy(r, rule))
	}
	if r.IntN(2) == 0 {
		h.Rules = append(h.Rules, o.policy(r, oracleRule{Name: "all", Match: map[string]string{"prefix": "/"}}))
	}
	return h
}

func (o *oracle) policy(r *rand.Rand, rule oracleRule) oracleRule {
	scopes := []any{"shared", "shared", "host", []string{"host"}}
	if r.IntN(3) == 0 {
		rule.Auth = &struct{}{}
		scopes = append(scopes, "device", []string{"device", "host"}, []string{"host", "device"})
	}
	if r.IntN(8) > 0 {
		rule.Cache = &oracleCache{oneOf(r, scopes)}
	}
	return rule
}

func (o *oracle) config() string {
	hosts := map[string]oracleHost{}
	for name, h := range o.hosts {
		if name != "" {
			hosts[name] = h
		}
	}
	text, _ := json.Marshal(map[string]any{"credentials": map[string]string{"id_header": "id", "secret_header": "secret"},
		"rules": o.hosts[""].Rules, "default": o.hosts[""].Default, "virtual_hosts": hosts})
	return strings.ReplaceAll(string(text), `"rules":null`, `"rules":[]`)
}

// checkSlashes checks what became of a request whose path begins with two slashes, which routers read in several ways.
func (o *oracle) checkSlashes(t *testing.T, seed uint64, label, name, outcome string, u user) {
	t.Helper()
	if label == "none" {
		if name != "none" || outcome != u.virtual {
			t.Fatalf("seed %d: %s\n%+v: got rule %s, %s", seed, o.config(), u, name, outcome)
		}
		return
	}
	own := name == "none" || strings.HasPrefix(name, label) && (label != "" || !strings.Contains(name, "/"))
	text, served := strings.CutPrefix(outcome, `{"key":"`)
	for _, u := range []user{u, {u.device, u.virtual, "", u.path}, {"", u.virtual, u.host, u.path},
		{"", u.virtual, "", u.path}} {
		served = served && (text != u.key()+`"}` || u.virtual == "" && u.host == "")
	}
	if !own || served {
		t.Fatalf("seed %d: %s\n%+v: got rule %s, %s", seed, o.config(), u, name, outcome)
	}
}

// user returns a random user of an object.
func (o *oracle) user(r *rand.Rand) user {
	u := user{path: oneOf(r, oraclePaths), virtual: oneOf(r, append([]string{""}, oracleNames...))}
	if r.IntN(2) == 0 {
		u.host = strings.ToLower(oneOf(r, oracleHosts))
	}
	if r.IntN(3) == 0 {
		u.device = oneOf(r, oracleDevices)
	}
	if r.IntN(6) == 0 && u.virtual+u.host != "" {
		u.path = "//shop" + u.path
	}
	return u
}

// request returns a random request.
func (o *oracle) request(r *rand.Rand) (hosts []string, target, device string) {
	host, target, device := oneOf(r, oracleHosts), oneOf(r, oraclePaths), oneOf(r, oracleDevices)
	switch r.IntN(12) {
	case 0:
		target = oneOf(r, []string{"//", "//shop", "//:a"}) + target
	case 1:
		host += oneOf(r, []string{":80", ":", ":65535"})
		if host[0] == ':' {
			host = "a" + host
		}
	case 2:
		host = oneOf(r, []string{"u@", "a,", " ", "http://", "[", "a:"}) + host
	case 3:
		host += oneOf(r, []string{",a", "@a", "/", ":x", ":1:1", "]", "\x01", "%41", ":123456"})
	case 4:
		return []string{host, oneOf(r, oracleHosts)}, target, device
	case 5:
		return nil, target, device
	}
	return []string{host}, target, device
}

var unambiguous = regexp.MustCompile(`^(?:([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?)?$`)

// expect returns the rule that governs a request, and what becomes of it: "pass", the body of an object, or a status
// and reason. If the path begins with two slashes, it returns the beginning of the rule's name, and the virtual host.
func (o *oracle) expect(hosts []string, target, device string) (rule, outcome string) {
	host := ""
	if len(hosts) > 0 {
		parts := unambiguous.FindStringSubmatch(hosts[0])
		if parts == nil || len(hosts) > 1 {
			if o.strict {
				return "none", "403 gatehouse_forbidden_ambiguous_host"
			}
			return "none", "pass"
		}
		host = strings.ToLower(parts[1])
	}
	virtual, best := "", ""
	better := func(domain string) bool { // than best, both match
		return best == "" || domain == host || best == "*" || best != host && domain != "*" && len(domain) > len(best)
	}
	for name, h := range o.hosts {
		for _, domain := range h.Domains {
			end, wild := strings.CutPrefix(domain, "*")
			matches := domain == "*" || domain == host || wild && len(host) > len(end) && strings.HasSuffix(host, end)
			if matches && better(domain) {
				virtual, best = name, domain
			}
		}
	}
	h := o.hosts[virtual]
	label := ""
	if virtual != "" {
		label = virtual + "/"
	}
	if strings.HasPrefix(target, "//") {
		return label, virtual
	}
	for _, rule := range h.Rules {
		if rule.Match["prefix"] != "/" && rule.Match["path"] != target {
			continue
		}
		name := label + rule.Name
		if rule.Cache == nil {
			return name, "pass"
		}
		scope := fmt.Sprint(rule.Cache.Scope)
		u := user{virtual: virtual, path: target}
		if strings.Contains(scope, "host") {
			if u.host = host; host == "" {
				return name, "pass"
			}
		}
		if strings.Contains(scope, "device") {
			u.device = device
		}
		if o.objects[u] {
			return name, `{"key":"` + u.key() + `"}`
		}
		return name, "pass"
	}
	if h.Default == "deny" {
		return "none", "403 gatehouse_forbidden_default"
	}
	return "none", "pass"
}
