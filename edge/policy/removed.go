package policy

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

var authorization = []string{"authorization"}

// identityHeaders tell the upstream the device; clients must not send them.
var identityHeaders = []string{DeviceHeader, PermissionsHeader}

// overrideHeaders are headers with which a client can override method or target at some upstreams. Widely used software
// trusts each of them: for the method, the middleware of Rack, Symfony, Laravel, Slim, WAI, ASP.NET Core and Express
// (which has the three names of Google, Microsoft and IBM); for the target, Zend, Yii, WordPress and other software
// behind IIS; the last two, services that nginx's auth_request calls.
var overrideHeaders = []string{"x-http-method-override", "x-http-method", "x-method-override",
	"x-original-url", "x-rewrite-url", "x-original-uri", "x-original-method"}

// registerRemoved registers names as client headers that no upstream gets, in any spelling and under any rule.
func (e *Engine) registerRemoved(names []string) {
	for _, name := range names {
		e.removedBits |= headermap.NameBit(name)
	}
	e.removed = append(e.removed, names...)
}

// findRemoved returns the names among fields that no upstream gets.
//
//go:noinline
func (e *Engine) findRemoved(fields headermap.Fields) (names []string) {
	for fields.More() {
		if name, _ := fields.Next(); e.isRemoved(name) {
			names = append(names, name)
		}
	}
	return names
}

var connectionBit = headermap.NameBit("connection")

// ConnectionOptions returns the options in a client's Connection header that name no header with an identity, and
// whether there were others: the next proxy removes each header that Connection names (RFC 9110, section 7.6.1), the
// device's or a copy that a route has made.
func ConnectionOptions(connection string) (kept string, changed bool) {
	var b []byte // the text may be gone before the result is used
	for option := range strings.SplitSeq(connection, ",") {
		option = strings.Trim(option, " \t")
		switch strings.ToLower(option) {
		case "":
			continue
		case "upgrade", "close", "keep-alive", "te":
			if len(b) > 0 {
				b = append(b, ", "...)
			}
			b = append(b, option...)
		default:
			changed = true
		}
	}
	return string(b), changed
}

// isRemoved reports whether an upstream may read name, in lower case, as one of the removed headers.
func (e *Engine) isRemoved(name string) bool {
	for _, removed := range e.removed {
		if len(removed) == len(name) && isSpelling(name, removed) {
			return true
		}
	}
	return false
}

// HasIfModifiedSince reports whether the request has an If-Modified-Since. Under a cache rule no upstream gets it: the client may
// have that date from the cache, and an upstream whose own is older would answer 304 to what it never had.
func (r *Request) HasIfModifiedSince() bool { return r.has(headerIfModifiedSince) }

// HasDatedRange reports whether the request has an If-Range that may be a date. Under a cache rule no upstream gets its
// Range: the client may have that date, and the bytes before the range, from the cache, and many upstreams answer any
// later date with the range of what they have.
func (r *Request) HasDatedRange() bool {
	f := &r.fields[headerIfRange]
	return f.lines > 1 || f.lines == 1 && !strings.HasSuffix(f.value, `"`)
}

// SecretHeaders returns the headers with the secret or API key of an authenticated request, which no upstream gets: the
// credential's, and other spellings of it. The proxy's JWT filter removes tokens. Under a rule that isn't enforced the
// upstream may still check the secret, and gets it.
func (e *Engine) SecretHeaders(r *Request) (names []string) {
	c := &e.governor.Credentials
	if c.Forward || r.rule >= 0 && e.config.Rules[r.rule].isAuthTrial() {
		return nil
	}
	switch {
	case r.has(headerSecret):
		names = e.governor.secret
	case r.has(headerAPIKey):
		names = e.governor.apiKey
	case r.has(headerAuthorization) && e.hasCredential(r):
		names = authorization
	}
	if r.moreLines != nil {
		names = r.addSpellings(names)
	}
	return names
}

// addSpellings returns names, and those of headers in other spellings of the secret's.
//
//go:noinline
func (r *Request) addSpellings(names []string) []string {
	names = slices.Clip(names)
	for _, l := range r.moreLines {
		if l.header == headerSpelled {
			names = append(names, l.value)
		}
	}
	return names
}
