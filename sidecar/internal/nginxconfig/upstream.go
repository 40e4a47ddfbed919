package nginxconfig

import (
	"regexp"
	"slices"
	"strings"
)

// identityHeaders are those by which the plugin names the device.
var identityHeaders = []string{"x-gatehouse-device", "x-gatehouse-permissions"}

// headerDirectives set headers of the upstream's request.
var headerDirectives = map[string]string{
	"proxy_pass": "proxy_set_header", "grpc_pass": "grpc_set_header",
	"fastcgi_pass": "fastcgi_param", "uwsgi_pass": "uwsgi_param", "scgi_pass": "scgi_param",
}

// identity returns the identity header that a directive sets, "" for none.
func identity(d *directive) string {
	name := strings.ReplaceAll(strings.ToLower(d.arg(0)), "_", "-")
	if strings.HasSuffix(d.name, "_param") {
		name = strings.TrimPrefix(name, "http-")
	}
	if slices.Contains(identityHeaders, name) {
		return name
	}
	return ""
}

// clears reports whether a scope sends no identity header of the client.
func (a *analysis) clears(s *scope) bool {
	set := map[string]bool{}
	for _, d := range s.effective("proxy_set_header") {
		if name := identity(d); name != "" && d.arg(1) == "" {
			set[name] = true
		}
	}
	return len(set) == len(identityHeaders)
}

// requestHeaders checks the headers that nginx sends upstream.
func (a *analysis) requestHeaders(s *scope) {
	pass := s.pass()
	if pass == nil {
		return
	}
	headers := s.effective(headerDirectives[pass.name])
	for _, d := range headers {
		if name := identity(d); name != "" && strings.Contains(d.arg(1), "$") {
			a.addAt(&forgedIdentity, s, d, "sets %s to %s: a variable may have what the client sent", name, d.arg(1))
		} else if name != "" && d.arg(1) != "" {
			a.addAt(&forgedIdentity, s, d, "sets %s to %s: the upstream takes every client for that device", name, d.arg(1))
		}
	}
	if pass.name != "proxy_pass" {
		return // the others send no lines of text
	}
	decoded := a.decoded(s)
	const why = "is decoded: by %0D%0A in the path a client adds header lines to the upstream's request, among them forged identity headers"
	if name := uses(pass.arg(0), decoded); name != "" {
		a.addAt(&splitHeader, s, pass, "$%s %s", name, why)
	}
	for _, d := range headers {
		if name := uses(d.arg(1), decoded); name != "" {
			a.addAt(&splitHeader, s, d, "$%s %s", name, why)
		}
	}
}

var (
	variable = regexp.MustCompile(`\$\{?(\w+)`)
	// lineEnd is an expression of which a group may match the end of a line; '.' doesn't.
	lineEnd = regexp.MustCompile(`\[\^|\(\?[a-z]*s|\\[DWH]`)
	group   = regexp.MustCompile(`\(\?P?[<'](\w+)[>']`)
)

// uses returns a variable of the list that text has, "" for none.
func uses(text string, list []string) string {
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		if slices.Contains(list, m[1]) {
			return m[1]
		}
	}
	return ""
}

// decoded returns the variables with a part of the decoded path, which may have line ends.
func (a *analysis) decoded(s *scope) []string {
	list := []string{"uri", "document_uri", "request_filename", "fastcgi_script_name", "fastcgi_path_info"}
	if l := s.location(); l != nil {
		if kind, expression := l.match(); strings.HasPrefix(kind, "~") && lineEnd.MatchString(expression) {
			list = append(list, "1", "2", "3", "4", "5", "6", "7", "8", "9")
			for _, m := range group.FindAllStringSubmatch(expression, -1) {
				list = append(list, m[1])
			}
		}
	}
	s.server().each(func(other *scope) {
		for _, d := range other.own("set") {
			if uses(d.arg(1), list) != "" {
				list = append(list, strings.TrimPrefix(d.arg(0), "$"))
			}
		}
	})
	return list
}

// rewrites checks what gets upstream with another path than the one that was judged.
func (a *analysis) rewrites(s *scope) {
	report := func(d *directive, from string, below bool, to string, keeps bool) {
		if client, path, found := a.opens(from, below, to, keeps); found {
			a.addAt(&rewriteIn, s, d, "by %s clients get to %s, for which a rule asks more", client, path)
		}
	}
	for _, d := range s.own("rewrite") {
		if to := d.arg(1); d.arg(2) != "redirect" && d.arg(2) != "permanent" && (strings.HasPrefix(to, "/") || strings.HasPrefix(to, "$1")) {
			if from, below, to, keeps, ok := mapping(d.arg(0), to); ok {
				report(d, from, below, to, keeps)
			}
		}
	}
	kind, from := "", "/"
	if l := s.location(); l != nil {
		kind, from = l.match()
	}
	for _, d := range s.own("proxy_pass") {
		_, to := target(d)
		switch {
		case to == "", !strings.Contains(d.arg(0), "$") && a.elsewhere(d):
		case strings.HasPrefix(kind, "~"):
			if from, below, to, keeps, ok := mapping(from, to); ok {
				report(d, from, below, to, keeps)
			}
		case !strings.Contains(to, "$") && kind != "@":
			report(d, from, kind != "=", to, kind != "=")
		}
	}
	for _, d := range s.own("error_page", "try_files", "mirror", "add_before_body", "add_after_body", "auth_request") {
		to, _, _ := strings.Cut(d.arg(len(d.args)-1), "?")
		if strings.HasPrefix(to, "/") && (kind == "" || kind == "^~" || kind == "=") {
			report(d, from, kind != "=", to, false)
		}
	}
}

var literal = regexp.MustCompile(`^\^((?:[\w/~%!@&=:,-]|\\[./_-])*)(.*)$`)

// mapping returns what an expression and its replacement do to paths, as opens wants it; false if that isn't simple.
func mapping(expression, replacement string) (from string, below bool, to string, keeps, ok bool) {
	m := literal.FindStringSubmatch(expression)
	if m == nil || !strings.HasPrefix(m[1], "/") {
		return "", false, "", false, false
	}
	from, rest := strings.ReplaceAll(m[1], `\`, ""), m[2]
	replacement, _, _ = strings.Cut(replacement, "?")
	if !strings.Contains(replacement, "$") {
		return from, rest != "$", replacement, false, !strings.HasPrefix(rest, "?") && !strings.HasPrefix(rest, "*") && !strings.HasPrefix(rest, "{")
	}
	to, found := strings.CutSuffix(replacement, "$1")
	if inner, slash := strings.CutPrefix(rest, "(/"); slash {
		from, to, rest = from+"/", to+"/", "("+inner
	}
	all := rest == "(.*)" || rest == "(.*)$" || rest == "(.+)" || rest == "(.+)$"
	return from, true, to, true, found && all && !strings.Contains(to, "$")
}
