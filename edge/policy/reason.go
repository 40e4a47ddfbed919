package policy

import "strings"

// Reason is the reason of an answer. Its name is in Envoy's RESPONSE_CODE_DETAILS and nginx's $gatehouse_reason.
type Reason uint8

// The reasons of answers from the policy; reasonTable explains them. The reasons of cached answers follow from
// [Decision.Cache].
const (
	Unreadable Reason = iota
	NoCredential
	UnknownDevice
	WrongSecret
	Denied
	BadToken
	MissingPermission
	AmbiguousPath
	AmbiguousHost
	DefaultDeny
	NoState
	NotInStep
	NoAnswer
	NotVerified // the metric gatehouse_verifications_total has the reason
	TooManyGuesses
	TokenIssued
	reasonHit // and the following ones: from the cache
	reasonNotModified
	reasonStale
	reasons
)

// reasonTable has the name of each reason, and the explanation for operators.
var reasonTable = [reasons]struct{ name, text string }{
	Unreadable: {"gatehouse_unavailable_unreadable", "The request's headers can't be read."},
	NoCredential: {"gatehouse_denied_no_credential",
		"The request has no credential, only a part of one, or a malformed one."},
	UnknownDevice: {"gatehouse_denied_unknown_device", "No such device is registered."},
	WrongSecret:   {"gatehouse_denied_wrong_secret", "The device authenticated with another secret, and has only one."},
	Denied: {"gatehouse_denied_credential", "The sidecar refuses the credential: the secret is wrong, or the device is " +
		"unknown, revoked, disabled or expired."},
	BadToken: {"gatehouse_denied_token", "The request has a token that isn't valid. In Envoy, jwt_authn refuses it " +
		"with a reason of its own."},
	MissingPermission: {"gatehouse_forbidden_permission", "The device lacks a permission that the rule requires."},
	AmbiguousPath:     {"gatehouse_forbidden_ambiguous_path", "Two readings of the path match different rules."},
	AmbiguousHost: {"gatehouse_forbidden_ambiguous_host",
		"The request has several hosts, or one that proxies read in different ways."},
	DefaultDeny: {"gatehouse_forbidden_default", "No rule governs the request, and the default is deny."},
	NoState: {"gatehouse_unavailable_no_state",
		"The edge's memory is empty, of another release, or just being replaced."},
	NotInStep: {"gatehouse_unavailable_not_in_step", "The edge was not in step with Redis lately: the credential looks " +
		"wrong, but may be right by now; or max_auth_staleness has passed."},
	NoAnswer:    {"gatehouse_unavailable_no_answer", "The sidecar had to be asked, and gave no answer."},
	NotVerified: {"gatehouse_unavailable_not_verified", "The sidecar can't verify the credential now."},
	TooManyGuesses: {"gatehouse_unavailable_throttled", "Too many wrong secrets came from this network, so the edge " +
		"refuses others for a while, right or not."},
	TokenIssued:       {"gatehouse_token_issued", "The credential is exchanged for a token."},
	reasonHit:         {"gatehouse_hit", "The edge answers from shared memory."},
	reasonNotModified: {"gatehouse_not_modified", "The client has the current version: the edge answers 304."},
	reasonStale: {"gatehouse_hit_stale", "The edge answers from shared memory although it isn't in step with Redis " +
		"(stale: serve)."},
}

// wouldDeny has, for each reason of a refusal, the name of the reason on trial.
var wouldDeny = func() (names [reasonHit]string) {
	for i := range names {
		parts := strings.SplitN(reasonTable[i].name, "_", 3) // gatehouse, kind of refusal, reason
		names[i] = WouldDenyPrefix + parts[2]
	}
	return names
}()

// WouldDenyPrefix begins the names of reasons on trial: the rule isn't enforced.
const WouldDenyPrefix = "gatehouse_would_deny_"

// String returns the reason's name.
func (r Reason) String() string { return reasonTable[r].name }

// WouldDeny returns the reason's name for a request that passes because a rule isn't enforced:
// "gatehouse_would_deny_wrong_secret" for [WrongSecret].
func (r Reason) WouldDeny() string { return wouldDeny[r] }

// ExplainReasons returns the explanation of each reason, by name.
func ExplainReasons() map[string]string {
	all := map[string]string{}
	for _, r := range reasonTable {
		all[r.name] = r.text
	}
	return all
}

// Details returns the name of the reason of a reply.
func (d *Decision) Details() string {
	switch d.Cache {
	case CacheHit:
		return reasonHit.String()
	case CacheNotModified:
		return reasonNotModified.String()
	case CacheStaleServed:
		return reasonStale.String()
	}
	return d.Reason.String()
}
