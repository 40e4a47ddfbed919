package nginxconfig

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// headerDirectives set headers of the upstream's request.
var headerDirectives = map[string]string{
	"proxy_pass": "proxy_set_header", "grpc_pass": "grpc_set_header",
	"fastcgi_pass": "fastcgi_param", "uwsgi_pass": "uwsgi_param", "scgi_pass": "scgi_param",
}

// identityHeader returns the identity header that a directive sets, "" for none.
func identityHeader(d *directive) string {
	name := topology.NormalizeHeader(d.arg(0))
	if strings.HasSuffix(d.name, "_param") {
		name = strings.TrimPrefix(name, "http-")
	}
	return topology.IdentityHeader(name)
}

// clearsIdentity reports whether a scope removes the client's identity headers, in all spellings. The settings for
// spellings often come from the default server of an address: the settings of all servers of the address count.
func (a *analysis) clearsIdentity(s *scope) bool {
	own := listenAddresses(s.server())
	if slices.ContainsFunc(a.http.inner, func(other *scope) bool {
		return (other.value("underscores_in_headers") == "on" || other.value("ignore_invalid_headers") == "off") &&
			slices.ContainsFunc(listenAddresses(other), func(address string) bool { return slices.Contains(own, address) })
	}) {
		return false
	}
	set := map[string]bool{}
	for _, d := range s.effective("proxy_set_header") {
		if name := identityHeader(d); name != "" && d.arg(1) == "" {
			set[name] = true
		}
	}
	return len(set) == 2
}

// checkRequestHeaders checks the headers that nginx sends upstream.
func (a *analysis) checkRequestHeaders(s *scope) {
	pass := s.pass()
	if pass == nil {
		return
	}
	headers := s.effective(headerDirectives[pass.name])
	for _, d := range headers {
		if name := identityHeader(d); name != "" && strings.Contains(d.arg(1), "$") {
			a.addOnce(&forgedIdentity, s, d, "sets %s to %s: a variable may have what the client sent", name, d.arg(1))
		} else if name != "" && d.arg(1) != "" {
			a.addOnce(&forgedIdentity, s, d, topology.SetsText, name+" to "+d.arg(1))
		}
	}
	if pass.name != "proxy_pass" {
		return // other protocols have no header lines of text
	}
	decoded := a.decodedVariables(s)
	const why = "is decoded: by %0D%0A in the path a client adds header lines to the upstream's request, among them " +
		"forged identity headers"
	variables := a.variablesOf(s)
	check := func(d *directive, text string) {
		for _, text := range variables.expand(text) {
			if name := findVariable(text, decoded); name != "" {
				a.addOnce(&splitHeader, s, d, "$%s %s", name, why)
			}
		}
	}
	check(pass, pass.arg(0))
	for _, d := range headers {
		check(d, d.arg(1))
	}
}

var (
	variable = regexp.MustCompile(`\$\{?(\w+)`)
	// lineEnd matches expressions with a group that may match the end of a line; '.' doesn't.
	lineEnd = regexp.MustCompile(`\[\^|\(\?[a-z]*s|\\[DWH]`)
	group   = regexp.MustCompile(`\(\?P?[<'](\w+)[>']`)
)

// findVariable returns a variable of the list in text, "" for none.
func findVariable(text string, list []string) string {
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		if slices.Contains(list, m[1]) {
			return m[1]
		}
	}
	return ""
}

// decodedVariables returns the variables with a part of the decoded path, which may have line ends.
func (a *analysis) decodedVariables(s *scope) []string {
	list := []string{"uri", "document_uri", "request_filename", "fastcgi_script_name", "fastcgi_path_info"}
	add := func(expression string) {
		if lineEnd.MatchString(expression) {
			list = append(list, "1", "2", "3", "4", "5", "6", "7", "8", "9")
			for _, m := range group.FindAllStringSubmatch(expression, -1) {
				list = append(list, m[1])
			}
		}
	}
	l := s.location()
	if l != nil {
		if kind, expression := l.locationMatch(); strings.HasPrefix(kind, "~") {
			add(expression)
		}
	}
	s.server().each(func(other *scope) {
		if other.location() != l && other.location() != nil {
			return
		}
		for _, d := range other.own("rewrite") {
			add(d.arg(0))
		}
	})
	return list
}

