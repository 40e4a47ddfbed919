package credential

import (
	"sync"
	"sync/atomic"
	"time"
)

// keepFor is how long a verification keeps its place after the last request for it. A device that was told to try again
// does so sooner. A device that has gone costs no bcrypt, and neither does a flood of credentials that come once each.
const keepFor = 15 * time.Second

// flights are the running verifications: one for each credential and generation, shared by all requests.
// golang.org/x/sync/singleflight can't record when the last request came, which a flight needs.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight
}

type flight struct {
	done   chan struct{} // closed when result is set
	result Result
	asked  atomic.Int64 // time of the last request for it, unix ms
}

// join returns the flight of key, if there is one.
func (f *flights) join(key string) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := f.all[key]
	if found != nil {
		found.asked.Store(time.Now().UnixMilli())
	}
	return found
}

// start returns the flight of key; if there is none yet, it starts one that runs work.
func (f *flights) start(key string, work func(*flight) Result) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().UnixMilli()
	if found := f.all[key]; found != nil {
		found.asked.Store(now)
		return found
	}
	started := &flight{done: make(chan struct{})}
	started.asked.Store(now)
	f.all[key] = started
	go func() {
		started.result = work(started)
		f.mu.Lock()
		delete(f.all, key)
		f.mu.Unlock()
		close(started.done)
	}()
	return started
}

// wanted reports whether a request came within keepFor.
func (f *flight) wanted() bool {
	return time.Now().UnixMilli()-f.asked.Load() < keepFor.Milliseconds()
}
