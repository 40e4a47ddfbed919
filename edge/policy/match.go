package policy

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

// Location is the place of a request's path among the rules' paths, valid until the engine locates the next request.
type Location struct {
	// Passes means that the request certainly passes unchanged, with any method: no rule covers the path, and no header
	// must be removed.
	Passes bool

	engine   *Engine
	governor *governor
	host     *recentHost
	fields   headermap.Fields // all

	path      string // without its query
	plain     bool   // see plainPath
	candidate int    // the first rule that may cover path, -1 for none
}

// Locate finds a request's path among the rules' paths; names of fields must be in lower case. Most passing requests
// need only Locate, so the code is short: see docs/decisions/module.md.
func (e *Engine) Locate(fields headermap.Fields) (l Location) {
	l.engine, l.fields, l.host = e, fields, &e.hosts.absent
	if e.hosts.matter {
		l.host = e.hosts.findHost(fields)
	}
	g := l.host.governor
	l.governor = g
	for fields.HasMore() {
		if name, value := fields.Next(); name == ":path" {
			l.path, l.plain = plainPath(value)
			l.candidate = g.findCandidate(l.path, g.First)
			l.Passes = l.plain && l.candidate < 0 && !g.decidesUnmatched &&
				(l.fields.NameBits&e.removed.bits == 0 || e.removed.findNames(l.fields) == nil)
			break
		}
	}
	return l
}

// findRule sets the first rule for the request.
func (l *Location) findRule(r *Request) {
	if l.plain && isUpperCase(r.method()) {
		r.rule = l.governor.firstRule(r.method(), l.path, l.candidate)
	} else {
		l.findRuleOfReadings(r)
	}
}

// Governed reports whether the request needs a decision: otherwise no rule covers the request, which passes.
func (r *Request) Governed() bool { return r.rule >= 0 || r.ambiguous || r.governor.decidesUnmatched }

