//go:build nginx

package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/nginx/jwt"
	"github.com/gatehouse/gatehouse/nginx/memfile"
)

// worker is the edge of one worker of nginx: a VM for requests, and a VM for pushes.
type worker struct {
	memory       *memfile.File
	lost         bool // memory's file was removed or replaced, and opening the new file failed
	edge, pusher *host
	tokens       *jwt.Validator // nil: none are enabled
	keys         keys
	counters     counters
	id           uint32 // of the newest request
	token        uint32 // of the newest call

	// Tasks for Lua, see nextTask.
	woken []uint32
	calls []call

	// Memory to which C refers.
	made  call   // Lua's current call
	reply string // content type of the answer to a push
	kept  keptBodies
}

// call is a call to the sidecar.
type call struct {
	token      uint32
	path, head string
	body       []byte // nil: a GET
	timeout    time.Duration
}

// keys is the state of the tokens' keys.
type keys struct {
	next  time.Time // when to fetch the keys
	token uint32    // of the call for keys, 0 for none
}

// keysEvery is how long the keys of tokens are used until they are fetched again, far less than the sidecar's
// --session.rotate; keysRetry is how long after a failure.
const (
	keysEvery = time.Minute
	keysRetry = time.Second
	keysPath  = "/v1/session/jwks"
)

const pushRules = `{"push_listener": true}`

// newWorker returns the edge with rules as written by gatehousectl.
func newWorker(memory *memfile.File, rules []byte, issuer string) (*worker, error) {
	w := &worker{memory: memory, kept: keptBodies{byStart: map[*byte]keptBody{}}}
	w.edge = &host{worker: w, rules: rules, held: map[uint32]*heldRequest{}, awaited: map[uint32]bool{}}
	w.pusher = &host{worker: w, rules: []byte(pushRules)}
	if err := w.edge.startVM(); err != nil {
		return nil, err
	}
	if err := w.pusher.startVM(); err != nil {
		return nil, err
	}
	if w.edge.vm.Config().SessionMetadata != "" {
		w.tokens = jwt.New(issuer)
	}
	return w, nil
}

// renewVMs makes new VMs after a panic.
func (w *worker) renewVMs() {
	w.counters.addCount(w.counters.counterID("gatehouse_panics_total"), 1)
	for _, h := range []*host{w.edge, w.pusher} {
		_ = h.startVM() // the rules were accepted before
	}
	for id, held := range w.edge.held {
		held.failed = true
		w.woken = append(w.woken, id)
	}
	w.calls = nil // nobody waits any more
	w.keys = keys{}
}

// tick is called every edge.TickMS.
func (w *worker) tick() {
	now := time.Now()
	w.followMemory()
	if w.tokens != nil && w.keys.token == 0 && !now.Before(w.keys.next) {
		w.keys.token = w.queueCall(call{path: keysPath, timeout: w.edge.vm.Config().SidecarTimeout})
	}
	w.edge.forgetGone(now)
	w.edge.enterRequest(nil)
	w.edge.vm.Tick()
	w.pusher.vm.Tick()
}

// followMemory opens the memory file again if an operator has removed or replaced the file: otherwise this worker would
// miss other workers' writes, such as revocations. The records of a new file count once the sidecar has written a
// state. If opening fails, requests find no records, and the next tick tries again.
func (w *worker) followMemory() {
	if !w.memory.IsReplaced() {
		w.lost = false
		return
	}
	memory, err := w.memory.Reopen()
	if err != nil {
		if !w.lost {
			logMessage(levelWarn, "gatehouse: the memory file was removed or replaced: "+err.Error())
		}
		w.lost = true
		return
	}
	logMessage(levelWarn, "gatehouse: the memory file was removed or replaced: now in use is the new file")
	_ = w.memory.Close()
	w.memory, w.lost = memory, false
}

// queueCall has Lua make a call, and returns the call's token.
func (w *worker) queueCall(c call) uint32 {
	if w.token++; w.token == 0 {
		w.token++
	}
	c.token = w.token
	w.calls = append(w.calls, c)
	return c.token
}

// deliverAnswer brings the answer to a call, nil for a failed call.
func (w *worker) deliverAnswer(token uint32, body []byte) {
	if token != w.keys.token {
		w.edge.enterRequest(nil)
		w.edge.vm.CallResponse(token, body)
		return
	}
	w.keys = keys{next: time.Now().Add(keysRetry)}
	if body != nil && w.tokens.SetKeys(body) {
		w.keys.next = time.Now().Add(keysEvery)
	}
}

// hasTask reports whether a task waits for nextTask.
func (w *worker) hasTask() bool {
	return len(w.woken) > 0 || len(w.calls) > 0 || len(w.counters.changed) > 0
}

// nextTask takes the next task for Lua.
func (w *worker) nextTask(out *C.gh_out) C.int {
	switch {
	case len(w.woken) > 0:
		out.id = C.uint32_t(w.woken[0])
		w.woken = w.woken[1:]
		return C.GH_WAKE
	case len(w.calls) > 0:
		w.made, w.calls = w.calls[0], w.calls[1:]
		c := &w.made
		out.id, out.wait = C.uint32_t(c.token), C.int32_t(c.timeout.Milliseconds())
		out.name, out.name_length = lendText(c.path)
		out.head, out.head_length = lendText(c.head)
		out.body, out.body_length = lendBytes(c.body)
		return C.GH_CALL
	case len(w.counters.changed) > 0:
		c := w.counters.takeChanged()
		out.name, out.name_length = lendText(c.series)
		out.number = C.double(c.n)
		c.n = 0
		return C.GH_COUNT
	}
	return C.GH_NOTHING
}

// counters are counts that shared memory lacks yet, by number from 1.
type counters struct {
	all     []*counter
	byName  map[string]uint32
	changed []uint32
}

type counter struct {
	series  string // name in Prometheus
	n       uint64
	changed bool
}

// counterID returns the number of a counter. A new counter is published before the first count.
func (c *counters) counterID(series string) uint32 {
	if id := c.byName[series]; id != 0 {
		return id
	}
	if c.byName == nil {
		c.byName = map[string]uint32{}
	}
	c.all = append(c.all, &counter{series: series})
	id := uint32(len(c.all))
	c.byName[series] = id
	c.addCount(id, 0)
	return id
}

func (c *counters) addCount(id uint32, n uint64) {
	of := c.all[id-1]
	of.n += n
	if !of.changed {
		of.changed = true
		c.changed = append(c.changed, id)
	}
}

// takeChanged takes a changed counter.
func (c *counters) takeChanged() *counter {
	of := c.all[c.changed[0]-1]
	of.changed, c.changed = false, c.changed[1:]
	return of
}

// seriesName returns a counter's name in Prometheus for the one in Envoy's stats, see policy.Counter.StatName.
func seriesName(stat string) string {
	parts := strings.Split(strings.TrimPrefix(stat, "gatehouse."), ";.;")
	var labels []string
	for _, label := range parts[:len(parts)-1] {
		name, value, _ := strings.Cut(label, "=.=")
		labels = append(labels, fmt.Sprintf("%s=%q", name, value))
	}
	metric := "gatehouse_" + parts[len(parts)-1]
	if labels == nil {
		return metric
	}
	return metric + "{" + strings.Join(labels, ",") + "}"
}
