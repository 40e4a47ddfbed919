package credential

import (
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

// Reason is the reason for the answer to a verification, a label of metrics. It is not sent to the device.
type Reason string

// Reasons to allow a device.
const (
	reasonBcrypt    Reason = "bcrypt"    // or denied: bcrypt, or another slow scheme, has just run
	reasonGH1       Reason = "gh1"       // the secret's pepper proves the secret
	reasonPin       Reason = "pin"       // the secret matched lately
	reasonShared    Reason = "shared"    // another sidecar ran bcrypt
	reasonSession   Reason = "session"   // or denied: a token
	reasonAuthority Reason = "authority" // or denied: the authority has just answered
)

// Reasons to deny a device.
const (
	reasonMalformed     Reason = "malformed"
	reasonUnknown       Reason = "unknown"
	reasonDeleted       Reason = "deleted"
	reasonRevoked       Reason = "revoked"
	reasonDisabled      Reason = "disabled"
	reasonExpired       Reason = "expired"
	reasonRefusedRecord Reason = "refused_record" // the device's record is malformed or can't be used
	reasonResolved      Reason = "resolved"       // the device has another, right secret
	reasonRefuted       Reason = "refuted"        // the same secret was wrong before
	reasonOldSecret     Reason = "old_secret"     // the secret was right until an overlap ended
)

// Reasons for no answer yet.
const (
	reasonStarting    Reason = "starting" // not all records were read yet
	reasonUnsure      Reason = "unsure"   // Redis may have a record that could not be read yet
	reasonOverload    Reason = "overload"
	reasonLimited     Reason = "limited"
	reasonTimeout     Reason = "timeout"
	reasonNoAuthority Reason = "no_authority" // the authority gave no usable answer
)

// reasonsOf has the reasons of each outcome.
var reasonsOf = map[wire.Outcome][]Reason{
	wire.Allow: {reasonBcrypt, reasonGH1, reasonPin, reasonShared, reasonSession, reasonAuthority},
	wire.Deny: {reasonUnknown, reasonDeleted, reasonRevoked, reasonDisabled, reasonExpired, reasonMalformed,
		reasonRefusedRecord, reasonBcrypt, reasonResolved, reasonRefuted, reasonOldSecret, reasonSession, reasonAuthority},
	wire.Unavailable: {reasonStarting, reasonUnsure, reasonOverload, reasonLimited, reasonTimeout,
		reasonNoAuthority},
}

// initReasons has the metrics count each reason from 0.
func initReasons(m *metrics.Metrics) {
	for outcome, reasons := range reasonsOf {
		for _, reason := range reasons {
			m.Verifications.WithLabelValues(outcome.String(), string(reason))
		}
	}
}

// refusals explains the reasons for refusing a device with a record.
var refusals = map[Reason]string{
	reasonDeleted:       "it is deleted",
	reasonRevoked:       "it is revoked",
	reasonDisabled:      "it is disabled",
	reasonExpired:       "its access has ended",
	reasonRefusedRecord: "its record is malformed or can't be used",
	reasonBcrypt:        "the secret is wrong",
	reasonResolved:      "the secret is wrong: another one is right",
	reasonRefuted:       "the secret is wrong, as it was before",
	reasonOldSecret:     "the secret was right until its overlap ended",
	reasonSession:       "the token is of an earlier record",
	reasonAuthority:     "the authority refuses it",
}

// NotYet reports whether a device that is not allowed for this reason should try again.
func (r Reason) NotYet() bool {
	return r == reasonStarting || r == reasonUnsure || r == reasonNoAuthority
}
