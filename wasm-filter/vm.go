package main

import (
	"fmt"
	"strings"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
	"github.com/gatehouse/gatehouse/wire/limits"
)

// action is what the proxy does with a stream after a callback.
type action uint32

const (
	actionContinue action = 0
	actionPause    action = 1
)

// vm is one VM of the proxy, for an edge or the push listener. The proxy distinguishes VMs by their configuration, so
// the same rules decide all streams of one VM, on any listener. In the build with plugins, a plugin with rules of its own
// has one, too.
type vm struct {
	host   host
	engine *policy.Engine // nil until the VM is configured
	calls  calls
	hits   hits
	guard  guardSeen
	// writing is the guard's writer, of the push listener.
	writing guard
	bodies  bodyCache
	defined int     // tallies whose expected counters are defined
	tallies []tally // by rule, beginning with policy.NoRule

	newest uint32 // the greatest id of a stream whose headers have arrived

	replied int // bytes of bodies in the replies of the current callback

	// stream is the last decided one. Most streams are answered or passed at once and need no memory afterwards, so
	// they all use this one. A stream that must wait is copied to paused.
	stream stream
	paused map[uint32]*stream // by id
	// forgetAt is the number of paused streams from which the next request has those that have ended removed.
	forgetAt int
	awaited  map[uint32]awaited // answers to calls, by token

	// pushes are the streams of the push listener. There is no callback when a stream has ended, because it would be
	// called for every stream: see sweep and forgetEnded.
	pushes  map[uint32]*ingest
	sweepAt int // number of entries of the next sweep
}

func newVM(h host) *vm {
	return &vm{host: h, writing: guard{host: h}, paused: map[uint32]*stream{}, pushes: map[uint32]*ingest{},
		awaited: map[uint32]awaited{}, forgetAt: sweepLeast, sweepAt: sweepLeast}
}

// tickMS is the interval at which a VM reads the state, flushes its counters and reports, ms.
const tickMS = 200

// configure is called for each plugin of the VM; there is mostly one. size is the size of the plugin's own
// configuration, which must be empty: this build could not distinguish the rules of different plugins in one VM. It
// returns false if it refuses the configuration.
func (v *vm) configure(size int) bool {
	if size > 0 {
		v.host.critical(fmt.Sprintf("gatehouse: configuration has %d bytes, want none: move its content to vm_config.configuration, or load the module of the image gatehouse-module", size))
		return false
	}
	return v.start(v.host.configuration(), "vm_config.configuration")
}

// start begins to decide by the rules of a configuration, which the field has. It has no other effect: the proxy also
// starts VMs only to validate them.
func (v *vm) start(configuration []byte, field string) bool {
	if v.engine == nil {
		config, err := policy.ParseBytes(configuration)
		if err != nil {
			v.host.critical("gatehouse: " + field + " is invalid:\n" + indent(err.Error()))
			return false
		}
		v.engine = policy.NewEngine(config)
		v.tallies = make([]tally, len(config.Rules)+1)
		v.calls = calls{vm: v, inFlight: map[string]*call{}, throttles: throttles{}, guesses: newGuesses()}
	}
	if err := v.host.setTickPeriod(tickMS); err != nil {
		v.host.critical(fmt.Sprintf("gatehouse: set tick period of %d ms: %v", tickMS, err))
		return false
	}
	return true
}

// tick is called for each plugin of the VM, in its context, to which the proxy assigns calls.
func (v *vm) tick() {
	v.flush()
	v.define()
	v.forgetAt = sweepLeast
	if v.engine.Config().PushListener {
		v.sweep()
		return
	}
	v.guard.check(v.host)
	// During an upgrade the push listener may be served by a module without a guard; cached answers may then be
	// outdated until here.
	v.engine.Forget() //mutant:TestUnguardedWriteShowsAtTick deleted
	v.readState()
	v.calls.report(v.host.now())
	v.calls.throttles.sweep(v.host.now())
	v.calls.guesses.sweep(v.host.now())
	v.hits.tick(v)
	v.giveUp() // last: it enters streams
}

