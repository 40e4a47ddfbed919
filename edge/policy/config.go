// Package policy has the filter's decisions: rules and their strict decoding, and the pure function from a request and
// a few lookups to an answer. Only the form of header maps comes from the proxy: policy can be tested natively and
// shared with gatehousectl.
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
	// PushListener configures the push listener, which applies the sidecar's batches; all other fields are unset.
	PushListener bool
	// SidecarCluster is the cluster for calls to the sidecar, "" for a push listener.
	SidecarCluster string
	// SidecarTimeout bounds a call, and thereby the time for which a request waits for a call.
	SidecarTimeout time.Duration
	Credentials    Credentials
	// Source tells where to find the client's address.
	Source Source
	// SessionMetadata is the metadata key under which the proxy's JWT filter stores a token's claims
	// (payload_in_metadata); "": tokens are ignored.
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
	// Rules has the rules of all hosts: first the top level's, then each virtual host's.
	Rules []Rule
	// DenyByDefault refuses a request without a matching rule; otherwise the request passes. WouldDenyByDefault passes
	// the request, and counts the refusal. Like Credentials and Source, both apply to hosts without a virtual host.
	DenyByDefault, WouldDenyByDefault bool
	// VirtualHosts are in the order of their names.
	VirtualHosts []VirtualHost
	// KeepOverrides keeps the headers by which clients can override method or target at some upstreams.
	KeepOverrides bool
	// LogHits gives access logs the rule and device of cached answers, at the price of time.
	LogHits bool
}

// Credentials tells where a request has its device id and secret: in two headers or, if Basic, as HTTP Basic (RFC
// 7617). An API key (package apikey) has both, and is configured instead of or beside the two. A request may use one
// way.
type Credentials struct {
	IDHeader, SecretHeader string // lower case
	Basic                  bool
	APIKeyHeader           string // lower case
	// Bearer means that an API key may be the token of Authorization: Bearer (RFC 6750). The policy ignores all tokens
	// but API keys.
	Bearer bool
	// Forward sends the secret upstream even under an auth rule.
	Forward bool
}

// Source tells where to find the client's address, for the sidecar's limits on wrong secrets: in a header, in the
// proxy's filter state, or by default as the proxy itself determines it.
type Source struct {
	Header      string // lower case
	FilterState string // the name of an object
}

// Rule is the policy for matching requests. Without Auth, Cache and IssueSession, requests pass.
type Rule struct {
	// Name labels the rule's counters and lines of access logs; by default it is the rule's index. Names of a virtual
	// host's rules begin with the host's name and a slash.
	Name  string
	Match Match
	Auth  *Auth
	Cache *Cache
	// IssueSession answers with a token for the request's credential; Auth and Cache are nil.
	IssueSession bool
}

// Match selects requests by path and method; see [Match.matches] for how a path matches.
type Match struct {
	Path, Prefix string   // exactly one is set
	Methods      []string // nil: all
}

// Auth requires a valid credential, and a device with all Permissions.
type Auth struct {
	Permissions []string
	// Trial judges the credential, too, but refuses no request: what would be refused passes, and is counted.
	Trial bool
}

// Cache lets GET and HEAD be answered from shared memory.
type Cache struct {
	// Query names the parameters in the key; nil: all of them.
	Query []string
	// Fetch asks the sidecar before a miss goes upstream.
	Fetch bool
	// PerDevice makes the authenticated device id part of the key.
	PerDevice bool
	// PerHost makes the request's host part of the key.
	PerHost bool
	// Languages are the languages, in lower case, of objects in this cache; the key of such an object ends with the
	// language.
	Languages []string
	ranges    []languageRange // of Languages
	// OriginHeaders sends the publisher's headers with an effect on the whole origin; see limits.OriginHeader.
	OriginHeaders bool
	// Trial sends all requests upstream as without Cache, and counts would-be hits.
	Trial bool
}

// Parse decodes a configuration from the tree of decoded JSON (maps, slices, strings, float64, bool, nil). The error
// has a line for every problem, each with the path of its field.
func Parse(tree any) (*Config, error) {
	d := &decoder{}
	c := d.decodeConfig(tree)
	if len(d.problems) > 0 {
		return nil, errors.New(strings.Join(d.problems, "\n"))
	}
	return c, nil
}

