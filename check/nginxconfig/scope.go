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
)

// scope is a block in which directives apply, and from which blocks in it inherit.
type scope struct {
	*directive
	parent *scope // nil of http
	inner  []*scope
}

// blocks are the kinds of scopes within a server.
var blocks = []string{"location", "if", "limit_except"}

func newScope(d *directive, parent *scope) *scope {
	s := &scope{directive: d, parent: parent}
	for _, child := range d.block {
		if parent == nil && child.name == "server" || parent != nil && slices.Contains(blocks, child.name) {
			s.inner = append(s.inner, newScope(child, s))
		}
	}
	return s
}

// each calls f for the scope and all in it.
func (s *scope) each(f func(*scope)) {
	f(s)
	for _, inner := range s.inner {
		inner.each(f)
	}
}

// own returns the directives of these names in the scope itself.
func (s *scope) own(names ...string) (list []*directive) {
	for _, d := range s.block {
		if slices.Contains(names, d.name) {
			list = append(list, d)
		}
	}
	return list
}

// effective returns those that apply in the scope: nginx inherits directives of a name only where there is none.
func (s *scope) effective(names ...string) []*directive {
	for ; s != nil; s = s.parent {
		if list := s.own(names...); list != nil {
			return list
		}
	}
	return nil
}

// ownOrOfHTTP returns those of the scope itself, and of a server those of http, without its own.
func (s *scope) ownOrOfHTTP(names ...string) []*directive {
	if s.name == "server" {
		return s.effective(names...)
	}
	return s.own(names...)
}

// value returns the first argument of a directive that applies, "" without one.
func (s *scope) value(name string) string {
	if list := s.effective(name); list != nil {
		return list[0].arg(0)
	}
	return ""
}

// server returns the server that the scope is in, nil for http.
func (s *scope) server() *scope {
	for s != nil && s.name != "server" {
		s = s.parent
	}
	return s
}

// location returns the location that the scope is, or is in, nil if there is none.
func (s *scope) location() *scope {
	for s != nil && s.name != "location" {
		s = s.parent
	}
	return s
}

// title names a server by its name, or by what it listens on.
func (s *scope) title() string {
	for _, name := range []string{"server_name", "listen"} {
		if list := s.own(name); list != nil {
			return cmp.Or(list[0].arg(0), `""`)
		}
	}
	return "*:80"
}

// path names a scope within its server.
func (s *scope) path() string {
	if s.name == "server" {
		return ""
	}
	own := strings.Join(append([]string{s.name}, s.args...), " ")
	if outer := s.parent.path(); outer != "" {
		return outer + ": " + own
	}
	return own
}

// local reports whether only this machine reaches the server.
func (s *scope) local() bool {
	listens := s.own("listen")
	return listens != nil && !slices.ContainsFunc(listens, func(d *directive) bool {
		address := d.arg(0)
		return !slices.ContainsFunc([]string{"unix:", "127.", "localhost", "[::1]"}, func(prefix string) bool {
			return strings.HasPrefix(address, prefix)
		})
	})
}

// closed reports whether nginx lets only some addresses in: the first line that matches counts.
func (s *scope) closed() bool {
	if s.satisfiesAny() || slices.ContainsFunc(s.inner, func(inner *scope) bool {
		return inner.name == "limit_except" && !inner.closed()
	}) {
		return false
	}
	forged := slices.ContainsFunc(s.effective("set_real_ip_from"), broad)
	for _, d := range s.effective("allow", "deny") {
		if d.name == "deny" && d.arg(0) == "all" {
			return true
		}
		if d.name == "allow" && (forged || broad(d)) {
			return false
		}
	}
	return false
}

// satisfiesAny reports whether one check that lets a request pass is enough.
func (s *scope) satisfiesAny() bool { return strings.EqualFold(s.value("satisfy"), "any") }

// broad reports whether a directive names more addresses than a network has: all, or a prefix that is shorter than /8
// or, of public IPv6, /16.
func broad(d *directive) bool {
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

// passes are the directives that send requests upstream.
var passes = []string{"proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass"}

// pass returns the directive by which the scope sends requests upstream, nil if it doesn't. A location doesn't inherit
// it, but an if in one does.
func (s *scope) pass() *directive {
	if list := s.own(passes...); list != nil {
		return list[0]
	}
	if s.name == "if" {
		return s.parent.pass()
	}
	return nil
}

// target returns the upstream of a pass and the path that the upstream gets, "" for the client's.
func target(text string) (host, path string) {
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

// address returns the form in which addresses of servers are compared: those of this machine itself are one, and each
// has its port.
func address(text string) string {
	if strings.HasPrefix(text, "unix:") {
		return text
	}
	if strings.Trim(text, "0123456789-") == "" { // in a listen directive
		text = ":" + text
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), "80"
	}
	host = strings.ToLower(host)
	if ip, _ := netip.ParseAddr(host); host == "" || host == "*" || ip.Unmap().IsLoopback() || ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// match returns how a location matches, and what.
func (s *scope) match() (kind, path string) {
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

// takes reports whether requests that a rule governs may get to the scope. By an expression they may.
func (s *scope) takes(r *rule) bool {
	l := s.location()
	if l == nil {
		return true
	}
	return l.matches(r) && l.parent.takes(r)
}

func (s *scope) matches(r *rule) bool {
	kind, path := s.match()
	within := r.Prefix != "" && (strings.HasPrefix(path, r.Prefix) || path+"/" == r.Prefix) ||
		r.Path != "" && withSlash(path) == withSlash(r.Path)
	switch kind {
	case "=":
		return within
	case "", "^~":
		return within || strings.HasPrefix(r.text(), path) && !slices.ContainsFunc(s.parent.inner, func(other *scope) bool {
			return other.precedes(path, r)
		})
	}
	return true
}

// withSlash returns a path with a slash at its end: rules and most upstreams take it for the path without.
func withSlash(path string) string { return strings.TrimRight(path, "/") + "/" }

// precedes reports whether a location takes all requests of a rule from one with a shorter prefix.
func (s *scope) precedes(prefix string, r *rule) bool {
	switch kind, path := s.match(); kind {
	case "", "^~":
		return len(path) > len(prefix) && strings.HasPrefix(r.text(), path)
	}
	return false
}

// find returns the location of a server that takes an internal request for a path, nil if there is none.
func (s *scope) find(uri string) (best *scope) {
	path := uri
	if u, err := url.Parse(uri); err == nil {
		path = u.Path
	}
	length := -1
	for _, l := range s.inner {
		kind, prefix := l.match()
		switch {
		case kind == "=" && prefix == path:
			return l
		case (kind == "" || kind == "^~") && strings.HasPrefix(path, prefix) && len(prefix) > length:
			best, length = l, len(prefix)
		}
	}
	if best != nil {
		if inner := best.find(uri); inner != nil {
			return inner
		}
		if kind, _ := best.match(); kind == "^~" {
			return best
		}
	}
	for _, l := range s.inner {
		if kind, text := l.match(); strings.HasPrefix(kind, "~") && l.name == "location" {
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
