//go:build linux

package proc

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Locks samples the system calls of a server's serving threads. A thread that waits for requests is in epoll_wait(2), a
// thread that waits for another thread in futex(2).
type Locks struct {
	stop            chan struct{}
	done            chan struct{}
	samples, locked atomic.Int64
}

// WatchLocks samples a hundred times a second until Stop, for servers with Workers or Forks only: in a Go program, idle
// threads wait in futex(2), too.
func WatchLocks(servers []Server) *Locks {
	l := &Locks{stop: make(chan struct{}), done: make(chan struct{})}
	var paths []string
	for _, s := range servers {
		if !s.hasServingThreads() {
			continue
		}
		if tasks, err := s.servingThreads(); err == nil {
			paths = append(paths, tasks...)
		}
	}
	go func() {
		defer close(l.done)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-l.stop:
				return
			case <-ticker.C:
				l.sampleThreads(paths)
			}
		}
	}()
	return l
}

func (l *Locks) sampleThreads(paths []string) {
	futex := strconv.Itoa(syscall.SYS_FUTEX)
	for _, path := range paths {
		text, err := os.ReadFile(path + "/syscall")
		if err != nil {
			continue // the kernel may not tell
		}
		l.samples.Add(1)
		if number, _, _ := strings.Cut(string(text), " "); number == futex {
			l.locked.Add(1)
		}
	}
}

// Stop ends the sampling and returns the share of samples with a thread that waited for another thread, 0 without
// samples.
func (l *Locks) Stop() float64 {
	close(l.stop)
	<-l.done
	if l.samples.Load() == 0 {
		return 0
	}
	return float64(l.locked.Load()) / float64(l.samples.Load())
}