// readState reads the state record and reports whether it changed.
func (v *vm) readState() bool {
	state, err := wire.ParseState(v.host.record(wire.RegionState, 0))
	if err != nil {
		return false // none yet, or from another release: the earlier one stays
	}
	before := v.engine.State()
	changed := state.Epoch != before.Epoch || len(state.Permissions) != len(before.Permissions)
	if state.Epoch != before.Epoch {
		clear(v.calls.throttles) // set by a sidecar that may have been replaced
		v.calls.guesses = newGuesses()
	}
	v.engine.SetState(v.host.now(), state)
	return changed
}

// awaited is an unanswered call.
type awaited struct {
	done    func(body []byte)
	untilMS int64 // unix ms
}

// lateMS is the time after the call's timeout when an answer is considered lost, ms: more than a usual correction of a
// clock.
const lateMS = 5000

// call makes a call to the sidecar for the request that from identifies; done receives the answer's body, or nil for an
// unusable one. Like everything from the host, the body is valid during the callback.
func (v *vm) call(path string, body []byte, from origin, done func(body []byte)) error {
	config := v.engine.Config()
	token, err := v.host.call(config.SidecarCluster, path, body, from, config.SidecarTimeout)
	if err == nil {
		v.awaited[token] = awaited{done, v.host.now() + config.SidecarTimeout.Milliseconds() + lateMS}
	}
	return err
}

// requestHeaders begins a stream.
func (v *vm) requestHeaders(id uint32, endOfStream bool) action {
	if v.engine.Config().PushListener {
		i := &ingest{vm: v}
		if endOfStream {
			delete(v.pushes, id) // ids repeat after 2³² streams
		} else {
			v.pushes[id] = i
		}
		return i.headers(endOfStream)
	}
	if len(v.paused) >= v.forgetAt { //mutant:TestEndedStreamsLeave false
		v.forgetEnded(id)
	}
	if after(id, v.newest) { //mutant:TestFetchedBeforeItCame true
		v.newest = id
	}
	v.stream, v.replied = stream{vm: v, id: id}, 0
	return v.stream.advance(v.host.requestHeaders())
}

// requestBody matters only at the push listener: paused streams of an edge get no body.
func (v *vm) requestBody(id uint32, size int, endOfStream bool) action {
	i := v.pushes[id]
	if i == nil {
		return actionContinue
	}
	if endOfStream {
		delete(v.pushes, id)
	}
	return i.body(size, endOfStream)
}

// sweepLeast is the number of entries that causes the first sweep.
const sweepLeast = 1024

// sweep removes pushes that have gone. It runs when their entries have doubled since the last time, so that there are
// at most twice as many as there are streams, and an entry is checked twice on average.
func (v *vm) sweep() {
	if len(v.pushes) < v.sweepAt {
		return
	}
	for id := range v.pushes {
		if !v.host.exists(id) {
			delete(v.pushes, id)
		}
	}
	v.sweepAt = sweepLeast + 2*len(v.pushes)
}

// forgetEnded removes paused streams that have ended, which else keep their places until their calls end. It runs once
// in a tick and whenever sweepLeast streams were paused since, as long as that many are, and takes 0.3 µs for each.
func (v *vm) forgetEnded(current uint32) {
	for id := range v.paused {
		if !v.host.exists(id) {
			v.forget(id)
		}
	}
	v.host.exists(current)
	v.forgetAt = len(v.paused) + sweepLeast
}

// forget removes a stream that has ended, if it waits for a call.
func (v *vm) forget(id uint32) {
	if s := v.paused[id]; s != nil {
		delete(v.paused, id)
		s.call.remove(s)
	}
}

