// Package objectkey defines the keys of objects for writers, the sidecar and the edge: their spelling, and the part of
// a query that belongs to them.
package objectkey

import (
	"bytes"
	"slices"
	"strings"
)

// OfDevice returns the key of the object for key that only device id gets.
func OfDevice(id, key string) string { return "@" + id + key }

// OfVirtualHost returns the key of the object for key that only requests of a virtual host get or, with a host, only
// those for this one. It needs one of the two: without a name it is for a host that has no virtual host.
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

// CutLanguage returns key without its language, and the language, "" if it has none.
func CutLanguage(key string) (rest, language string) {
	space, target := Split(key)
	target, language, _ = strings.Cut(target, "#")
	return space + target, language
}

// AppendOfDevice appends OfDevice(id, key) to dst.
func AppendOfDevice(dst []byte, id, key string) []byte {
	return append(append(append(dst, '@'), id...), key...)
}

// Split returns path and query of a key, and what precedes them: "@device", "//name:host", both or nothing. A key that
// lacks the path has no target.
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

// VirtualHost returns the name of a key's virtual host, "" if it has none, and its path and query.
func VirtualHost(key string) (name, target string) {
	space, target := Split(key)
	_, space, _ = strings.Cut(space, "//")
	name, _, _ = strings.Cut(space, ":")
	return name, target
}

// Canonical returns the canonical form of key, the only one that is stored and looked up: with the host in lower case,
// the hex digits of escapes in upper case (RFC 3986, section 6.2.2.1), the query's [CanonicalQuery], and the language
// in lower case.
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

// CanonicalQuery returns the part of a query that belongs to a cache key: its pairs in bytewise order of their names,
// joined by '&', without empty ones. Pairs with the same name keep their order, which may matter. If only is not nil,
// it removes pairs with other names. It decodes nothing. A pair whose decoded name is in only stays, as sent: the
// upstream uses it, so without it the request would get the answer for another query.
func CanonicalQuery(query string, only []string) string {
	return string(AppendCanonicalQuery(nil, query, only))
}

// named reports whether name is in names, as sent or decoded like a form (percent-encoding, and '+' for a space).
func named(name string, names []string) bool {
	return slices.Contains(names, name) ||
		strings.ContainsAny(name, "%+") && slices.Contains(names, PercentDecode(strings.ReplaceAll(name, "+", " ")))
}

// PercentDecode decodes all well-formed escapes and keeps the others.
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

// AppendCanonicalQuery appends CanonicalQuery(query, only) to dst. It allocates nothing else if at most 16 pairs count
// and, with only, no other pair's name has escapes.
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
