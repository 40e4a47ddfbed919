package follow

import "time"

// Tests wait for many comparisons and full resyncs.
func init() { compareEvery, fullEvery = 200*time.Millisecond, 200*time.Millisecond }

// SetCompareEvery sets the interval between comparisons, and returns what sets it back. No follower may run.
func SetCompareEvery(interval time.Duration) (back func()) {
	before := compareEvery
	compareEvery = interval
	return func() { compareEvery = before }
}
