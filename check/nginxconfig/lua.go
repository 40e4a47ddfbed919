package nginxconfig

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// lua is Lua without comments. In bare, numbers in quotes stand for its texts.
type lua struct {
	code, bare string
	texts      []string
}

// parsedLua is a directive's Lua, unless it is in a file that can't be read.
type parsedLua struct {
	lua
	known bool
}

// code returns a directive's Lua; false if it is in a file that can't be read.
func (a *analysis) code(d *directive) (l lua, known bool) {
	p, found := a.parsed[d]
	if !found {
		p.lua, p.known = a.read(d)
		a.parsed[d] = p
	}
	return p.lua, p.known
}

func (a *analysis) read(d *directive) (l lua, known bool) {
	if len(d.args) == 0 {
		return lua{}, true
	}
	code := d.args[len(d.args)-1]
	if strings.HasPrefix(d.name, "set_by_lua") {
		code = d.arg(1) // arguments may follow
	}
	if strings.HasSuffix(d.name, "_by_lua_file") {
		text, err := a.reader.readAbsolute(code)
		if err != nil {
			return lua{}, false
		}
		code = string(text)
	}
	return parseLua(code), true
}

// calls reports whether one of the directives with this name, in any of its forms, calls a function of a module in a
// scope; false for known if that can't be told.
func (a *analysis) calls(s *scope, name, module string, call *regexp.Regexp) (code string, calls, known bool) {
	known = true
	for _, d := range s.effective(name, name+"_block", name+"_file") {
		l, read := a.code(d)
		if slices.Contains(l.texts, module) && call.MatchString(l.bare) {
			return l.code, true, true
		}
		known = known && read
	}
	return "", false, known
}

// luaOf returns the Lua of a scope, of http that of its servers, that may lead its requests elsewhere.
func (a *analysis) luaOf(s *scope) (all []*directive) {
	for _, phase := range []string{"server_rewrite", "rewrite", "access", "precontent", "content"} {
		name := phase + "_by_lua"
		all = append(all, s.ownOrOfHTTP(name, name+"_block", name+"_file")...)
	}
	return all
}

var (
	asks       = regexp.MustCompile(`(?:^|[^:\w])(exec|capture|capture_multi|set_uri)\b\s*[({]*([^\n]*)`)
	first      = regexp.MustCompile(`^"(\d+)"(\s*\.\.)?`)
	samePath   = regexp.MustCompile(`^ngx\.var\.(?:request_)?uri\s*[,)]`)
	setsHeader = regexp.MustCompile(`\bset_header\s*\(\s*"(\d+)"\s*,\s*(nil\b|"\d+")?`)
	setsMethod = regexp.MustCompile(`\bset_method\s*\(\s*ngx\.HTTP_(\w+)`)
	assigns    = regexp.MustCompile(`\bngx\.var(?:\.(\w+)|\s*\[\s*"(\d+)"\s*\])\s*=`)
	oneText    = regexp.MustCompile(`^\s*"(\d+)"\s*(\.\.|and\b|or\b)?`)
	numbers    = regexp.MustCompile(`^\s*,\s*(\d+)\b`)
	copies     = regexp.MustCompile(`(?:\breturn|=)\s*ngx\.var\.(\w+)`)
	quoted     = regexp.MustCompile(`"(\d+)"`)
	numeral    = regexp.MustCompile(`\b\d+\b`)
)

// text is what a number in bare stands for.
func (l *lua) text(index string) string {
	i, _ := strconv.Atoi(index)
	return l.texts[i]
}

// luaTarget is a path, or a named location, for which Lua asks nginx. With rest, more follows.
type luaTarget struct {
	path string
	rest bool
}

// targets are those of ngx.exec, ngx.location.capture and ngx.req.set_uri: the texts that they name. If one names
// something else, each text with the form of a path counts, since variables may have it. What clients name is any path.
func (l *lua) targets() (all []luaTarget) {
	calls := asks.FindAllStringSubmatch(l.bare, -1)
	named := calls != nil
	for _, call := range calls {
		m := first.FindStringSubmatch(call[2])
		if named = named && m != nil && call[1] != "capture_multi"; named {
			all = append(all, luaTarget{l.text(m[1]), m[2] != ""})
		}
	}
	if named || calls == nil {
		return all
	}
	all = nil
	for _, m := range quoted.FindAllStringSubmatchIndex(l.bare, -1) {
		text := l.text(l.bare[m[2]:m[3]])
		if strings.HasPrefix(text, "/") || strings.HasPrefix(text, "@") {
			all = append(all, luaTarget{text, first.FindStringSubmatch(l.bare[m[0]:])[2] != ""})
		}
	}
	for _, call := range calls {
		argument, _, _ := strings.Cut(call[2], ",")
		if !first.MatchString(argument) && !samePath.MatchString(call[2]) &&
			(strings.Contains(argument, "ngx.var") || strings.Contains(argument, "ngx.req")) {
			all = append(all, luaTarget{"/", true})
		}
	}
	return all
}