// checkRewrites reports requests that get upstream with another path than the judged one, if clients evade a rule.
func (a *analysis) checkRewrites(s *scope) {
	reportOpened := func(d *directive, o *topology.OpenedPath) {
		if o != nil {
			a.addOnce(&rewriteIn, s, d, "%s", o)
		}
	}
	report := func(d *directive, from string, below bool, to string, keeps bool) {
		reportOpened(d, a.findOpenedPath(s, from, below, to, keeps))
	}
	variables := a.variablesOf(s)
	byExpression := func(d *directive, expression, to string) {
		compiled, err := regexp.Compile(expression)
		if err != nil {
			a.reportUnclear(s, d, expression)
		} else if p, known := expressionPaths(compiled, expression, to); known {
			reportOpened(d, a.findOpenedBy(s, &p))
		}
	}
	for _, origin := range a.originScopes(s) {
		kind, from := "", "/"
		if l := origin.location(); l != nil {
			kind, from = l.locationMatch()
		}
		a.checkRewritesFrom(s, kind, from, variables, report, byExpression)
	}
}

// reportUnclear reports an expression that the analysis can't read.
func (a *analysis) reportUnclear(s *scope, d *directive, expression string) {
	if slices.ContainsFunc(a.rules.Rules, func(r policy.Rule) bool { return r.NeedsCredential() }) {
		a.addOnce(&unclear, s, d, "%q: can't be read here, so it was not checked which requests it takes", expression)
	}
}

// checkRewritesFrom is checkRewrites for requests that a location of this kind takes.
func (a *analysis) checkRewritesFrom(s *scope, kind, from string, variables variables,
	report func(d *directive, from string, below bool, to string, keeps bool),
	byExpression func(d *directive, expression, to string)) {
	to := func(d *directive, path string, keeps bool) {
		switch {
		case kind == "@": // no known request leads to the location
		case strings.HasPrefix(kind, "~"):
			byExpression(d, from, path)
		default:
			report(d, from, kind != "=", path, keeps && kind != "=")
		}
	}
	for _, d := range s.own("rewrite") {
		if d.arg(2) == "redirect" || d.arg(2) == "permanent" {
			continue
		}
		for _, m := range a.pathMaps(d.arg(1)) {
			byExpression(d, m[0], m[1])
		}
		for _, path := range variables.expand(d.arg(1)) {
			if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "$1") {
				continue
			}
			switch all := slices.Contains([]string{"^", ".*", "^.*", "^.*$", "(.*)", "^(.*)$"}, d.arg(0)); {
			case !all:
				byExpression(d, d.arg(0), path)
			case strings.HasPrefix(kind, "~"), !strings.Contains(path, "$"):
				to(d, path, false)
			}
		}
	}
	for _, d := range s.own("proxy_pass") {
		if p := s.readPaths(d); p.IsKnown() {
			continue // the model's check
		}
		for _, text := range variables.expand(d.arg(0)) {
			switch _, path := splitTarget(text); {
			case path == "", !strings.Contains(text, "$") && a.isUnprotectedPass(s, d):
			case strings.HasPrefix(kind, "~"), !strings.Contains(path, "$"):
				to(d, path, text == d.arg(0)) // with a variable, nginx sends just this path
			}
		}
	}
	if !strings.HasPrefix(kind, "~") && kind != "@" {
		a.checkIndexes(s, report, from, kind != "=")
	}
	for _, name := range redirectDirectives {
		for _, d := range s.ownOrOfHTTP(name) {
			for _, text := range variables.expand(d.arg(len(d.args) - 1)) {
				if path, _, _ := strings.Cut(text, "?"); strings.HasPrefix(path, "/") {
					to(d, path, false)
				}
			}
		}
	}
	for _, d := range s.routingLua() {
		l, _ := a.reader.directiveLua(d)
		for _, target := range l.luaTargets() {
			path, _, _ := strings.Cut(target.path, "?")
			switch {
			case !strings.HasPrefix(path, "/"):
			case target.continues && strings.HasPrefix(kind, "~"):
				report(d, samplePath(from, "", ""), true, path, true)
			default:
				to(d, path, target.continues)
			}
		}
	}
}

