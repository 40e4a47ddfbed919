package publish

import (
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// KeyOfLanguage returns the key of the object for key in a language, under a rule with the language in its list.
func KeyOfLanguage(key, language string) string { return objectkey.OfLanguage(key, language) }

// KeyOfVirtualHost returns the key of the object at path, which begins with a slash, for requests of virtual host name
// and, under a rule with scope host, of host. name is "" for rules outside virtual hosts, host is "" for rules with
// another scope.
func KeyOfVirtualHost(name, host, path string) string {
	return objectkey.OfVirtualHost(name, strings.ToLower(host), path)
}

// CanonicalKey returns the stored form of key. For a key that no edge looks up, the error is [ErrInvalid], as with
// [Publisher.Put].
func CanonicalKey(key string) (string, error) { return canonicalKey(key) }

// canonicalKey returns the stored form of key: the host in lower case, the hex digits of escapes in upper case. A key
// that no edge looks up is an error, which names the right key.
func canonicalKey(key string) (string, error) {
	if err := checkMember(contract.ObjectMember(objectkey.Canonical(key))); err != nil {
		return "", err
	}
	rest, language := objectkey.CutLanguage(key)
	if language != "" {
		language = objectkey.OfLanguage("", language)
	}
	space, target := objectkey.Split(rest)
	target = string(objectkey.AppendUpperEscapes(nil, target))
	if want := lookupTarget(target); target != want {
		return "", refuse("key %q: no edge looks it up, want %q", key, objectkey.Canonical(space+want)+language)
	}
	return objectkey.Canonical(space+target) + language, nil
}

// lookupTarget returns the target that the edge looks up for a request with the given target. In the path, Envoy
// decodes escapes of unreserved characters (RFC 3986, section 2.3), converts "\" to "/", merges slashes and resolves
// dots; the filter sorts the query. Envoy refuses escaped slashes; lookupTarget treats escaped slashes as plain
// slashes.
func lookupTarget(target string) string {
	path, query, _ := strings.Cut(target, "?")
	path = strings.NewReplacer("%2F", "/", "%5C", "/", `\`, "/").Replace(decodeUnreserved(path))
	var segments []string
	rest := strings.Split(path, "/")
	for i, segment := range rest {
		last := i == len(rest)-1
		switch {
		case segment == "..":
			segments = segments[:max(len(segments)-1, 0)]
		case segment != "." && segment != "":
			segments = append(segments, segment)
		}
		if last && (segment == "" || segment == "." || segment == "..") && len(segments) > 0 {
			segments = append(segments, "") // keeps the slash at the end
		}
	}
	path = "/" + strings.Join(segments, "/")
	if query = objectkey.CanonicalQuery(query, nil); query != "" {
		return path + "?" + query
	}
	return path
}

// decodeUnreserved decodes escapes of letters, digits and "-._~".
func decodeUnreserved(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '%' && i+2 < len(path) {
			decoded := objectkey.PercentDecode(path[i : i+3])
			if len(decoded) == 1 && isUnreserved(decoded[0]) {
				b.WriteString(decoded)
				i += 2
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}
