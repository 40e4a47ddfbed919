package nginxconfig

import (
	"regexp"
	"slices"
	"strings"
)

// variables are the possible texts of a configuration's variables.
type variables map[string][]string

// maxTexts bounds the expansions of a text with variables.
const maxTexts = 64

var (
	variableReference = regexp.MustCompile(`\$(?:\{(\w+)\}|(\w+))`)
	groupReference    = regexp.MustCompile(`\$\{?[1-9]\}?`)
)

// variablesOf returns the variables that set, map, geo, split_clients and Lua define for a scope of http.
func (a *analysis) variablesOf(s *scope) variables {
	server := s.server()
	all, found := a.variables[server]
	if !found {
		all = variablesIn(a.http, s)
		a.addLuaVariables(server, func(name, text string) { all[name] = append(all[name], text) })
		a.variables[server] = all
	}
	return all
}

// variablesIn returns the variables that set, map, geo and split_clients define for a scope of a block, http or stream.
func variablesIn(block, s *scope) variables {
	all := variables{}
	define := func(name, text string) { all[name] = append(all[name], text) }
	for _, d := range block.own("map", "geo", "split_clients") {
		if len(d.args) == 0 {
			continue
		}
		name, variable := strings.TrimPrefix(d.args[len(d.args)-1], "$"), d.arg(0)
		for _, entry := range d.block {
			expression, isExpression := strings.CutPrefix(entry.name, "~")
			text := entry.arg(0)
			if isExpression && d.name == "map" {
				part := "$captured" // without line ends
				if lineEnd.MatchString(expression) {
					part = variable
				}
				for _, m := range group.FindAllStringSubmatch(expression, -1) {
					define(m[1], part)
				}
				text = groupReference.ReplaceAllLiteralString(text, part)
			}
			define(name, text)
		}
	}
	s.server().each(func(other *scope) {
		for _, d := range other.own("set") {
			define(strings.TrimPrefix(d.arg(0), "$"), d.arg(1))
		}
	})
	return all
}

// expand returns the possible texts of a text with variables; unknown variables stay.
func (v variables) expand(text string) []string {
	texts := []string{text}
	for range 8 {
		var next []string
		for _, text := range texts {
			if next = append(next, v.expandFirst(text)...); len(next) >= maxTexts {
				break
			}
		}
		if next = next[:min(len(next), maxTexts)]; slices.Equal(next, texts) {
			break
		}
		texts = next
	}
	return texts
}

// expandFirst replaces the first known variable.
func (v variables) expandFirst(text string) (texts []string) {
	for _, at := range variableReference.FindAllStringSubmatchIndex(text, -1) {
		name := strings.Trim(text[at[0]+1:at[1]], "{}")
		for _, value := range v[name] {
			if value != "$"+name {
				texts = append(texts, text[:at[0]]+value+text[at[1]:])
			}
		}
		if texts != nil {
			return texts
		}
	}
	return []string{text}
}

// samplePath returns a path that an expression matches; the group wanted, a name or number, "" for none, gets this
// text.
func samplePath(expression, wanted, text string) string {
	var b strings.Builder
	number := 0
	var write func(e string)
	write = func(e string) {
		for i := 0; i < len(e); i++ {
			switch c := e[i]; c {
			case '^', '$', '?', '*', '+':
			case '|':
				return // the first alternative is enough
			case '{':
				i += strings.IndexByte(e[i:]+"}", '}')
			case '.':
				b.WriteByte('x')
			case '\\':
				if i++; i < len(e) {
					b.WriteString(map[byte]string{'d': "1", 'w': "x", 's': " "}[e[i]])
					if !strings.ContainsRune("dwsbBAzZ", rune(e[i])) {
						b.WriteByte(e[i])
					}
				}
			case '[':
				end := i + 1 + strings.IndexByte(e[i+1:]+"]", ']')
				if first := e[min(i+1, len(e)-1)]; first == '^' || first == '\\' {
					b.WriteByte('x')
				} else {
					b.WriteByte(first)
				}
				i = end
			case '(':
				end := closingParenthesis(e, i)
				inner := e[i+1 : end]
				name := ""
				if m := group.FindStringSubmatch(e[i:]); m != nil && strings.HasPrefix(e[i:], m[0]) {
					name, inner = m[1], inner[len(m[0])-1:]
				}
				capturing := name != "" || !strings.HasPrefix(inner, "?")
				if capturing {
					number++
				}
				switch {
				case capturing && wanted != "" && (wanted == name || wanted == string(rune('0'+number))):
					b.WriteString(text)
				case capturing:
					write(inner)
				case strings.HasPrefix(inner, "?:"):
					write(inner[2:])
				}
				i = end
			default:
				b.WriteByte(c)
			}
		}
	}
	write(expression)
	if path := b.String(); strings.HasPrefix(path, "/") {
		return path
	}
	return "/" + b.String()
}

// closingParenthesis returns the index of the parenthesis that closes the one at i, or the end.
func closingParenthesis(e string, i int) int {
	depth := 0
	for ; i < len(e); i++ {
		switch e[i] {
		case '\\':
			i++
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(e)
}

var lastGroup = regexp.MustCompile(`^([^$]*)\$\{?(\w+)\}?$`)

// findCapturedPath looks for a rule that clients evade if the last group of an expression becomes the end of the
// upstream's path. The result is the client's path and the rule's path.
func (a *analysis) findCapturedPath(s *scope, expression, to string) (client, path string, found bool) {
	m := lastGroup.FindStringSubmatch(strings.TrimSuffix(to, "$is_args$args"))
	compiled, err := regexp.Compile(expression)
	if m == nil || err != nil || a.rules == nil {
		return "", "", false
	}
	for _, upstreamRules := range a.peerHostRules(s) {
		if client, path, found = a.findCapturedPathOf(s, &upstreamRules, compiled, expression, m); found {
			return client, path, true
		}
	}
	return "", "", false
}

// findCapturedPathOf is findCapturedPath for the rules upstreamRules of one host of the same upstream; m is the last
// group.
func (a *analysis) findCapturedPathOf(s *scope, upstreamRules *hostRules, compiled *regexp.Regexp, expression string,
	m []string) (client, path string, found bool) {
	for i := upstreamRules.First; i < upstreamRules.End; i++ {
		r := &a.rules.all[i]
		path := r.pathOrPrefix()
		if r.Prefix != "" {
			path += "x"
		}
		rest, begins := strings.CutPrefix(path, m[1])
		if !r.needsCredential() || !begins {
			continue
		}
		client := samplePath(expression, m[2], rest)
		if at := compiled.FindStringSubmatchIndex(client); at == nil ||
			string(compiled.ExpandString(nil, "${"+m[2]+"}", client, at)) != rest {
			continue
		}
		if a.asksLess(s, client, upstreamRules, path) {
			return client, r.pathOrPrefix(), true
		}
	}
	return "", "", false
}
