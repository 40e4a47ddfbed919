// Package await waits in tests for a condition that other goroutines or processes make true.
package await

import (
	"testing"
	"time"
)

// Deadline is the maximum time for a condition to become true.
const Deadline = 30 * time.Second

// Until returns when condition is true. After [Deadline] it ends the test, with what was awaited.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(Deadline); !condition(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Deadline, what)
		}
		<-time.After(time.Millisecond)
	}
}
