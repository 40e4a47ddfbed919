package inspect

import (
	"encoding/base64"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
)

// placeholder stands for the right secret of a device.
const placeholder = "-"

// basicCredential returns a device's credential with the placeholder (RFC 7617).
func basicCredential(id string) string {
	return base64.StdEncoding.EncodeToString([]byte(id + ":" + placeholder))
}

// placeholderKey returns an API key of a device, with a placeholder of the right form for its secret.
func placeholderKey(id string) string {
	key, _ := apikey.Of(id, apikey.Secret(strings.Repeat("A", 26)))
	return key
}

// replies explains each reason of the edge's own answers.
var replies = map[string]string{
	"gatehouse_hit": "The edge answers from shared memory.",
	"gatehouse_hit_stale": "The edge answers from shared memory although it isn't in step with Redis " +
		"(stale: serve).",
	"gatehouse_not_modified":           "The client has the current version: the edge answers 304.",
	"gatehouse_unavailable_unreadable": "The request's headers can't be read.",
	"gatehouse_denied_no_credential":   "The request has no credential, only a part of one, or a malformed one.",
	"gatehouse_denied_unknown_device":  "No such device is registered.",
	"gatehouse_denied_wrong_secret":    "The device authenticated with another secret, and has only one.",
	"gatehouse_denied_credential": "The sidecar refuses the credential: the secret is wrong, or the device is " +
		"unknown, revoked, disabled or expired.",
	"gatehouse_denied_token": "The request has a token that isn't valid. In Envoy, jwt_authn refuses it " +
		"with a reason of its own.",
	"gatehouse_forbidden_permission":     "The device lacks a permission that the rule requires.",
	"gatehouse_forbidden_ambiguous_path": "Two readings of the path match different rules.",
	"gatehouse_forbidden_ambiguous_host": "The request has several hosts, or one that proxies read in different ways.",
	"gatehouse_forbidden_default":        "No rule governs the request, and the default is deny.",
	"gatehouse_unavailable_no_state":     "The edge's memory is empty, of another release, or just being replaced.",
	"gatehouse_unavailable_not_in_step": "The edge was not in step with Redis lately: the credential looks wrong, but " +
		"may be right by now; or max_auth_staleness has passed.",
	"gatehouse_unavailable_no_answer":    "The sidecar had to be asked, and gave no answer.",
	"gatehouse_unavailable_not_verified": "The sidecar can't verify the credential now.",
	"gatehouse_unavailable_throttled": "Too many wrong secrets came from this network, so the edge refuses others " +
		"for a while, right or not.",
	"gatehouse_token_issued": "The credential is exchanged for a token.",
}
