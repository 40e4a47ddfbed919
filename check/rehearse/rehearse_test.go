package rehearse

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/nginx"
)

func mustParseRules(t testing.TB, text string) *policy.Config {
	t.Helper()
	c, err := nginx.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

const base = `
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- {name: assets, match: {prefix: /assets/}, cache: {}}
- {name: admin, match: {prefix: /v1/admin/}, auth: {permissions: [admin, write]}}
- {name: orders, match: {path: /v1/orders, methods: [GET, POST]}, auth: {}}
- {name: upload, match: {prefix: /v1/upload, methods: [PROPFIND, PUT]}, auth: {}}
- {name: api, match: {prefix: /v1/}, auth: {permissions: [read]}}
- {name: products, match: {prefix: /products/}, cache: {query: [lang]}}
default: pass
virtual_hosts:
  shop:
    domains: [shop.example, store.example, "*.shop.example"]
    default: deny
    rules:
    - {name: cart, match: {prefix: /cart/}, auth: {}}
    - {name: front, match: {path: /}, cache: {}}
  strict:
    domains: [strict.example]
    rules:
    - {name: all, match: {prefix: /}, auth: {}}
`

// changedRules are changes of base: replacements, a request with a new outcome, and the class of the change.
var changedRules = []struct {
	name    string
	replace []string
	request Request
	want    Class
	text    string // from -> to
}{
	{"a rule that caches above a protected prefix",
		[]string{"- {name: admin", "- {name: stats, match: {prefix: /v1/, methods: [GET]}, cache: {}}\n- {name: admin"},
		Request{"GET", "", "/v1/me"}, Opens, "api -> stats"},
	{"an open prefix above", []string{"- {name: admin", "- {name: help, match: {prefix: /v1/admin/help}}\n- {name: admin"},
		Request{"DELETE", "", "/v1/admin/helpers"}, Opens, "admin -> help"},
	{"a misspelt method", []string{"{path: /v1/orders, methods: [GET, POST]}", "{path: /v1/orders, methods: [GET, PSOT]}",
		"{prefix: /v1/}", "{prefix: /v1/x/}"}, Request{"POST", "", "/v1/orders"}, Opens, "orders -> none"},
	{"a narrower list of methods", []string{"methods: [PROPFIND, PUT]", "methods: [PUT]",
		"{prefix: /v1/}", "{prefix: /v1/x/}"}, Request{"PROPFIND", "", "/v1/upload/1"}, Opens, "upload -> none"},
	{"a narrower list of a rule with permissions", []string{"{prefix: /v1/}", "{prefix: /v1/, methods: [GET]}"},
		Request{"POST", "", "/v1/x"}, Opens, "api -> none"},
	{"a removed slash", []string{"{prefix: /v1/admin/}", "{prefix: /v1/admin}"},
		Request{"GET", "", "/v1/administrators"}, NeedsOther, "api -> admin"},
	{"an added slash", []string{"prefix: /v1/upload, methods: [PROPFIND, PUT]", "prefix: /v1/upload/",
		"{prefix: /v1/}", "{prefix: /v1/x/}"}, Request{"PUT", "", "/v1/uploads"}, Opens, "upload -> none"},
	{"another order", []string{"- {name: admin, match: {prefix: /v1/admin/}, auth: {permissions: [admin, write]}}\n", "",
		"- {name: api, match: {prefix: /v1/}, auth: {permissions: [read]}}\n", "",
		"- {name: orders", "- {name: api, match: {prefix: /v1/, methods: [GET]}, auth: {permissions: [read]}}\n" +
			"- {name: admin, match: {prefix: /v1/admin/}, auth: {permissions: [admin, write]}}\n- {name: orders"},
		Request{"GET", "", "/v1/admin/users"}, NeedsOther, "admin -> api"},
	{"a host forgotten", []string{"shop.example, store.example,", "shop.example,"},
		Request{"GET", "store.example", "/cart/1"}, Opens, "shop/cart -> none"},
	{"a domain misspelt", []string{"[strict.example]", "[stritc.example]"},
		Request{"GET", "strict.example", "/a"}, Opens, "strict/all -> none"},
	{"a virtual host removed", []string{"  strict:\n    domains: [strict.example]\n    rules:\n" +
		"    - {name: all, match: {prefix: /}, auth: {}}\n", ""},
		Request{"GET", "strict.example:443", "/"}, Opens, "strict/all -> none"},
	{"the default of a virtual host", []string{"default: deny", "default: pass"},
		Request{"GET", "SHOP.example", "/backoffice"}, Opens, "shop/gatehouse_forbidden_default -> shop/none"},
	{"a wildcard forgotten", []string{`, "*.shop.example"`, ""},
		Request{"GET", "a.b.shop.example", "/x"}, Opens, "shop/gatehouse_forbidden_default -> none"},
	{"a domain of another virtual host taken", []string{"[strict.example]", `["*.example"]`,
		"domains: [shop.example", "domains: [new.strict.example, strict.example, shop.example"},
		Request{"GET", "strict.example", "/"}, Opens, "strict/all -> shop/front"},
	{"a shorter prefix of an open rule", []string{"{prefix: /assets/}", "{prefix: /}",
		"- {name: products, match: {prefix: /products/}, cache: {query: [lang]}}\n", "",
		"- {name: admin, match: {prefix: /v1/admin/}, auth: {permissions: [admin, write]}}\n", "",
		"- {name: orders, match: {path: /v1/orders, methods: [GET, POST]}, auth: {}}\n", "",
		"- {name: upload, match: {prefix: /v1/upload, methods: [PROPFIND, PUT]}, auth: {}}\n", "",
		"- {name: api, match: {prefix: /v1/}, auth: {permissions: [read]}}\n", ""},
		Request{"GET", "", "/v1/admin"}, Opens, "admin -> assets"},
	{"a longer prefix", []string{"{prefix: /v1/}", "{prefix: /v1/api/}"}, Request{"GET", "", "/v1/me"},
		Opens, "api -> none"},
	{"a path instead of a prefix", []string{"{prefix: /v1/}", "{path: /v1/}"}, Request{"GET", "", "/v1/me"}, Opens,
		"api -> none"},
	{"the case of a path", []string{"{prefix: /v1/}", "{prefix: /V1/}"}, Request{"GET", "", "/v1/me"}, Opens,
		"api -> none"},
	{"a permission removed", []string{"[admin, write]", "[admin]"}, Request{"GET", "", "/v1/admin/x"}, NeedsLess,
		"admin -> admin"},
	{"another permission", []string{"[read]", "[raed]"}, Request{"GET", "", "/v1/x"}, NeedsOther, "api -> api"},
	{"a permission added", []string{"[read]", "[read, list]"}, Request{"GET", "", "/v1/x"}, NeedsMore, "api -> api"},
	{"auth removed", []string{"auth: {permissions: [read]}", "cache: {}"}, Request{"PUT", "", "/v1/x"}, Opens,
		"api -> api"},
	{"a rule removed", []string{"- {name: api, match: {prefix: /v1/}, auth: {permissions: [read]}}\n", ""},
		Request{"GET", "", "/v1/x"}, Opens, "api -> none"},
	{"a rule on trial", []string{"{permissions: [read]}", "{permissions: [read], enforce: false}"},
		Request{"GET", "", "/v1/x"}, Opens, "api -> api"},
	{"a default on trial", []string{"default: deny", "default: would_deny"},
		Request{"GET", "shop.example", "/backoffice"}, Opens, "shop/gatehouse_forbidden_default -> shop/none"},
	{"deny by default", []string{"default: pass", "default: deny"}, Request{"GET", "other.example", "/"}, Refused,
		"none -> gatehouse_forbidden_default"},
	{"a new protected rule under deny", []string{"    - {name: cart",
		"    - {name: pay, match: {prefix: /pay/}, auth: {}}\n    - {name: cart"},
		Request{"POST", "store.example", "/pay/1"}, NotRefused, "shop/gatehouse_forbidden_default -> shop/pay"},
	{"auth added", []string{"cache: {query: [lang]}", "cache: {query: [lang]}, auth: {}"},
		Request{"GET", "", "/products/1"}, Protected, "products -> products"},
	{"other credentials", []string{"[strict.example]\n", "[strict.example]\n    credentials: {basic: true}\n"},
		Request{"GET", "strict.example", "/"}, OtherCredentials, "strict/all -> strict/all"},
	{"a cache", []string{"auth: {permissions: [read]}", "auth: {permissions: [read]}, cache: {scope: device}"},
		Request{"GET", "", "/v1/x"}, Cached, "api -> api"},
	{"another key", []string{"query: [lang]", "query: []"}, Request{"HEAD", "", "/products/1"}, OtherKey,
		"products -> products"},
	{"no cache", []string{", cache: {query: [lang]}", ""}, Request{"GET", "", "/products/1"}, NotCached,
		"products -> products"},
	{"a cache on trial", []string{"cache: {query: [lang]}", "cache: {query: [lang], serve: false}"},
		Request{"GET", "", "/products/1"}, NotCached, "products -> products"},
	{"another rule", []string{"- {name: api",
		"- {name: new, match: {prefix: /v1/new}, auth: {permissions: [read]}}\n- {name: api"},
		Request{"GET", "", "/v1/new"}, OtherRule, "api -> new"},
}

func replaceInBase(t *testing.T, replace []string) *policy.Config {
	t.Helper()
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(base, replace[i]) {
			t.Fatalf("base has no %q", replace[i])
		}
	}
	return mustParseRules(t, strings.NewReplacer(replace...).Replace(base))
}

