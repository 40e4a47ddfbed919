package credential

// Reason is what decided a verification, a label of metrics. The device doesn't learn it.
type Reason string

// Why a device is allowed.
const (
	byBcrypt    Reason = "bcrypt"    // or denied: bcrypt, or another slow scheme, has just run
	byGH1       Reason = "gh1"       // the secret is right by its pepper
	byPin       Reason = "pin"       // the secret matched lately
	byFleet     Reason = "shared"    // another sidecar ran bcrypt
	bySession   Reason = "session"   // or denied: a token
	byAuthority Reason = "authority" // or denied: the authority has just answered
)

// Why a device is denied.
const (
	isMalformed Reason = "malformed"
	isUnknown   Reason = "unknown"
	isDeleted   Reason = "deleted"
	isRevoked   Reason = "revoked"
	isDisabled  Reason = "disabled"
	isExpired   Reason = "expired"
	isRefused   Reason = "refused_record" // its record is malformed or can't be used
	isResolved  Reason = "resolved"       // the right secret is another one
	isRefuted   Reason = "refuted"        // this secret was wrong before
	isOldSecret Reason = "old_secret"     // it was right until an overlap ended
)

// Why there is no answer yet.
const (
	isStarting   Reason = "starting"    // not all records were read yet
	wantsBits    Reason = "permissions" // its permission names have no bit yet
	isUnsure     Reason = "unsure"      // Redis may have another record, which could not be read yet
	isOverloaded Reason = "overload"
	isOverLimit  Reason = "limited"
	isOutOfTime  Reason = "timeout"
	noAuthority  Reason = "no_authority" // the authority had to be asked, and gave no usable answer
)

// refusals explains why a device that has a record was refused.
var refusals = map[Reason]string{
	isDeleted:   "it is deleted",
	isRevoked:   "it is revoked",
	isDisabled:  "it is disabled",
	isExpired:   "its access has ended",
	isRefused:   "its record is malformed or can't be used",
	byBcrypt:    "the secret is wrong",
	isResolved:  "the secret is wrong: another one is right",
	isRefuted:   "the secret is wrong, as it was before",
	isOldSecret: "the secret was right until its overlap ended",
	bySession:   "the token is of an earlier record",
	byAuthority: "the authority refuses it",
}

// NotYet reports whether a device that isn't allowed for this reason should try again.
func (r Reason) NotYet() bool {
	return r == isStarting || r == wantsBits || r == isUnsure || r == noAuthority
}
