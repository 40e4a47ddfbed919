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
	// Forged names the identity headers that the client sent, to be removed.
	Forged []string
	// Token is what the proxy knows of the request's token, and asked only if a rule wants
	// it; it may be nil where no session metadata is configured.
	Token Claims

	ifNoneMatch    string // all lines of it, joined by ", "; "" is none
	acceptEncoding string
	hasAccept      bool // an Accept-Encoding header is there, be it empty
	ifMatch        bool
	id, secret     field
	authorization  field
}

// field is a header that must come once.
type field struct {
	value string
	lines int
}

func (f *field) add(value string) { f.value, f.lines = value, f.lines+1 }

// ReadRequest picks what a decision needs from all request headers, whose names are in
// lower case. The request refers to them.
func (c *Config) ReadRequest(headers [][2]string) Request {
	var r Request
	for i := range headers {
		name, value := headers[i][0], headers[i][1]
		switch name {
		case ":method":
			r.Method = value
		case ":path":
			r.Target = value
		case "if-none-match":
			r.ifNoneMatch = joinLines(r.ifNoneMatch, value)
		case "accept-encoding":
			r.acceptEncoding, r.hasAccept = joinLines(r.acceptEncoding, value), true
		case "if-match", "if-unmodified-since":
			r.ifMatch = true
		}
		if isIdentity(name) {
			r.Forged = append(r.Forged, name)
		}
		switch {
		case c.Credentials.Basic && name == "authorization":
			r.authorization.add(value)
		case name == c.Credentials.IDHeader:
			r.id.add(value)
		case name == c.Credentials.SecretHeader:
			r.secret.add(value)
		}
	}
	return r
}

// isIdentity reports whether an upstream may take name for one of our headers: many
// frameworks make no difference between '-' and '_' in names.
func isIdentity(name string) bool {
	if len(name) != len(DeviceHeader) && len(name) != len(PermissionsHeader) || name[0] != 'x' {
		return false
	}
	name = strings.ReplaceAll(name, "_", "-")
	return name == DeviceHeader || name == PermissionsHeader
}

// joinLines joins the lines of a list header (RFC 9110, section 5.3).
func joinLines(list, line string) string {
	if list == "" {
		return line
	}
	return list + ", " + line
}

func (r *Request) path() string {
	path, _, _ := strings.Cut(r.Target, "?")
	return path
}

// key is the cache key of the request under a rule, and false if it would be too long,
// or the target so long that taking it apart is not worth it.
func (r *Request) key(c *Cache, device string) (string, bool) {
	if len(r.Target) > 2*wire.MaxKey {
		return "", false
	}
	path, query, _ := strings.Cut(r.Target, "?")
	key := path
	if query != "" {
		if query = wire.CanonicalQuery(query, c.Query); query != "" {
			key += "?" + query
		}
	}
	if c.PerDevice {
		key = wire.DeviceKey(device, key)
	}
	return key, len(key) <= wire.MaxKey
}

// Credential is a device id and what is shown for it, within their limits: a secret or,
// of a token, its session.
type Credential struct {
	ID, Secret, Session string
}

// credential is what the request shows, and false if it shows none, more than one, or
// one that can't be good.
func (r *Request) credential(c *Credentials) (Credential, bool) {
	cred := Credential{ID: r.id.value, Secret: r.secret.value}
	if c.Basic {
		var ok bool
		if cred, ok = parseBasic(&r.authorization); !ok {
			return Credential{}, false
		}
	} else if r.id.lines != 1 || r.secret.lines != 1 {
		return Credential{}, false
	}
	good := wire.ValidDeviceID(cred.ID) && cred.Secret != "" && len(cred.Secret) <= wire.MaxSecret &&
		strings.IndexByte(cred.Secret, 0) < 0 // bcrypt implementations differ on what follows a NUL
	return cred, good
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
