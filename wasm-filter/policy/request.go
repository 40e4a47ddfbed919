package policy

import (
	"encoding/base64"
	"strings"

	"github.com/gatehouse/gatehouse/wasm-filter/headermap"
	"github.com/gatehouse/gatehouse/wire"
)

// Headers that tell the upstream who the device is. Whatever a client sends under these
// names never reaches it.
const (
	DeviceHeader      = "x-gatehouse-device"
	PermissionsHeader = "x-gatehouse-permissions"
)

// header is a header that decisions depend on.
type header uint8

const (
	headerMethod header = iota
	headerTarget        // :path, with its query
	headerIfNoneMatch
	headerIfModifiedSince
	headerAcceptEncoding
	headerIfMatch
	headerIfUnmodifiedSince
	headerContentType
	headerID
	headerSecret
	headerAuthorization
	headerCount
	// headerSpelled is a name in another spelling of the secret's, as a line of which it is the value.
	headerSpelled = headerCount
)

// Request is what a decision needs of a request.
type Request struct {
	fields [headerCount]field
	more   []line // beyond the first one of each header, in their order

	rule int // that governs it, -1 if none does; see Govern
	// ambiguous says that upstreams may read the path in ways that not one rule governs.
	ambiguous bool
	// Removed names the headers that the client sent and no upstream gets, see [Edge.removes].
	Removed []string
	// Token is what the proxy knows of the request's token, and asked only if a rule wants
	// it; it may be nil where no session metadata is configured.
	Token Claims
}

// field is a header as its first line has it.
type field struct {
	value string
	lines int
}

type line struct {
	header header
	value  string
}

func (r *Request) method() string { return r.fields[headerMethod].value }

func (r *Request) target() string { return r.fields[headerTarget].value }

// has reports whether a header is there, be it empty.
func (r *Request) has(h header) bool { return r.fields[h].lines > 0 }

// grpc reports whether the proxy makes each answer of its own one of gRPC, whatever the method.
func (r *Request) grpc() bool {
	return strings.HasPrefix(r.fields[headerContentType].value, "application/grpc")
}

// list is all lines of a header as one list (RFC 9110, section 5.3), "" if there is none.
func (r *Request) list(h header) string {
	if r.more == nil {
		return r.fields[h].value
	}
	return r.join(h)
}

//go:noinline
func (r *Request) join(h header) string {
	var lines []string
	for _, l := range append([]line{{h, r.fields[h].value}}, r.more...) {
		if l.header == h && l.value != "" {
			lines = append(lines, l.value)
		}
	}
	return strings.Join(lines, ", ")
}

// Read is what decisions need of a request's headers, whose names are in lower case. It refers to them. It is
// returned rather than filled in: each string that is stored through a pointer is some code for the collector.
func (e *Engine) Read(fields headermap.Fields, token Claims) (r Request) {
	r.Token = token
	if fields.NameBits&e.removedBits != 0 {
		r.Removed = e.removedOf(fields)
	}
	for fields.More() {
		name, value := fields.Next()
		for _, known := range e.known[min(len(name), lastLength)] {
			if known.name != name {
				if known.header == headerSecret {
					r.addSpelled(name, known.name) //mutant:TestSecretHeaders deleted
				}
				continue
			}
			if f := &r.fields[known.header]; f.lines == 0 {
				f.value, f.lines = value, 1
			} else {
				r.addLine(known.header, value)
			}
		}
	}
	return r
}

//go:noinline
func (r *Request) addLine(h header, value string) {
	r.fields[h].lines++
	r.more = append(r.more, line{h, value})
}

//go:noinline
func (r *Request) addSpelled(name, secret string) {
	if len(name) == len(secret) && spells(name, secret) {
		r.more = append(r.more, line{headerSpelled, name})
	}
}

// knownHeaders are the headers that decisions depend on by the length of their names, from lastLength on in one list.
type knownHeaders [lastLength + 1][]knownHeader

const lastLength = 31

type knownHeader struct {
	name   string
	header header
}

func (k *knownHeaders) add(name string, h header) {
	at := &k[min(len(name), lastLength)]
	*at = append(*at, knownHeader{name, h})
}

// knownHeaders are those of a configuration. A credential may come in any header, in one of the others, too.
func (c *Config) knownHeaders() (k knownHeaders) {
	k.add(":method", headerMethod)
	k.add(":path", headerTarget)
	k.add("if-none-match", headerIfNoneMatch)
	k.add("if-modified-since", headerIfModifiedSince)
	k.add("accept-encoding", headerAcceptEncoding)
	k.add("if-match", headerIfMatch)
	k.add("if-unmodified-since", headerIfUnmodifiedSince)
	k.add("content-type", headerContentType)
	if c.Credentials.Basic {
		k.add("authorization", headerAuthorization)
	} else if c.Credentials != (Credentials{}) {
		k.add(c.Credentials.IDHeader, headerID)
		k.add(c.Credentials.SecretHeader, headerSecret)
	}
	return k
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

// appendKey appends the cache key of a request for target under a rule; false if it would be too
// long, or the target so long that taking it apart is not worth it.
func appendKey(dst []byte, target string, c *Cache, device string) ([]byte, bool) {
	path, query, ok := split(target)
	if !ok {
		return dst, false
	}
	start := len(dst)
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

// counts is what of a target the key depends on, at most: without its query if none of that counts.
//
//go:noinline
func (c *Cache) counts(target string) string {
	if path, _, ok := split(target); ok && len(c.Query) == 0 {
		return path
	}
	return target
}

// split is path and query of a target; false if it is too long to be taken apart, or has too many parameters.
func split(target string) (path, query string, ok bool) {
	if len(target) > 2*wire.MaxKey {
		return "", "", false
	}
	path, query, _ = strings.Cut(target, "?")
	return path, query, wire.ValidQuery(query)
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
		if *cred, ok = parseBasic(&r.fields[headerAuthorization]); !ok {
			return false
		}
	} else {
		id, secret := &r.fields[headerID], &r.fields[headerSecret]
		if id.lines != 1 || secret.lines != 1 {
			return false
		}
		cred.ID, cred.Secret = id.value, secret.value
	}
	return wire.ValidDeviceID(cred.ID) && cred.Secret != "" && len(cred.Secret) <= wire.MaxSecret &&
		strings.IndexByte(cred.Secret, 0) < 0 // bcrypt implementations differ on what follows a NUL
}

// maxBasic bounds Authorization: Basic, bytes: any credential within its limits, and some spaces.
var maxBasic = base64.StdEncoding.EncodedLen(wire.MaxDeviceID+1+wire.MaxSecret) + 64

// parseBasic reads Authorization: Basic (RFC 7617, section 2): the id ends at the first colon.
func parseBasic(f *field) (Credential, bool) {
	if len(f.value) > maxBasic { //mutant:TestDecideBasic false
		return Credential{}, false
	}
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
