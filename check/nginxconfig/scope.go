package nginxconfig

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// scope is a block in which directives apply; inner blocks inherit the directives.
type scope struct {
	*directive
	parent *scope // nil for http
	inner  []*scope
}

// innerBlocks are the kinds of scopes within a server.
var innerBlocks = []string{"location", "if", "limit_except"}

func newScope(d *directive, parent *scope) *scope {
	s := &scope{directive: d, parent: parent}
	for _, child := range d.block {
		if parent == nil && child.name == "server" || parent != nil && slices.Contains(innerBlocks, child.name) {
			s.inner = append(s.inner, newScope(child, s))
		}
	}
	return s
}

// each calls f for the scope and all inner scopes.
func (s *scope) each(f func(*scope)) {
	f(s)
	for _, inner := range s.inner {
		inner.each(f)
	}
}

// own returns the directives with these names in the scope itself.
func (s *scope) own(names ...string) (list []*directive) {
	for _, d := range s.block {
		if slices.Contains(names, d.name) {
			list = append(list, d)
		}
	}
	return list
}

// effective returns the directives that apply in the scope: a scope inherits the directives of a name only without own
// ones.
func (s *scope) effective(names ...string) []*directive {
	for ; s != nil; s = s.parent {
		if list := s.own(names...); list != nil {
			return list
		}
	}
	return nil
}

// ownOrOfHTTP returns the scope's own directives; for a server without own ones, those of http.
func (s *scope) ownOrOfHTTP(names ...string) []*directive {
	if s.name == "server" {
		return s.effective(names...)
	}
	return s.own(names...)
}

// value returns the first argument of an effective directive, "" without one.
func (s *scope) value(name string) string {
	if list := s.effective(name); list != nil {
		return list[0].arg(0)
	}
	return ""
}

// server returns the enclosing server, nil for http.
func (s *scope) server() *scope {
	for s != nil && s.name != "server" {
		s = s.parent
	}
	return s
}

// location returns the scope itself or the enclosing location, nil for none.
func (s *scope) location() *scope {
	for s != nil && s.name != "location" {
		s = s.parent
	}
	return s
}

// serverTitle names a server by its name or, without a name, its listen address.
func (s *scope) serverTitle() string {
	for _, name := range []string{"server_name", "listen"} {
		if list := s.own(name); list != nil {
			return cmp.Or(list[0].arg(0), `""`)
		}
	}
	return "*:80"
}

// scopePath names a scope within its server.
func (s *scope) scopePath() string {
	if s.name == "server" {
		return ""
	}
	own := strings.Join(append([]string{s.name}, s.args...), " ")
	if outer := s.parent.scopePath(); outer != "" {
		return outer + ": " + own
	}
	return own
}

// isLocal reports whether only this machine reaches the server.
func (s *scope) isLocal() bool {
	listens := s.own("listen")
	return listens != nil && !slices.ContainsFunc(listens, func(d *directive) bool {
		host, _ := splitAddress(d.arg(0))
		return !strings.HasPrefix(d.arg(0), "unix:") && !topology.IsLoopback(host)
	})
}

// isRestricted reports whether nginx admits only some addresses. The first matching line of allow and deny decides.
func (s *scope) isRestricted() bool {
	if s.satisfiesAny() || slices.ContainsFunc(s.inner, func(inner *scope) bool {
		return inner.name == "limit_except" && !inner.isRestricted()
	}) {
		return false
	}
	forged := slices.ContainsFunc(s.effective("set_real_ip_from"), isBroad)
	for _, d := range s.effective("allow", "deny") {
		if d.name == "deny" && d.arg(0) == "all" {
			return true
		}
		if d.name == "allow" && (forged || isBroad(d)) {
			return false
		}
	}
	return false
}

// satisfiesAny reports whether one passed check is enough.
func (s *scope) satisfiesAny() bool { return strings.EqualFold(s.value("satisfy"), "any") }

// isBroad reports whether a directive names more addresses than a network has: all, or a prefix shorter than /8 (public
// IPv6: /16, private IPv6: /7).
func isBroad(d *directive) bool {
	text, length, found := strings.Cut(d.arg(0), "/")
	bits, err := strconv.Atoi(length)
	shortest := 8
	if ip, _ := netip.ParseAddr(text); ip.IsPrivate() && ip.Is6() {
		shortest = 7 // fc00::/7
	} else if ip.Is6() {
		shortest = 16
	}
	return text == "all" || found && err == nil && bits < shortest
}

// passDirectives send requests upstream.
var passDirectives = []string{"proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass"}

