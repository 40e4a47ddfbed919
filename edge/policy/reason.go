package policy

import "strings"

// Reason is the reason of an answer. Its name is in Envoy's RESPONSE_CODE_DETAILS and nginx's $gatehouse_reason.
type Reason uint8

// The reasons of answers from the policy. The reasons of cached answers follow from [Decision.Cache].
const (
	// Unreadable: the headers of the request can't be read.
	Unreadable Reason = iota
	// NoCredential: the request has no credential, a part of a credential, or a malformed credential.
	NoCredential
	// UnknownDevice: the device is not registered.
	UnknownDevice
	// WrongSecret: the device authenticated with another secret, and has only one.
	WrongSecret
	// Denied: the sidecar refused the credential: the secret is wrong, or the device unknown, disabled or revoked.
	Denied
	// BadToken: the request has an invalid token. In Envoy, jwt_authn refuses the request, with a reason of its own.
	BadToken
	// MissingPermission: the device lacks a permission of the rule.
	MissingPermission
	// AmbiguousPath: routers read the path in different ways, and a rule protects one reading.
	AmbiguousPath
	// AmbiguousHost: the request has several hosts, or a host that proxies read in different ways, and a rule protects
	// some host.
	AmbiguousHost
	// DefaultDeny: no rule matches, and the default is deny.
	DefaultDeny
	// NoState: the edge's memory is empty or of another release, or was replaced while the sidecar answered.
	NoState
	// NotInStep: the edge was not in step with Redis lately. The credential looks wrong, but may be right by now; or
	// max_auth_staleness has passed.
	NotInStep
	// NoAnswer: the sidecar had to be asked, and gave no answer.
	NoAnswer
	// NotVerified: the sidecar can't verify the credential now. The metric gatehouse_verifications_total has the
	// reason.
	NotVerified
	// TooManyGuesses: too many wrong secrets of the device, or of new devices, came from this network: for a while, the
	// edge refuses further secrets on the sidecar's behalf.
	TooManyGuesses
	// TokenIssued: the credential was exchanged for a token.
	TokenIssued
	reasons
)

var reasonNames = [reasons]string{
	Unreadable:        "gatehouse_unavailable_unreadable",
	NoCredential:      "gatehouse_denied_no_credential",
	UnknownDevice:     "gatehouse_denied_unknown_device",
	WrongSecret:       "gatehouse_denied_wrong_secret",
	Denied:            "gatehouse_denied_credential",
	BadToken:          "gatehouse_denied_token",
	MissingPermission: "gatehouse_forbidden_permission",
	AmbiguousPath:     "gatehouse_forbidden_ambiguous_path",
	AmbiguousHost:     "gatehouse_forbidden_ambiguous_host",
	DefaultDeny:       "gatehouse_forbidden_default",
	NoState:           "gatehouse_unavailable_no_state",
	NotInStep:         "gatehouse_unavailable_not_in_step",
	NoAnswer:          "gatehouse_unavailable_no_answer",
	NotVerified:       "gatehouse_unavailable_not_verified",
	TooManyGuesses:    "gatehouse_unavailable_throttled",
	TokenIssued:       "gatehouse_token_issued",
}

// The reasons of answers from the cache.
const (
	reasonHit         = "gatehouse_hit"
	reasonNotModified = "gatehouse_not_modified"
	reasonStale       = "gatehouse_hit_stale"
)

// wouldDeny has, for each reason of a refusal, the name of the reason on trial.
var wouldDeny = func() (names [reasons]string) {
	for i, name := range reasonNames {
		parts := strings.SplitN(name, "_", 3) // gatehouse, kind of refusal, reason
		names[i] = WouldDenyPrefix + parts[2]
	}
	return names
}()

// WouldDenyPrefix begins the names of reasons on trial: the rule isn't enforced.
const WouldDenyPrefix = "gatehouse_would_deny_"

// String returns the reason's name.
func (r Reason) String() string { return reasonNames[r] }

// WouldDeny returns the reason's name for a request that passes because a rule isn't enforced:
// "gatehouse_would_deny_wrong_secret" for [WrongSecret].
func (r Reason) WouldDeny() string { return wouldDeny[r] }

// Reasons returns all names, for documentation.
func Reasons() []string {
	return append([]string{reasonHit, reasonNotModified, reasonStale}, reasonNames[:]...)
}

// Details returns the name of the reason of a reply.
func (d *Decision) Details() string {
	switch d.Cache {
	case CacheHit:
		return reasonHit
	case CacheNotModified:
		return reasonNotModified
	case CacheStaleServed:
		return reasonStale
	}
	return reasonNames[d.Reason]
}