func (d *decoder) decodeConfig(tree any) *Config {
	c := &Config{}
	o := d.decodeObject("", tree, configFields)
	if o.values == nil {
		return c
	}
	if c.PushListener = o.readFlag("push_listener"); c.PushListener {
		if len(o.values) > 1 {
			d.addProblem("push_listener", "a push listener has no rules: remove the other fields")
		}
		return c
	}
	c.decodeSidecar(&o)
	c.MaxStaleness = o.readDuration("max_staleness")
	c.VerdictGrace = o.readDuration("verdict_grace")
	c.MaxAuthStaleness = o.readDuration("max_auth_staleness")
	if 0 < c.MaxAuthStaleness && c.MaxAuthStaleness < minStaleness {
		d.addProblem("max_auth_staleness", "is %s, want %s to %s, or 0s for no bound", c.MaxAuthStaleness,
			minStaleness, maxStaleness)
	} else if c.MaxAuthStaleness > 0 && c.VerdictGrace > c.MaxAuthStaleness {
		d.addProblem("verdict_grace", "is %s, want at most max_auth_staleness, %s", c.VerdictGrace, c.MaxAuthStaleness)
	}
	c.ServeStale = o.readWord("stale") == "serve"
	c.DenyByDefault, c.WouldDenyByDefault = o.decodeDefault()
	c.KeepOverrides = !o.readFlag("strip_override_headers")
	c.LogHits = o.readFlag("log_hits")
	c.Credentials = o.decodeCredentials()
	if o.has("session") {
		if session := o.readObject("session"); session.isSound() {
			c.SessionMetadata = session.readText("metadata")
		}
	}
	c.Source = o.decodeSource()
	c.decodeRules(&o, "")
	c.decodeVirtualHosts(&o)
	d.crossCheck(c)
	return c
}

// decodeRules appends the rules of the virtual host named host, "" for the top level.
func (c *Config) decodeRules(o *object, host string) {
	label := ""
	if host != "" {
		label = host + "/"
	}
	f, at, _ := o.field("rules")
	rules := o.readList("rules")
	if n := len(c.Rules) + len(rules); n > maxRules {
		o.addProblem(at, "makes %d rules, at most %d in all", n, maxRules)
		return
	}
	for i, v := range rules {
		r := Rule{}
		if rule := o.decodeObject(fmt.Sprintf("%s[%d]", at, i), v, f.Item.Fields); rule.values != nil {
			r = rule.decodeRule()
		}
		if r.Name == "" {
			r.Name = strconv.Itoa(i)
		}
		r.Name = label + r.Name
		c.Rules = append(c.Rules, r)
	}
}

// decodeDefault returns whether a request without a matching rule is refused, or counted as refused.
func (o *object) decodeDefault() (deny, wouldDeny bool) {
	word := o.readWord("default")
	return word == "deny", word == "would_deny"
}

func (c *Config) decodeSidecar(o *object) {
	c.SidecarCluster = defaultCluster
	sidecar := object{decoder: o.decoder, fields: fieldNamed(o.fields, "sidecar").Fields}
	if o.values["sidecar"] != nil {
		sidecar = o.readObject("sidecar")
	}
	if sidecar.has("cluster") {
		c.SidecarCluster = sidecar.readText("cluster")
	}
	c.SidecarTimeout = sidecar.readDuration("timeout")
}

func (o *object) decodeCredentials() (c Credentials) {
	if o.values["credentials"] == nil {
		return c
	}
	m := o.readObject("credentials")
	c = Credentials{Basic: m.readFlag("basic"), Bearer: m.readFlag("bearer"), Forward: m.readFlag("forward")}
	apiKey := m.values["api_key_header"] != nil
	if m.isSound() && apiKey {
		c.APIKeyHeader = m.readText("api_key_header")
	}
	pair := m.values["id_header"] != nil || m.values["secret_header"] != nil
	switch {
	case !m.isSound():
	case c.Basic:
		if pair {
			o.addProblem(m.at+".basic", "is given with headers: use one of the two")
		}
	case pair || !apiKey && !c.Bearer:
		c.IDHeader, c.SecretHeader = m.readText("id_header"), m.readText("secret_header")
		if c.IDHeader != "" && c.IDHeader == c.SecretHeader {
			o.addProblem(m.at+".secret_header", "%q is also the id_header", c.SecretHeader)
		}
	}
	for _, other := range [...][2]string{{c.IDHeader, "the id_header"}, {c.SecretHeader, "the secret_header"},
		{c.authorizationHeader(), "of basic or bearer"}} {
		if c.APIKeyHeader != "" && c.APIKeyHeader == other[0] {
			o.addProblem(m.at+".api_key_header", "%q is also %s", c.APIKeyHeader, other[1])
		}
	}
	c.Basic = c.Basic || !m.isSound() // no second problem about missing credentials
	return c
}

