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

// code returns a directive's Lua; false if it is in a file that can't be read.
func (a *analysis) code(d *directive) (l lua, known bool) {
	if l, known = a.parsed[d]; !known {
		if l, known = a.read(d); known && a.parsed != nil {
			a.parsed[d] = l
		}
	}
	return l, known
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

// luaOf returns the Lua of a scope itself that runs for its requests before they are sent upstream.
func (a *analysis) luaOf(s *scope) (all []*directive) {
	for _, name := range []string{"rewrite_by_lua", "access_by_lua", "content_by_lua"} {
		all = append(all, s.own(name, name+"_block", name+"_file")...)
	}
	return all
}

var (
	asks       = regexp.MustCompile(`\b(?:exec|capture|capture_multi|set_uri)\b\s*[({]*([^\n]*)`)
	first      = regexp.MustCompile(`^"(\d+)"(\s*\.\.)?`)
	samePath   = regexp.MustCompile(`^ngx\.var\.(?:request_)?uri\s*[,)]`)
	setsHeader = regexp.MustCompile(`\bset_header\s*\(\s*"(\d+)"\s*,\s*(nil\b|"\d+")?`)
	setsMethod = regexp.MustCompile(`\bset_method\s*\(\s*ngx\.HTTP_(\w+)`)
	assigns    = regexp.MustCompile(`\bngx\.var(?:\.(\w+)|\s*\[\s*"(\d+)"\s*\])\s*=[^=]`)
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

// targets are those of ngx.exec, ngx.location.capture and ngx.req.set_uri: what they name, and each text with the form
// of a path, since variables may have it. What clients name is any path.
func (l *lua) targets() (all []luaTarget) {
	calls := asks.FindAllStringSubmatch(l.bare, -1)
	if calls == nil {
		return nil
	}
	for _, m := range quoted.FindAllStringSubmatchIndex(l.bare, -1) {
		text := l.text(l.bare[m[2]:m[3]])
		if strings.HasPrefix(text, "/") || strings.HasPrefix(text, "@") {
			all = append(all, luaTarget{text, first.FindStringSubmatch(l.bare[m[0]:])[2] != ""})
		}
	}
	for _, call := range calls {
		argument, _, _ := strings.Cut(call[1], ",")
		if !first.MatchString(argument) && !samePath.MatchString(call[1]) &&
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
			var names []string
			if strings.HasPrefix(d.name, "set_by_lua") {
				names = []string{strings.TrimPrefix(d.arg(0), "$")}
			}
			for _, m := range assigns.FindAllStringSubmatch(l.bare, -1) {
				if m[2] != "" {
					m[1] = l.text(m[2])
				}
				names = append(names, m[1])
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

// peersOf are the addresses that a balancer may choose: of hosts and ports among its texts and numbers.
func (a *analysis) peersOf(d *directive) (all []string) {
	l, _ := a.code(d)
	ports := numeral.FindAllString(quoted.ReplaceAllLiteralString(l.bare, ""), -1)
	for _, text := range l.texts {
		if strings.Contains(text, ":") {
			all = append(all, address(text))
		}
		for _, port := range ports {
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
