package nginxconfig

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/check/samples"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// luaCode is Lua without comments. In masked, quoted indexes replace the texts.
type luaCode struct {
	code, masked string
	texts        []string
}

// parsedLua is a directive's Lua; known is false if the file can't be read.
type parsedLua struct {
	luaCode
	known bool
}

// directiveLua returns a directive's Lua; false if the file can't be read.
func (r *reader) directiveLua(d *directive) (l luaCode, known bool) {
	p, found := r.lua[d]
	if !found {
		p.luaCode, p.known = r.readDirectiveLua(d)
		r.lua[d] = p
	}
	return p.luaCode, p.known
}

func (r *reader) readDirectiveLua(d *directive) (l luaCode, known bool) {
	if len(d.args) == 0 {
		return luaCode{}, true
	}
	code := d.args[len(d.args)-1]
	if strings.HasPrefix(d.name, "set_by_lua") {
		code = d.arg(1) // arguments may follow
	}
	if strings.HasSuffix(d.name, "_by_lua_file") {
		text, err := r.readAbsolute(code)
		if err != nil {
			return luaCode{}, false
		}
		code = string(text)
	}
	return parseLua(code), true
}

// findCall reports whether a directive with this name, in any form (block, file), calls a function of a module in a
// scope. known is false if some file can't be read.
func (r *reader) findCall(s *scope, name, module string, call *regexp.Regexp) (code string, calls, known bool) {
	known = true
	for _, d := range s.effective(name, name+"_block", name+"_file") {
		l, read := r.directiveLua(d)
		if slices.Contains(l.texts, module) && call.MatchString(l.masked) {
			return l.code, true, true
		}
		known = known && read
	}
	return "", false, known
}

// routingLua returns the directives with Lua that may redirect the scope's requests; servers inherit those of http.
func (s *scope) routingLua() (all []*directive) {
	for _, phase := range []string{"server_rewrite", "rewrite", "access", "precontent", "content"} {
		name := phase + "_by_lua"
		all = append(all, s.ownOrOfHTTP(name, name+"_block", name+"_file")...)
	}
	return all
}

var (
	internalRequest = regexp.MustCompile(`(?:^|[^:\w])(exec|capture|capture_multi|set_uri)\b\s*[({]*([^\n]*)`)
	leadingText     = regexp.MustCompile(`^"(\d+)"(\s*\.\.)?`)
	unchangedPath   = regexp.MustCompile(`^ngx\.var\.(?:request_)?uri\s*[,)]`)
	setsHeader      = regexp.MustCompile(`\bset_header\s*\(\s*"(\d+)"\s*,\s*(nil\b|"\d+")?`)
	setsMethod      = regexp.MustCompile(`\bset_method\s*\(\s*ngx\.HTTP_(\w+)`)
	assignment      = regexp.MustCompile(`\bngx\.var(?:\.(\w+)|\s*\[\s*"(\d+)"\s*\])\s*=`)
	assignedText    = regexp.MustCompile(`^\s*"(\d+)"\s*(\.\.|and\b|or\b)?`)
	portArgument    = regexp.MustCompile(`^\s*,\s*(\d+)\b`)
	variableCopy    = regexp.MustCompile(`(?:\breturn|=)\s*ngx\.var\.(\w+)`)
	quotedNumber    = regexp.MustCompile(`"(\d+)"`)
	numeral         = regexp.MustCompile(`\b\d+\b`)
)

// textOf returns the text for a quoted index in masked.
func (l *luaCode) textOf(index string) string {
	i, _ := strconv.Atoi(index)
	return l.texts[i]
}

// luaTarget is a path or named location to which Lua sends a request. continues: Lua appends more to the path.
type luaTarget struct {
	path      string
	continues bool
}

// luaTargets returns the targets of ngx.exec, ngx.location.capture and ngx.req.set_uri. If a call doesn't name its
// target, each text of the form of a path counts, since variables may have the text. A target from the client's request
// counts as any path.
func (l *luaCode) luaTargets() (all []luaTarget) {
	calls := internalRequest.FindAllStringSubmatch(l.masked, -1)
	named := calls != nil
	for _, call := range calls {
		m := leadingText.FindStringSubmatch(call[2])
		if named = named && m != nil && call[1] != "capture_multi"; named {
			all = append(all, luaTarget{l.textOf(m[1]), m[2] != ""})
		}
	}
	if named || calls == nil {
		return all
	}
	all = nil
	for _, m := range quotedNumber.FindAllStringSubmatchIndex(l.masked, -1) {
		text := l.textOf(l.masked[m[2]:m[3]])
		if strings.HasPrefix(text, "/") || strings.HasPrefix(text, "@") {
			all = append(all, luaTarget{text, leadingText.FindStringSubmatch(l.masked[m[0]:])[2] != ""})
		}
	}
	for _, call := range calls {
		argument, _, _ := strings.Cut(call[2], ",")
		if !leadingText.MatchString(argument) && !unchangedPath.MatchString(call[2]) &&
			(strings.Contains(argument, "ngx.var") || strings.Contains(argument, "ngx.req")) {
			all = append(all, luaTarget{"/", true})
		}
	}
	return all
}

