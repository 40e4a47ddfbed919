package policy

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

var authorization = []string{"authorization"}

// identityHeaders tell the upstream the device. Clients must not send identityHeaders.
var identityHeaders = []string{DeviceHeader, PermissionsHeader}

// overrideHeaders are headers by which a client can override method or target at some upstreams. Widely used software
// trusts each of them: for the method, the middleware of Rack, Symfony, Laravel, Slim, WAI, ASP.NET Core and Express
// (which has the three names of Google, Microsoft and IBM); for the target, Zend, Yii, WordPress and other software
// behind IIS; the last two, services that nginx's auth_request calls.
var overrideHeaders = []string{"x-http-method-override", "x-http-method", "x-method-override",
	"x-original-url", "x-rewrite-url", "x-original-uri", "x-original-method"}

// removedHeaders are client headers that no upstream gets, in any spelling and under any rule.
type removedHeaders struct {
	names []string
	bits  uint64 // of the names
}

func (h *removedHeaders) addNames(names []string) {
	for _, name := range names {
		h.bits |= headermap.NameBit(name)
	}
	h.names = append(h.names, names...)
}

// findNames returns the names among fields that no upstream may get.
//
//go:noinline
func (h *removedHeaders) findNames(fields headermap.Fields) (names []string) {
	for fields.HasMore() {
		if name, _ := fields.Next(); h.isRemoved(name) {
			names = append(names, name)
		}
	}
	return names
}

var connectionBit = headermap.NameBit("connection")

// ConnectionOptions returns the options in a client's Connection header that name no header with an identity, and
// whether options were dropped: the next proxy removes each header named in Connection (RFC 9110, section 7.6.1),
// perhaps the device's or a route's copy.
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
func (h *removedHeaders) isRemoved(name string) bool {
	for _, removed := range h.names {
		if len(removed) == len(name) && isSpelling(name, removed) {
			return true
		}
	}
	return false
}

// HasIfModifiedSince reports whether the request has an If-Modified-Since. Under a cache rule the header doesn't go
// upstream: the client may have the date from the cache, and an upstream with an older date would answer 304 about a
// version that the client has from the cache only.
func (r *Request) HasIfModifiedSince() bool { return r.has(headerIfModifiedSince) }

// HasDatedRange reports whether the request has an If-Range that may be a date. Under a cache rule Range doesn't go
// upstream: the client may have the date, and the bytes before the range, from the cache, and many upstreams answer any
// later date with the range of their own version.
func (r *Request) HasDatedRange() bool {
	f := &r.fields[headerIfRange]
	return f.lines > 1 || f.lines == 1 && !strings.HasSuffix(f.value, `"`)
}

// SecretHeaders returns the headers with the secret or API key of an authenticated request, and their other spellings:
// no upstream gets the secret. The proxy's JWT filter removes tokens. Under a rule on trial, the upstream may still
// check the secret, and gets it.
func (r *Request) SecretHeaders() (names []string) {
	c := &r.governor.Credentials
	if c.Forward || r.rule >= 0 && r.governor.rules[r.rule].isAuthTrial() {
		return nil
	}
	switch {
	case r.has(headerSecret):
		names = r.governor.secret
	case r.has(headerAPIKey):
		names = r.governor.apiKey
	case r.has(headerAuthorization) && r.hasCredential():
		names = authorization
	}
	if r.moreLines != nil {
		names = r.addSpellings(names)
	}
	return names
}

// addSpellings returns names, and the request's other spellings of the secret's header.
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
