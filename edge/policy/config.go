// Package policy has the filter's decisions: rules and their strict decoding, and the pure function from a request and
// a few lookups to an answer. It is independent of the proxy except for the form of header maps, so that it can be
// tested natively and shared with gatehousectl.
package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is the configuration of an edge or a push listener, checked and complete.
type Config struct {
	// PushListener configures the push listener, which applies the sidecar's batches; nothing else is set then.
	PushListener bool
	// SidecarCluster is the cluster for calls to the sidecar, "" for a push listener.
	SidecarCluster string
	// SidecarTimeout bounds a call, and so the time that a request waits for one.
	SidecarTimeout time.Duration
	Credentials    Credentials
	// Source tells where to find the client's address.
	Source Source
	// SessionMetadata is the metadata key under which the proxy's JWT filter stores a token's claims, its
	// payload_in_metadata; "": tokens are ignored.
	SessionMetadata string
	// VerdictGrace is how long an expired allow verdict stays valid while the sidecar is unreachable; 0: it doesn't.
	VerdictGrace time.Duration
	// MaxStaleness is how long cached answers are served after the edge was last in step with Redis.
	MaxStaleness time.Duration
	// MaxAuthStaleness is how long devices are authenticated after the edge was last in step with Redis; 0: no limit
	// except the expiry of verdicts.
	MaxAuthStaleness time.Duration
	// ServeStale also serves cached answers beyond MaxStaleness, with a detail in Cache-Status; otherwise requests go
	// upstream.
	ServeStale bool
	// Rules has the rules of all hosts: first those of the top level, then those of each virtual host.
	Rules []Rule
	// DenyByDefault refuses a request that no rule matches; otherwise it passes. WouldDenyByDefault passes it, too, and
	// counts it as one that DenyByDefault would refuse. Like Credentials and Source they are for hosts without a virtual
	// host.
	DenyByDefault, WouldDenyByDefault bool
	// VirtualHosts are in the order of their names.
	VirtualHosts []VirtualHost
	// KeepOverrides keeps the headers with which clients can override method or target at some upstreams.
	KeepOverrides bool
	// LogHits gives access logs the rule and device of answers from the cache, too, which costs them time.
	LogHits bool
}

// Credentials tells where a request has its device id and secret: in two headers or, if Basic, as HTTP Basic (RFC
// 7617).
type Credentials struct {
	IDHeader, SecretHeader string // lower case
	Basic                  bool
	// Forward sends the secret upstream even under an auth rule.
	Forward bool
}

// Source tells where to find the client's address, for the sidecar's limits on wrong secrets: in a header, in the
// proxy's filter state, or by default as the proxy itself determines it.
type Source struct {
	Header      string // lower case
	FilterState string // the name of an object
}

// Rule is the policy for the requests that it matches. Without Auth, Cache and IssueSession they pass.
type Rule struct {
	// Name labels the rule's counters and lines of access logs; by default it is the rule's index. Names of a virtual
	// host's rules begin with the host's name and a slash.
	Name  string
	Match Match
	Auth  *Auth
	Cache *Cache
	// IssueSession answers with a token for the request's credential; Auth and Cache are nil then.
	IssueSession bool
}

// Match selects requests by path and method; see [Match.matches] for what a path covers.
type Match struct {
	Path, Prefix string   // exactly one is set
	Methods      []string // nil: all
}

// Auth requires a valid credential of a device that has all Permissions.
type Auth struct {
	Permissions []string
	// Trial judges the credential, too, but refuses no request: what would be refused passes, and is counted.
	Trial bool
}

// Cache lets GET and HEAD be answered from shared memory.
type Cache struct {
	// Query names the parameters that are part of the key; nil: all of them.
	Query []string
	// Fetch asks the sidecar before a miss goes upstream.
	Fetch bool
	// PerDevice makes the authenticated device id part of the key.
	PerDevice bool
	// PerHost makes the request's host part of the key.
	PerHost bool
	// Trial sends all requests upstream as without Cache, and counts those that it would have answered.
	Trial bool
}

// Bounds and defaults of the configuration, as in the README.
const (
	defaultCluster      = "gatehouse-sidecar"
	defaultTimeout      = 2 * time.Second
	minTimeout          = 10 * time.Millisecond
	maxTimeout          = time.Minute
	defaultMaxStaleness = 30 * time.Second
	minMaxStaleness     = time.Second
	maxMaxStaleness     = 24 * time.Hour
	maxVerdictGrace     = 24 * time.Hour
	maxRules            = 1000
	maxRulePath         = 1024
	maxRuleName         = 64
)

