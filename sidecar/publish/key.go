package publish

import (
	"context"
	"strings"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/wire"
)

// canonical is the form of key that is stored, with the hex digits of its escapes in upper case. It refuses a key that
// no edge looks up, and names the right one.
func canonical(key string) (string, error) {
	if err := checkMember(contract.ObjectMember(key)); err != nil {
		return "", err
	}
	device, target := "", key
	if key[0] == '@' {
		at := strings.IndexByte(key, '/')
		device, target = key[:at], key[at:]
	}
	target = string(wire.AppendUpperEscapes(nil, target))
	if want := lookedUp(target); target != want { //mutant:TestKeysThatNoEdgeLooksUp false
		return "", refuse("key %q: no edge looks it up, want %q", key, device+want)
	}
	return device + target, nil
}

// spelled is the stored key that key names: just this one, where another writer has stored it so though it isn't
// canonical, and otherwise [canonical].
func (p *Publisher) spelled(ctx context.Context, key string) (string, error) {
	m := contract.ObjectMember(key)
	if checkMember(m) == nil && wire.CanonicalKey(key) != key {
		state, err := p.state(ctx, m)
		if err != nil || state.there { //mutant:TestKeysOfOtherWriters err != nil
			return key, err
		}
	}
	return canonical(key)
}

// lookedUp is the target that the edge looks up for a request of target: Envoy cuts a fragment off, decodes
// escapes of what needs none (RFC 3986, section 2.3), takes "\" for "/", merges slashes and resolves dots, all
// in the path only; the filter sorts the query. Escaped slashes are refused there, so they stand for plain ones here.
func lookedUp(target string) string {
	target, _, _ = strings.Cut(target, "#")
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
			segments = append(segments, "") // the slash at the end stays
		}
	}
	path = "/" + strings.Join(segments, "/")
	if query = wire.CanonicalQuery(query, nil); query != "" {
		return path + "?" + query
	}
	return path
}

// decodeUnreserved decodes escapes of letters, digits and "-._~".
func decodeUnreserved(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '%' && i+2 < len(path) {
			decoded := wire.PercentDecode(path[i : i+3])
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