// checkLua checks Lua that changes requests after the plugin judged the requests.
func (a *analysis) checkLua(s *scope) {
	for _, d := range s.own("access_by_lua", "access_by_lua_block", "access_by_lua_file") {
		l, _ := a.reader.directiveLua(d)
		for _, m := range setsHeader.FindAllStringSubmatch(l.masked, -1) {
			name := identityHeader(&directive{args: []string{l.textOf(m[1])}})
			if empty := m[2] == "nil" || m[2] != "" && l.textOf(strings.Trim(m[2], `"`)) == ""; name != "" && !empty {
				a.addOnce(&forgedIdentity, s, d, topology.SetsText, name+" by ngx.req.set_header")
			}
		}
		for _, m := range setsMethod.FindAllStringSubmatch(l.masked, -1) {
			a.checkMethodChange(s, d, m[1])
		}
	}
}

// addLuaVariables adds the texts that Lua assigns to variables in a server.
func (r *reader) addLuaVariables(server *scope, define func(name, text string)) {
	server.each(func(s *scope) {
		for _, d := range s.block {
			if !strings.Contains(d.name, "_by_lua") {
				continue
			}
			l, _ := r.directiveLua(d)
			var names []string // variables that may have any of the texts
			if strings.HasPrefix(d.name, "set_by_lua") {
				names = []string{strings.TrimPrefix(d.arg(0), "$")}
			}
			for _, at := range assignment.FindAllStringSubmatchIndex(l.masked, -1) {
				name, value := l.masked[max(at[2], 0):max(at[3], 0)], l.masked[at[1]:]
				if name == "" {
					name = l.textOf(l.masked[at[4]:at[5]])
				}
				if m := assignedText.FindStringSubmatch(value); m != nil && m[2] == "" {
					define(name, l.textOf(m[1]))
				} else if !strings.HasPrefix(value, "=") { // a comparison
					names = append(names, name)
				}
			}
			for _, name := range names {
				for _, text := range l.texts {
					define(name, text)
				}
				for _, m := range variableCopy.FindAllStringSubmatch(l.masked, -1) {
					define(name, "$"+m[1])
				}
			}
		}
	})
}

// balancerAddresses returns the addresses that a balancer may choose: all pairs of its texts and numbers as hosts and
// ports. A number directly behind a text is the text's only port.
func (r *reader) balancerAddresses(d *directive) (all []string) {
	l, _ := r.directiveLua(d)
	ports := numeral.FindAllString(quotedNumber.ReplaceAllLiteralString(l.masked, ""), -1)
	for _, at := range quotedNumber.FindAllStringSubmatchIndex(l.masked, -1) {
		text, own := l.textOf(l.masked[at[2]:at[3]]), ports
		if strings.Contains(text, ":") {
			all = append(all, normalizeAddress(text))
		}
		if m := portArgument.FindStringSubmatch(l.masked[at[1]:]); m != nil {
			own = m[1:]
		}
		for _, port := range own {
			all = append(all, normalizeAddress(text+":"+port))
		}
	}
	return all
}

// checkMethodChange reports a directive by which the upstream gets a method for which a rule asks more than for the
// judged one.
func (a *analysis) checkMethodChange(s *scope, d *directive, method string) {
	if pass := s.pass(); pass == nil || pass.name != "proxy_pass" || method == "" {
		return
	}
	for _, hr := range a.hostRulesOf(s) {
		for _, r := range hr.Own() {
			a.checkMethodUnderRule(s, d, &hr, &r, method)
		}
	}
}

// checkMethodUnderRule is checkMethodChange for a single rule.
func (a *analysis) checkMethodUnderRule(s *scope, d *directive, hr *topology.HostRules, r *policy.Rule, method string) {
	if r.NeedsCredential() && s.mayTake(&r.Match) {
		for _, path := range samples.PathsOf(&r.Match) {
			for _, client := range hr.Methods {
				if hr.NeedOf(client, path).Weaker(hr.NeedOf(method, path)) {
					a.addOnce(&otherMethod, s, d, "sends %s %s upstream as %s, for which a rule asks more", client, path, method)
					return
				}
			}
		}
	}
}
