package policy

// Note is a property of a request: a header that the route configuration adds to its response from upstream, or for
// access logs.
type Note uint8

// The notes.
const (
	NoteCacheStatus  Note = iota // Cache-Status
	NoteVary                     // a line of Vary
	NoteCacheControl             // Cache-Control, if the upstream sends none
	NoteNoStore                  // Cache-Control, instead of the upstream's
	NoteDevice                   // the device that its credential names, accepted or refused
	NoteRule                     // the name of the rule that governs it
	NoteReason                   // what a trial tells of it: [Reason.WouldDeny], or [ReasonDifferent]
)

var noteNames = [...]string{
	NoteCacheStatus:  "gatehouse_cache_status",
	NoteVary:         "gatehouse_vary",
	NoteCacheControl: "gatehouse_cache_control",
	NoteNoStore:      "gatehouse_no_store",
	NoteDevice:       "gatehouse_device",
	NoteRule:         "gatehouse_rule",
	NoteReason:       "gatehouse_reason",
}

// String returns the note's name in Envoy's filter state, after the prefix "wasm.".
func (n Note) String() string { return noteNames[n] }

// VaryAll is the Vary of an answer that is for one request.
const VaryAll = "*"

// UpstreamVary returns the UpstreamVary that keeps the upstream's answer to an authenticated request from other clients: the headers of
// the credential or, for objects of one device, [VaryAll], with which no cache gives it to any client (RFC 9111,
// section 4.1). Some caches don't find the "*" beside names that the upstream sends, and some ignore UpstreamVary, so that such
// an answer needs [NoteNoStore], too. UpstreamVary returns "" for methods whose answers caches don't store, and under a rule
// that isn't enforced, which leaves the answer as it is.
func (e *Engine) UpstreamVary(r *Request) string {
	rule := &e.config.Rules[r.rule]
	if m := r.method(); m != "GET" && m != "HEAD" || rule.isAuthTrial() {
		return ""
	}
	if rule.isServed() && rule.Cache.PerDevice {
		return VaryAll
	}
	return e.governor.varyCredential
}
