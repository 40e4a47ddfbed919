// Package limits has the limits of writers, the sidecar and the edge. A value over a limit is refused on entry, with an
// error that names the limit.
package limits

import "strings"

// The limits.
const (
	// MaxKey bounds a cache key in bytes: path, query and device id together.
	MaxKey = 2048
	// MaxDeviceID bounds a device id in bytes.
	MaxDeviceID = 128
	// MaxVirtualHost bounds the name of a virtual host in bytes, and MaxHost a host without its port.
	MaxVirtualHost = 64
	MaxHost        = 253
	// MaxSecret bounds a secret in bytes; bcrypt reads no more than 72.
	MaxSecret = 72
	// MaxSession bounds a token's session in bytes: two numbers of at most 20 digits, and a dash.
	MaxSession = 41
	// MaxRequestID bounds the id of a request in bytes.
	MaxRequestID = 128
	// MaxPairs bounds the pairs of a key's query.
	MaxPairs = 64
	// MaxETag bounds an entity-tag in bytes, with the quotes.
	MaxETag = 128
	// MaxContentType bounds a Content-Type in bytes.
	MaxContentType = 255
	// MaxHeaders bounds an object's headers in bytes: lines "name: value", and a line feed between two.
	MaxHeaders = 4096
	// MaxHeaderLines bounds their number, and MaxHeaderName a name in bytes.
	MaxHeaderLines = 32
	MaxHeaderName  = 64
	// MaxBody bounds one encoding of an object in bytes.
	MaxBody = 1 << 20
	// MaxShards bounds the shards of a keyspace: for each shard, a reader has a connection and compares positions once a
	// second.
	MaxShards = 64
	// MaxBatch bounds a push to the edge, in bytes: far more than a body and the records around the body.
	MaxBatch = 2 << 20
	// MaxPermissions bounds the permission names of one device.
	MaxPermissions = 64
	// MaxPermissionName bounds a permission name in bytes, and MaxTag a tag.
	MaxPermissionName = 64
	MaxTag            = 64
	// MaxVersion bounds the version of an object or credential: Redis scripts count in doubles, which are exact up to
	// here.
	MaxVersion = 1<<53 - 1
	// MaxOwnVersion bounds a version chosen by a writer. Versions that Redis counts (by default, for deletions and
	// revocations) may exceed MaxOwnVersion.
	MaxOwnVersion = 1 << 52
	// MaxTime is the last time that RFC 3339 can express, in unix milliseconds. A later time in a record, up to
	// MaxVersion, counts as MaxTime.
	MaxTime = 253402300799999
)

// ValidDeviceID reports whether id can name a device: 1 to [MaxDeviceID] bytes of visible ASCII without '/', which ends
// the id in a device's own key, '?', which begins a query, ',', which joins header lines, and '"'.
func ValidDeviceID(id string) bool {
	if len(id) == 0 || len(id) > MaxDeviceID {
		return false
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c >= 0x7f || c == '/' || c == '?' || c == ',' || c == '"' {
			return false
		}
	}
	return true
}

// ValidSecret reports whether clients can send secret in a header: 1 to [MaxSecret] bytes without control characters, a
// blank at an end (header parsers remove blanks), or a byte order mark (editors prepend byte order marks).
func ValidSecret(secret string) bool {
	if len(secret) == 0 || len(secret) > MaxSecret || strings.HasPrefix(secret, "\ufeff") {
		return false
	}
	for i := range len(secret) {
		if c := secret[i]; c < ' ' || c == 0x7f {
			return false
		}
	}
	return secret[0] != ' ' && secret[len(secret)-1] != ' '
}

// ValidQuery reports whether query, without the '?', has at most [MaxPairs] pairs, counting empty pairs.
func ValidQuery(query string) bool { return strings.Count(query, "&") < MaxPairs }

// ValidKey reports whether key can name an object: 1 to [MaxKey] bytes of visible ASCII, "/path" or "/path?query" with
// at most [MaxPairs] pairs. "@device", for an object of a device, and "//name" of a virtual host, "//name:host" or
// "//:host" may precede, in this order; "#language" may follow.
func ValidKey(key string) bool {
	if len(key) == 0 || len(key) > MaxKey {
		return false
	}
	if _, query, _ := strings.Cut(key, "?"); !ValidQuery(query) {
		return false
	}
	for i := range len(key) {
		if c := key[i]; c <= ' ' || c >= 0x7f {
			return false
		}
	}
	if key[0] == '@' {
		slash := strings.IndexByte(key, '/')
		if slash < 0 || !ValidDeviceID(key[1:slash]) {
			return false
		}
		key = key[slash:]
	}
	key, language, found := strings.Cut(key, "#")
	if found && !ValidLanguage(language) {
		return false
	}
	if space, found := strings.CutPrefix(key, "//"); found {
		space, _, found = strings.Cut(space, "/")
		name, host, hosted := strings.Cut(space, ":")
		return found && (ValidVirtualHost(name) || name == "" && hosted) && (!hosted || ValidHost(host))
	}
	return strings.HasPrefix(key, "/")
}

// ValidLanguage reports whether tag has the form of a language tag (RFC 5646, section 2.1) in lower case: subtags of 1
// to 8 of a-z and 0-9, joined by "-"; the first subtag has at least two letters and no digit.
func ValidLanguage(tag string) bool {
	for i, subtag := range strings.Split(tag, "-") {
		if len(subtag) == 0 || len(subtag) > 8 || i == 0 && len(subtag) < 2 {
			return false
		}
		for j := range len(subtag) {
			if c := subtag[j]; !lowerOrDigit(c) || i == 0 && c <= '9' {
				return false
			}
		}
	}
	return true
}

