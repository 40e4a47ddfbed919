package chaos

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"time"
)

const (
	// sampleEvery is the interval at which the processors' times are read. Linux counts in ticks of 10 ms.
	sampleEvery = 500 * time.Millisecond
	clockTick   = 10 * time.Millisecond
	// An interval is full if processors were idle for less than 1/idleDivisor of it, and other programs took more than
	// 1/takenDivisor.
	idleDivisor, takenDivisor = 20, 10
	// maxSearchSteps bounds the steps of a search for a time. The search ends when a step is shorter than
	// searchPrecision.
	maxSearchSteps  = 20
	searchPrecision = 10 * time.Millisecond
)

// starvation is how long other programs, or other guests of the host, have kept this machine's processors from the run
// (this program and its children): the processors' busy time without the run's, over the number of processors. If
// processors were busy during a whole interval, and other programs took 1/[takenDivisor] of it, each process of the run
// may have waited, so the whole interval counts. The run may exceed its bounds by the starvation. Without Linux, and
// for a nil starvation, it is 0.
type starvation struct {
	mu      sync.Mutex
	samples []starvationSample
}

// starvationSample is the sum at a time.
type starvationSample struct{ at, sum time.Duration }

// takeSamples takes samples until ctx ends.
func (s *starvation) takeSamples(ctx context.Context, now func() time.Duration) {
	before, ok := readProcessors()
	if !ok {
		return
	}
	sum := time.Duration(0)
	add := func() {
		since, ok := readProcessors()
		if !ok {
			return
		}
		sum += since.starvedSince(before)
		before = since
		s.mu.Lock()
		defer s.mu.Unlock()
		s.addSample(now(), sum)
	}
	add()
	repeat(ctx, sampleEvery, add)
}

// addSample appends the sum at a time. The sum doesn't fall, and rises no faster than the time.
func (s *starvation) addSample(at, sum time.Duration) {
	if n := len(s.samples); n > 0 {
		last := s.samples[n-1]
		sum = min(max(sum, last.sum), last.sum+at-last.at)
	}
	s.samples = append(s.samples, starvationSample{at, sum})
}

// between returns the starvation between two times. After the last sample, starvation goes on as in the last interval.
func (s *starvation) between(from, to time.Duration) time.Duration {
	if s == nil || to <= from {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sumAt(to) - s.sumAt(from)
}

// sumAt returns the sum at a time, interpolated.
func (s *starvation) sumAt(at time.Duration) time.Duration {
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

// hasPassed reports whether the parts could run for more than d between two times.
func (s *starvation) hasPassed(from, to, d time.Duration) bool {
	return to-from-s.between(from, to) > d
}

// timeBefore returns the start of a period up to at in which the parts could run for d.
func (s *starvation) timeBefore(at, d time.Duration) time.Duration {
	from := at - d
	for range maxSearchSteps {
		next := at - d - s.between(from, at)
		if from-next < searchPrecision {
			return next
		}
		from = next
	}
	return -1 // the run began later
}

// isHeavy reports whether other programs took more than half of a time.
func (s *starvation) isHeavy(from, to time.Duration) bool { return 2*s.between(from, to) > to-from }

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

// processors is the time that all processors have spent since the machine started.
type processors struct{ others, all, idle time.Duration }

// starvedSince returns the starvation since an earlier reading.
func (p processors) starvedSince(then processors) time.Duration {
	others, all, idle := p.others-then.others, p.all-then.all, p.idle-then.idle
	if idleDivisor*idle < all && takenDivisor*others > all {
		others = all
	}
	return others / time.Duration(runtime.NumCPU())
}

// readProcessors reads the times of the processors.
func readProcessors() (p processors, ok bool) {
	text, err := os.ReadFile("/proc/stat")
	// cpu user nice system idle iowait irq softirq steal guest guest_nice; user and nice include guest and guest_nice
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	if err != nil || len(fields) < 9 || string(fields[0]) != "cpu" {
		return p, false
	}
	for i, field := range fields[1:9] {
		n, _ := strconv.Atoi(string(field))
		p.all += time.Duration(n) * clockTick
		if i == 3 || i == 4 {
			p.idle += time.Duration(n) * clockTick
		}
	}
	p.others = p.all - p.idle - takenByRun()
	return p, true
}

// takenByRun returns the processor time of this process and its descendants, including descendants that have ended.
func takenByRun() time.Duration {
	ticks, children := map[string]int{}, map[string][]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // the name before may have blanks
		if len(fields) < 15 {
			continue
		}
		pid, parent := filepath.Base(filepath.Dir(file)), string(fields[1])
		children[parent] = append(children[parent], pid)
		for _, field := range fields[11:15] { // utime stime cutime cstime
			n, _ := strconv.Atoi(string(field))
			ticks[pid] += n
		}
	}
	run, sum := []string{strconv.Itoa(os.Getpid())}, 0
	for i := 0; i < len(run); i++ {
		sum += ticks[run[i]]
		run = append(run, children[run[i]]...)
	}
	return time.Duration(sum) * clockTick
}