func TestPlants(t *testing.T) {
	from := mustParseRules(t, base)
	for _, p := range changedRules {
		t.Run(p.name, func(t *testing.T) {
			to := replaceInBase(t, p.replace)
			has := func(changes []Change) *Change {
				for i, c := range changes {
					if c.Class == p.want && c.From+" -> "+c.To == p.text {
						return &changes[i]
					}
				}
				t.Errorf("got %+v, want %s: %s", changes, p.want, p.text)
				return nil
			}
			c := NewComparison(from, to)
			line := fmt.Sprintf(`{"method": %q, "authority": %q, "path": %q}`+"\n", p.request.Method, p.request.Host,
				p.request.Path)
			read, err := c.AddLog(strings.NewReader(strings.Repeat(line, 2)), "", func(*LogStats) {})
			if err != nil || read != (LogStats{Lines: 2}) {
				t.Errorf("got %+v, %v", read, err)
			}
			if got := has(c.Changes()); got != nil && (got.Count != 2 || got.Example != p.request || len(c.Changes()) != 1) {
				t.Errorf("got %+v, want both requests", c.Changes())
			}
			all := Compare(from, to)
			witness := has(all)
			if Weakened(all) != p.want.Weakens() {
				t.Errorf("got %+v, a weakening: %v", all, Weakened(all))
			}
			if witness == nil {
				return
			}
			c = NewComparison(from, to)
			if c.Add(&witness.Example); has(c.Changes()) == nil {
				t.Errorf("%+v is no witness", witness.Example)
			}
		})
	}
}

