package policy

// Note is a property of a request, for access logs or for a response header that the route configuration adds.
type Note uint8

// The notes.
const (
	NoteCacheStatus  Note = iota // Cache-Status
	NoteVary                     // a line of Vary
	NoteCacheControl             // Cache-Control, if the upstream sends none
	NoteNoStore                  // Cache-Control, instead of the upstream's
	NoteDevice                   // the device named in the credential, accepted or refused
	NoteRule                     // the name of the governing rule
	NoteReason                   // the result of a trial: [Reason.WouldDeny], or [ReasonDifferent]
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

// VaryAll is the Vary of an answer for a single request.
const VaryAll = "*"

// UpstreamVary returns the Vary that keeps the upstream's answer to an authenticated request from other clients: the
// headers of the credential or, for objects of one device, [VaryAll], with which no cache gives the answer to any
// client (RFC 9111, section 4.1). Some caches miss the "*" beside names from the upstream, and some ignore Vary, so an
// answer with VaryAll needs [NoteNoStore], too.
//
// UpstreamVary returns "" for methods without cacheable answers, and under a rule on trial, which leaves the answer
// unchanged.
func (r *Request) UpstreamVary() string {
	rule := &r.governor.rules[r.rule]
	if m := r.method(); m != "GET" && m != "HEAD" || rule.isAuthTrial() {
		return ""
	}
	if rule.isServed() && rule.Cache.PerDevice {
		return VaryAll
	}
	return r.governor.varyCredential
}
