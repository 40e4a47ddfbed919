package require

import (
	"errors"
	"testing"
)

// recorder is a test that goes on after Fatal.
type recorder struct {
	*testing.T
	ended []any
}

func (r *recorder) Fatal(args ...any) { r.ended = args }

func TestNoError(t *testing.T) {
	r := &recorder{T: t}
	if NoError(r, nil); r.ended != nil {
		t.Errorf("without an error: got %v", r.ended)
	}
	err := errors.New("x")
	if NoError(r, err); len(r.ended) != 1 || r.ended[0] != err {
		t.Errorf("got %v, want the error", r.ended)
	}
}
