package policy

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/wasm-filter/headermap"
)

// Location is where the path of a request lies among those of the rules.
type Location struct {
	// Passes says that the request surely passes as it came, whatever its method: no rule covers it, and
	// no header must be removed.
	Passes bool

	path      string // without its query
	plain     bool   // see plainPath
	candidate int    // the first rule that may cover it, -1 if there is none
}

// Locate finds the path of a request among those of the rules. It is all that most requests need which pass,
// and so is short: what a request runs through costs by its length.
func (e *Engine) Locate(fields headermap.Fields) (l Location) {
	all := fields
	for fields.More() {
		if name, value := fields.Next(); name == ":path" {
			l.path, l.plain = plainPath(value)
			l.candidate = e.candidate(l.path, 0)
			l.Passes = l.plain && //mutant:TestLocate true
				l.candidate < 0 &&
				!e.config.DenyByDefault && //mutant:wasm-filter/TestDefault true
				(all.NameBits&e.removedBits == 0 || e.removedOf(all) == nil) //mutant:wasm-filter/TestForgedIdentity true
			break
		}
	}
	return l
}

// Govern finds the first rule that a request falls under whose path lies there. It is false if the request
// needs no decision: no rule covers it, and such pass.
func (e *Engine) Govern(r *Request, at *Location) bool {
	if at.plain && inUpperCase(r.method()) { //mutant:TestRuleOfMethod at.plain
		r.rule = e.firstRule(r.method(), at.path, at.candidate)
	} else {
		r.rule, r.ambiguous = e.ruleOf(r.method(), at)
	}
	return r.rule >= 0 || r.ambiguous ||
		e.config.DenyByDefault //mutant:wasm-filter/TestDefault false
}

// inUpperCase reports whether method is as any upstream takes it, see ruleOf.
func inUpperCase(method string) bool {
	for i := range len(method) {
		if c := method[i]; c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}

// maxMethod bounds a method that isn't plain, bytes: nobody has one so long, and it is ambiguous.
const maxMethod = 64

// ruleOf is the rule that governs a request, -1 if there is none: of each reading of its path with each of its method.
// Methods are case-sensitive (RFC 9110, section 9.1), and HTTP/2 brings them in any case, but some upstreams
// take "post" for POST. So what came and what it may be taken for must both be permitted, see [Engine.both].
//
//go:noinline
func (e *Engine) ruleOf(method string, at *Location) (rule int, ambiguous bool) {
	if len(method) > maxMethod { //mutant:TestTooManyParts false
		return -1, true
	}
	upper := strings.ToUpper(strings.TrimSpace(method))
	first := true
	add := func(path string) bool {
		candidate := e.candidate(path, 0)
		found := e.firstRule(method, path, candidate)
		if upper != method && candidate >= 0 { //mutant:TestRuleOfMethod upper == ""
			if found, ambiguous = e.both(found, e.firstRule(upper, path, candidate)); ambiguous {
				return false
			}
		}
		if first {
			rule, first = found, false
			return true
		}
		rule, ambiguous = e.both(rule, found)
		return !ambiguous
	}
	if at.plain || at.path == "" || at.path == "*" { // which no router takes for a path
		add(at.path)
	} else if ambiguous = !e.readings.read(at.path); !ambiguous {
		e.readings.each(add)
	}
	if ambiguous {
		return -1, true
	}
	return rule, false
}

// both is the rule of a request that upstreams may read in two ways, which have these rules. Both ways
// must be permitted: by one rule, or by one where the other has none. Else it is ambiguous.
func (e *Engine) both(a, b int) (rule int, ambiguous bool) {
	switch {
	case a == b || a < 0 && !e.config.DenyByDefault: //mutant:TestRuleOf true
		return b, false
	case b < 0 && !e.config.DenyByDefault:
		return a, false
	}
	return -1, true
}

// firstRule is the first rule from a candidate on that covers a path, -1 if there is none.
func (e *Engine) firstRule(method, path string, candidate int) int {
	for candidate >= 0 && !e.config.Rules[candidate].Match.matches(method, path) {
		candidate = e.candidate(path, candidate+1)
	}
	return candidate
}

// candidate is the first rule from one on that may cover a path, by what all that it covers begin with, -1 if
// there is none. There is one copy of it, as of matches, for all who ask.
//
//go:noinline
func (e *Engine) candidate(path string, from int) int {
	for rule := from; rule < len(e.prefixes); rule++ {
		begin, at := e.prefixes[rule], 0
		for at < len(begin) && at < len(path) && begin[at] == path[at] {
			at++
		}
		if at == len(begin) {
			return rule
		}
	}
	return -1
}

// matches says whether a rule covers a request. A path covers itself with or without a
// slash at its end; a prefix covers what begins with it and, if it ends with a slash,
// the path before the slash: upstreams commonly take these for one resource.
//
//go:noinline
func (m *Match) matches(method, path string) bool {
	if m.Methods != nil && !m.permits(method) {
		return false
	}
	if m.Prefix != "" {
		return coveredBy(path, m.Prefix)
	}
	return bare(path) == bare(m.Path)
}

// permits reports whether a method is among Methods. Upstreams commonly answer HEAD as they do
// GET (RFC 9110, section 9.3.2), so what is said of GET counts for HEAD.
func (m *Match) permits(method string) bool {
	return slices.Contains(m.Methods, method) ||
		(method == "HEAD" && slices.Contains(m.Methods, "GET")) //mutant:TestMatches false
}

// covers says whether every request that other matches is matched by m.
func (m *Match) covers(other *Match) bool {
	if m.Methods != nil {
		if other.Methods == nil {
			return false
		}
		for _, method := range other.Methods {
			if !m.permits(method) {
				return false
			}
		}
	}
	if m.Prefix == "" {
		return m.Path != "" && other.Path != "" && bare(m.Path) == bare(other.Path)
	}
	if other.Prefix != "" {
		return strings.HasPrefix(other.Prefix, m.Prefix)
	}
	return other.Path != "" && coveredBy(bare(other.Path), m.Prefix)
}

// reads reports whether GET or HEAD is among the methods.
func (m *Match) reads() bool {
	return m.Methods == nil || slices.Contains(m.Methods, "GET") || slices.Contains(m.Methods, "HEAD")
}

func coveredBy(path, prefix string) bool {
	if strings.HasPrefix(path, prefix) {
		return true
	}
	last := len(prefix) - 1
	return last > 0 && prefix[last] == '/' && path == prefix[:last]
}

// bare is path without slashes at its end.
func bare(path string) string {
	for len(path) > 1 && path[len(path)-1] == '/' {
		path = path[:len(path)-1]
	}
	return path
}

// plainPath is the path of a target, without its query, and whether all routers see in it what it is for sure:
// one reading, see [readings]. That costs less to see than to follow.
func plainPath(target string) (path string, plain bool) {
	if len(target) > maxPlain {
		if target = withoutQuery(target); len(target) > maxPlain { //mutant:TestTooManyParts false
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
	return target, plain &&
		before != '.' //mutant:TestReadings true
}

// maxPlain bounds a plain path, bytes: none within it has more than maxParts segments.
const maxPlain = 2 * maxParts

//go:noinline
func withoutQuery(target string) string {
	path, _, _ := strings.Cut(target, "?")
	return path
}
