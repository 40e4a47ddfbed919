package publish

import (
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// KeyOfLanguage returns the key of the object for key in a language, under a rule with this one among its languages.
func KeyOfLanguage(key, language string) string { return objectkey.OfLanguage(key, language) }

// KeyOfVirtualHost returns the key of the object at path, which begins with a slash, for requests of a virtual host or,
// under a rule with scope host, for those with this host. The name is "" for rules outside virtual hosts, the host for
// rules without that scope.
func KeyOfVirtualHost(name, host, path string) string {
	return objectkey.OfVirtualHost(name, strings.ToLower(host), path)
}

// CanonicalKey returns the stored form of key, or an [ErrInvalid] for a key that no edge looks up, as [Publisher.Put].
func CanonicalKey(key string) (string, error) { return canonical(key) }

// canonical returns the stored form of key: its host is in lower case, and the hex digits of escapes in upper case. It
// returns an error for a key that no edge looks up; the error names the right one.
func canonical(key string) (string, error) {
	if err := checkMember(contract.ObjectMember(objectkey.Canonical(key))); err != nil {
		return "", err
	}
	rest, language := objectkey.CutLanguage(key)
	if language != "" {
		language = objectkey.OfLanguage("", language)
	}
	space, target := objectkey.Split(rest)
	target = string(objectkey.AppendUpperEscapes(nil, target))
	if want := lookedUp(target); target != want {
		return "", refuse("key %q: no edge looks it up, want %q", key, objectkey.Canonical(space+want)+language)
	}
	return objectkey.Canonical(space+target) + language, nil
}

// lookedUp returns the target that the edge looks up for a request with this target. In the path, Envoy decodes escapes
// of unreserved characters (RFC 3986, section 2.3), converts "\" to "/", merges slashes and resolves dots; the filter
// sorts the query. Envoy refuses escaped slashes, so here they are treated as plain ones.
func lookedUp(target string) string {
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
			if len(decoded) == 1 && unreserved(decoded[0]) {
				b.WriteString(decoded)
				i += 2
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}
