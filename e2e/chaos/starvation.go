package chaos

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// sampleEvery is the interval at which the waiting of processes is read.
	sampleEvery = 100 * time.Millisecond
	// searched bounds the steps of a search for a time, which ends when one is shorter than near.
	searched = 20
	near     = 10 * time.Millisecond
)

// starvation is how long the parts of the run, this program and what it has started, have waited for a processor
// altogether: as long, what they owe may take more than its bound. In each interval the thread of a process that waited
// longest counts, because a change passes through the processes one after the other; but not more than the interval.
// Without Linux it is 0. A nil starvation is 0, too.
type starvation struct {
	mu      sync.Mutex
	samples []starved
}

// starved is the sum at a time.
type starved struct{ at, sum time.Duration }

// measure takes samples until ctx ends.
func (s *starvation) measure(ctx context.Context, now func() time.Duration) {
	waited := map[string]time.Duration{} // by thread
	add := func() {
		longest := waits(waited)
		at, sum := now(), time.Duration(0)
		for _, wait := range longest {
			sum += wait
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		last := starved{at: at}
		if n := len(s.samples); n > 0 {
			last = s.samples[n-1]
		}
		s.samples = append(s.samples, starved{at, last.sum + min(sum, at-last.at)})
	}
	add()
	repeat(ctx, sampleEvery, add)
}

// between returns the starvation from one time to another. After the last sample it goes on as in the interval before.
func (s *starvation) between(from, to time.Duration) time.Duration {
	if s == nil || to <= from {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum(to) - s.sum(from)
}

// sum returns the sum at a time, interpolated.
func (s *starvation) sum(at time.Duration) time.Duration {
	n := len(s.samples)
	if n < 2 || at <= s.samples[0].at {
		return 0
	}
	i := min(max(sort.Search(n, func(i int) bool { return s.samples[i].at >= at }), 1), n-1)
	a, b := s.samples[i-1], s.samples[i]
	if b.at == a.at {
		return b.sum
	}
	return a.sum + time.Duration(float64(b.sum-a.sum)*float64(at-a.at)/float64(b.at-a.at))
}

// passed reports whether more than d has passed from one time to another in which the parts could run.
func (s *starvation) passed(from, to, d time.Duration) bool { return to-from-s.between(from, to) > d }

// before returns a time from which d has passed until at, in which the parts could run.
func (s *starvation) before(at, d time.Duration) time.Duration {
	from := at - d
	for range searched {
		next := at - d - s.between(from, at)
		if from-next < near {
			return next
		}
		from = next
	}
	return -1 // the run began later
}

// heavy reports whether the parts waited for more than half of a time.
func (s *starvation) heavy(from, to time.Duration) bool { return 2*s.between(from, to) > to-from }

// String returns the sum.
func (s *starvation) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.samples) == 0 {
		return "unknown"
	}
	last := s.samples[len(s.samples)-1]
	return fmt.Sprintf("%.1f of %.1f s", last.sum.Seconds(), last.at.Seconds())
}

// waits returns, by process, how long the thread that waited longest for a processor has waited since the last call,
// whose values waited has.
func waits(waited map[string]time.Duration) map[string]time.Duration {
	longest, first := map[string]time.Duration{}, len(waited) == 0
	for _, pid := range descendants() {
		files, _ := filepath.Glob("/proc/" + pid + "/task/*/schedstat")
		for _, file := range files {
			text, err := os.ReadFile(file)
			fields := strings.Fields(string(text)) // ns of running, ns of waiting, times
			if err != nil || len(fields) < 2 {
				continue
			}
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			if since := time.Duration(ns) - waited[file]; !first {
				longest[pid] = max(longest[pid], since)
			}
			waited[file] = time.Duration(ns)
		}
	}
	return longest
}

// descendants returns the ids of this process and of all that it has started, with theirs.
func descendants() []string {
	children := map[string][]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		_, rest, ok := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" ")) // the name may have blanks
		fields := bytes.Fields(rest)
		if err == nil && ok && len(fields) > 1 {
			parent := string(fields[1])
			children[parent] = append(children[parent], filepath.Base(filepath.Dir(file)))
		}
	}
	all := []string{strconv.Itoa(os.Getpid())}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}