// takesAPIKeys reports whether the credential may be an API key.
func (c *Credentials) takesAPIKeys() bool { return c.APIKeyHeader != "" || c.Bearer }

// authorizationHeader returns "authorization" if that header carries credentials, else "".
func (c *Credentials) authorizationHeader() string {
	if c.Basic || c.Bearer {
		return "authorization"
	}
	return ""
}

func (o *object) decodeSource() (s Source) {
	f, at, v := o.field("source")
	if v == nil || v == f.Words[0] {
		return s
	}
	if _, ok := v.(map[string]any); !ok {
		o.addProblem(at, "is %s, want envoy, {header: NAME} or {filter_state: NAME}", describeValue(v))
		return s
	}
	m := o.decodeObject(at, v, f.Or.Fields)
	switch {
	case !m.isSound():
	case (m.values["header"] == nil) == (m.values["filter_state"] == nil):
		o.addProblem(at, "needs either header or filter_state")
	case m.values["header"] != nil:
		s.Header = m.readText("header")
	default:
		if s.FilterState = m.readText("filter_state"); strings.IndexByte(s.FilterState, 0) >= 0 {
			o.addProblem(at+".filter_state", "%q has a NUL", s.FilterState)
		}
	}
	return s
}

func (o *object) decodeRule() (r Rule) {
	if o.has("name") {
		r.Name = o.readText("name")
	}
	match := o.readObject("match")
	r.Match = match.decodeMatch()
	if o.has("auth") {
		auth := o.readObject("auth")
		r.Auth = &Auth{Permissions: auth.readTexts("permissions"), Trial: !auth.readFlag("enforce")}
	}
	if o.has("cache") {
		cache := o.readObject("cache")
		r.Cache = cache.decodeCache()
		if r.Cache.PerDevice && r.Auth == nil {
			o.addProblem(cache.at+".scope", "device needs auth in the same rule: without it there is no device id"+FixMark+
				"add auth: {} to the rule, or remove scope: device")
		}
		if !r.Match.permitsRead() {
			o.addProblem(cache.at, "needs GET or HEAD among the methods of its match: the cache answers nothing else")
		}
	}
	if o.has("session") {
		r.IssueSession = true
		o.checkSessionRule(&r, match.isSound())
	}
	return r
}

// checkSessionRule checks a rule that issues tokens: no other policy is allowed.
func (o *object) checkSessionRule(r *Rule, soundMatch bool) {
	f, at, v := o.field("session")
	o.readOneOf(at, v, f.Words)
	if r.Auth != nil || r.Cache != nil {
		o.addProblem(at, "excludes auth and cache: the credential is always checked, and tokens are not cached")
	}
	if soundMatch && !slices.Equal(r.Match.Methods, []string{"POST"}) {
		o.addProblem(at, "needs methods: [POST] in its match: only POST may issue a token")
	}
}

// decodeMatch returns a match; an invalid match covers nothing.
func (o *object) decodeMatch() (m Match) {
	if o.isSound() && (o.values["path"] == nil) == (o.values["prefix"] == nil) {
		o.addProblem(o.at, "needs either path or prefix")
	}
	if o.has("path") {
		m.Path = o.readText("path")
	}
	if o.has("prefix") {
		m.Prefix = o.readText("prefix")
	}
	m.Methods = o.readTexts("methods")
	if !o.isSound() {
		return Match{}
	}
	return m
}

