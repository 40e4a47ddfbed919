package credential

import (
	"sync"
	"sync/atomic"
	"time"
)

// keepFor is how long a verification keeps its place after it was asked for last. A device
// that was told to try again does so sooner; one that has gone costs no bcrypt, nor does
// a flood of credentials of which each comes once.
const keepFor = 15 * time.Second

// flights are the verifications under way: one for each credential and generation, for
// all who ask. A group of golang.org/x/sync/singleflight would do but for what a flight
// has to know: when somebody asked last.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight
}

type flight struct {
	done   chan struct{} // closed when result is there
	result Result
	asked  atomic.Int64 // when it was asked for last, unix ms
}

// join is the flight of key, if there is one.
func (f *flights) join(key string) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := f.all[key]
	if found != nil {
		found.asked.Store(time.Now().UnixMilli())
	}
	return found
}

// start is the flight of key, which runs work if there is none yet.
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

// wanted reports whether it was asked for lately.
func (f *flight) wanted() bool {
	return time.Now().UnixMilli()-f.asked.Load() < keepFor.Milliseconds()
}
