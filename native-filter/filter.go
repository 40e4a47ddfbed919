//go:build native

package main

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/native-filter/coalesce"
	"github.com/gatehouse/gatehouse/native-filter/dynmod"
)

func init() { dynmod.New = newFilter }

// filter is one configuration of the module in Envoy, for an edge or the push listener. Configurations share only the
// memory: rules of one listener never decide a request of another listener.
type filter struct {
	config        *dynmod.Config
	mainThread    int // id
	configuration []byte
	rules         *policy.Config
	counters      map[string]uint32 // Envoy's numbers of counters, plus 1
	panics        uint64            // number of the counter
	calls         *coalesce.Group
	// workers are the VMs, by the number of the served thread, made on the thread's first request. checked is the first
	// VM, made with the configuration.
	workers [maxThreads]atomic.Pointer[worker]
	checked atomic.Pointer[worker]

	stop, stopped chan struct{} // of ticks
	tickThread    atomic.Int64  // id, during a tick
	callsPending  bool          // of the tick thread: calls wait for Schedule
}

// maxThreads bounds the serving threads: Envoy's workers, and its main thread.
const maxThreads = 1024

// newFilter makes a filter, or returns nil if it refuses the configuration, with a line in the log.
func newFilter(c *dynmod.Config, configuration []byte) dynmod.Filter {
	f := &filter{config: c, configuration: configuration, counters: map[string]uint32{}, stop: make(chan struct{}),
		stopped: make(chan struct{}), mainThread: syscall.Gettid()}
	f.calls = coalesce.NewGroup(f.scheduleCalls)
	w := f.newWorker()
	if w == nil {
		return nil
	}
	f.checked.Store(w)
	rules := w.vm.Config()
	f.rules = rules
	if !rules.PushListener && !sidecar.matchesFirst(rules.SidecarCluster) {
		dynmod.Log(dynmod.Critical,
			fmt.Sprintf("gatehouse: sidecar.cluster is %q, and was %q before or in another listener: want the same, because "+
				"both would read one memory; restart Envoy to change it, or run an Envoy for each",
				rules.SidecarCluster, sidecar.cluster))
		return nil
	}
	f.defineCounters(rules)
	if dynmod.Validating() {
		close(f.stopped)
		return f
	}
	dynmod.Log(dynmod.Info, "gatehouse: release "+edge.Release)
	go f.runTicks()
	return f
}

// sidecar is the sidecar's cluster of all edges of the process. The edges share the memory: a verdict from one edge's
// sidecar, perhaps of an edge that has gone, would let a request in at another edge's listener. Under Wasm vm_id
// separates the edges.
var sidecar sidecarCluster

type sidecarCluster struct {
	mu      sync.Mutex // protects the following
	cluster string     // "" before the first edge
}

// matchesFirst reports whether cluster is the first edge's; true for the first edge.
func (s *sidecarCluster) matchesFirst(cluster string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == "" {
		s.cluster = cluster
	}
	return s.cluster == cluster
}

// panicsStat is the name of the counter of recovered panics.
const panicsStat = "gatehouse.panics_total"

// defineCounters defines the counters of all requests, because Envoy allows no definition later.
func (f *filter) defineCounters(rules *policy.Config) {
	f.panics, _ = f.config.DefineCounter(panicsStat)
	for rule := policy.NoRule; rule < len(rules.Rules); rule++ {
		for c := policy.None + 1; c < policy.Counters; c++ {
			unreadable := rule == policy.NoRule && c == policy.AuthUnavailable
			if !rules.ExpectsCounter(rule, c) && !unreadable {
				continue
			}
			name := c.StatName(rules.RuleName(rule))
			if id, ok := f.config.DefineCounter(name); ok {
				f.counters[name] = uint32(id) + 1
			}
		}
	}
}

