package credential

// Reason is what decided a verification, a label of metrics. The device doesn't learn it.
type Reason string

// Why a device is allowed.
const (
	reasonBcrypt    Reason = "bcrypt"    // or denied: bcrypt, or another slow scheme, has just run
	reasonGH1       Reason = "gh1"       // the secret is right by its pepper
	reasonPin       Reason = "pin"       // the secret matched lately
	reasonShared    Reason = "shared"    // another sidecar ran bcrypt
	reasonSession   Reason = "session"   // or denied: a token
	reasonAuthority Reason = "authority" // or denied: the authority has just answered
)

// Why a device is denied.
const (
	reasonMalformed     Reason = "malformed"
	reasonUnknown       Reason = "unknown"
	reasonDeleted       Reason = "deleted"
	reasonRevoked       Reason = "revoked"
	reasonDisabled      Reason = "disabled"
	reasonExpired       Reason = "expired"
	reasonRefusedRecord Reason = "refused_record" // its record is malformed or can't be used
	reasonResolved      Reason = "resolved"       // the right secret is another one
	reasonRefuted       Reason = "refuted"        // this secret was wrong before
	reasonOldSecret     Reason = "old_secret"     // it was right until an overlap ended
)

// Why there is no answer yet.
const (
	reasonStarting    Reason = "starting"    // not all records were read yet
	reasonPermissions Reason = "permissions" // its permission names have no bit yet
	reasonUnsure      Reason = "unsure"      // Redis may have another record, which could not be read yet
	reasonOverload    Reason = "overload"
	reasonLimited     Reason = "limited"
	reasonTimeout     Reason = "timeout"
	reasonNoAuthority Reason = "no_authority" // the authority had to be asked, and gave no usable answer
)

// refusals explains why a device that has a record was refused.
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

// NotYet reports whether a device that isn't allowed for this reason should try again.
func (r Reason) NotYet() bool {
	return r == reasonStarting || r == reasonPermissions || r == reasonUnsure || r == reasonNoAuthority
}
