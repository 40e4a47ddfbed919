package objectcache

import (
	"fmt"
	"testing"
)

// TestLifetimes watches one key for ever earlier times, and others beside it.
func TestLifetimes(t *testing.T) {
	l := newLifetimes()
	for i := range int64(10) {
		l.watch(fmt.Sprint("/", i), i)
	}
	const most = 1 << 40
	for i := range int64(10 * maxStale) {
		if l.watch("/again", most-i); len(l.next) > maxStale+2*len(l.of) {
			t.Fatalf("got %d dues of %d keys", len(l.next), len(l.of))
		}
	}
	l.watch("/again", most) // later than it is watched for
	for i := range int64(10) {
		if key, found := l.due(10); !found || key != fmt.Sprint("/", i) {
			t.Errorf("got %q, want /%d", key, i)
		}
	}
	if key, found := l.due(most - 10*maxStale); found {
		t.Errorf("got %q, want none yet", key)
	}
	if key, found := l.due(most); !found || key != "/again" {
		t.Errorf("got %q, %v; want /again", key, found)
	}
	if key, found := l.due(most); found || len(l.next) > 0 {
		t.Errorf("got %q and %d dues, want none left", key, len(l.next))
	}
}
