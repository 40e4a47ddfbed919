package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
	"github.com/gatehouse/gatehouse/edge/headermap"
)

// VirtualHost has the rules for the hosts of some domains.
type VirtualHost struct {
	Name string
	// Domains are hosts, "*.example.com" for each host below example.com, or "*" for all. As in Envoy, the host itself
	// comes first, then the longest suffix, then "*".
	Domains []string // lower case
	HostRules
}

// HostRules are the rules of one virtual host, or of all hosts without a virtual host.
type HostRules struct {
	First, End  int // the rules are Config.Rules[First:End]
	Credentials Credentials
	Source      Source
	// As the same fields of [Config].
	DenyByDefault, WouldDenyByDefault bool
}

// NoVirtualHost is the index for requests without a virtual host.
const NoVirtualHost = -1

// HostRules returns the rules of a virtual host by index, or of [NoVirtualHost].
func (c *Config) HostRules(host int) HostRules {
	if host != NoVirtualHost {
		return c.VirtualHosts[host].HostRules
	}
	top := HostRules{End: len(c.Rules), Credentials: c.Credentials, Source: c.Source, DenyByDefault: c.DenyByDefault,
		WouldDenyByDefault: c.WouldDenyByDefault}
	if len(c.VirtualHosts) > 0 {
		top.End = c.VirtualHosts[0].First
	}
	return top
}

// findEnforcement reports whether some rule or the default is on trial, and whether some rule or the default is
// enforced.
func (c *Config) findEnforcement(h HostRules) (tries, enforces bool) {
	tries, enforces = h.WouldDenyByDefault, h.DenyByDefault
	for i := h.First; i < h.End; i++ {
		tries = tries || c.Rules[i].isAuthTrial()
		enforces = enforces || c.Rules[i].enforcesAuth()
	}
	return tries, enforces
}

// DependsOnHost reports whether a decision can depend on the request's host.
func (c *Config) DependsOnHost() bool {
	return len(c.VirtualHosts) > 0 ||
		slices.ContainsFunc(c.Rules, func(r Rule) bool { return r.Cache != nil && r.Cache.PerHost })
}

// VirtualHostOf returns the index of a rule's virtual host, by the rule's index.
func (c *Config) VirtualHostOf(rule int) int {
	return slices.IndexFunc(c.VirtualHosts, func(h VirtualHost) bool { return h.First <= rule && rule < h.End })
}

// RuleField returns the path of a rule's field by the rule's index, e.g. "virtual_hosts.shop.rules[0]".
func (c *Config) RuleField(rule int) string {
	if host := c.VirtualHostOf(rule); host != NoVirtualHost {
		h := &c.VirtualHosts[host]
		return fmt.Sprintf("%s.rules[%d]", virtualHostField(h.Name), rule-h.First)
	}
	return fmt.Sprintf("rules[%d]", rule)
}

// RuleTitle returns the path of a rule's field and, if present, the rule's name: "rules[0] (products)".
func (c *Config) RuleTitle(rule int) string {
	at, name := c.RuleField(rule), ownName(c.Rules[rule].Name)
	if strings.HasSuffix(at, "["+name+"]") {
		return at
	}
	return at + " (" + name + ")"
}

func virtualHostField(name string) string { return "virtual_hosts." + name }

// ownName returns a rule's name without the virtual host's.
func ownName(rule string) string { return rule[strings.IndexByte(rule, '/')+1:] }

