package policy

// Note is something that the route configuration adds to a response from upstream; its name is that of a property.
type Note uint8

// The notes.
const (
	NoteCacheStatus  Note = iota // Cache-Status
	NoteVary                     // a line of Vary
	NoteCacheControl             // Cache-Control, where the upstream sends none
	NotePrivate                  // a line of Cache-Control, whatever the upstream sends
)

var noteNames = [...]string{
	NoteCacheStatus:  "gatehouse_cache_status",
	NoteVary:         "gatehouse_vary",
	NoteCacheControl: "gatehouse_cache_control",
}

// String is the note's name in Envoy's filter state, after the prefix "wasm.".
func (n Note) String() string { return noteNames[n] }

// Vary is what keeps the upstream's answer to a request, whose device an auth rule has let in, from others, besides that it
// is private unless the upstream says otherwise: the headers of the credential or, of what is of one device, "*", by which no
// cache gives it to anybody, whatever else the upstream says (RFC 9111, section 4.1). Only what is read can be kept by
// caches; "" of what isn't.
func (e *Engine) Vary(r *Request) string {
	if m := r.method(); m != "GET" && m != "HEAD" {
		return ""
	}
	if cache := e.config.Rules[r.rule].Cache; cache != nil && cache.PerDevice {
		return "*"
	}
	return e.varyCredential
}