// TestHarmless has changes without effect on requests.
func TestHarmless(t *testing.T) {
	const admin = "- {name: admin, match: {prefix: /v1/admin/}, auth: {permissions: [admin, write]}}\n"
	for name, replace := range map[string][]string{
		"nothing":                  nil,
		"a name":                   {"{name: api", "{name: rest"},
		"another order":            {admin, "", "- {name: api", admin + "- {name: api"},
		"the order of permissions": {"[admin, write]", "[write, admin]"},
		"the order of methods":     {"[GET, POST]", "[POST, HEAD, GET]"},
		"a slash of a path":        {"{path: /v1/orders", "{path: /v1/orders/"},
		"the order of domains":     {"shop.example, store.example", "store.example, shop.example"},
		"fetching":                 {"{query: [lang]}", "{query: [lang], on_miss: fetch}"},
	} {
		if got := Compare(mustParseRules(t, base), replaceInBase(t, replace)); len(got) != 0 {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	without := func(rules string) string {
		return strings.NewReplacer("{name: a, ", "{", "{name: b, ", "{").Replace(
			"credentials: {basic: true}\nrules:\n" + rules)
	}
	a, b := "- {name: a, match: {prefix: /a/}, auth: {}}\n", "- {name: b, match: {prefix: /b/}, auth: {}}\n"
	if got := Compare(mustParseRules(t, without(a+b)), mustParseRules(t, without(b+a))); len(got) != 0 {
		t.Errorf("rules without names: got %+v", got)
	}
}

// TestWitness has gaps for few requests.
func TestWitness(t *testing.T) {
	const all = "methods: [GET, POST, PUT, DELETE, PATCH, PROPFIND, OPTIONS]"
	for _, tt := range []struct{ from, to, want string }{
		{"- {match: {prefix: /a}, auth: {}}", "- {match: {prefix: /a, " + all + "}, auth: {}}", "PROPFINDX /a"},
		{"- {match: {prefix: /a}, auth: {}}", "- {match: {prefix: /ax}, auth: {}}\n- {match: {path: /a}, auth: {}}\n" +
			"- {match: {prefix: /a/}, auth: {}}", "GET /ay"},
		{"- {match: {prefix: /a/}, auth: {}}", "- {match: {path: /a}, auth: {}}\n- {match: {prefix: /a/x/}, auth: {}}",
			"GET /a/y"},
		{"- {match: {prefix: /}, auth: {}}", "- {match: {prefix: /v1}, auth: {}}", "GET /"},
		{"- {match: {path: /a}}\n- {match: {prefix: /}, auth: {}}",
			"- {match: {prefix: /a/}}\n- {match: {prefix: /}, auth: {}}", "GET /a/x"},
	} {
		const head = "credentials: {basic: true}\nrules:\n"
		changes := Compare(mustParseRules(t, head+tt.from), mustParseRules(t, head+tt.to))
		if len(changes) == 0 || changes[0].Class != Opens || changes[0].Example.Describe() != tt.want {
			t.Errorf("%s -> %s: got %+v, want %s", tt.from, tt.to, changes, tt.want)
		}
	}
}

// TestReadings: the rules refuse paths with several readings and bad hosts.
func TestReadings(t *testing.T) {
	from := mustParseRules(t, base)
	open := mustParseRules(t, "default: pass")
	for _, tt := range []struct {
		request Request
		want    string
	}{
		{Request{"GET", "", "/v1/%61dmin/x"}, "gatehouse_forbidden_ambiguous_path -> none"},
		{Request{"GET", "", "/a/%2e%2e/x"}, ""}, // refused by any rules
		{Request{"GET", "", "/%76%31/me"}, "api -> none"},
		{Request{"GET", "a b", "/x"}, "gatehouse_forbidden_ambiguous_host -> none"},
	} {
		c := NewComparison(from, open)
		c.Add(&tt.request)
		got := c.Changes()
		if len(got) == 0 && tt.want == "" {
			continue
		}
		if len(got) != 1 || got[0].From+" -> "+got[0].To != tt.want {
			t.Errorf("%+v: got %+v, want %s", tt.request, got, tt.want)
		}
	}
}

// TestPrefixes bounds the memory for the paths of a log.
func TestPrefixes(t *testing.T) {
	c := NewComparison(mustParseRules(t, base), mustParseRules(t, "default: pass"))
	for i := range 1000 {
		c.Add(&Request{"GET", "", fmt.Sprintf("/v1/%d/x?a", i)})
		c.Add(&Request{"GET", "", "/v1/7?x/"})
	}
	got := c.Changes()
	if len(got) != maxPrefixes+1 {
		t.Fatalf("%d changes", len(got))
	}
	if got[0].Prefix != "/v1/7" || got[0].Count != 1001 || got[1].Prefix != Others || got[1].Count != 1000-maxPrefixes {
		t.Errorf("got %+v", got[:2])
	}
}

// TestSamplesAreComplete has random rules, and random requests with different outcomes: some sample has the same pair
// of outcomes. Paths and hosts have one reading each.
func TestSamplesAreComplete(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	path := func() string {
		p := ""
		for range 1 + random.IntN(3) {
			p += "/" + pick("a", "b", "ab", "x")
		}
		return p + pick("", "/", "/x", "x")
	}
	some := func(indent string) (text string) {
		for range 1 + random.IntN(4) {
			text += fmt.Sprintf("%s- {match: {%s: %s%s}%s}\n", indent, pick("path", "prefix"), path(),
				pick("", "", ", methods: [GET]", ", methods: [POST]"), pick("", ", cache: {}", ", auth: {}", ", auth: {}",
					", auth: {permissions: [r]}, cache: {}"))
		}
		return text
	}
	configuration := func() *policy.Config {
		for {
			text := "credentials: {basic: true}\ndefault: " + pick("pass", "deny") + "\nrules:\n" + some("") +
				"virtual_hosts:\n  v:\n    domains: [" + pick("a.example", `"*.example"`, `"*.a.example"`) + "]\n    default: " +
				pick("pass", "deny") + "\n    rules:\n" + some("    ")
			if c, err := nginx.Parse([]byte(text)); err == nil { // no rule hides another one
				return c
			}
		}
	}
	runs, changes := 300, 0
	for range runs {
		from, to := configuration(), configuration()
		c := compareSamples(from, to)
		for range 200 {
			r := Request{pick("GET", "HEAD", "POST", "PUT", "LINK"),
				pick("", "a.example", "b.example", "x.a.example", "y.x.a.example:80", "c.test"), path()}
			p := outcomePair{c.from.evaluate(&r), c.to.evaluate(&r)}
			class := c.classify(p)
			if class == unchanged {
				continue
			}
			changes++
			if _, sampled := c.classes[p]; !sampled {
				t.Fatalf("no sample of %+v: %s, %+v: %+v\nfrom %+v\nto %+v", r, class, p, c.Changes(), from, to)
			}
		}
	}
	if changes < runs {
		t.Errorf("only %d changes", changes)
	}
}

// repeated is a log of n lines.
type repeated struct {
	line []byte
	n    int
	at   int
}

func (r *repeated) Read(b []byte) (n int, err error) {
	for n < len(b) {
		if r.n == 0 {
			return n, io.EOF
		}
		k := copy(b[n:], r.line[r.at:])
		n += k
		if r.at += k; r.at == len(r.line) {
			r.at = 0
			r.n--
		}
	}
	return n, nil
}

// BenchmarkLog reads a log; each operation is a line. A million lines: -benchtime=1000000x.
func BenchmarkLog(b *testing.B) {
	to := mustParseRules(b, strings.Replace(base, "{prefix: /v1/}", "{prefix: /v1/api/}", 1))
	for name, line := range lines {
		b.Run(name, func(b *testing.B) {
			c := NewComparison(mustParseRules(b, base), to)
			read, err := c.AddLog(&repeated{[]byte(line.text + "\n"), b.N, 0}, "", func(*LogStats) {})
			if err != nil || read.Lines != b.N || read.Unreadable > 0 {
				b.Errorf("got %+v, %v", read, err)
			}
		})
	}
}