// Parse decodes a configuration from the tree that JSON decodes to (maps, slices, strings, float64, bool, nil). The
// error has a line for every problem, each with the path of its field.
func Parse(tree any) (*Config, error) {
	d := &decoder{}
	c := d.config(tree)
	if len(d.problems) > 0 {
		return nil, errors.New(strings.Join(d.problems, "\n"))
	}
	return c, nil
}

func (d *decoder) config(tree any) *Config {
	c := &Config{}
	m := d.fields("", tree, "push_listener", "sidecar", "credentials", "source", "session", "verdict_grace",
		"max_staleness", "max_auth_staleness", "stale", "rules", "default", "virtual_hosts", "strip_override_headers",
		"log_hits")
	if m == nil {
		return c
	}
	if c.PushListener = d.boolean("push_listener", m["push_listener"], false); c.PushListener {
		if len(m) > 1 {
			d.problem("push_listener", "a push listener has no rules: remove the other fields")
		}
		return c
	}
	d.sidecar(c, m["sidecar"])
	c.MaxStaleness = d.duration("max_staleness", m["max_staleness"], defaultMaxStaleness, minMaxStaleness, maxMaxStaleness)
	c.VerdictGrace = d.duration("verdict_grace", m["verdict_grace"], 0, 0, maxVerdictGrace)
	c.MaxAuthStaleness = d.duration("max_auth_staleness", m["max_auth_staleness"], 0, 0, maxMaxStaleness)
	if 0 < c.MaxAuthStaleness && c.MaxAuthStaleness < minMaxStaleness {
		d.problem("max_auth_staleness", "is %s, want %s to %s, or 0s for no bound", c.MaxAuthStaleness,
			minMaxStaleness, maxMaxStaleness)
	} else if c.MaxAuthStaleness > 0 && c.VerdictGrace > c.MaxAuthStaleness {
		d.problem("verdict_grace", "is %s, want at most max_auth_staleness, %s", c.VerdictGrace, c.MaxAuthStaleness)
	}
	c.ServeStale = d.oneOf("stale", m["stale"], "bypass", "serve") == "serve"
	c.DenyByDefault, c.WouldDenyByDefault = d.byDefault("default", m["default"])
	c.KeepOverrides = !d.boolean("strip_override_headers", m["strip_override_headers"], true)
	c.LogHits = d.boolean("log_hits", m["log_hits"], false)
	c.Credentials = d.credentials("credentials", m["credentials"])
	if session, ok := m["session"]; ok {
		if m := d.fields("session", session, "metadata"); m != nil {
			c.SessionMetadata = d.text("session.metadata", m["metadata"])
		}
	}
	c.Source = d.source("source", m["source"])
	d.rules(c, "", m["rules"])
	d.virtualHosts(c, m["virtual_hosts"])
	d.crossCheck(c)
	return c
}

// rules appends the rules of the virtual host of this name, "" for the top level.
func (d *decoder) rules(c *Config, host string, v any) {
	at, label := "rules", ""
	if host != "" {
		at, label = virtualHostField(host)+".rules", host+"/"
	}
	rules := d.list(at, v)
	if n := len(c.Rules) + len(rules); n > maxRules {
		d.problem(at, "makes %d rules, at most %d in all", n, maxRules)
		return
	}
	for i, rule := range rules {
		r := d.rule(fmt.Sprintf("%s[%d]", at, i), rule)
		if r.Name == "" {
			r.Name = strconv.Itoa(i)
		}
		r.Name = label + r.Name
		c.Rules = append(c.Rules, r)
	}
}

// byDefault decodes what happens to a request that no rule matches.
func (d *decoder) byDefault(at string, v any) (deny, wouldDeny bool) {
	word := d.oneOf(at, v, "pass", "deny", "would_deny")
	return word == "deny", word == "would_deny"
}

func (d *decoder) sidecar(c *Config, v any) {
	c.SidecarCluster, c.SidecarTimeout = defaultCluster, defaultTimeout
	if v == nil {
		return
	}
	m := d.fields("sidecar", v, "cluster", "timeout")
	if cluster, ok := m["cluster"]; ok {
		c.SidecarCluster = d.text("sidecar.cluster", cluster)
	}
	c.SidecarTimeout = d.duration("sidecar.timeout", m["timeout"], defaultTimeout, minTimeout, maxTimeout)
}