// callResponse passes an answer to the function that waits for it.
func (v *vm) callResponse(token uint32, size int) {
	v.replied = 0
	if a, ok := v.awaited[token]; ok {
		delete(v.awaited, token)
		a.done(v.host.callBody(size))
	}
}

// giveUp fails calls whose answer won't arrive: the proxy drops the calls of a plugin when its listener is removed,
// while the VM stays for a listener with the same rules, whose requests may wait for them.
func (v *vm) giveUp() {
	v.replied = 0
	now := v.host.now()
	for token, a := range v.awaited {
		if now > a.untilMS {
			delete(v.awaited, token)
			a.done(nil)
		}
	}
}

// source returns the client's address of the current context, without its port; "" if unknown.
func (v *vm) source() string {
	switch from := &v.engine.Config().Source; {
	case from.Header != "":
		return policy.AddressIn(v.host.requestHeaders(), from.Header)
	case from.FilterState != "":
		return policy.Address(string(v.host.filterState(from.FilterState)))
	}
	return policy.Address(string(v.host.source()))
}

// origin returns the id and the trace of the current context's request, as far as they are valid.
func (v *vm) origin() origin {
	o := origin{requestID: v.host.requestHeader(requestIDHeader), traceparent: v.host.requestHeader(traceparentHeader)}
	if !limits.ValidRequestID(o.requestID) {
		o.requestID = ""
	}
	if !limits.ValidTraceparent(o.traceparent) { //mutant:TestCallsHaveAnOrigin false
		o.traceparent = ""
	}
	return o
}

// tally has the counters of one rule.
type tally struct {
	counts [policy.Counters]uint64 // since the last flush
	ids    [policy.Counters]uint32 // of the proxy's counters, 0 before they are defined
}

// count counts for a rule, by its index or policy.NoRule.
func (v *vm) count(rule int, counter policy.Counter) { v.tallies[rule+1].counts[counter]++ }

// flush adds the counts to the proxy's counters.
func (v *vm) flush() {
	for i := range v.tallies {
		counts := &v.tallies[i].counts
		for c := policy.None + 1; c < policy.Counters; c++ {
			if counts[c] == 0 {
				continue
			}
			if id := v.counter(i-1, c); id != 0 {
				v.host.count(id, counts[c])
				counts[c] = 0
			}
		}
	}
}

// counter returns the id of a rule's counter, 0 if it can't be defined.
func (v *vm) counter(rule int, c policy.Counter) uint32 {
	t := &v.tallies[rule+1]
	if t.ids[c] == 0 {
		t.ids[c] = v.host.defineCounter(c.StatName(v.engine.Config().RuleName(rule)))
	}
	return t.ids[c]
}

// definedRules is the number of rules whose counters one tick defines: a counter takes Envoy some 40 µs, and requests
// wait meanwhile.
const definedRules = 16

// define defines the counters that the next rules are expected to increment.
func (v *vm) define() {
	for end := min(v.defined+definedRules, len(v.tallies)); v.defined < end; v.defined++ {
		rule := v.defined - 1
		for c := policy.None + 1; c < policy.Counters; c++ {
			if v.engine.Config().Expects(rule, c) {
				v.counter(rule, c)
			}
		}
	}
}

// Claim implements policy.Claims.
func (v *vm) Claim(metadata, name string) string { return v.host.claim(metadata, name) }

// Record implements policy.Memory.
func (v *vm) Record(region wire.Region, index uint32) []byte { return v.host.record(region, index) }

// Guard implements policy.Memory.
func (v *vm) Guard() uint64 { return v.guard.read(v.host) }

// Body implements policy.Memory.
func (v *vm) Body(epoch uint64, variant wire.Variant) *policy.Body {
	if body := v.bodies.get(epoch, variant); body != nil {
		return body
	}
	body, err := wire.FindBody(v.host.record(wire.RegionBodies, variant.Slot), epoch, variant)
	if err != nil {
		return nil
	}
	return v.bodies.put(epoch, variant, v.host.keep(body))
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }
