package policy

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// Headers that tell the upstream the device. A client's headers with these names never go upstream.
const (
	DeviceHeader      = "x-gatehouse-device"
	PermissionsHeader = "x-gatehouse-permissions"
)

// header is a header with an influence on decisions.
type header uint8

const (
	headerMethod header = iota
	headerTarget        // :path, with its query
	headerIfNoneMatch
	headerIfModifiedSince
	headerAcceptEncoding
	headerIfMatch
	headerIfUnmodifiedSince
	headerRange
	headerIfRange
	headerAcceptLanguage
	headerContentType
	headerID
	headerAuthorization
	headerSecret // from here on: removed in any spelling
	headerAPIKey
	headerCount
	// headerSpelled is a name in another spelling of the secret's or API key's, stored as the value of a line.
	headerSpelled = headerCount
)

// Request is the part of a request that a decision needs, valid until the engine locates the next request.
type Request struct {
	fields    [headerCount]field
	moreLines []line // of a header after its first, in order

	engine   *Engine
	governor *governor
	host     *recentHost

	rule int // the governing rule, -1 for none
	// ambiguous means that the readings of the path have different rules.
	ambiguous bool
	// tolerated means that the request passes although its readings have different rules: none of the rules is enforced
	// or, where one is a default, the default isn't.
	tolerated bool
	// MayHaveConnection means that the client may have sent Connection, see [ConnectionOptions].
	MayHaveConnection bool
	// Removed has the names of headers that the client sent and no upstream gets, see [removedHeaders].
	Removed []string
	// Token has the claims of the request's token, and is read only if a rule needs the claims; nil is allowed without
	// session metadata in the configuration.
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

// Rule returns the index of the rule that governs the request, -1 for none, and whether the path is ambiguous.
func (r *Request) Rule() (rule int, ambiguous bool) { return r.rule, r.ambiguous }

// has reports whether a header is present, even if empty.
func (r *Request) has(h header) bool { return r.fields[h].lines > 0 }

// isGRPC reports whether the proxy converts its own answers to gRPC, with any method.
func (r *Request) isGRPC() bool {
	return strings.HasPrefix(r.fields[headerContentType].value, "application/grpc")
}

// list returns all lines of a header as one list (RFC 9110, section 5.3), "" for none.
func (r *Request) list(h header) string {
	if r.moreLines == nil {
		return r.fields[h].value
	}
	return r.joinLines(h)
}

//go:noinline
func (r *Request) joinLines(h header) string {
	var lines []string
	for _, l := range append([]line{{h, r.fields[h].value}}, r.moreLines...) {
		if l.header == h && l.value != "" {
			lines = append(lines, l.value)
		}
	}
	return strings.Join(lines, ", ")
}

// Read returns the parts of the located request's headers that decisions need, and the request's rule. The result
// refers to the headers. It is returned, not set in place: each string stored through a pointer needs a write barrier.
func (l *Location) Read(token Claims) (r Request) {
	r.engine, r.governor, r.host, r.Token = l.engine, l.governor, l.host, token
	fields, all := l.fields, &l.governor.known
	r.MayHaveConnection = fields.NameBits&connectionBit != 0
	if removed := &l.engine.removed; fields.NameBits&removed.bits != 0 {
		r.Removed = removed.findNames(fields)
	}
	for fields.HasMore() {
		name, value := fields.Next()
		for _, known := range all[min(len(name), lastLength)] {
			if known.name != name {
				if known.header >= headerSecret {
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
	l.findRule(&r)
	return r
}

//go:noinline
func (r *Request) addLine(h header, value string) {
	r.fields[h].lines++
	r.moreLines = append(r.moreLines, line{h, value})
}

//go:noinline
func (r *Request) addSpelled(name, secret string) {
	if len(name) == len(secret) && isSpelling(name, secret) {
		r.moreLines = append(r.moreLines, line{headerSpelled, name})
	}
}

// knownHeaders are the headers with an influence on decisions, by the length of the name; from lastLength on, in one
// list.
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

// newKnownHeaders returns the known headers, and the headers of a credential, which may have any name, also a known
// one. Accept-Language shares its length with another header, and is included only if languages matter.
func newKnownHeaders(c *Credentials, languages bool) (k knownHeaders) {
	k.add(":method", headerMethod)
	k.add(":path", headerTarget)
	k.add("if-none-match", headerIfNoneMatch)
	k.add("if-modified-since", headerIfModifiedSince)
	k.add("accept-encoding", headerAcceptEncoding)
	k.add("if-match", headerIfMatch)
	k.add("if-unmodified-since", headerIfUnmodifiedSince)
	k.add("range", headerRange)
	k.add("if-range", headerIfRange)
	if languages {
		k.add("accept-language", headerAcceptLanguage)
	}
	k.add("content-type", headerContentType)
	for h, name := range [headerCount]string{headerID: c.IDHeader, headerSecret: c.SecretHeader,
		headerAPIKey: c.APIKeyHeader, headerAuthorization: c.authorizationHeader()} {
		if name != "" {
			k.add(name, header(h))
		}
	}
	return k
}

// credentialHeaders returns the headers with a credential or a token; the proxy's JWT filter may have a header of its
// own for tokens.
func credentialHeaders(c *Credentials, tokens bool) []string {
	names := []string{c.IDHeader, c.SecretHeader, c.APIKeyHeader, c.authorizationHeader()}
	if tokens {
		names[3] = "authorization"
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// isSpelling reports whether an upstream may read name as header, of the same length: many upstreams don't distinguish
// '-' and '_', and some (CGI) no characters but letters and digits.
func isSpelling(name, header string) bool {
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
func (r *Request) appendKey(dst []byte, target string, c *Cache, device string) ([]byte, bool) {
	path, query, ok := splitTarget(target)
	if !ok || path == "" || path[0] != '/' || strings.IndexByte(target, '#') >= 0 { // "#" precedes a language
		return dst, false
	}
	start := len(dst)
	if c.PerDevice {
		dst = objectkey.AppendOfDevice(dst, device, "")
	}
	if r.governor.name == "" && !c.PerHost {
		if ok = len(path) < 2 || path[1] != '/'; !ok { // perhaps a virtual host's key
			return dst, false
		}
	} else if dst, ok = r.appendKeySpace(dst, c); !ok {
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

// keyTarget returns the part of a target on which the key may depend: without the query if the rule ignores the query.
//
//go:noinline
func (c *Cache) keyTarget(target string) string {
	if path, _, ok := splitTarget(target); ok && len(c.Query) == 0 {
		return path
	}
	return target
}

// splitTarget returns path and query of a target; false if it is too long to be parsed, or has too many parameters.
func splitTarget(target string) (path, query string, ok bool) {
	if len(target) > 2*limits.MaxKey {
		return "", "", false
	}
	path, query, _ = strings.Cut(target, "?")
	return path, query, limits.ValidQuery(query)
}

// Credential is a device id with a secret or, for a token, with a session, within the limits.
type Credential struct {
	ID, Secret, Session string
}

// readCredential sets cred to the request's credential; false without a credential, with several, or if the credential
// can't be valid.
func (a *authorizer) readCredential(cred *Credential, r *Request) bool {
	c := &r.governor.Credentials
	if c.takesAPIKeys() {
		if key, shown := r.apiKey(c); shown > 0 {
			return shown == 1 && a.parseAPIKey(cred, key)
		}
	}
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
		strings.IndexByte(cred.Secret, 0) < 0 // bcrypt implementations differ about bytes after a NUL
}

// maxBasic bounds Authorization: Basic, in bytes: any credential within the limits, and some spaces.
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

// apiKey returns the request's API key, and the number of lines with a credential or a part of a credential of any
// kind; 0 if no line is for an API key.
func (r *Request) apiKey(c *Credentials) (key string, shown int) {
	key, shown = r.fields[headerAPIKey].value, r.fields[headerAPIKey].lines
	others := r.fields[headerID].lines + r.fields[headerSecret].lines
	if first := &r.fields[headerAuthorization]; first.lines > 0 {
		switch text, isKey := bearerKey(first.value); {
		case c.Bearer && (isKey || first.lines > 1 && r.hasMoreBearerKeys()):
			key = text
			shown += first.lines
		case c.Basic:
			others += first.lines
		}
	}
	if shown == 0 {
		return "", 0
	}
	return key, shown + others
}

// bearerKey returns a possible API key from Authorization: Bearer (RFC 6750, section 2.1); false for other schemes and
// for tokens.
func bearerKey(line string) (key string, ok bool) {
	const scheme = "bearer "
	if len(line) < len(scheme) || !strings.EqualFold(line[:len(scheme)], scheme) {
		return "", false
	}
	key = strings.TrimLeft(line[len(scheme):], " ")
	return key, strings.HasPrefix(key, apikey.Prefix)
}

//go:noinline
func (r *Request) hasMoreBearerKeys() bool {
	return slices.ContainsFunc(r.moreLines, func(l line) bool {
		_, isKey := bearerKey(l.value)
		return l.header == headerAuthorization && isKey
	})
}

// parseAPIKey sets cred to the id and secret of an API key; false for any other form. [Request.hasWrongChecksum] checks
// the checksum, unless a verdict makes the check needless.
func (a *authorizer) parseAPIKey(cred *Credential, key string) bool {
	id, tail, ok := apikey.Split(key)
	if !ok {
		return false
	}
	a.secret = append(append(a.secret[:0], apikey.Prefix...), tail...)
	*cred = Credential{ID: id, Secret: asString(a.secret)}
	return true
}

// hasWrongChecksum reports whether the request's credential is an API key with a wrong checksum, which the sidecar need
// not judge.
//
//go:noinline
func (r *Request) hasWrongChecksum(cred *Credential) bool {
	_, shown := r.apiKey(&r.governor.Credentials)
	return shown > 0 && !apikey.IsSecret(cred.Secret)
}