func (d *decoder) credentials(at string, v any) Credentials {
	if v == nil {
		return Credentials{}
	}
	before := len(d.problems)
	m := d.fields(at, v, "id_header", "secret_header", "basic", "forward")
	if m == nil {
		return Credentials{Basic: true} // so that rules don't lack it, too
	}
	c := Credentials{Basic: d.boolean(at+".basic", m["basic"], false),
		Forward: d.boolean(at+".forward", m["forward"], false)}
	if c.Basic {
		if m["id_header"] != nil || m["secret_header"] != nil {
			d.problem(at+".basic", "is given with headers: use one of the two")
		}
		return c
	}
	c.IDHeader = d.header(at+".id_header", m["id_header"])
	c.SecretHeader = d.header(at+".secret_header", m["secret_header"])
	if c.IDHeader != "" && c.IDHeader == c.SecretHeader {
		d.problem(at+".secret_header", "%q is also the id_header", c.SecretHeader)
	}
	c.Basic = len(d.problems) > before // as above
	return c
}

func (d *decoder) source(at string, v any) (s Source) {
	if v == nil || v == "envoy" {
		return s
	}
	if _, ok := v.(map[string]any); !ok {
		d.problem(at, "is %s, want envoy, {header: NAME} or {filter_state: NAME}", kind(v))
		return s
	}
	m := d.fields(at, v, "header", "filter_state")
	if (m["header"] == nil) == (m["filter_state"] == nil) {
		d.problem(at, "needs either header or filter_state")
		return s
	}
	if m["header"] != nil {
		s.Header = d.header(at+".header", m["header"])
		return s
	}
	if s.FilterState = d.text(at+".filter_state", m["filter_state"]); strings.IndexByte(s.FilterState, 0) >= 0 {
		d.problem(at+".filter_state", "%q has a NUL", s.FilterState)
	}
	return s
}

func (d *decoder) rule(at string, v any) Rule {
	r := Rule{}
	m := d.fields(at, v, "name", "match", "auth", "cache", "session")
	if m == nil {
		return r
	}
	if name, ok := m["name"]; ok {
		r.Name = d.ruleName(at+".name", name)
	}
	r.Match = d.match(at+".match", m["match"])
	if auth, ok := m["auth"]; ok {
		r.Auth = &Auth{}
		am := d.fields(at+".auth", auth, "permissions", "enforce")
		r.Auth.Trial = !d.boolean(at+".auth.enforce", am["enforce"], true)
		for i, p := range d.list(at+".auth.permissions", am["permissions"]) {
			r.Auth.Permissions = append(r.Auth.Permissions, d.permission(fmt.Sprintf("%s.auth.permissions[%d]", at, i), p))
		}
	}
	if cache, ok := m["cache"]; ok {
		r.Cache = d.cache(at+".cache", cache)
		if r.Cache.PerDevice && r.Auth == nil {
			d.problem(at+".cache.scope", "device needs auth in the same rule: without it there is no device id")
		}
		if !r.Match.reads() {
			d.problem(at+".cache", "needs GET or HEAD among the methods of its match: the cache answers nothing else")
		}
	}
	if session, ok := m["session"]; ok {
		d.session(at, session, &r)
	}
	return r
}

// session decodes a rule that issues tokens, which can have no other policy.
func (d *decoder) session(at string, v any, r *Rule) {
	if v != "issue" {
		d.problem(at+".session", "is %s, want issue", kind(v))
	}
	r.IssueSession = true
	if r.Auth != nil || r.Cache != nil {
		d.problem(at+".session", "excludes auth and cache: the credential is always checked, and tokens are not cached")
	}
	if !slices.Equal(r.Match.Methods, []string{"POST"}) {
		d.problem(at+".session", "needs methods: [POST] in its match: only POST may issue a token")
	}
}

func (d *decoder) match(at string, v any) Match {
	m := d.fields(at, v, "path", "prefix", "methods")
	var match Match
	if m == nil {
		return match
	}
	if (m["path"] == nil) == (m["prefix"] == nil) {
		d.problem(at, "needs either path or prefix")
	}
	if p, ok := m["path"]; ok {
		match.Path = d.path(at+".path", p)
	}
	if p, ok := m["prefix"]; ok {
		match.Prefix = d.path(at+".prefix", p)
	}
	if methods, ok := m["methods"]; ok {
		list := d.list(at+".methods", methods)
		if len(list) == 0 {
			d.problem(at+".methods", "is empty: name a method, or remove the field for all of them")
		}
		for i, v := range list {
			match.Methods = append(match.Methods, d.method(fmt.Sprintf("%s.methods[%d]", at, i), v))
		}
	}
	return match
}

