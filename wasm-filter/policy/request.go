package policy

import (
	"encoding/base64"
	"strings"

	"github.com/gatehouse/gatehouse/wire"
)

// Headers that tell the upstream who the device is. Whatever a client sends under these
// names never reaches it.
const (
	DeviceHeader      = "x-gatehouse-device"
	PermissionsHeader = "x-gatehouse-permissions"
)

// Request is what a decision needs of a request.
type Request struct {
	Method string
	Target string // :path, with its query
	rule   int    // that governs it, -1 if none does; see Govern
	// ambiguous says that upstreams may read the path in ways that not one rule governs.
	ambiguous bool
	// Forged names the identity headers that the client sent, to be removed.
	Forged []string
	// Token is what the proxy knows of the request's token, and asked only if a rule wants
	// it; it may be nil where no session metadata is configured.
	Token Claims

	ifNoneMatch    string // all lines of it, joined by ", "; "" is none
	acceptEncoding string
	hasAccept      bool // an Accept-Encoding header is there, be it empty
	ifMatch        bool
	grpc           bool // the proxy makes each answer of its own one of gRPC, whatever the method
	id, secret     field
	authorization  field
}

// field is a header that must come once.
type field struct {
	value string
	lines int
}

func (f *field) add(value string) { f.value, f.lines = value, f.lines+1 }

// readConditions takes over what a cache rule needs of one header.
func (r *Request) readConditions(name, value string) {
	switch name {
	case "if-none-match":
		r.ifNoneMatch = joinLines(r.ifNoneMatch, value)
	case "accept-encoding":
		r.acceptEncoding, r.hasAccept = joinLines(r.acceptEncoding, value), true
	case "if-match", "if-unmodified-since":
		r.ifMatch = true
	case "content-type":
		r.grpc = r.grpc || strings.HasPrefix(value, "application/grpc")
	}
}

// readCredential takes over what an auth rule needs of one header.
func (r *Request) readCredential(name, value string, c *Credentials) {
	switch {
	case c.Basic && name == "authorization":
		r.authorization.add(value)
	case name == c.IDHeader:
		r.id.add(value)
	case name == c.SecretHeader:
		r.secret.add(value)
	}
}

// HeadersRead are the headers that [Edge.Govern] takes something of. Of the identity headers
// it takes each spelling, all as long as the one that is here.
func (c *Config) HeadersRead() []string {
	return append(c.credentialHeaders(), ":method", ":path", "if-none-match", "accept-encoding", "if-match", "if-unmodified-since",
		"content-type", DeviceHeader, PermissionsHeader, "authorization")
}

// credentialHeaders are those that a credential or a token comes in, of which the latter's is
// another one where the proxy's JWT filter is told so.
func (c *Config) credentialHeaders() []string {
	var names []string
	if !c.Credentials.Basic {
		names = []string{c.Credentials.IDHeader, c.Credentials.SecretHeader}
	}
	if c.Credentials.Basic || c.SessionMetadata != "" {
		names = append(names, "authorization")
	}
	return names
}

// IsIdentity reports whether an upstream may take name, in lower case, for one of our headers.
func IsIdentity(name string) bool {
	switch len(name) {
	case len(DeviceHeader):
		return spells(name, DeviceHeader)
	case len(PermissionsHeader):
		return spells(name, PermissionsHeader)
	}
	return false
}

// spells reports whether an upstream may take name for header, which is as long: many make no
// difference between '-' and '_', and some (CGI) between any of what is neither letter nor digit.
func spells(name, header string) bool {
	for i := range len(name) {
		c := name[i]
		if c != header[i] && (header[i] != '-' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9') {
			return false
		}
	}
	return true
}

// joinLines joins the lines of a list header (RFC 9110, section 5.3).
func joinLines(list, line string) string {
	if list == "" {
		return line
	}
	return list + ", " + line
}

// appendKey appends the cache key of the request under a rule; false if it would be too
// long, or the target so long that taking it apart is not worth it.
func (r *Request) appendKey(dst []byte, c *Cache, device string) ([]byte, bool) {
	if len(r.Target) > 2*wire.MaxKey {
		return dst, false
	}
	start := len(dst)
	path, query, _ := strings.Cut(r.Target, "?")
	if !wire.ValidQuery(query) {
		return dst, false
	}
	if c.PerDevice {
		dst = wire.AppendDeviceKey(dst, device, path)
	} else {
		dst = append(dst, path...)
	}
	if query != "" {
		end := len(dst)
		dst = wire.AppendCanonicalQuery(append(dst, '?'), query, c.Query)
		if len(dst) == end+1 { // no parameter counts
			dst = dst[:end]
		}
	}
	return dst, len(dst)-start <= wire.MaxKey
}

// Credential is a device id and what is shown for it, within their limits: a secret or,
// of a token, its session.
type Credential struct {
	ID, Secret, Session string
}

// credential makes cred what the request shows; false if it shows none, more than one, or
// one that can't be good.
func (r *Request) credential(cred *Credential, c *Credentials) bool {
	if c.Basic {
		var ok bool
		if *cred, ok = parseBasic(&r.authorization); !ok {
			return false
		}
	} else {
		if r.id.lines != 1 || r.secret.lines != 1 {
			return false
		}
		cred.ID, cred.Secret = r.id.value, r.secret.value
	}
	return wire.ValidDeviceID(cred.ID) && cred.Secret != "" && len(cred.Secret) <= wire.MaxSecret &&
		strings.IndexByte(cred.Secret, 0) < 0 // bcrypt implementations differ on what follows a NUL
}

// parseBasic reads Authorization: Basic (RFC 7617, section 2): the id ends at the first colon.
func parseBasic(f *field) (Credential, bool) {
	scheme, encoded, found := strings.Cut(f.value, " ")
	if f.lines != 1 || !found || !strings.EqualFold(scheme, "basic") {
		return Credential{}, false
	}
	decoded, err := base64.StdEncoding.Strict().DecodeString(strings.TrimLeft(encoded, " "))
	if err != nil {
		return Credential{}, false
	}
	id, secret, found := strings.Cut(string(decoded), ":")
	return Credential{ID: id, Secret: secret}, found
}
