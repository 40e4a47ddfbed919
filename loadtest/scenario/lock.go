//go:build linux

package scenario

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/stats"
)

// Lengths of the records that a worker reads from shared data, bytes.
var lockRecords = []struct {
	name  string
	bytes int
}{
	{"bucket of verdicts", verdictBucket}, {"bucket of objects", objectBucket}, {"body of 1 KiB", 1 << 10}, {"body of 48 KiB", 48 << 10},
}

const (
	verdictBucket = 256
	objectBucket  = 640
)

// lockRequests are the reads of each kind of request.
var lockRequests = []struct {
	name  string
	reads []int // bytes
}{
	{"304, or 200 with the body in the VM's cache", []int{objectBucket}},
	{"auth + 304", []int{verdictBucket, objectBucket}},
	{"200 of 1 KiB, without the VM's cache", []int{objectBucket, 1 << 10}},
	{"200 of 48 KiB, without the VM's cache", []int{objectBucket, 48 << 10}},
}

const (
	lockThink  = 30 * time.Microsecond // CPU time of a worker per request, outside the lock
	lockRounds = 5
	lockSlice  = 400 * time.Millisecond
)

// lock measures reads of a table like the proxy's shared data from one and from two threads, calculates the throughput
// of more workers than this machine has cores for, and then measures Envoy with one and with two workers.
func lock(ctx context.Context, o *Options, out *Recorder) error {
	if err := lockAlone(ctx, out); err != nil {
		return err
	}
	return workers(ctx, o, out)
}

// lockAlone measures only the lock.
func lockAlone(ctx context.Context, out *Recorder) (err error) {
	dir, err := os.MkdirTemp("", "gatehouse-lock-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "lock")
	if text, err := exec.CommandContext(ctx, "c++", "-std=c++17", "-O2", "-pthread", "-o", binary, "loadtest/lock/lock.cc").CombinedOutput(); err != nil {
		return fmt.Errorf("c++, which compiles loadtest/lock/lock.cc: %w: %s; install g++", err, text)
	}
	fmt.Fprintf(out, "lock: reads of a table like the proxy's shared data; %d slices of %s each in turn, median\n", lockRounds, lockSlice)
	fmt.Fprintf(out, "%-46s %9s %9s   CPU per read\n", "record", "1 thread", "2 threads")
	held := map[int]float64{} // per read, ns, if two threads do nothing else
	for _, record := range lockRecords {
		var alone, two []float64
		for range lockRounds {
			for _, s := range []struct {
				threads int
				to      *[]float64
			}{{1, &alone}, {2, &two}} {
				ns, err := readLock(ctx, binary, s.threads, record.bytes)
				if err != nil {
					return err
				}
				*s.to = append(*s.to, ns)
			}
		}
		held[record.bytes] = stats.SpreadOf(two).Median
		fmt.Fprintf(out, "%-46s %6.0f ns %6.0f ns\n", record.name, stats.SpreadOf(alone).Median, held[record.bytes])
	}
	fmt.Fprintf(out, "%-46s %9s %9s %9s   throughput, of what there would be without the lock; %s of CPU per request besides\n", "request", "2 workers", "16", "64", lockThink)
	for _, r := range lockRequests {
		var sum float64
		for _, bytes := range r.reads {
			sum += held[bytes]
		}
		fmt.Fprintf(out, "%-46s %7.1f %% %7.1f %% %7.1f %%\n", r.name,
			100*shareWithLock(2, lockThink, sum), 100*shareWithLock(16, lockThink, sum), 100*shareWithLock(64, lockThink, sum))
	}
	return nil
}

// readLock returns the CPU time of a read, ns, if threads do nothing else.
func readLock(ctx context.Context, binary string, threads, bytes int) (float64, error) {
	text, err := exec.CommandContext(ctx, binary, fmt.Sprint(threads), fmt.Sprint(lockSlice.Seconds()), fmt.Sprint(bytes)).Output()
	if err != nil {
		return 0, err
	}
	var reads, cpu int64
	if _, err := fmt.Sscan(strings.TrimSpace(string(text)), &reads, &cpu); err != nil {
		return 0, fmt.Errorf("%s printed %q: %w", binary, text, err)
	}
	return float64(cpu) / float64(reads), nil
}

// shareWithLock returns the throughput of workers that each hold one lock for heldNS per request and work for think
// outside of it, as a share of their throughput without waiting. It is exact mean value analysis of a closed network
// with one queue (Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing Networks", 1980). That
// assumes times that vary more than a lock's do, so the result is rather too low.
func shareWithLock(workers int, think time.Duration, heldNS float64) float64 {
	var queued, throughput float64
	for n := 1; n <= workers; n++ {
		response := heldNS * (1 + queued)
		throughput = float64(n) / (float64(think) + response)
		queued = throughput * response
	}
	return throughput * (float64(think) + heldNS) / float64(workers)
}