// worker is a VM and its host, for one thread. Other threads bring answers and ticks.
type worker struct {
	filter *filter

	mu    sync.Mutex // protects the following
	proxy *proxy
	vm    *edge.VM
	held  map[uint32]*heldStream // by id
	token uint32                 // of the newest call, also of an earlier VM
}

// heldStream is a stream that waits for the sidecar or for its own body.
type heldStream struct {
	stream *dynmod.Stream
	goOn   func() edge.Action // once the answer has arrived
	failed bool               // the VM has panicked
}

func (f *filter) newWorker() *worker {
	w := &worker{filter: f, held: map[uint32]*heldStream{}}
	w.proxy = &proxy{worker: w}
	if !w.startVM() {
		return nil
	}
	return w
}

// startVM makes the worker's VM; false if the VM refuses the configuration.
func (w *worker) startVM() bool {
	w.vm = edge.New(w.proxy)
	if err := w.vm.Start(w.filter.configuration, "filter_config"); err != nil {
		dynmod.Log(dynmod.Critical, "gatehouse: "+err.Error())
		return false
	}
	return true
}

// workerOf returns a thread's worker, nil if none can be made.
func (f *filter) workerOf(thread int) *worker {
	if thread >= maxThreads {
		return nil
	}
	w := f.workers[thread].Load()
	if w == nil {
		if w = f.checked.Swap(nil); w == nil {
			w = f.newWorker()
		}
		f.workers[thread].Store(w)
	}
	return w
}

// RequestHeaders implements dynmod.Filter.
func (f *filter) RequestHeaders(s *dynmod.Stream, endOfStream bool) dynmod.Action {
	w := f.workerOf(s.Thread())
	if w == nil {
		return dynmod.Refuse
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.proxy.beginCallback(s)
	return w.applyAction(s, w.vm.RequestHeaders(s.ID(), endOfStream))
}

// applyAction translates the VM's action on a stream, and holds a waiting stream.
func (w *worker) applyAction(s *dynmod.Stream, a edge.Action) dynmod.Action {
	if a == edge.Continue {
		return dynmod.Continue
	}
	if w.proxy.answer.IsSet() {
		return s.Reply(&w.proxy.answer)
	}
	s.Hold()
	w.held[s.ID()] = &heldStream{stream: s}
	if w.filter.rules.PushListener {
		return dynmod.WantBody
	}
	s.PrepareWake()
	return dynmod.Pause
}

// RequestBody implements dynmod.Filter.
func (f *filter) RequestBody(s *dynmod.Stream, endOfStream bool) dynmod.Action {
	w := f.workerOf(s.Thread())
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.held[s.ID()]; h == nil || h.failed {
		return dynmod.Refuse
	}
	w.proxy.beginCallback(s)
	w.vm.RequestBody(s.ID(), s.BodySize(), endOfStream)
	if w.proxy.answer.IsSet() {
		delete(w.held, s.ID())
		return s.Reply(&w.proxy.answer)
	}
	return dynmod.WantBody
}

// Woken implements dynmod.Filter: it continues a stream after the answer's arrival.
func (f *filter) Woken(s *dynmod.Stream) dynmod.Action {
	w := f.workerOf(s.Thread())
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.held[s.ID()]
	if h == nil || h.goOn == nil && !h.failed {
		return dynmod.Nothing
	}
	delete(w.held, s.ID())
	if h.failed {
		return dynmod.Refuse
	}
	w.proxy.beginCallback(s)
	action := w.applyAction(s, h.goOn())
	if action == dynmod.Pause {
		return dynmod.Nothing
	}
	return action
}

// Response implements dynmod.Filter.
func (f *filter) Response(s *dynmod.Stream, etag string) {
	w := f.workerOf(s.Thread())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.proxy.enterStream(s)
	w.vm.CompareResponse(s.ID(), etag)
}

// Destroyed implements dynmod.Filter.
func (f *filter) Destroyed(s *dynmod.Stream) {
	w := f.workerOf(s.Thread())
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, s.ID())
	w.vm.EndStream(s.ID())
}

