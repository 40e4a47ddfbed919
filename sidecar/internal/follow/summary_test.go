package follow

import (
	"errors"
	"testing"
)

// TestSummaryHasNoSecret: an answer of Redis to an unknown AUTH repeats the password.
func TestSummaryHasNoSecret(t *testing.T) {
	got := summarize(errors.New("ERR unknown command 'AUTH', with args beginning with: 'gatehouse' 'secret' "))
	if got != "ERR unknown command 'AUTH'" {
		t.Errorf("got %q, want no arguments", got)
	}
}