func (o *object) decodeCache() *Cache {
	c := &Cache{Query: o.readTexts("query"), Fetch: o.readWord("on_miss") == "fetch", Languages: o.readTexts("languages"),
		OriginHeaders: o.readFlag("origin_headers"), Trial: !o.readFlag("serve")}
	for i, language := range c.Languages {
		if language != "" && slices.Contains(c.Languages[:i], language) {
			o.addProblem(fmt.Sprintf("%s.languages[%d]", o.at, i), "%q is listed twice", language)
		}
	}
	c.ranges = findLanguageRanges(c.Languages)
	f, at, v := o.field("scope")
	if _, several := v.([]any); !several {
		c.addScope(o.readWord("scope"))
		return c
	}
	for i, word := range o.readItems(f.Or, at, v) {
		at := fmt.Sprintf("%s[%d]", at, i)
		name := o.readOneOf(at, word, f.Or.Item.Words)
		if name == "host" && c.PerHost || name == "device" && c.PerDevice {
			o.addProblem(at, "%q is listed twice", name)
		}
		c.addScope(name)
	}
	return c
}

func (c *Cache) addScope(scope string) {
	c.PerDevice = c.PerDevice || scope == "device"
	c.PerHost = c.PerHost || scope == "host"
}

// FixMark stands in a problem before the advice how to correct the rules.
const FixMark = "; fix: "

// crossCheck finds problems between rules.
func (d *decoder) crossCheck(c *Config) {
	var lacking []string
	for host := NoVirtualHost; host < len(c.VirtualHosts); host++ {
		h := c.HostRules(host)
		d.crossCheckHost(c, h)
		for i := h.First; i < h.End && h.Credentials == (Credentials{}); i++ {
			if c.Rules[i].NeedsCredential() {
				lacking = append(lacking, c.RuleTitle(i))
			}
		}
	}
	if len(lacking) > 0 {
		d.addProblem("credentials", "is missing, for %s: set where requests carry them, e.g. credentials: {id_header: "+
			"x-device-id, secret_header: x-device-token}", strings.Join(lacking, ", "))
	}
}

func (d *decoder) crossCheckHost(c *Config, h HostRules) {
	named := map[string]int{}
	hidden := map[int][]int{}
	for j := h.First; j < h.End; j++ {
		if i, ok := named[c.Rules[j].Name]; ok {
			d.addProblem(c.RuleField(j)+".name", "%q is also the name of %s; a rule without a name has its index as its name",
				ownName(c.Rules[j].Name), c.RuleField(i))
		} else {
			named[c.Rules[j].Name] = j
		}
		if i := c.hiddenBy(h.First, j); i >= 0 {
			hidden[i] = append(hidden[i], j)
		}
	}
	for i := h.First; i < h.End; i++ {
		if these := hidden[i]; len(these) == 1 {
			d.addProblem(c.RuleField(these[0])+".match",
				"is never reached: %s matches everything that it matches"+FixMark+"put this rule above %[1]s, or remove it",
				c.RuleTitle(i))
		} else if len(these) > 1 {
			d.addProblem(c.RuleField(i)+".match",
				"matches everything that these match, which are never reached: %s"+FixMark+
					"put this rule below them, or remove them",
				c.RuleTitles(these))
		}
	}
}

// RuleTitles returns the titles of rules.
func (c *Config) RuleTitles(rules []int) string {
	all := make([]string, len(rules))
	for i, rule := range rules {
		all[i] = c.RuleTitle(rule)
	}
	return strings.Join(all, ", ")
}

// NeedsCredential reports whether a rule asks for a credential.
func (r *Rule) NeedsCredential() bool { return r.Auth != nil || r.IssueSession }

// isAuthTrial reports whether a rule asks for a credential but passes requests without a credential.
func (r *Rule) isAuthTrial() bool { return r.Auth != nil && r.Auth.Trial }

// enforcesAuth reports whether a rule refuses requests without a credential.
func (r *Rule) enforcesAuth() bool { return r.NeedsCredential() && !r.isAuthTrial() }

// hiddenBy returns the first rule, from first on, that matches every request of rule j; -1 for none.
func (c *Config) hiddenBy(first, j int) int {
	for i := first; i < j; i++ {
		if c.Rules[i].Match.Covers(&c.Rules[j].Match) {
			return i
		}
	}
	return -1
}
