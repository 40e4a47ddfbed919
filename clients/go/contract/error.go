package contract

import (
	"errors"
	"fmt"
)

// Reason is the class of a problem with a record or event. The set is closed, so that a metric can have Reason as a
// label.
type Reason string

// The reasons.
const (
	// ReasonMissing: a required field is absent.
	ReasonMissing Reason = "missing"
	// ReasonUnknown: a field unknown to the contract.
	ReasonUnknown Reason = "unknown"
	// ReasonMalformed: a field, member or event can't be parsed.
	ReasonMalformed Reason = "malformed"
	// ReasonLimit: a value exceeds its limit.
	ReasonLimit Reason = "limit"
	// ReasonConflict: two fields exclude each other.
	ReasonConflict Reason = "conflict"
	// ReasonFormat: an event of an unsupported format.
	ReasonFormat Reason = "format"
)

// Error is the reason why a record or event was refused. The text never contains a body or a hash.
type Error struct {
	// Reason is the class of the problem.
	Reason Reason
	text   string
}

// Error names the field, the value and the limit.
func (e *Error) Error() string { return e.text }

// ReasonOf returns the Reason of the [*Error] in err's chain, or "" if there is none.
func ReasonOf(err error) Reason {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

func refuse(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, text: fmt.Sprintf(format, args...)}
}

// quote returns s quoted, and shortened for a log line.
func quote(s string) string {
	const shown = 64
	if len(s) > shown {
		return fmt.Sprintf("%q… (%d bytes)", s[:shown], len(s))
	}
	return fmt.Sprintf("%q", s)
}
