package nginxconfig

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/check/topology"
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
		a.reader.addLuaVariables(server, func(name, text string) { all[name] = append(all[name], text) })
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

// expressionPaths returns the paths that an expression takes, and makes by a replacement of texts and groups; false for
// other replacements.
func expressionPaths(compiled *regexp.Regexp, expression, replacement string) (p topology.Paths, known bool) {
	replacement, _, _ = strings.Cut(strings.TrimSuffix(replacement, "$is_args$args"), "?")
	known, last := true, ""
	template := variableReference.ReplaceAllStringFunc(replacement, func(reference string) string {
		last = strings.Trim(reference, "${}")
		number, err := strconv.Atoi(last)
		known = known && (err == nil && number <= compiled.NumSubexp() || compiled.SubexpIndex(last) >= 0)
		return "${" + last + "}"
	})
	p.Made, _, _ = strings.Cut(replacement, "$")
	p.Takes = compiled.MatchString
	p.Rewrite = func(path string) (string, bool) {
		at := compiled.FindStringSubmatchIndex(path)
		return string(compiled.ExpandString(nil, template, path, at)), at != nil
	}
	p.Clients = func(path string) []string {
		rest, _ := strings.CutPrefix(path, p.Made)
		return []string{samplePath(expression, last, rest), samplePath(expression, "", "")}
	}
	return p, known
}
