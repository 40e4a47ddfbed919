//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// workerCounts are the numbers of nginx's workers that nginx-workers compares.
var workerCounts = []int{1, 2, 4}

// workersRun is a run of nginx-workers with its results so far.
type workersRun struct {
	*Options
	*Recorder
	use []workerMemory
}

// workerMemory is the memory of nginx's workers at one time, bytes.
type workerMemory struct {
	workers int
	when    string
	// Averages of a worker: proportional set size (PSS) and private memory; parts of the PSS: memory file, library,
	// Go's heap, and the rest.
	pss, private, file, library, heap, other int64
	all                                      int64 // proportional set size of the master and all workers
}

// nginxWorkers measures Gatehouse in nginx, with several numbers of workers on one memory file: the closed loop, and
// the memory at the start, with objects, and after a read of each object.
func nginxWorkers(ctx context.Context, o *Options, out *Recorder) error {
	s := &workersRun{Options: o, Recorder: out}
	for _, n := range workerCounts {
		if err := s.measureWorkers(ctx, n); err != nil {
			return fmt.Errorf("%d workers: %w", n, err)
		}
	}
	s.printTable()
	return nil
}

func (s *workersRun) measureWorkers(ctx context.Context, workers int) (err error) {
	w, err := startWorld(ctx, s.Options, worldOptions{name: "nginx-workers", workers: workers,
		binding: string(stack.NginxEdge), capacity: capacity{objects: s.Objects}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	edge := w.edgeWithUpstream()
	edge.name = fmt.Sprintf("nginx, %d", workers)
	closed := func(load workload.Workload) error {
		s.printProgress("%s, %s", load.Name, edge.name)
		if err := checkResponses(ctx, load, edge); err != nil {
			return err
		}
		return s.addRow(s.Options.closedLoop(ctx, edge, load, s.wrkLoad(s.measurementTime(5)), w.dir))
	}
	if err := s.addMemory(w, "at the start"); err != nil {
		return err
	}
	all := ratioWorkloads()
	for _, load := range []workload.Workload{all[1], all[2], all[3], all[5]} { // 304, auth + 304, 1 and 48 KiB
		if err := closed(load); err != nil {
			return err
		}
	}
	if err := publishObjects(ctx, w.publisher, s.Objects); err != nil {
		return err
	}
	if err := w.awaitMetric(ctx, "gatehouse_edge_memory_objects", s.Objects+len(workload.Sizes)); err != nil {
		return err
	}
	if err := s.addMemory(w, "filled"); err != nil {
		return err
	}
	load := workload.ObjectReads(s.Objects, false)
	load.Name = fmt.Sprintf("200 1 KiB, %d objects", s.Objects)
	if err := closed(load); err != nil {
		return err
	}
	return s.addMemory(w, "read")
}

// addMemory adds the memory of nginx's workers now.
func (s *workersRun) addMemory(w *world, when string) error {
	master, workers, err := w.nginxMemory()
	if err != nil {
		return err
	}
	sum := workerMemory{workers: len(workers), when: when, all: master.pss}
	for _, m := range workers {
		sum.all += m.pss
		sum.pss, sum.private = sum.pss+m.pss, sum.private+m.private
		sum.file, sum.library = sum.file+m.file, sum.library+m.library
		sum.heap, sum.other = sum.heap+m.heap, sum.other+m.other
	}
	for _, field := range []*int64{&sum.pss, &sum.private, &sum.file, &sum.library, &sum.heap, &sum.other} {
		*field /= int64(len(workers))
	}
	s.use = append(s.use, sum)
	return nil
}

// nginxMemory returns the memory of nginx's master and of each worker.
func (b *bench) nginxMemory() (master workerMemory, workers []workerMemory, err error) {
	pids, err := stack.NginxWorkers(b.EdgePID())
	if err != nil {
		return master, nil, err
	}
	for _, pid := range append(pids, b.EdgePID()) {
		mappings, err := proc.ReadMappings(pid)
		if err != nil {
			return master, nil, err
		}
		workers = append(workers, memoryOf(mappings))
	}
	return workers[len(pids)], workers[:len(pids)], nil
}

// memoryOf returns the memory of one process.
func memoryOf(mappings []proc.Mapping) (m workerMemory) {
	for _, part := range mappings {
		m.pss, m.private = m.pss+part.PSS, m.private+part.Private
		switch name := filepath.Base(strings.TrimSuffix(part.Name, " (deleted)")); {
		case name == "memory":
			m.file += part.PSS
		case strings.HasPrefix(name, "libgatehouse-nginx"):
			m.library += part.PSS
		}
	}
	m.heap = goHeap(mappings)
	m.other = m.pss - m.file - m.library - m.heap
	return m
}

// goHeap returns the bytes of Go's heap, with C's allocations on Go's threads: both reserve blocks of 64 MiB at
// multiples of 64 MiB (heapArenaBytes of package runtime, HEAP_MAX_SIZE of glibc).
func goHeap(mappings []proc.Mapping) (heap int64) {
	const block = 64 << 20
	var begin, run int64 // of adjacent mappings
	last := uint64(0)
	for _, m := range mappings {
		if m.Name != "" && !strings.HasPrefix(m.Name, "[anon: Go:") { // newer kernels name Go's heap
			continue
		}
		if m.Start != last {
			begin, run = int64(m.Start), 0
		}
		run, last = run+m.PSS, m.End
		if begin%block == 0 && m.End%block == 0 {
			heap, run = heap+run, 0
		}
	}
	return heap
}

// printTable prints the use of memory.
func (s *workersRun) printTable() {
	fmt.Fprintf(s, "nginx-workers: memory of a worker on average, MiB, %d objects of 1 KiB: PSS divides shared pages by "+
		"their processes, private is what no other process has; file, library, Go's heap and other are parts of PSS\n",
		s.Objects)
	t := tabwriter.NewWriter(s, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workers\t\tPSS\tprivate\tfile\tlibrary\tGo's heap\tother\tPSS of all with the master\t")
	for _, m := range s.use {
		fmt.Fprintf(t, "%d\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", m.workers, m.when,
			toMiB(m.pss), toMiB(m.private), toMiB(m.file), toMiB(m.library), toMiB(m.heap), toMiB(m.other), toMiB(m.all))
	}
	_ = t.Flush() // a Recorder never fails
}