// redirectDirectives name a path for an internal request in their last argument.
var redirectDirectives = []string{"error_page", "try_files", "mirror", "add_before_body", "add_after_body",
	"auth_request"}

// originScopes returns the scopes whose requests a scope gets: the scope itself or, for a named location, the scopes
// that lead to the location, also through other named locations. Without origins the result is the scope.
func (a *analysis) originScopes(s *scope) (all []*scope) {
	names, seen := []string{s.namedLocation()}, map[*scope]bool{}
	if names[0] == "" {
		return []*scope{s}
	}
	for ; len(names) > 0; names = names[1:] {
		s.server().each(func(other *scope) {
			if seen[other] || !a.leadsToLocation(other, names[0]) {
				return
			}
			seen[other] = true
			if name := other.namedLocation(); name != "" {
				names = append(names, name)
			} else {
				all = append(all, other)
			}
		})
	}
	if all == nil {
		return []*scope{s}
	}
	return all
}

// namedLocation returns the name of the enclosing named location, "" for none.
func (s *scope) namedLocation() string {
	if l := s.location(); l != nil {
		if kind, name := l.locationMatch(); kind == "@" {
			return name
		}
	}
	return ""
}

// leadsToLocation reports whether a scope leads to a named location.
func (a *analysis) leadsToLocation(s *scope, name string) bool {
	for _, redirect := range redirectDirectives {
		for _, d := range s.ownOrOfHTTP(redirect) {
			if slices.Contains(a.variablesOf(s).expand(d.arg(len(d.args)-1)), name) {
				return true
			}
		}
	}
	return slices.ContainsFunc(s.routingLua(), func(d *directive) bool {
		l, _ := a.reader.directiveLua(d)
		return slices.Contains(l.luaTargets(), luaTarget{name, false})
	})
}

// checkIndexes reports an index with a leading slash: nginx replaces the path of a directory by such an index.
func (a *analysis) checkIndexes(s *scope, report func(d *directive, from string, below bool, to string, keeps bool),
	from string, below bool) {
	if s.pass() != nil || s.location() == nil && s.findLocation("/") != nil {
		return // no request gets to a file
	}
	for _, d := range s.effective("index") {
		for _, to := range d.args {
			if strings.HasPrefix(to, "/") {
				report(d, from, below, to, false)
			}
		}
	}
}

// pathMaps returns the expressions and replacements of the map of the path to the variable text, nil if text is no such
// variable.
func (a *analysis) pathMaps(text string) (all [][2]string) {
	for _, d := range a.http.own("map") {
		if len(d.args) != 2 || d.arg(1) != text || !strings.Contains(d.arg(0), "uri") {
			continue
		}
		for _, entry := range d.block {
			if expression, found := strings.CutPrefix(entry.name, "~"); found {
				all = append(all, [2]string{strings.TrimPrefix(expression, "*"), entry.arg(0)})
			}
		}
	}
	return all
}

// checkMethods reports that requests get upstream with another method than the judged one.
func (a *analysis) checkMethods(s *scope) {
	if d := s.effective("proxy_method"); d != nil {
		a.checkMethodChange(s, d[0], strings.ToUpper(d[0].arg(0)))
	}
}

// checkUpgrades reports that clients may agree on h2c with the upstream: nobody judges the requests that follow.
func (a *analysis) checkUpgrades(s *scope) {
	pass := s.pass()
	if pass == nil || pass.name != "proxy_pass" || !slices.ContainsFunc(a.rules.Rules, func(r policy.Rule) bool {
		return r.NeedsCredential()
	}) {
		return
	}
	for _, d := range s.effective("proxy_set_header") {
		if strings.EqualFold(d.arg(0), "upgrade") &&
			slices.ContainsFunc(a.variablesOf(s).expand(d.arg(1)), func(text string) bool {
				return strings.Contains(text, "$http_upgrade") || strings.EqualFold(text, "h2c")
			}) {
			a.addOnce(&tunnel, s, d,
				"passes on each protocol: with an upstream that takes h2c, clients ask further requests in "+
					"the same connection, which nobody judges")
		}
	}
}