// isUpperCase reports whether all upstreams read method alike, see findRuleOfReadings.
func isUpperCase(method string) bool {
	for i := range len(method) {
		if c := method[i]; c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}

// maxMethod bounds a method that isn't plain, in bytes: a longer method is ambiguous, and never in use.
const maxMethod = 64

// findRuleOfReadings sets the rule that governs a request over all readings of path and method; -1 for none. Methods
// are case-sensitive (RFC 9110, section 9.1), and HTTP/2 brings methods in any case, but some upstreams read "post" as
// POST. All readings must be permitted: by the same rule, or some by a rule and the rest by the absence of rules.
//
//go:noinline
func (l *Location) findRuleOfReadings(r *Request) {
	method := r.method()
	upper := strings.ToUpper(strings.TrimSpace(method))
	g := l.governor
	all := metRules{governor: g, rule: -1}
	add := func(path string) bool {
		candidate := g.findCandidate(path, g.First)
		all.addRule(g.firstRule(method, path, candidate))
		if upper != method && candidate >= 0 {
			all.addRule(g.firstRule(upper, path, candidate))
		}
		return !all.ambiguous || g.hasTrial && !all.hasEnforced
	}
	if len(method) > maxMethod {
		all.addUnknown()
	} else if l.plain || l.path == "" || l.path == "*" { // "" and "*" are no path for any router
		add(l.path)
	} else if g.readings.readPath(l.path) {
		g.readings.eachEnd(add)
	} else {
		all.addUnknown()
	}
	r.rule, r.ambiguous = all.rule, all.ambiguous
	doubtful := g.WouldDenyByDefault && all.hasUnmatched && all.rule >= 0 // ambiguous with an enforced default
	r.tolerated = doubtful || all.ambiguous && all.hasTrial && !all.hasEnforced
}

// metRules has the rules of a request's readings so far.
type metRules struct {
	governor *governor

	rule         int // the rule of all readings; -1: none, or ambiguous
	ambiguous    bool
	hasReading   bool // readings were added
	hasUnmatched bool // a reading has no rule
	hasTrial     bool // a reading has a rule or default on trial
	hasEnforced  bool // a reading has a rule or default that refuses requests
}

// addRule adds the rule of a reading, -1 for none.
func (m *metRules) addRule(rule int) {
	switch {
	case rule >= 0:
		m.hasTrial = m.hasTrial || m.governor.rules[rule].isAuthTrial()
		m.hasEnforced = m.hasEnforced || m.governor.rules[rule].enforcesAuth()
	default:
		m.hasUnmatched = true
		m.hasTrial = m.hasTrial || m.governor.WouldDenyByDefault
		m.hasEnforced = m.hasEnforced || m.governor.DenyByDefault
	}
	switch {
	case m.ambiguous:
	case !m.hasReading, rule != m.rule && m.rule < 0 && !m.governor.DenyByDefault:
		m.rule = rule
	case rule != m.rule && (rule >= 0 || m.governor.DenyByDefault):
		m.rule, m.ambiguous = -1, true
	}
	m.hasReading = true
}

// addUnknown adds readings with unknown rules.
func (m *metRules) addUnknown() {
	m.ambiguous, m.hasTrial, m.hasEnforced = true, m.governor.hasTrial, m.governor.hasEnforced
}

// firstRule returns the first rule, from candidate on, that covers a path; -1 for none.
func (g *governor) firstRule(method, path string, candidate int) int {
	for candidate >= 0 && !g.rules[candidate].Match.matches(method, path) {
		candidate = g.findCandidate(path, candidate+1)
	}
	return candidate
}

// findCandidate returns the first rule, from from on, that may cover a path, by the rules' common prefixes; -1 for
// none. Like matches it is not inlined, for a single copy of the code.
//
//go:noinline
func (g *governor) findCandidate(path string, from int) int {
	for rule, end := from, g.End; rule < end; rule++ {
		begin, at := g.prefixes[rule], 0
		for at < len(begin) && at < len(path) && begin[at] == path[at] {
			at++
		}
		if at == len(begin) {
			return rule
		}
	}
	return -1
}

// matches reports whether a rule covers a request. A path covers itself with or without a slash at the end; a prefix
// covers every path that begins with the prefix and, for a prefix with a slash at the end, the path before the slash:
// upstreams commonly treat both as one resource.
//
//go:noinline
func (m *Match) matches(method, path string) bool {
	if m.Methods != nil && !m.permitsMethod(method) {
		return false
	}
	if m.Prefix != "" {
		return hasPathPrefix(path, m.Prefix)
	}
	return trimSlashes(path) == trimSlashes(m.Path)
}

// permitsMethod reports whether a method is among Methods. Upstreams commonly answer HEAD like GET (RFC 9110, section
// 9.3.2), so GET includes HEAD.
func (m *Match) permitsMethod(method string) bool {
	return slices.Contains(m.Methods, method) || (method == "HEAD" && slices.Contains(m.Methods, "GET"))
}

// Covers reports whether m matches all requests of other.
func (m *Match) Covers(other *Match) bool {
	if m.Methods != nil {
		if other.Methods == nil {
			return false
		}
		for _, method := range other.Methods {
			if !m.permitsMethod(method) {
				return false
			}
		}
	}
	if m.Prefix == "" {
		return m.Path != "" && other.Path != "" && trimSlashes(m.Path) == trimSlashes(other.Path)
	}
	if other.Prefix != "" {
		return strings.HasPrefix(other.Prefix, m.Prefix)
	}
	return other.Path != "" && hasPathPrefix(trimSlashes(other.Path), m.Prefix)
}

// permitsRead reports whether GET or HEAD is among the methods.
func (m *Match) permitsRead() bool {
	return m.Methods == nil || slices.Contains(m.Methods, "GET") || slices.Contains(m.Methods, "HEAD")
}

func hasPathPrefix(path, prefix string) bool {
	if strings.HasPrefix(path, prefix) {
		return true
	}
	last := len(prefix) - 1
	return last > 0 && prefix[last] == '/' && path == prefix[:last]
}

// trimSlashes removes slashes at the end of path.
func trimSlashes(path string) string {
	for len(path) > 1 && path[len(path)-1] == '/' {
		path = path[:len(path)-1]
	}
	return path
}

// plainPath returns the path of a target, without the query, and whether the path certainly has a single reading, see
// [readings]. plainPath is cheaper than following the readings.
func plainPath(target string) (path string, plain bool) {
	if len(target) > maxPlain {
		if target = withoutQuery(target); len(target) > maxPlain {
			return target, false
		}
	}
	plain = target != "" && target[0] == '/'
	var before byte
	for i := range len(target) {
		c := target[i]
		if k := classes[c]; k != letter {
			if c == '?' {
				target = target[:i]
				break
			}
			if k >= odd || c == '\\' || before == '/' || before == '.' {
				plain = false
			}
		}
		before = c
	}
	return target, plain && before != '.'
}

// maxPlain bounds a plain path, in bytes: no plain path has more than maxParts segments.
const maxPlain = 2 * maxParts

//go:noinline
func withoutQuery(target string) string {
	path, _, _ := strings.Cut(target, "?")
	return path
}