func (d *decoder) cache(at string, v any) *Cache {
	c := &Cache{}
	m := d.fields(at, v, "query", "on_miss", "scope", "serve")
	if query, ok := m["query"]; ok {
		c.Query = []string{}
		for i, name := range d.list(at+".query", query) {
			text := d.text(fmt.Sprintf("%s.query[%d]", at, i), name)
			if strings.ContainsAny(text, "&=") {
				d.problem(fmt.Sprintf("%s.query[%d]", at, i), "%q is not a parameter's name: want one without & and =", text)
			}
			c.Query = append(c.Query, text)
		}
	}
	c.Fetch = d.oneOf(at+".on_miss", m["on_miss"], "pass", "fetch") == "fetch"
	d.scope(at+".scope", m["scope"], c)
	c.Trial = !d.boolean(at+".serve", m["serve"], true)
	return c
}

// scope decodes whose requests share an object: a word, or a list of words.
func (d *decoder) scope(at string, v any, c *Cache) {
	words, several := v.([]any)
	if !several {
		c.set(d.oneOf(at, v, "shared", "device", "host"))
		return
	}
	if len(words) == 0 {
		d.problem(at, "is empty: name host, device or both, or remove the field")
	}
	for i, word := range words {
		at := fmt.Sprintf("%s[%d]", at, i)
		if word == nil {
			d.problem(at, "is missing, want host or device")
			continue
		}
		name := d.oneOf(at, word, "host", "device")
		if name == "host" && c.PerHost || name == "device" && c.PerDevice {
			d.problem(at, "%q is listed twice", name)
		}
		c.set(name)
	}
}

func (c *Cache) set(scope string) {
	c.PerDevice = c.PerDevice || scope == "device"
	c.PerHost = c.PerHost || scope == "host"
}

// crossCheck finds problems between rules.
func (d *decoder) crossCheck(c *Config) {
	for host := NoVirtualHost; host < len(c.VirtualHosts); host++ {
		d.crossCheckHost(c, c.HostRules(host))
	}
}

func (d *decoder) crossCheckHost(c *Config, h HostRules) {
	missing := h.Credentials == Credentials{}
	named := map[string]int{}
	hidden := map[int][]string{}
	for j := h.First; j < h.End; j++ {
		at := c.RuleField(j)
		if i, ok := named[c.Rules[j].Name]; ok {
			d.problem(at+".name", "%q is also the name of %s; a rule without a name has its index as its name",
				ownName(c.Rules[j].Name), c.RuleField(i))
		} else {
			named[c.Rules[j].Name] = j
		}
		if c.Rules[j].protects() && missing {
			field := ".auth"
			if c.Rules[j].IssueSession {
				field = ".session"
			}
			d.problem(at+field, "needs credentials: set where a request carries them, e.g. credentials: {id_header: "+
				"x-device-id, secret_header: x-device-token}")
		}
		if i := c.hiddenBy(h.First, j); i >= 0 {
			hidden[i] = append(hidden[i], at)
		}
	}
	for i := h.First; i < h.End; i++ {
		if these := hidden[i]; len(these) == 1 {
			d.problem(these[0]+".match",
				"is never reached: %s matches everything that it matches; move it up or remove it", c.RuleField(i))
		} else if len(these) > 1 {
			d.problem(c.RuleField(i)+".match",
				"matches everything that these match, which are never reached: %s; move it below them, or remove them",
				strings.Join(these, ", "))
		}
	}
}

// protects reports whether a rule asks for a credential.
func (r *Rule) protects() bool { return r.Auth != nil || r.IssueSession }

// tries reports whether a rule asks for a credential and passes requests without one.
func (r *Rule) tries() bool { return r.Auth != nil && r.Auth.Trial }

// enforces reports whether a rule refuses requests without a credential.
func (r *Rule) enforces() bool { return r.protects() && !r.tries() }

// hiddenBy returns the first rule from one on that matches everything that rule j matches, -1 for none.
func (c *Config) hiddenBy(first, j int) int {
	for i := first; i < j; i++ {
		if c.Rules[i].Match.covers(&c.Rules[j].Match) {
			return i
		}
	}
	return -1
}
