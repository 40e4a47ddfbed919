package policy

import (
	"encoding/base64"
	"strings"

	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/wire/limits"
	"github.com/gatehouse/gatehouse/edge/wire/objectkey"
)

// Headers that tell the upstream the device. A client's headers with these names never reach it.
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
	// headerSpelled is a name in another spelling of the secret's, stored as the value of a line.
	headerSpelled = headerCount
)

// Request is the part of a request that a decision needs.
type Request struct {
	fields [headerCount]field
	more   []line // of a header after its first, in order

	rule int // rule that governs it, -1 if none does; see Govern
	// ambiguous means that no single rule governs all readings of the path.
	ambiguous bool
	// tolerated means that the request passes as far as its readings are concerned, though they have different rules:
	// none of these is enforced or, if it has a rule, the default isn't.
	tolerated bool
	// Removed has the names of headers that the client sent and no upstream gets, see [Engine.removes].
	Removed []string
	// Token has the claims of the request's token, and is read only if a rule needs it; it may be nil if no session
	// metadata is configured.
	Token Claims
}

// field returns the first line of a header.
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

// Rule returns the index of the rule that governs the request, -1 if none does, and whether its path is ambiguous; see
// [Engine.Govern].
func (r *Request) Rule() (rule int, ambiguous bool) { return r.rule, r.ambiguous }

// has reports whether a header is present, even if empty.
func (r *Request) has(h header) bool { return r.fields[h].lines > 0 }

// grpc reports whether the proxy converts each of its own answers to gRPC, whatever the method.
func (r *Request) grpc() bool {
	return strings.HasPrefix(r.fields[headerContentType].value, "application/grpc")
}

// list returns all lines of a header as one list (RFC 9110, section 5.3), "" if there is none.
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

// Read returns the parts of a request's headers that decisions need; names must be in lower case. The result refers to
// them. It is returned and not set in place, because each string stored through a pointer needs a write barrier.
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
					r.addSpelled(name, known.name)
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

// newKnownHeaders returns the headers, with those of a credential. It may come in any header, also one of the others.
func newKnownHeaders(c *Credentials) (k knownHeaders) {
	k.add(":method", headerMethod)
	k.add(":path", headerTarget)
	k.add("if-none-match", headerIfNoneMatch)
	k.add("if-modified-since", headerIfModifiedSince)
	k.add("accept-encoding", headerAcceptEncoding)
	k.add("if-match", headerIfMatch)
	k.add("if-unmodified-since", headerIfUnmodifiedSince)
	k.add("content-type", headerContentType)
	if c.Basic {
		k.add("authorization", headerAuthorization)
	} else if *c != (Credentials{}) {
		k.add(c.IDHeader, headerID)
		k.add(c.SecretHeader, headerSecret)
	}
	return k
}

// credentialHeaders returns the headers with a credential or a token; the proxy's JWT filter can be configured to use
// another one for tokens.
func credentialHeaders(c *Credentials, tokens bool) []string {
	var names []string
	if !c.Basic {
		names = []string{c.IDHeader, c.SecretHeader}
	}
	if c.Basic || tokens {
		names = append(names, "authorization")
	}
	return names
}

// spells reports whether an upstream may read name as header, which has the same length: many don't distinguish '-' and
// '_', and some (CGI) none of the characters that are neither letters nor digits.
func spells(name, header string) bool {
	for i := range len(name) {
		c := name[i]
		if c != header[i] && (header[i] != '-' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9') {
			return false
		}
	}
	return true
}

// appendKey appends the cache key of the request for target under a rule; it returns false if the key would be too long
// or another request's, or the target is too long to be parsed.
func (e *Engine) appendKey(dst []byte, target string, c *Cache, device string) ([]byte, bool) {
	path, query, ok := split(target)
	if !ok || path == "" || path[0] != '/' {
		return dst, false
	}
	start := len(dst)
	if c.PerDevice {
		dst = objectkey.AppendOfDevice(dst, device, "")
	}
	if e.by.name == "" && !c.PerHost {
		if ok = len(path) < 2 || path[1] != '/'; !ok { // it may be a virtual host's key
			return dst, false
		}
	} else if dst, ok = e.appendSpace(dst, c); !ok {
		return dst, false
	}
	dst = append(dst, path...)
	if query != "" {
		end := len(dst)
		dst = objectkey.AppendCanonicalQuery(append(dst, '?'), query, c.Query)
		if len(dst) == end+1 { // no parameter counts
			dst = dst[:end]
		}
	}
	return dst, len(dst)-start <= limits.MaxKey
}

// counts returns the part of a target on which the key may depend: without the query if the rule ignores it.
//
//go:noinline
func (c *Cache) counts(target string) string {
	if path, _, ok := split(target); ok && len(c.Query) == 0 {
		return path
	}
	return target
}

// split returns path and query of a target; false if it is too long to be parsed, or has too many parameters.
func split(target string) (path, query string, ok bool) {
	if len(target) > 2*limits.MaxKey {
		return "", "", false
	}
	path, query, _ = strings.Cut(target, "?")
	return path, query, limits.ValidQuery(query)
}

// Credential is a device id with its secret or, for a token, its session, within their limits.
type Credential struct {
	ID, Secret, Session string
}

// credential sets cred to the request's credential; false if there is none, more than one, or one that can't be valid.
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
	return limits.ValidDeviceID(cred.ID) && cred.Secret != "" && len(cred.Secret) <= limits.MaxSecret &&
		strings.IndexByte(cred.Secret, 0) < 0 // bcrypt implementations differ on what follows a NUL
}

// maxBasic bounds Authorization: Basic, in bytes: any credential within its limits, and some spaces.
var maxBasic = base64.StdEncoding.EncodedLen(limits.MaxDeviceID+1+limits.MaxSecret) + 64

// parseBasic reads Authorization: Basic (RFC 7617, section 2): the id ends at the first colon.
func parseBasic(f *field) (Credential, bool) {
	if len(f.value) > maxBasic {
		return Credential{}, false
	}
	scheme, encoded, found := strings.Cut(f.value, " ")
	// Without the length, U+017F of two bytes would be an s.
	if f.lines != 1 || !found || len(scheme) != len("basic") || !strings.EqualFold(scheme, "basic") {
		return Credential{}, false
	}
	decoded, err := base64.StdEncoding.Strict().DecodeString(strings.TrimLeft(encoded, " "))
	if err != nil {
		return Credential{}, false
	}
	id, secret, found := strings.Cut(string(decoded), ":")
	return Credential{ID: id, Secret: secret}, found
}