// decodeVirtualHosts appends the virtual hosts and their rules.
func (c *Config) decodeVirtualHosts(o *object) {
	f, at, v := o.field("virtual_hosts")
	if v == nil {
		return
	}
	all, ok := v.(map[string]any)
	if !ok {
		o.addProblem(at, "is %s, want an object with a field for each virtual host", describeValue(v))
		return
	}
	if len(all) > f.Max {
		o.addProblem(at, "has %d entries, at most %d", len(all), f.Max)
		return
	}
	owners := map[string]string{} // of domains
	for _, name := range slices.Sorted(maps.Keys(all)) {
		at := virtualHostField(name)
		if !limits.ValidVirtualHost(name) {
			o.addProblem(at, "the name is not 1 to %d of a-z, 0-9, _ and -", limits.MaxVirtualHost)
			continue
		}
		m := o.decodeObject(at, all[name], f.Fields)
		if m.values == nil {
			continue
		}
		h := VirtualHost{Name: name, HostRules: c.HostRules(NoVirtualHost)}
		h.Domains = m.decodeDomains(owners)
		if m.values["credentials"] != nil {
			h.Credentials = m.decodeCredentials()
		}
		if m.values["source"] != nil {
			h.Source = m.decodeSource()
		}
		h.DenyByDefault, h.WouldDenyByDefault = m.decodeDefault()
		h.First = len(c.Rules)
		c.decodeRules(&m, name)
		h.End = len(c.Rules)
		c.VirtualHosts = append(c.VirtualHosts, h)
	}
	if owner, found := owners["*"]; found && c.HostRules(NoVirtualHost).End > 0 {
		o.addProblem("rules", "are never reached: %s has the domain *, which is for all other hosts", owner)
	}
}