// lua checks what Lua does to requests that the plugin has judged.
func (a *analysis) lua(s *scope) {
	for _, d := range s.own("access_by_lua", "access_by_lua_block", "access_by_lua_file") {
		l, _ := a.code(d)
		for _, m := range setsHeader.FindAllStringSubmatch(l.bare, -1) {
			name := identity(&directive{args: []string{l.text(m[1])}})
			if empty := m[2] == "nil" || m[2] != "" && l.text(strings.Trim(m[2], `"`)) == ""; name != "" && !empty {
				a.addAt(&forgedIdentity, s, d, "sets %s by ngx.req.set_header: the upstream takes clients for that device", name)
			}
		}
		for _, m := range setsMethod.FindAllStringSubmatch(l.bare, -1) {
			a.sends(s, d, m[1])
		}
	}
}

// luaVariables adds the texts that Lua gives to variables in a server.
func (a *analysis) luaVariables(server *scope, define func(name, text string)) {
	server.each(func(s *scope) {
		for _, d := range s.block {
			if !strings.Contains(d.name, "_by_lua") {
				continue
			}
			l, _ := a.code(d)
			var names []string // of variables that may have any of the texts
			if strings.HasPrefix(d.name, "set_by_lua") {
				names = []string{strings.TrimPrefix(d.arg(0), "$")}
			}
			for _, at := range assigns.FindAllStringSubmatchIndex(l.bare, -1) {
				name, value := l.bare[max(at[2], 0):max(at[3], 0)], l.bare[at[1]:]
				if name == "" {
					name = l.text(l.bare[at[4]:at[5]])
				}
				if m := oneText.FindStringSubmatch(value); m != nil && m[2] == "" {
					define(name, l.text(m[1]))
				} else if !strings.HasPrefix(value, "=") { // a comparison
					names = append(names, name)
				}
			}
			for _, name := range names {
				for _, text := range l.texts {
					define(name, text)
				}
				for _, m := range copies.FindAllStringSubmatch(l.bare, -1) {
					define(name, "$"+m[1])
				}
			}
		}
	})
}

// peersOf are the addresses that a balancer may choose: of hosts and ports among its texts and numbers. A number right
// after a text is its port.
func (a *analysis) peersOf(d *directive) (all []string) {
	l, _ := a.code(d)
	ports := numeral.FindAllString(quoted.ReplaceAllLiteralString(l.bare, ""), -1)
	for _, at := range quoted.FindAllStringSubmatchIndex(l.bare, -1) {
		text, own := l.text(l.bare[at[2]:at[3]]), ports
		if strings.Contains(text, ":") {
			all = append(all, address(text))
		}
		if m := numbers.FindStringSubmatch(l.bare[at[1]:]); m != nil {
			own = m[1:]
		}
		for _, port := range own {
			all = append(all, address(text+":"+port))
		}
	}
	return all
}

// sends reports that a directive sends requests with another method than the one that was judged.
func (a *analysis) sends(s *scope, d *directive, method string) {
	if pass := s.pass(); pass == nil || pass.name != "proxy_pass" || method == "" || a.rules == nil {
		return
	}
	for _, j := range a.judgesOf(s) {
		for i := j.First; i < j.End; i++ {
			a.method(s, d, &j, &a.rules.all[i], method)
		}
	}
}

// method is sends for a rule of a judge.
func (a *analysis) method(s *scope, d *directive, j *judge, r *rule, method string) {
	if r.protects() && s.takes(r) {
		for _, path := range r.Samples() {
			for _, client := range a.rules.SampleMethods() {
				if a.need(j, client, path).Weaker(a.need(j, method, path)) {
					a.addAt(&otherMethod, s, d, "sends %s %s upstream as %s, for which a rule asks more", client, path, method)
					return
				}
			}
		}
	}
}
