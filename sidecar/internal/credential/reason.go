package credential

// Reason says what decided a verification, as metrics show it. It is not for the device.
type Reason string

// Why a device is allowed.
const (
	byBcrypt  Reason = "bcrypt"  // or denied: bcrypt has just run
	byPin     Reason = "pin"     // the secret matched lately
	byFleet   Reason = "shared"  // another sidecar ran bcrypt
	bySession Reason = "session" // or denied: of a token
)

// Why a device is denied.
const (
	isMalformed Reason = "malformed"
	isUnknown   Reason = "unknown"
	isRevoked   Reason = "revoked"
	isDisabled  Reason = "disabled"
	isExpired   Reason = "expired"
	isRefused   Reason = "refused_record" // its record can't be read or used
	isResolved  Reason = "resolved"       // the right secret is another one
	isRefuted   Reason = "refuted"        // this secret was wrong before
)

// Why there is no answer yet.
const (
	isStarting   Reason = "starting"    // not all records were read
	wantsBits    Reason = "permissions" // its permission names have no bit yet
	isOverloaded Reason = "overload"
	isOverLimit  Reason = "limited"
	isOutOfTime  Reason = "timeout"
)

// notYet reports whether a device that can't be allowed for this reason should come again.
func (r Reason) notYet() bool { return r == isStarting || r == wantsBits }
