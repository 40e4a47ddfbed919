package chaos

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/publish"
)

func TestOutcomeOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want Outcome
	}{
		{"acknowledged", nil, Acked},
		{"refused by a full Redis", fmt.Errorf("put device: %w", publish.ErrFull), Failed},
		{"no connection", fmt.Errorf("put: %w", &net.OpError{Op: "dial", Err: errors.New("refused")}), Failed},
		{"no answer", fmt.Errorf("put: %w", &net.OpError{Op: "read", Err: errors.New("reset")}), Unknown},
		{"another error", errors.New("LOADING"), Unknown},
	} {
		if got := outcomeOf(tt.err); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}