// decodeDomains returns the domains of a virtual host, and adds the domains to owners.
func (o *object) decodeDomains(owners map[string]string) (domains []string) {
	f, at, v := o.field("domains")
	if v == nil {
		if o.isSound() {
			o.addProblem(at, "is missing: %s", f.IfEmpty)
		}
		return nil
	}
	shared := map[string][]int{} // indexes of domains, by the first owner
	list := o.readTexts("domains")
	for i, domain := range list {
		switch owner := owners[domain]; owner {
		case "":
			if domain != "" {
				owners[domain] = o.at
				domains = append(domains, domain)
			}
		case o.at:
			o.addProblem(fmt.Sprintf("%s[%d]", at, i), "%q is listed twice", domain)
		default:
			shared[owner] = append(shared[owner], i)
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(shared)) {
		these := shared[owner]
		text := fmt.Sprintf("%q is also a domain of %s", list[these[0]], owner)
		if len(these) > 1 {
			text += fmt.Sprintf(", and so are %d more", len(these)-1)
		}
		o.addProblem(fmt.Sprintf("%s[%d]", at, these[0]), "%s", text)
	}
	return domains
}

// domainProblem returns the problem of a domain, "" for none.
func domainProblem(domain string) string {
	host, wild := strings.CutPrefix(domain, "*.")
	switch {
	case domain == "*":
		return ""
	case strings.Contains(host, "*"):
		return "want * alone, or before a dot at the beginning, e.g. *.example.com"
	case len(domain) > limits.MaxHost:
		return fmt.Sprintf("has %d bytes, at most %d", len(domain), limits.MaxHost)
	case host != strings.ToLower(host):
		return "want lower case; the case of a request's host doesn't matter"
	case strings.HasSuffix(host, "."):
		return "want no dot at the end"
	case limits.ValidHost(host) && !(wild && host[0] == '['):
		return ""
	}
	if before, port, found := strings.Cut(host, ":"); found && limits.ValidHost(before) && ValidPort(port) {
		return "want no port: the port of a request's host doesn't matter"
	}
	return "is no host: want letters, digits and . - _, or an IPv6 address in brackets"
}

// virtualHostTable finds the virtual host of a host.
type virtualHostTable struct {
	exact map[string]matchedDomain
	ends  map[string]matchedDomain // by the domain without "*"
	any   matchedDomain            // of the domain "*"
}

// FindVirtualHost returns a function from a host, in lower case and without port, to the index of the virtual host, or
// [NoVirtualHost].
func (c *Config) FindVirtualHost() func(host string) int {
	table := newVirtualHostTable(c.VirtualHosts)
	return func(host string) int { return table.findDomain(host).host }
}

// matchedDomain is the index of a virtual host and the index of a domain of the host.
type matchedDomain struct{ host, domain int }

func newVirtualHostTable(hosts []VirtualHost) *virtualHostTable {
	t := &virtualHostTable{exact: map[string]matchedDomain{}, ends: map[string]matchedDomain{},
		any: matchedDomain{host: NoVirtualHost}}
	for i := range hosts {
		for j, domain := range hosts[i].Domains {
			if end, wild := strings.CutPrefix(domain, "*"); !wild {
				t.exact[domain] = matchedDomain{i, j}
			} else if end != "" {
				t.ends[end] = matchedDomain{i, j}
			} else {
				t.any = matchedDomain{i, j}
			}
		}
	}
	return t
}

// findDomain returns the matching domain of a host, in lower case and without port; "" for a request without a host.
func (t *virtualHostTable) findDomain(host string) matchedDomain {
	if p, found := t.exact[host]; found {
		return p
	}
	if len(t.ends) > 0 {
		for i := 1; i < len(host); i++ { // a "*" is for at least one byte
			if host[i] != '.' {
				continue
			}
			if p, found := t.ends[host[i:]]; found {
				return p
			}
		}
	}
	return t.any
}

// governor is an engine's data for the requests of one virtual host, or of all hosts without a virtual host.
type governor struct {
	HostRules
	rules []Rule // all
	// prefixes has, for each rule, the common prefix of all covered paths.
	prefixes []string

	name    string // of the virtual host, "" for none
	refusal Reason // of requests without a matching rule, unless the default passes them
	// decidesUnmatched means that requests without a matching rule need a decision.
	decidesUnmatched bool
	// hasTrial means that some rule or the default isn't enforced, hasEnforced that some rule or the default is.
	hasTrial, hasEnforced bool
	readings              readings // of the last path that wasn't plain
	known                 knownHeaders
	// secret and apiKey are the headers with the secret or API key, which no upstream gets from an authenticated
	// request.
	secret, apiKey []string
	// varyCredential and varyEncodedCredential are the Vary of answers to requests with a credential.
	varyCredential, varyEncodedCredential string
}

func newGovernor(c *Config, prefixes []string, rules HostRules) *governor {
	g := &governor{HostRules: rules, rules: c.Rules, prefixes: prefixes, refusal: DefaultDeny}
	g.decidesUnmatched = g.DenyByDefault || g.WouldDenyByDefault
	g.hasTrial, g.hasEnforced = c.findEnforcement(rules)
	g.readings = newReadings(c.Rules[g.First:g.End])
	g.known = newKnownHeaders(&g.Credentials, slices.ContainsFunc(c.Rules[g.First:g.End],
		func(r Rule) bool { return r.Cache != nil && r.Cache.Languages != nil }))
	g.varyCredential = strings.Join(credentialHeaders(&g.Credentials, c.SessionMetadata != ""), ", ")
	g.varyEncodedCredential = varyEncoding + ", " + g.varyCredential
	g.secret, g.apiKey = []string{g.Credentials.SecretHeader}, []string{g.Credentials.APIKeyHeader}
	return g
}

// hosts finds the host of each request, with the host's governor.
type hosts struct {
	matter    bool // decisions may depend on hosts; otherwise all requests are as without a host
	table     *virtualHostTable
	governors []*governor    // by virtual host, beginning with NoVirtualHost
	absent    recentHost     // of requests without a host
	ambiguous recentHost     // of requests whose host is ambiguous; without a name
	recent    [64]recentHost // by the hash of the authority
	last      *recentHost    // of the last request with a host, in recent
}

// recentHost is the host of a valid authority. The slices are reused, so new hosts cost no garbage.
type recentHost struct {
	authority, name []byte
	matched         matchedDomain
	governor        *governor
}

func newHosts(c *Config) *hosts {
	var prefixes []string
	for i := range c.Rules {
		prefixes = append(prefixes, trimSlashes(c.Rules[i].Match.Prefix+c.Rules[i].Match.Path))
	}
	h := &hosts{matter: c.DependsOnHost(), table: newVirtualHostTable(c.VirtualHosts)}
	h.last = &h.recent[0]
	tries, enforces := false, false
	for host := NoVirtualHost; host < len(c.VirtualHosts); host++ {
		g := newGovernor(c, prefixes, c.HostRules(host))
		if host != NoVirtualHost {
			g.name = c.VirtualHosts[host].Name
		}
		h.governors = append(h.governors, g)
		tries = tries || g.hasTrial
		enforces = enforces || g.hasEnforced
	}
	h.matchDomain(&h.absent)
	h.ambiguous = recentHost{matched: matchedDomain{host: NoVirtualHost}, governor: h.governors[0]}
	if len(c.VirtualHosts) > 0 {
		rules := HostRules{DenyByDefault: enforces, WouldDenyByDefault: tries && !enforces}
		h.ambiguous.governor = newGovernor(c, prefixes, rules)
		h.ambiguous.governor.refusal = AmbiguousHost
	}
	return h
}

// matchDomain sets the domain that the host matches, and the governor.
func (h *hosts) matchDomain(m *recentHost) {
	m.matched = h.table.findDomain(asString(m.name))
	m.governor = h.governors[m.matched.host+1]
}

// findHost returns the host of a request with these headers.
//
//go:noinline
func (h *hosts) findHost(fields headermap.Fields) *recentHost {
	authority, lines := "", 0
	for fields.HasMore() {
		if name, value := fields.Next(); name == ":authority" || name == "host" {
			authority = value
			lines++
		}
	}
	switch {
	case lines > 1:
		return &h.ambiguous
	case authority == "":
		return &h.absent
	}
	return h.lookUpAuthority(authority)
}

// lookUpAuthority returns the host of an authority: ambiguous if proxies and upstreams may read different hosts.
func (h *hosts) lookUpAuthority(authority string) *recentHost {
	if string(h.last.authority) == authority {
		return h.last
	}
	hash := uint32(2166136261) // FNV-1a
	for i := range len(authority) {
		hash = (hash ^ uint32(authority[i])) * 16777619
	}
	m := &h.recent[hash%uint32(len(h.recent))]
	if string(m.authority) != authority {
		var ok bool
		m.authority = m.authority[:0]
		if m.name, ok = appendHost(m.name[:0], authority); !ok {
			return &h.ambiguous
		}
		m.authority = append(m.authority, authority...)
		h.matchDomain(m)
	}
	h.last = m
	return m
}

// appendKeySpace appends what precedes the path in the cache key of the request under a rule of a virtual host, or for
// the objects of a host; false if the request has no host.
//
//go:noinline
func (r *Request) appendKeySpace(dst []byte, c *Cache) ([]byte, bool) {
	host := ""
	if c.PerHost {
		if host = asString(r.host.name); host == "" {
			return dst, false
		}
	}
	return objectkey.AppendOfVirtualHost(dst, r.governor.name, host, ""), true
}

// VirtualHost returns the index of the request's virtual host, or [NoVirtualHost], and the domain that the request's
// host matched.
func (r *Request) VirtualHost() (host int, domain string) {
	m := r.host.matched
	if m.host == NoVirtualHost {
		return NoVirtualHost, ""
	}
	return m.host, r.engine.config.VirtualHosts[m.host].Domains[m.domain]
}

// Source tells where to find the client's address of the request.
func (r *Request) Source() *Source { return &r.governor.Source }

// ValidPort reports whether port can be a host's port: at most 5 digits, perhaps none (RFC 3986, section 3.2.3).
func ValidPort(port string) bool { return len(port) <= 5 && strings.Trim(port, "0123456789") == "" }

// appendHost appends the host of an authority to dst, in lower case and without port. It returns false for an authority
// that proxies and upstreams may read as different hosts.
func appendHost(dst []byte, authority string) ([]byte, bool) {
	end := len(authority)
	if colon := strings.LastIndexByte(authority, ':'); colon > strings.LastIndexByte(authority, ']') {
		if !ValidPort(authority[colon+1:]) {
			return dst, false
		}
		end = colon
	}
	start := len(dst)
	for i := range min(end, limits.MaxHost+1) {
		c := authority[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst, limits.ValidHost(asString(dst[start:]))
}
