// Package await waits in tests for a condition that other goroutines or processes make true.
package await

import (
	"context"
	"sync/atomic"
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

// Late measures the machine until the test ends. late returns for how long altogether a goroutine that sleeps again and
// again has been woken too late: what takes longer than its bound by no more than that, did so because the machine is
// busy.
func Late(t testing.TB) (late func() time.Duration) {
	t.Helper()
	var sum atomic.Int64
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			begin := time.Now()
			<-time.After(time.Millisecond)
			sum.Add(int64(time.Since(begin) - time.Millisecond))
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return func() time.Duration { return time.Duration(sum.Load()) }
}
