package follow

import "time"

// Tests wait for many comparisons and full resyncs.
func init() { compareEvery, fullEvery = 200*time.Millisecond, 200*time.Millisecond }
