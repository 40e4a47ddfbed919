package objectcache

import (
	"fmt"
	"testing"
)

// TestLifetimes schedules ever earlier times for one key, and times for more keys.
func TestLifetimes(t *testing.T) {
	l := newLifetimes()
	for i := range int64(10) {
		l.scheduleCheck(fmt.Sprint("/", i), i)
	}
	const most = 1 << 40
	for i := range int64(10 * maxObsolete) {
		if l.scheduleCheck("/again", most-i); len(l.checks) > maxObsolete+2*len(l.checkAt) {
			t.Fatalf("got %d dues of %d keys", len(l.checks), len(l.checkAt))
		}
	}
	l.scheduleCheck("/again", most) // later than it is watched for
	for i := range int64(10) {
		if key, found := l.popDue(10); !found || key != fmt.Sprint("/", i) {
			t.Errorf("got %q, want /%d", key, i)
		}
	}
	if key, found := l.popDue(most - 10*maxObsolete); found {
		t.Errorf("got %q, want none yet", key)
	}
	if key, found := l.popDue(most); !found || key != "/again" {
		t.Errorf("got %q, %v; want /again", key, found)
	}
	if key, found := l.popDue(most); found || len(l.checks) > 0 {
		t.Errorf("got %q and %d dues, want none left", key, len(l.checks))
	}
}
