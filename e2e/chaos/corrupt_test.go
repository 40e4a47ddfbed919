package chaos

import (
	"testing"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// A third of the bad batches are whole, and refused only for their epoch.
func TestBadBatch(t *testing.T) {
	whole := 0
	for range 300 {
		if _, err := wire.ParseBatch(badBatch()); err == nil {
			whole++
		}
	}
	if whole < 50 || whole > 150 {
		t.Errorf("%d of 300 are whole, want about a third", whole)
	}
}
