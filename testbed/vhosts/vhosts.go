// Package vhosts makes random configurations with virtual hosts, with objects and requests, and determines the right
// result of each request. The package is written from Envoy's documentation of virtual hosts and from docs/rules.md,
// without code of the product, so that tests can compare the two.
package vhosts

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
)

// Config is a configuration with objects and devices.
type Config struct {
	hosts  map[string]host // by name, "" for the top level
	strict bool            // some rule or default refuses
	// Objects are by key.
	Objects map[string]audience
	// Devices has the permissions of each device.
	Devices map[string][]string
}

type host struct {
	Domains     []string     `json:"domains,omitempty"`
	Rules       []rule       `json:"rules"`
	Default     string       `json:"default"`
	Credentials *credentials `json:"credentials,omitempty"`
	kind        int          // of credentials
}

type rule struct {
	Name  string            `json:"name"`
	Match map[string]string `json:"match"`
	Auth  *auth             `json:"auth,omitempty"`
	Cache *cache            `json:"cache,omitempty"`
}

type auth struct {
	Permissions []string `json:"permissions,omitempty"`
}

type cache struct {
	Scope  any    `json:"scope"`
	OnMiss string `json:"on_miss"`
}

// credentials tell where a virtual host's credentials are.
type credentials struct {
	IDHeader     string `json:"id_header,omitempty"`
	SecretHeader string `json:"secret_header,omitempty"`
	Basic        bool   `json:"basic,omitempty"`
	APIKeyHeader string `json:"api_key_header,omitempty"`
	Bearer       bool   `json:"bearer,omitempty"`
}

// objects is the number of objects of a configuration. Some have the same key.
const objects = 150

// kinds are the credentials of virtual hosts. The first kind is the top level's.
var kinds = [5]credentials{{IDHeader: "x-device-id", SecretHeader: "x-device-token"},
	{IDHeader: "x-own-id", SecretHeader: "x-own-token"}, {Basic: true}, {APIKeyHeader: "x-own-key"}, {Bearer: true}}

// DeviceSecret returns the secret of a device, in the form of generated secrets.
func DeviceSecret(device string) string {
	random := sha256.Sum256([]byte(device))
	secret := "gh_" + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random[:16])
	return fmt.Sprintf("%s_%08x", secret, crc32.ChecksumIEEE([]byte(secret)))
}

// hostPermission returns the permission in the rules of a virtual host.
func hostPermission(virtual string) string { return "at-" + virtual }

// AllPermissions returns all permissions.
func AllPermissions() (all []string) {
	for _, name := range append([]string{""}, names...) {
		all = append(all, hostPermission(name))
	}
	return all
}

var (
	names   = []string{"shop", "a", "b", "s-1", "s_1", "no"}
	domains = []string{"a", "b", "a.b", "*.a", "*.b", "*.a.b", "*.b.a.b", "shop", "*.shop", "[::1]", "[1::]", "a.a", "*",
		"x-y.b", "*.x-y.b", "127.0.0.1"}
	hosts = []string{"a", "b", "A", "B.a", "a.b", "x.a", "x.a.b", "c.b.a.b", "C.B.A.B", ".a", ".a.b", "a.", "shop",
		"x.shop", "[::1]", "[1::]", "a.a", "y.x-y.b", "127.0.0.1", "none", "b.b.b.b", "ba", "x.ba", "xshop", "bx-y.b", ""}
	paths   = []string{"/", "/v1", "/v1/x", "/shop", "/shop/v1", "/:a/v1", "/a", "/a/v1", "/@d/v1"}
	devices = []string{"d", "a", "shop", ":a", "d:a", "x@d"}
)

