package policy

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/testbed/vhosts"
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
	c := mustParse(t, twoHosts)
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

// readAtHost returns GET target with these lines of Host.
func readAtHost(e *Engine, target string, hosts []string, more ...[2]string) Request {
	all := [][2]string{{":method", "GET"}, {":path", target}}
	for i, host := range hosts {
		all = append(all, [2]string{[]string{":authority", "host"}[min(i, 1)], host})
	}
	return readHeaders(e, append(all, more...))
}

// atHost returns the engine's decision on GET target with these lines of Host.
func atHost(e *Engine, m *memory, target string, hosts []string, more ...[2]string) (d Decision, rule int) {
	r := readAtHost(e, target, hosts, more...)
	rule, _ = r.Rule()
	return decideRequest(m, r), rule
}

func newEngine(t testing.TB, m *memory, config string) *Engine {
	t.Helper()
	e := newEdge(t, config)
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
			r := readAtHost(e, "/", []string{tt.host})
			d, got := decideRequest(m, r), ""
			host, matched := r.VirtualHost()
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
		if d, _ := atHost(without, m, "/", hosts); d.Reason != AmbiguousHost || d.Status != 403 {
			t.Errorf("%q: got %d, %s; want 403 for more than one host", hosts, d.Status, d.Details())
		}
	}
	if d, _ := atHost(without, m, "/", nil); d.Reason != DefaultDeny {
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
		d, rule := atHost(newEngine(t, m, config), m, "/a", []string{"shop,shop"})
		if d.Action != want || rule != NoRule || want == Reply && d.Reason != AmbiguousHost {
			t.Errorf("%s: got %+v under rule %d, want action %d", config, d, rule, want)
		}
	}
	// Without virtual hosts the host decides only about keys.
	e := newEngine(t, m, `{"default": "deny", "rules": [{"match": {"path": "/a"}, "cache": {"scope": "host"}}]}`)
	if d, rule := atHost(e, m, "/a", []string{"a,b"}); d.Action != Pass || rule != 0 || d.CacheStatus != statusBypass {
		t.Errorf("without virtual hosts: got %+v under rule %d, want a bypass", d, rule)
	}
}

// TestVirtualHostDecides: rules, default, credentials and secret header come from a single virtual host.
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
			r := readAtHost(e, tt.target, []string{tt.host}, tt.more...)
			d := decideRequest(m, r)
			rule, _ := r.Rule()
			if rule != tt.rule || d.Status != tt.status || d.Status != 0 && d.Reason != tt.reason || *r.Source() != tt.source {
				t.Errorf("%s: got rule %d, %d, %s, source %+v", tt.name, rule, d.Status, d.Details(), *r.Source())
			}
			if got := r.SecretHeaders(); d.Device != "" && !slices.Equal(got, tt.secret) ||
				(d.Device != "") != (tt.secret != nil) {
				t.Errorf("%s: device %q, removes %q; want %q", tt.name, d.Device, got, tt.secret)
			}
			if tt.name == "shop" && r.UpstreamVary() != "authorization" {
				t.Errorf("%s: varies by %q", tt.name, r.UpstreamVary())
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
		r := readAtHost(e, tt.target, []string{tt.host})
		if r.rule < 0 {
			t.Errorf("%s of %q: no rule", tt.target, tt.host)
		} else if got := r.Key("dev"); got != tt.want {
			t.Errorf("%.60s of %q: got %.80q, want %.80q", tt.target, tt.host, got, tt.want)
		}
	}
}

// TestVirtualHostsAreApart judges random requests by random virtual hosts, and compares the rule and the answer with
// what the documentation says. The test of this name in e2e does so with whole edges.
func TestVirtualHostsAreApart(t *testing.T) {
	seed, cases := rand.Uint64(), 100_000
	if !testing.Short() {
		cases = 1_000_000
	}
	r := rand.New(rand.NewPCG(seed, 0))
	count := map[string]int{}
	for n := 0; n < cases; {
		c := vhosts.NewConfig(r)
		m := newMemory()
		m.state.ObjectBuckets, m.guard = 1<<30, 1
		for id, permissions := range c.Devices {
			m.verdict(id, vhosts.DeviceSecret(id), wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000,
				Permissions: strings.Join(permissions, ",")})
		}
		for key := range c.Objects {
			m.putVersion(key, now-5000, 0, `"v1"`, false)
		}
		e := newEngine(t, m, c.Rules())
		for range 200 {
			n++
			q := c.RandomRequest(r)
			want := c.JudgeRequest(q)
			d, rule := atHost(e, m, q.Target, q.Hosts, q.Headers...)
			got := vhosts.Verdict{Virtual: want.Virtual, Rule: "none", Device: d.Device, Key: d.Key}
			if rule != NoRule {
				got.Rule = e.config.RuleName(rule)
			}
			switch {
			case d.Action == Reply && d.Status == 200:
				got.Object = d.Key
				if string(d.Body) != `{"key":"`+d.Key+`"}` {
					got.Object = string(d.Body)
				}
			case d.Action == Reply:
				got.Status, got.Reason = d.Status, d.Details()
			}
			if why := c.FindDifference(want, got); why != "" {
				t.Fatalf("seed %d: %s\n%+v: got %s; want %s: %s", seed, c.Rules(), q, got, want, why)
			}
			count[want.Outcome()]++
		}
	}
	t.Logf("seed %d: %v", seed, count)
	for _, outcome := range vhosts.AllOutcomes() {
		if count[outcome] < cases/400 {
			t.Errorf("%s: %d of %d, the test shows little", outcome, count[outcome], cases)
		}
	}
}
