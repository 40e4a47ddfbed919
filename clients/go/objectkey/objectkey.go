// Package objectkey defines the keys of objects for writers, the sidecar and the edge: the canonical spelling, and the
// part of a query that belongs to a key.
package objectkey

import (
	"bytes"
	"slices"
	"strings"
)

// OfDevice returns the key of the object for key that only device id gets.
func OfDevice(id, key string) string { return "@" + id + key }

// OfVirtualHost returns the key of the object for key that only requests of a virtual host get or, with a host, only
// requests for that host. name or host must be given; without name, host is a host without a virtual host.
func OfVirtualHost(name, host, key string) string {
	return string(AppendOfVirtualHost(nil, name, host, key))
}

// AppendOfVirtualHost appends OfVirtualHost(name, host, key) to dst.
func AppendOfVirtualHost(dst []byte, name, host, key string) []byte {
	dst = append(append(dst, "//"...), name...)
	if host != "" {
		dst = append(append(dst, ':'), host...)
	}
	return append(dst, key...)
}

// OfLanguage returns the key of the object for key in a language.
func OfLanguage(key, language string) string { return key + "#" + strings.ToLower(language) }

// CutLanguage returns key without the language, and the language, "" if absent.
func CutLanguage(key string) (rest, language string) {
	space, target := Split(key)
	target, language, _ = strings.Cut(target, "#")
	return space + target, language
}

// AppendOfDevice appends OfDevice(id, key) to dst.
func AppendOfDevice(dst []byte, id, key string) []byte {
	return append(append(append(dst, '@'), id...), key...)
}

// Split returns a key's path with query, and the space before the path: "@device", "//name:host", both or nothing. A
// key without a path has no target.
func Split(key string) (space, target string) {
	at := 0
	if strings.HasPrefix(key, "@") {
		if at = strings.IndexByte(key, '/'); at < 0 {
			return key, ""
		}
	}
	if strings.HasPrefix(key[at:], "//") {
		path := strings.IndexByte(key[at+2:], '/')
		if path < 0 {
			return key, ""
		}
		at += 2 + path
	}
	return key[:at], key[at:]
}

// VirtualHost returns the name of a key's virtual host, "" if absent, and the key's path with query.
func VirtualHost(key string) (name, target string) {
	space, target := Split(key)
	_, space, _ = strings.Cut(space, "//")
	name, _, _ = strings.Cut(space, ":")
	return name, target
}

// Canonical returns the canonical form of key, the only form for storage and lookup: with the host in lower case, the
// hex digits of escapes in upper case (RFC 3986, section 6.2.2.1), the query's [CanonicalQuery], and the language in
// lower case.
func Canonical(key string) string {
	space, target := Split(key)
	if at := strings.Index(space, "//"); at >= 0 {
		if colon := strings.IndexByte(space[at:], ':'); colon >= 0 {
			space = space[:at+colon] + strings.ToLower(space[at+colon:])
		}
	}
	if strings.IndexByte(target, '%') >= 0 {
		target = string(AppendUpperEscapes(nil, target))
	}
	target, language, inLanguage := strings.Cut(target, "#")
	path, query, found := strings.Cut(target, "?")
	if found {
		if query = CanonicalQuery(query, nil); query != "" {
			path += "?" + query
		}
	}
	if inLanguage {
		path = OfLanguage(path, language)
	}
	return space + path
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

// CanonicalQuery returns the part of a query that belongs to a cache key: the pairs in bytewise order of names, joined
// by '&', without empty pairs. Pairs with the same name keep their order, which may matter. If only is not nil, pairs
// with other names are removed. Nothing is decoded. A pair with a decoded name in only stays as sent: the upstream uses
// the pair, and without the pair the request would get another query's answer.
func CanonicalQuery(query string, only []string) string {
	return string(AppendCanonicalQuery(nil, query, only))
}

// containsName reports whether name is in names, as sent or decoded like a form (percent-encoding, '+' for a space).
func containsName(name string, names []string) bool {
	return slices.Contains(names, name) ||
		strings.ContainsAny(name, "%+") && slices.Contains(names, PercentDecode(strings.ReplaceAll(name, "+", " ")))
}

// PercentDecode decodes all well-formed escapes, and keeps malformed escapes.
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

// AppendCanonicalQuery appends CanonicalQuery(query, only) to dst. Nothing else is allocated if at most 16 pairs count
// and, with only, no removed pair has escapes in its name.
func AppendCanonicalQuery(dst []byte, query string, only []string) []byte {
	var few [16]string
	pairs := few[:0]
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		name, _, _ := strings.Cut(pair, "=")
		if pair != "" && (only == nil || containsName(name, only)) {
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