// deliverAnswer brings the answer to a call.
func (w *worker) deliverAnswer(token uint32, body []byte) {
	w.runSafely(func() {
		w.vm.CallResponse(token, body)
	})
}

// runSafely runs f in the worker, on a foreign thread.
func (w *worker) runSafely(f func()) {
	defer func() {
		if value := recover(); value != nil {
			dynmod.LogPanic(value)
			w.filter.handlePanic(w)
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.proxy.enterStream(nil)
	f()
}

// Scheduled implements dynmod.Filter: it makes calls on the main thread.
func (f *filter) Scheduled() {
	f.calls.DispatchCalls(func(c *edge.Call) (uint64, bool) {
		return f.config.StartCallout(c.Cluster, c.Headers(), c.Body, c.Timeout)
	})
}

// CalloutDone implements dynmod.Filter.
func (f *filter) CalloutDone(id uint64, status string, body []byte) {
	defer f.calls.DeliverAnswer(id, nil) // if a panic has prevented the answer
	if status != "200" {
		body = nil
	}
	f.calls.DeliverAnswer(id, body)
}

// scheduleCalls has the main thread make calls. Envoy holds the configuration meanwhile, and may end an unused
// configuration afterwards. On a worker, the stream uses the configuration; the thread of ticks schedules after
// releasing all locks.
func (f *filter) scheduleCalls() {
	if f.onTickThread() {
		f.callsPending = true
		return
	}
	f.config.Schedule()
}

func (f *filter) onTickThread() bool { return int64(syscall.Gettid()) == f.tickThread.Load() }

// runTicks ticks all workers, also idle workers, until the configuration goes.
func (f *filter) runTicks() {
	defer close(f.stopped)
	ticker := time.NewTicker(edge.TickMS * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-ticker.C:
		}
		runtime.LockOSThread()
		f.tickThread.Store(int64(syscall.Gettid()))
		f.tickAll()
		if f.callsPending {
			f.callsPending = false
			f.config.Schedule()
		}
		f.tickThread.Store(0)
		runtime.UnlockOSThread()
		select {
		case <-f.stop: // by Destroy on this thread, perhaps: f.config has gone
			return
		default:
		}
	}
}

func (f *filter) tickAll() {
	defer func() { dynmod.LogPanic(recover()) }()
	for i := range f.workers {
		if w := f.workers[i].Load(); w != nil {
			w.runSafely(func() { w.vm.Tick() })
		}
	}
}

// Panicked implements dynmod.Filter.
func (f *filter) Panicked(s *dynmod.Stream, _ any) {
	var w *worker
	if s != nil {
		w = f.workerOf(s.Thread())
	}
	f.handlePanic(w)
}

// handlePanic counts a panic, and gives the worker of the panic, if any, a new VM, because the old VM's state is
// unknown. Waiting requests of the worker are refused.
func (f *filter) handlePanic(w *worker) {
	f.config.IncrementCounter(f.panics, 1)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.startVM()
	for _, h := range w.held {
		h.failed = true
		if !w.filter.rules.PushListener { // there, streams wait for bodies
			h.stream.Wake()
		}
	}
}

// drainMargin is how late, after the timeout, a call's answer may come. No answer comes if Envoy ends: the main thread
// waits for the workers.
const drainMargin = time.Second

// Destroy implements dynmod.Filter.
func (f *filter) Destroy() {
	close(f.stop)
	if !f.onTickThread() {
		<-f.stopped
	}
	if syscall.Gettid() != f.mainThread {
		// Envoy's main thread may be making or ending calls of this configuration, which Envoy frees when Destroy
		// returns.
		f.calls.Drain(f.rules.SidecarTimeout + drainMargin)
	}
	f.calls.Close()
	f.tickAll() // counters
	for i := range f.workers {
		if w := f.workers[i].Load(); w != nil {
			w.proxy.answer.Reset() // already sent
		}
	}
}
