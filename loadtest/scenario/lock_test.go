//go:build linux

package scenario

import (
	"math"
	"testing"
	"time"
)

func TestShareWithLock(t *testing.T) {
	tests := []struct {
		name    string
		workers int
		think   time.Duration
		heldNS  float64
		want    float64
	}{
		{"alone", 1, 30 * time.Microsecond, 200, 1},
		{"nothing but the lock", 4, 0, 200, 0.25},
		// Two workers, with equal times outside and inside: each waits for the other for a third of the time.
		{"two, half of the time inside", 2, 100, 100, 0.8},
		{"never held", 64, 30 * time.Microsecond, 0, 1},
		// The lock is always held: 1/5 µs of 64/35 µs.
		{"saturated", 64, 30 * time.Microsecond, 5000, 35.0 / 5 / 64},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := shareWithLock(tt.workers, tt.think, tt.heldNS); math.Abs(got-tt.want) > 0.001 {
				t.Errorf("got %.4f, want %.4f", got, tt.want)
			}
		})
	}
}