// pass returns the directive by which the scope sends requests upstream, nil for none. Locations don't inherit a pass;
// an if inherits the pass of its location.
func (s *scope) pass() *directive {
	if list := s.own(passDirectives...); list != nil {
		return list[0]
	}
	if s.name == "if" {
		return s.parent.pass()
	}
	return nil
}

// splitTarget returns the upstream of a pass, and the path sent upstream, "" for the client's path.
func splitTarget(text string) (host, path string) {
	if _, after, found := strings.Cut(text, "://"); found {
		text = after
	}
	if u, found := strings.CutPrefix(text, "unix:"); found { // unix:/a.sock:/path
		socket, path, _ := strings.Cut(u, ":")
		return "unix:" + socket, path
	}
	if i := strings.IndexAny(text, "/$"); i >= 0 {
		return text[:i], text[i:]
	}
	return text, ""
}

// normalizeAddress returns the form in which addresses are compared: always with a port, and with localhost for all
// addresses of this machine.
func normalizeAddress(text string) string {
	if strings.HasPrefix(text, "unix:") {
		return text
	}
	host, port := splitAddress(text)
	if ip, _ := netip.ParseAddr(host); host == "" || host == "*" || topology.IsLoopback(host) || ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// splitAddress returns the host of an address, "" for a port alone, and the port.
func splitAddress(text string) (host, port string) {
	if strings.Trim(text, "0123456789-") == "" { // in a listen directive
		text = ":" + text
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), "80"
	}
	return strings.ToLower(host), port
}

// locationMatch returns the kind of a location's match, and the path or expression.
func (s *scope) locationMatch() (kind, path string) {
	switch {
	case len(s.args) > 1:
		return s.args[0], s.args[1]
	case strings.HasPrefix(s.arg(0), "@"):
		return "@", s.arg(0)
	}
	for _, kind := range []string{"=", "^~", "~*", "~"} { // without a space
		if path, found := strings.CutPrefix(s.arg(0), kind); found {
			return kind, path
		}
	}
	return "", s.arg(0)
}

// mayTake reports whether requests under a rule may get to the scope. Regular expressions count as matching.
func (s *scope) mayTake(r *policy.Match) bool {
	l := s.location()
	if l == nil {
		return true
	}
	return l.locationMatches(r) && l.parent.mayTake(r)
}

func (s *scope) locationMatches(r *policy.Match) bool {
	kind, path := s.locationMatch()
	within := r.Prefix != "" && (strings.HasPrefix(path, r.Prefix) || path+"/" == r.Prefix) ||
		r.Path != "" && addSlash(path) == addSlash(r.Path)
	switch kind {
	case "=":
		return within
	case "", "^~":
		return within || strings.HasPrefix(r.Path+r.Prefix, path) &&
			!slices.ContainsFunc(s.parent.inner, func(other *scope) bool {
				return other.takesPrecedence(path, r)
			})
	}
	return true
}

// addSlash returns a path with a slash at its end: rules and most upstreams treat both forms as equal.
func addSlash(path string) string { return strings.TrimRight(path, "/") + "/" }

// takesPrecedence reports whether a location takes all requests of a rule before a location with a shorter prefix.
func (s *scope) takesPrecedence(prefix string, r *policy.Match) bool {
	switch kind, path := s.locationMatch(); kind {
	case "", "^~":
		return len(path) > len(prefix) && strings.HasPrefix(r.Path+r.Prefix, path)
	}
	return false
}

// findLocation returns the location of a server that takes an internal request for a path, nil for none.
func (s *scope) findLocation(uri string) (best *scope) {
	path := uri
	if u, err := url.Parse(uri); err == nil {
		path = u.Path
	}
	length := -1
	for _, l := range s.inner {
		kind, prefix := l.locationMatch()
		switch {
		case kind == "=" && prefix == path:
			return l
		case (kind == "" || kind == "^~") && strings.HasPrefix(path, prefix) && len(prefix) > length:
			best, length = l, len(prefix)
		}
	}
	if best != nil {
		if inner := best.findLocation(uri); inner != nil {
			return inner
		}
		if kind, _ := best.locationMatch(); kind == "^~" {
			return best
		}
	}
	for _, l := range s.inner {
		if kind, text := l.locationMatch(); strings.HasPrefix(kind, "~") && l.name == "location" {
			if kind == "~*" {
				text = "(?i)" + text
			}
			if expression, err := regexp.Compile(text); err == nil && expression.MatchString(path) {
				return l
			}
		}
	}
	return best
}
