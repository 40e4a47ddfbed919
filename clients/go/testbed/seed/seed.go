// Package seed gives tests the seeds of their random cases.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Of returns the seed of a test's random cases: the environment variable SEED, to repeat a run, or a random number. The
// test's log has the seed.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SEED=%s: want a decimal number", text)
		}
	}
	t.Logf("SEED=%d", seed)
	return seed
}