// ValidVirtualHost reports whether name can be the name of a virtual host: 1 to [MaxVirtualHost] of a-z, 0-9, "_" and
// "-".
func ValidVirtualHost(name string) bool {
	for i := range len(name) {
		if c := name[i]; !lowerOrDigit(c) && c != '_' && c != '-' {
			return false
		}
	}
	return 0 < len(name) && len(name) <= MaxVirtualHost
}

// ValidHost reports whether host can be the host of a request, in lower case and without its port: 1 to [MaxHost] of
// a-z, 0-9, ".", "-" and "_", or hex digits, ":" and "." in brackets.
func ValidHost(host string) bool {
	if len(host) == 0 || len(host) > MaxHost {
		return false
	}
	if host[0] == '[' {
		return len(host) > 2 && host[len(host)-1] == ']' && strings.Trim(host[1:len(host)-1], "0123456789abcdef:.") == ""
	}
	for i := range len(host) {
		if c := host[i]; !lowerOrDigit(c) && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func lowerOrDigit(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// ValidETag reports whether etag is a strong entity-tag (RFC 9110, section 8.8.3):
// a quoted string of at most [MaxETag] bytes of visible ASCII without quotes inside.
func ValidETag(etag string) bool {
	if len(etag) < 2 || len(etag) > MaxETag || etag[0] != '"' || etag[len(etag)-1] != '"' {
		return false
	}
	for i := 1; i < len(etag)-1; i++ {
		if c := etag[i]; c <= ' ' || c >= 0x7f || c == '"' {
			return false
		}
	}
	return true
}

// ValidContentType reports whether s can be sent as a Content-Type: 1 to [MaxContentType] bytes of printable ASCII
// without a blank at an end. With such a blank, clients of HTTP/2 refuse the answer (RFC 9113, section 8.2.1).
func ValidContentType(s string) bool { return len(s) <= MaxContentType && ValidHeaderValue(s) }

// ValidHeaderValue reports whether s can be sent as a header's value: printable ASCII, not empty, without a blank at an
// end.
func ValidHeaderValue(s string) bool {
	if len(s) == 0 || s[0] == ' ' || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// ValidHeaderName reports whether s can be the name of an object's header: 1 to [MaxHeaderName] of a-z, 0-9 and "-".
// HTTP allows more characters (RFC 9110, section 5.6.2), but nginx sends "_" as "-", and CGI reads all of them as "-":
// transfer_encoding would become transfer-encoding, a refused header.
func ValidHeaderName(s string) bool {
	if len(s) == 0 || len(s) > MaxHeaderName {
		return false
	}
	for i := range len(s) {
		if !lowerOrDigit(s[i]) && s[i] != '-' {
			return false
		}
	}
	return true
}

// RefusedHeader reports whether an object can't have a header with a name that [ValidHeaderName] accepts: Gatehouse or
// the proxy computes the header, or the header is for a connection (RFC 9110, section 7.6.1) or for a client. For
// nginx, e-tag is etag.
func RefusedHeader(name string) bool {
	switch name {
	case "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "content-type",
		"content-encoding", "content-range", "accept-ranges", "etag", "e-tag", "age", "date", "vary", "cache-status",
		"set-cookie", "set-cookie2":
		return true
	}
	for _, prefix := range [...]string{"proxy-", "x-envoy-", "x-accel-", "x-gatehouse-", "gatehouse-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// OriginHeader reports whether a header acts on a whole site, or on paths beyond the object's own: clients keep the
// header's value for the origin. The edge sends such a header only where a rule allows the name.
func OriginHeader(name string) bool {
	switch name {
	case "accept-ch", "alt-svc", "clear-site-data", "expect-ct", "nel", "origin-agent-cluster", "public-key-pins",
		"report-to", "sec-session-registration", "secure-session-registration", "service-worker-allowed", "set-login",
		"strict-transport-security", "use-as-dictionary":
		return true
	}
	return false
}

// ValidStatus reports whether an object can have this status code: 200, a permanent or temporary redirect, 404 or 410.
func ValidStatus(status int) bool {
	switch status {
	case 200, 301, 302, 307, 308, 404, 410:
		return true
	}
	return false
}

// ValidPermission reports whether name can be a permission: 1 to [MaxPermissionName] bytes of letters, digits and ". _
// : -". Names are joined by commas.
func ValidPermission(name string) bool {
	if len(name) == 0 || len(name) > MaxPermissionName {
		return false
	}
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && c != '.' && c != '_' && c != ':' && c != '-' {
			return false
		}
	}
	return true
}

// ValidTag reports whether tag can be a tag of objects: 1 to [MaxTag] bytes of a URI's characters (RFC 3986, section 2)
// without a comma, which separates tags, and an asterisk, which ends a pattern of tags.
func ValidTag(tag string) bool {
	if len(tag) == 0 || len(tag) > MaxTag {
		return false
	}
	for i := range len(tag) {
		c := tag[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && strings.IndexByte("-._~:/?#[]@!$&'()+;=%", c) < 0 {
			return false
		}
	}
	return true
}

// ValidRequestID reports whether id can be forwarded as the id of a request: 1 to [MaxRequestID] bytes of visible
// ASCII.
func ValidRequestID(id string) bool {
	if len(id) == 0 || len(id) > MaxRequestID {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] >= 0x7f {
			return false
		}
	}
	return true
}

// ValidTraceparent reports whether s is a traceparent of version 00 (W3C Trace Context, section 3.2.2): "00-", 32 hex
// digits, "-", 16, "-", 2.
func ValidTraceparent(s string) bool {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return false
	}
	for i := 3; i < len(s); i++ {
		if c := s[i]; i != 35 && i != 52 && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
