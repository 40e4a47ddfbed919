package redisurl

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Kinds of a deployment.
const (
	single = iota
	sentinel
	cluster
)

// Default ports.
const (
	redisPort    = 6379
	sentinelPort = 26379
)

// escapeHint ends errors that special characters in a password may have caused.
const escapeHint = "; in a password, write % @ / : # ? as %25 %40 %2F %3A %23 %3F"

// target is a parsed URL.
type target struct {
	kind               int
	tls                bool
	addresses          []string // host:port each, or the path of a socket
	master             string   // the master's name at the sentinels
	db                 int
	username, password string
}

var schemes = map[string]target{
	"redis":           {kind: single},
	"rediss":          {kind: single, tls: true},
	"unix":            {kind: single},
	"redis+sentinel":  {kind: sentinel},
	"rediss+sentinel": {kind: sentinel, tls: true},
	"redis+cluster":   {kind: cluster},
	"rediss+cluster":  {kind: cluster, tls: true},
}

// parseURL parses a URL. A malformed part may contain a password, so errors name the part, without its content.
func parseURL(text string) (target, *Error) {
	scheme, rest, found := strings.Cut(text, "://")
	t, known := schemes[scheme]
	if !found || !known {
		return t,
			refuse("url", "scheme: want redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// "+
				"or rediss+cluster://")
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] >= 0x7f {
			return t, refuse("url", "byte %d: a space or no visible ASCII, write it as %%XX", i)
		}
	}
	if scheme == "unix" {
		return parseUnix(t, rest)
	}
	if strings.ContainsAny(rest, "?#") {
		return t, refuse("url", "has a ? or #: options have settings of their own%s", escapeHint)
	}
	authority, path, _ := strings.Cut(rest, "/")
	hosts, err := t.parseUserinfo(authority)
	if err != nil {
		return t, err
	}
	if err := t.parseHosts(hosts); err != nil {
		return t, err
	}
	return t, t.parsePath(path)
}

// parseUnix parses [user:password@]/path[?db=N], the part after unix://.
func parseUnix(t target, rest string) (target, *Error) {
	rest, query, options := strings.Cut(rest, "?")
	if options {
		db, found := strings.CutPrefix(query, "db=")
		if !found {
			return t, refuse("url", "options: a socket has none but ?db=N%s", escapeHint)
		}
		if err := t.parseDatabase(db); err != nil {
			return t, err
		}
	}
	if !strings.HasPrefix(rest, "/") {
		authority, path, _ := strings.Cut(rest, "/")
		nothing, err := t.parseUserinfo(authority)
		if err != nil {
			return t, err
		}
		if nothing != "" {
			return t, refuse("url", "socket: want unix:///path or unix://user:password@/path, with all of the path%s",
				escapeHint)
		}
		rest = "/" + path
	}
	path, err := url.PathUnescape(rest)
	if err != nil || path == "/" || strings.Contains(rest, "#") {
		return t, refuse("url", "socket: want the path of a unix socket, with %% and # written as %%25 and %%23")
	}
	t.addresses = []string{path}
	return t, nil
}

// parseUserinfo parses and removes the userinfo of the authority, and returns the rest.
func (t *target) parseUserinfo(authority string) (hosts string, refused *Error) {
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		return authority, nil
	}
	username, password, _ := strings.Cut(authority[:at], ":")
	var err error
	if t.username, err = url.PathUnescape(username); err != nil {
		return "", refuse("url", "user: has a %% that is not followed by two hex digits%s", escapeHint)
	}
	if t.password, err = url.PathUnescape(password); err != nil {
		return "", refuse("url", "password: has a %% that is not followed by two hex digits%s", escapeHint)
	}
	return authority[at+1:], nil
}

func (t *target) parseHosts(hosts string) *Error {
	list := strings.Split(hosts, ",")
	if t.kind == single && len(list) > 1 {
		return refuse("url", "hosts: %d, a single server has one: want redis+sentinel:// or redis+cluster://%s",
			len(list), escapeHint)
	}
	port := redisPort
	if t.kind == sentinel {
		port = sentinelPort
	}
	for i, text := range list {
		address, ok := hostPort(text, port)
		if !ok {
			return refuse("url", "host %d: want a name or address, [address] for IPv6, and after a : a port of 1 to 65535%s",
				i+1, escapeHint)
		}
		t.addresses = append(t.addresses, address)
	}
	return nil
}

// hostPort completes host, host:port, [v6] or [v6]:port.
func hostPort(text string, port int) (address string, ok bool) {
	host, rest, found := text, "", false
	if strings.HasPrefix(text, "[") {
		host, rest, found = strings.Cut(text[1:], "]")
		if ip, err := netip.ParseAddr(host); !found || err != nil || !ip.Is6() {
			return "", false
		}
		if rest, found = strings.CutPrefix(rest, ":"); !found && rest != "" {
			return "", false
		}
	} else {
		host, rest, found = strings.Cut(text, ":")
		if host == "" || strings.ContainsFunc(host, func(r rune) bool {
			return !isLetterOrDigit(r) && r != '.' && r != '-' && r != '_'
		}) {
			return "", false
		}
	}
	if found {
		n, err := strconv.ParseUint(rest, 10, 16)
		if err != nil || n == 0 || rest[0] == '+' {
			return "", false
		}
		port = int(n)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), true
}

func isLetterOrDigit(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

// parsePath parses [db] of a server, or MASTER[/db] of sentinels. The path of a Cluster must be empty.
func (t *target) parsePath(path string) *Error {
	switch t.kind {
	case cluster:
		if path != "" {
			return refuse("url", "path: a Cluster has no databases, want nothing after the hosts%s", escapeHint)
		}
		return nil
	case sentinel:
		t.master, path, _ = strings.Cut(path, "/")
		if t.master == "" || strings.ContainsFunc(t.master, func(r rune) bool {
			return !isLetterOrDigit(r) && r != '.' && r != '-' && r != '_'
		}) {
			return refuse("url", "master: want its name after the hosts, as the sentinels have it: letters, digits and . - _%s",
				escapeHint)
		}
	}
	if path == "" {
		return nil
	}
	return t.parseDatabase(path)
}

// parseDatabase parses the number of a database.
func (t *target) parseDatabase(text string) *Error {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return refuse("url", "database: want a number of 0 to 65535%s", escapeHint)
	}
	t.db = int(n)
	return nil
}
