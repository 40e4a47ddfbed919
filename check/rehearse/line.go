package rehearse

import (
	"encoding/hex"
	"encoding/json"
	"strings"
)

// ParseLine returns the request of a line of an access log: a JSON object with method, path and optional authority or
// host, like our configurations' logs; Envoy's default format; or nginx's combined format. ParseLine returns false for
// any other line, such as a line about a request that the proxy couldn't read.
func ParseLine(line []byte) (r Request, ok bool) {
	text := strings.TrimSpace(string(line))
	switch {
	case text == "":
	case text[0] == '{':
		r, ok = parseJSON([]byte(text))
	case text[0] == '[':
		r, ok = parseEnvoy(text)
	default:
		r, ok = parseCombined(text)
	}
	if r.Host == "-" {
		r.Host = ""
	}
	ok = ok && r.Method != "" && r.Method != "-" && (strings.HasPrefix(r.Path, "/") || r.Path == "*")
	return r, ok && !strings.Contains(r.Method, " ")
}

func parseJSON(line []byte) (Request, bool) {
	var fields struct {
		Method    jsonText `json:"method"`
		Path      jsonText `json:"path"`
		Authority jsonText `json:"authority"`
		Host      jsonText `json:"host"`
	}
	if json.Unmarshal(line, &fields) != nil {
		return Request{}, false
	}
	r := Request{string(fields.Method), string(fields.Authority), string(fields.Path)}
	if r.Host == "" || r.Host == "-" {
		r.Host = string(fields.Host)
	}
	return splitURL(r), true
}

// jsonText is a string in JSON. Other programs may put values of other types into a field of this name: such a value
// counts as "".
type jsonText string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *jsonText) UnmarshalJSON(b []byte) error {
	if b[0] != '"' {
		return nil
	}
	return json.Unmarshal(b, (*string)(t))
}

// parseEnvoy reads Envoy's default format, [TIME] "METHOD PATH PROTOCOL" … "AUTHORITY" "UPSTREAM". Envoy escapes
// nothing. A path and an authority have no spaces, but other values may have quotes: parseEnvoy looks for the authority
// from the end.
func parseEnvoy(line string) (r Request, ok bool) {
	_, rest, found := strings.Cut(line, `] "`)
	method, rest, ok1 := strings.Cut(rest, " ")
	path, rest, ok2 := strings.Cut(rest, " ")
	protocol, rest, ok3 := strings.Cut(rest, `" `)
	if !found || !ok1 || !ok2 || !ok3 || strings.Contains(protocol, " ") {
		return r, false
	}
	r = Request{Method: method, Path: path}
	if values := strings.Split(strings.TrimSuffix(rest, `"`), `" "`); strings.HasSuffix(rest, `"`) && len(values) > 1 {
		r.Host = values[len(values)-2]
		r.Host = r.Host[strings.LastIndexByte(r.Host, '"')+1:]
	}
	return splitURL(r), true
}

// parseCombined reads nginx's combined format, ADDRESS - USER [TIME] "METHOD TARGET PROTOCOL" …, with quotes written
// as \x22.
func parseCombined(line string) (r Request, ok bool) {
	_, rest, found := strings.Cut(line, `] "`)
	request, _, closed := strings.Cut(rest, `"`)
	if !found || !closed {
		return r, false
	}
	if r.Method, r.Path, ok = strings.Cut(request, " "); !ok {
		return r, false
	}
	if i := strings.LastIndex(r.Path, " HTTP/"); i >= 0 {
		r.Path = r.Path[:i]
	}
	r.Path = decodeEscapes(r.Path)
	return splitURL(r), true
}

// decodeEscapes decodes nginx's \xXX.
func decodeEscapes(text string) string {
	if !strings.Contains(text, `\x`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if i+4 <= len(text) && text[i] == '\\' && text[i+1] == 'x' {
			if c, err := hex.DecodeString(text[i+2 : i+4]); err == nil {
				b.WriteByte(c[0])
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// splitURL splits a target in the form of a URL (RFC 9112, section 3.2.2) into host and path, as proxies do.
func splitURL(r Request) Request {
	scheme, rest, found := strings.Cut(r.Path, "://")
	if !found || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return r
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	r.Host, r.Path = rest[:end], rest[end:]
	if !strings.HasPrefix(r.Path, "/") {
		r.Path = "/" + r.Path
	}
	return r
}
