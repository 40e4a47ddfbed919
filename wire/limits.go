package wire

import (
	"bytes"
	"slices"
	"strings"
)

// Limits that writers, the sidecar and the edge share. A value over its limit is
// refused where it enters, with the limit in the message.
const (
	// MaxKey bounds a cache key in bytes: path, query and device id together.
	MaxKey = 2048
	// MaxDeviceID bounds a device id in bytes.
	MaxDeviceID = 128
	// MaxSecret bounds a secret in bytes; bcrypt reads no more than 72.
	MaxSecret = 72
	// MaxSession bounds a token's session in bytes: two numbers of at
	// most 20 digits, and a dash.
	MaxSession = 41
	// MaxPairs bounds the pairs of a key's query.
	MaxPairs = 64
	// MaxETag bounds an entity-tag in bytes, its quotes included.
	MaxETag = 128
	// MaxContentType bounds a Content-Type in bytes.
	MaxContentType = 255
	// MaxBody bounds one encoding of an object in bytes.
	MaxBody = 1 << 20
	// MaxPermissions bounds how many distinct permission names one edge knows:
	// each is a bit of a 64-bit set.
	MaxPermissions = 64
	// MaxPermissionName bounds a permission name in bytes.
	MaxPermissionName = 64
	// MaxVersion bounds an object's or credential's version: Redis scripts count in
	// doubles, which are exact up to here.
	MaxVersion = 1<<53 - 1
)

// ValidDeviceID reports whether id can name a device: 1 to [MaxDeviceID] bytes of
// visible ASCII without '/', which ends the id in a device-scoped key, '?', which
// begins a query, ',', which joins folded header lines, and '"'.
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

// ValidQuery reports whether query, without its '?', has at most [MaxPairs] pairs, empty ones included.
func ValidQuery(query string) bool { return strings.Count(query, "&") < MaxPairs }

// ValidKey reports whether key can name an object: 1 to [MaxKey] bytes of visible ASCII,
// "/path", "/path?query" with at most [MaxPairs] pairs, or "@device/path" for a payload of one device.
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
		id, _, found := strings.Cut(key[1:], "/")
		return found && ValidDeviceID(id)
	}
	return key[0] == '/'
}

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

// ValidContentType reports whether s can be sent as a Content-Type: 1 to
// [MaxContentType] bytes of printable ASCII.
func ValidContentType(s string) bool {
	if len(s) == 0 || len(s) > MaxContentType {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// ValidPermission reports whether name can be a permission: 1 to [MaxPermissionName]
// bytes of letters, digits and ". _ : -", so that a comma can separate names.
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

// DeviceKey returns the key of the object that only device id gets for key.
func DeviceKey(id, key string) string { return "@" + id + key }

// AppendDeviceKey appends DeviceKey(id, key) to dst.
func AppendDeviceKey(dst []byte, id, key string) []byte {
	return append(append(append(dst, '@'), id...), key...)
}

// CanonicalKey returns the key by which the edge looks up an object that is stored as key: the hex digits of escapes
// are upper case (RFC 3986, section 6.2.2.1), and the query is its [CanonicalQuery].
func CanonicalKey(key string) string {
	device := 0
	if strings.HasPrefix(key, "@") {
		if device = strings.IndexByte(key, '/'); device < 0 {
			return key
		}
	}
	target := key[device:]
	if strings.IndexByte(target, '%') >= 0 {
		target = string(AppendUpperEscapes(nil, target))
	}
	path, query, found := strings.Cut(target, "?")
	if found {
		if query = CanonicalQuery(query, nil); query != "" {
			path += "?" + query
		}
	}
	return key[:device] + path
}

// AppendUpperEscapes appends s to dst, with the hex digits of escapes in upper case.
func AppendUpperEscapes(dst []byte, s string) []byte {
	start := len(dst)
	dst = append(dst, s...)
	for b := dst[start:]; ; {
		at := bytes.IndexByte(b, '%')
		if at < 0 || at+2 >= len(b) {
			return dst
		}
		b = b[at+1:]
		if unhex[b[0]]|unhex[b[1]] >= 16 {
			continue
		}
		for i, c := range b[:2] {
			if c >= 'a' {
				b[i] = c - 'a' + 'A'
			}
		}
		b = b[2:]
	}
}

// CanonicalQuery returns the part of a query that belongs to a cache key: its pairs in bytewise order of their names,
// joined by '&', without empty ones. Pairs of one name keep their order, which may matter. With only != nil it drops
// pairs of other names. It decodes nothing. A pair whose decoded name is one of only stays, as sent: the upstream uses
// it, so without it the request would get the answer for another query.
func CanonicalQuery(query string, only []string) string {
	return string(AppendCanonicalQuery(nil, query, only))
}

// named reports whether name is one of names, as sent or decoded like a form (percent-encoding, and '+' for a space).
func named(name string, names []string) bool {
	return slices.Contains(names, name) ||
		strings.ContainsAny(name, "%+") && slices.Contains(names, PercentDecode(strings.ReplaceAll(name, "+", " ")))
}

// PercentDecode decodes every escape that is well-formed and keeps the others.
func PercentDecode(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	return string(AppendPercentDecode(make([]byte, 0, len(s)), s))
}

// AppendPercentDecode appends PercentDecode(s) to dst.
func AppendPercentDecode(dst []byte, s string) []byte {
	start := len(dst)
	dst = slices.Grow(dst, len(s))[:start+len(s)]
	to := dst[start:]
	n := 0
	for i := 0; i < len(s) && n < len(to); i, n = i+1, n+1 {
		c := s[i]
		if c == '%' && i+2 < len(s) {
			hi, lo := unhex[s[i+1]], unhex[s[i+2]]
			if hi|lo < 16 {
				c = hi<<4 | lo
				i += 2
			}
		}
		to[n] = c
	}
	return dst[:start+n]
}

// unhex returns the value of a hexadecimal digit, 16 for any other byte.
var unhex = func() (all [256]byte) {
	for c := range all {
		switch {
		case '0' <= c && c <= '9':
			all[c] = byte(c - '0')
		case 'a' <= c && c <= 'f':
			all[c] = byte(c - 'a' + 10)
		case 'A' <= c && c <= 'F':
			all[c] = byte(c - 'A' + 10)
		default:
			all[c] = 16
		}
	}
	return all
}()

// AppendCanonicalQuery appends CanonicalQuery(query, only) to dst. It allocates nothing
// else as long as not more than 16 pairs count and, where only some do, no other's name has escapes.
func AppendCanonicalQuery(dst []byte, query string, only []string) []byte {
	var few [16]string
	pairs := few[:0]
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		name, _, _ := strings.Cut(pair, "=")
		if pair != "" && (only == nil || named(name, only)) {
			pairs = append(pairs, pair)
		}
	}
	slices.SortStableFunc(pairs, func(a, b string) int {
		nameA, _, _ := strings.Cut(a, "=")
		nameB, _, _ := strings.Cut(b, "=")
		return strings.Compare(nameA, nameB)
	})
	for i, pair := range pairs {
		if i > 0 {
			dst = append(dst, '&')
		}
		dst = append(dst, pair...)
	}
	return dst
}