func oneOf[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// NewConfig returns a random configuration.
func NewConfig(r *rand.Rand) *Config {
	c := &Config{hosts: map[string]host{}, Objects: map[string]audience{}, Devices: map[string][]string{}}
	free := slices.Clone(domains)
	r.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	all := false
	for _, name := range names[:1+r.IntN(len(names))] {
		n := 1 + r.IntN(3)
		if n > len(free) {
			break
		}
		c.hosts[name] = newHost(r, name, free[:n])
		all = all || slices.Contains(free[:n], "*")
		free = free[n:]
	}
	top := newHost(r, "", nil)
	top.kind = 0
	if all {
		top.Rules = nil // refused
	}
	c.hosts[""] = top
	for _, h := range c.hosts {
		c.strict = c.strict || h.Default == "deny" || slices.ContainsFunc(h.Rules, func(r rule) bool { return r.Auth != nil })
	}
	for _, device := range devices {
		c.Devices[device] = []string{}
		for _, permission := range AllPermissions() {
			if r.IntN(2) == 0 {
				c.Devices[device] = append(c.Devices[device], permission)
			}
		}
	}
	for range objects {
		u := c.newAudience(r)
		c.Objects[u.objectKey()] = u
	}
	return c
}

func newHost(r *rand.Rand, name string, domains []string) host {
	h := host{Domains: domains, Default: oneOf(r, []string{"pass", "pass", "deny"}),
		kind: oneOf(r, []int{0, 0, 1, 2, 3, 4})}
	if h.kind != 0 {
		h.Credentials = &kinds[h.kind]
	}
	used := map[string]bool{}
	for i := range r.IntN(4) {
		path := oneOf(r, paths)
		if path == "/" || used[path] {
			continue
		}
		used[path] = true
		h.Rules = append(h.Rules, newRule(r, name, fmt.Sprintf("r%d", i), map[string]string{"path": path}))
	}
	if r.IntN(2) == 0 {
		h.Rules = append(h.Rules, newRule(r, name, "all", map[string]string{"prefix": "/"}))
	}
	return h
}

func newRule(r *rand.Rand, virtual, name string, match map[string]string) rule {
	made := rule{Name: name, Match: match}
	scopes := []any{"shared", "shared", "host", []string{"host"}}
	if r.IntN(3) == 0 {
		made.Auth = &auth{}
		if r.IntN(4) > 0 {
			made.Auth.Permissions = []string{hostPermission(virtual)}
		}
		scopes = append(scopes, "device", "device", []string{"device", "host"}, []string{"host", "device"})
	}
	if r.IntN(8) > 0 {
		made.Cache = &cache{oneOf(r, scopes), oneOf(r, []string{"pass", "pass", "pass", "fetch"})}
	}
	return made
}

// Rules returns the configuration of the filter.
func (c *Config) Rules() string {
	named := map[string]host{}
	for name, h := range c.hosts {
		if name != "" {
			named[name] = h
		}
	}
	text, err := json.Marshal(map[string]any{"credentials": kinds[0], "rules": c.hosts[""].Rules,
		"default": c.hosts[""].Default, "virtual_hosts": named, "sidecar": map[string]any{"timeout": "20s"}})
	if err != nil {
		panic(err) // all these types can be marshaled
	}
	return strings.ReplaceAll(string(text), `"rules":null`, `"rules":[]`)
}

// DomainsByHost returns the domains of each virtual host by name, and "*" for "" if no virtual host has "*".
func (c *Config) DomainsByHost() map[string][]string {
	of, all := map[string][]string{}, false
	for name, h := range c.hosts {
		if name != "" {
			of[name] = h.Domains
			all = all || slices.Contains(h.Domains, "*")
		}
	}
	if !all {
		of[""] = []string{"*"}
	}
	return of
}

// audience describes the requests that an object is for.
type audience struct{ device, virtual, host, path string }

// objectKey returns the key in the form of docs/publish.md.
func (u audience) objectKey() string {
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

// newAudience returns a random audience of an object. Half of the audiences match some request, or differ from a match
// in one respect.
func (c *Config) newAudience(r *rand.Rand) audience {
	u := audience{path: oneOf(r, paths), virtual: oneOf(r, append([]string{""}, names...))}
	if r.IntN(2) == 0 {
		u.host = strings.ToLower(oneOf(r, hosts))
	}
	if r.IntN(3) == 0 {
		u.device = oneOf(r, devices)
	}
	if v := c.JudgeRequest(c.RandomRequest(r)); v.Key != "" {
		other := u
		u = v.audience
		switch r.IntN(6) {
		case 0:
			u.virtual = other.virtual
		case 1:
			u.host = other.host
		case 2:
			u.device = other.device
		}
	}
	return u
}

// Request is a GET.
type Request struct {
	Hosts   []string // lines; some can't be a host
	Target  string
	Headers [][2]string
	devices [len(kinds)]string // of the credentials, by kind; "" without a complete credential
}

// RandomRequest returns a random request.
func (c *Config) RandomRequest(r *rand.Rand) Request {
	q := Request{Target: oneOf(r, paths)}
	other := 2 + 2*r.IntN(2) // a kind in Authorization
	for kind := range kinds {
		if kind != other {
			q.addCredential(r, kind)
		}
	}
	host := oneOf(r, hosts)
	switch r.IntN(16) {
	case 0:
		q.Target = oneOf(r, []string{"//", "//shop", "//:a"}) + q.Target
	case 1:
		if host == "" {
			host = "a"
		}
		host += oneOf(r, []string{":80", ":", ":65535"})
	case 2:
		host = oneOf(r, []string{"u@", "a,", " ", "http://", "[", "a:"}) + host
	case 3:
		host += oneOf(r, []string{",a", "@a", "/", ":x", ":1:1", "]", "\x01", "%41", ":123456"})
	case 4:
		q.Hosts = []string{oneOf(r, hosts)}
	case 5:
		return q
	}
	q.Hosts = append(q.Hosts, host)
	return q
}

// addCredential adds a credential of a kind, or a part, or nothing.
func (q *Request) addCredential(r *rand.Rand, kind int) {
	device, chance := oneOf(r, devices), r.IntN(10)
	switch {
	case chance == 0 || kinds[kind].Basic && strings.Contains(device, ":"): // RFC 7617: the id has no colon
		return
	case kinds[kind].Basic:
		q.Headers = append(q.Headers, [2]string{"authorization",
			"Basic " + base64.StdEncoding.EncodeToString([]byte(device+":"+DeviceSecret(device)))})
	case kinds[kind].Bearer || kinds[kind].APIKeyHeader != "":
		name, key := kinds[kind].APIKeyHeader, "gh_"+device+strings.TrimPrefix(DeviceSecret(device), "gh")
		if chance == 1 {
			key = key[:len(key)-1] // half a checksum
		}
		if kinds[kind].Bearer {
			name, key = "authorization", "Bearer "+key
		}
		q.Headers = append(q.Headers, [2]string{name, key})
		if chance == 1 {
			return
		}
	default:
		q.Headers = append(q.Headers, [2]string{kinds[kind].IDHeader, device})
		if chance == 1 {
			return
		}
		q.Headers = append(q.Headers, [2]string{kinds[kind].SecretHeader, DeviceSecret(device)})
	}
	q.devices[kind] = device
}

// Verdict is the right result of a request. Without status and object, the request goes upstream.
type Verdict struct {
	Virtual string // the virtual host of the request, "" for the top level
	Rule    string // as in counters; "none"
	Status  int    // of a refusal
	Reason  string // of a refusal
	Device  string // the authenticated device
	Key     string // the key looked up
	Object  string // the key of the object in the answer
	// Ambiguous means that the request has several hosts, or an invalid host.
	Ambiguous bool
	// Vague means that routers read the path in different ways, and may choose different rules, all of the virtual host
	// Virtual. Any object of Virtual for the host and device may be the answer.
	Vague bool

	host, device string   // of the request, as the virtual host reads the request
	audience     audience // audience of the object at Key
}

var unambiguous = regexp.MustCompile(`^(?:([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?)?$`)

// JudgeRequest returns the right result of a request.
func (c *Config) JudgeRequest(q Request) Verdict {
	v := Verdict{Rule: "none"}
	if len(q.Hosts) > 0 {
		parts := unambiguous.FindStringSubmatch(q.Hosts[0])
		if parts == nil || len(q.Hosts) > 1 {
			if v.Ambiguous = true; c.strict {
				v.Status, v.Reason = 403, AmbiguousHost
			}
			return v
		}
		v.host = strings.ToLower(parts[1])
	}
	v.Virtual = c.virtualHost(v.host)
	h := c.hosts[v.Virtual]
	v.device = q.devices[h.kind]
	if v.Vague = strings.HasPrefix(q.Target, "//"); v.Vague {
		return v
	}
	for _, rule := range h.Rules {
		if rule.Match["prefix"] == "/" || rule.Match["path"] == q.Target {
			c.applyRule(&v, rule, q.Target)
			return v
		}
	}
	if h.Default == "deny" {
		v.Status, v.Reason = 403, "gatehouse_forbidden_default"
	}
	return v
}

// AmbiguousHost is the reason for refusing a request because of its host.
const AmbiguousHost = "gatehouse_forbidden_ambiguous_host"

// virtualHost returns the virtual host of a host by Envoy's search: exact domain names, then suffix wildcards, the
// longest first and never for the empty string, then "*".
func (c *Config) virtualHost(host string) (virtual string) {
	longest := -1
	for name, h := range c.hosts {
		for _, domain := range h.Domains {
			if domain == host {
				return name
			}
			end, wild := strings.CutPrefix(domain, "*")
			matches := domain == "*" || wild && len(host) > len(end) && strings.HasSuffix(host, end)
			if matches && len(end) > longest {
				virtual, longest = name, len(end)
			}
		}
	}
	return virtual
}

// applyRule adds a rule's effects to a verdict.
func (c *Config) applyRule(v *Verdict, rule rule, path string) {
	v.Rule = v.rulePrefix() + rule.Name
	if rule.Auth != nil {
		if v.device == "" {
			v.Status, v.Reason = 401, "gatehouse_denied_no_credential"
			return
		}
		for _, permission := range rule.Auth.Permissions {
			if !slices.Contains(c.Devices[v.device], permission) {
				v.Status, v.Reason = 403, "gatehouse_forbidden_permission"
				return
			}
		}
		v.Device = v.device
	}
	if rule.Cache == nil {
		return
	}
	scope := fmt.Sprint(rule.Cache.Scope)
	u := audience{virtual: v.Virtual, path: path}
	if strings.Contains(scope, "host") {
		if u.host = v.host; u.host == "" {
			return
		}
	}
	if strings.Contains(scope, "device") {
		u.device = v.device
	}
	v.audience, v.Key = u, u.objectKey()
	if _, found := c.Objects[v.Key]; found {
		v.Object = v.Key
	}
}

// FindDifference names the difference between a verdict and the wanted verdict, or returns "". An edge reports no empty
// rule, reason and key.
func (c *Config) FindDifference(want, got Verdict) string {
	switch {
	case want.Vague && got.Object != "" && !c.mayGet(want, got.Object):
		return "another's object"
	case want.Vague && got.Status != 0 && got.Status != 401 && got.Status != 403:
		return "status"
	case want.Vague && got.Rule != "" && got.Rule != "none" &&
		strings.TrimSuffix(got.Rule, ownName.FindString(got.Rule)) != want.rulePrefix():
		return "another's rule"
	case want.Vague:
		return ""
	case got.Status != want.Status || got.Reason != "" && got.Reason != want.Reason:
		return "status"
	case got.Object != want.Object:
		return "object"
	case got.Rule != "" && got.Rule != want.Rule:
		return "rule"
	case got.Key != "" && got.Key != want.Key:
		return "key"
	case got.Object == "" && got.Device != want.Device:
		return "device"
	}
	return ""
}

var ownName = regexp.MustCompile(`[^/]*$`)

// rulePrefix begins the names of the virtual host's rules in counters.
func (v Verdict) rulePrefix() string {
	if v.Virtual == "" {
		return ""
	}
	return v.Virtual + "/"
}

// mayGet reports whether an object, by its key, can be the answer to a vague request.
func (c *Config) mayGet(v Verdict, key string) bool {
	u, found := c.Objects[key]
	return found && u.virtual == v.Virtual && (u.host == "" || u.host == v.host) &&
		(u.device == "" || u.device == v.device)
}

// String returns the verdict in words.
func (v Verdict) String() string {
	at := fmt.Sprintf("rule %q of virtual host %q", v.Rule, v.Virtual)
	switch {
	case v.Vague:
		return "any rule of " + at[len("rule \"none\" of "):]
	case v.Status != 0:
		return fmt.Sprintf("%d %s by %s", v.Status, v.Reason, at)
	case v.Object != "":
		return fmt.Sprintf("the object %s by %s", v.Object, at)
	}
	return fmt.Sprintf("upstream, with device %q, by %s", v.Device, at)
}

// Outcome is the class of a verdict, from [AllOutcomes].
func (v Verdict) Outcome() string {
	switch {
	case v.Vague:
		return "vague"
	case v.Status != 0:
		return v.Reason
	case strings.HasPrefix(v.Object, "@"):
		return "object of a device"
	case strings.HasPrefix(v.Object, "//"):
		return "object of a host"
	case v.Object != "":
		return "object"
	case v.Device != "":
		return "device"
	}
	return "upstream"
}

// AllOutcomes returns the classes that a test must see often.
func AllOutcomes() []string {
	return []string{"vague", AmbiguousHost, "gatehouse_forbidden_default", "gatehouse_forbidden_permission",
		"gatehouse_denied_no_credential", "object of a device", "object of a host", "object", "device", "upstream"}
}
