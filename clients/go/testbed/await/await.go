// Package await waits in tests for conditions that other goroutines or processes fulfil.
package await

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// Deadline is the maximum time for a condition to become true.
const Deadline = 30 * time.Second

// Until returns when condition is true. After [Deadline], the test fails with the text what.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(Deadline); !condition(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Deadline, what)
		}
		<-time.After(time.Millisecond)
	}
}

// Late measures the machine's load until the test ends. late returns the total delay of a goroutine that sleeps in a
// loop. If an operation exceeds its bound by less than late, the machine was busy.
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
