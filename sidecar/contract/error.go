package contract

import (
	"errors"
	"fmt"
)

// Reason is the class of a problem of a record or event. The set is closed, so
// that it can label a metric.
type Reason string

// The reasons.
const (
	// ReasonMissing is a required field that is absent.
	ReasonMissing Reason = "missing"
	// ReasonUnknown is a field that the contract does not have.
	ReasonUnknown Reason = "unknown"
	// ReasonMalformed is a field, member or event that cannot be read.
	ReasonMalformed Reason = "malformed"
	// ReasonLimit is a value over its limit.
	ReasonLimit Reason = "limit"
	// ReasonConflict is a field that another one rules out.
	ReasonConflict Reason = "conflict"
	// ReasonFormat is an event of another format than this program reads.
	ReasonFormat Reason = "format"
)

// Error is why a record or event was refused. Its text never contains a body or a hash.
type Error struct {
	// Reason is the class of the problem.
	Reason Reason
	text   string
}

// Error names the field, the value and the limit.
func (e *Error) Error() string { return e.text }

// ReasonOf is the Reason of the [*Error] in err's chain, or "" if there is none.
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

func refuse(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, text: fmt.Sprintf(format, args...)}
}

// quote quotes s, shortened for a log line.
func quote(s string) string {
	const shown = 64
	if len(s) > shown {
		return fmt.Sprintf("%q… (%d bytes)", s[:shown], len(s))
	}
	return fmt.Sprintf("%q", s)
}
