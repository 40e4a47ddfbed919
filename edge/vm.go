package edge

import (
	"fmt"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Action is the proxy's action on a stream after a callback.
type Action uint32

// The actions.
const (
	Continue Action = 0
	Pause    Action = 1
)

// VM is the edge, or the push listener, in one VM of the proxy; for a proxy without VMs, in one worker. A proxy
// distinguishes VMs by configuration: one set of rules decides all streams of one VM, on any listener. Methods may not
// be called concurrently.
type VM struct {
	host   Host
	engine *policy.Engine // nil until the VM is started
	calls  calls
	hits   hits
	guard  guardReader
	// writing is the guard's writer, of the push listener.
	writing guardWriter
	bodies  bodyCache
	defined int     // number of tallies with defined counters
	tallies []tally // by rule, beginning with policy.NoRule

	newest uint32 // the greatest id of a stream with headers

	replied int // bytes of bodies in the replies of the current callback
	unread  int // see Unread
	woken   int // bytes of bodies for streams woken by the newest answer

	// stream is the last decided stream. Most streams are answered or passed at once and need no memory afterwards, and
	// share this field. A stream that must wait is copied to paused.
	stream stream
	paused map[uint32]*stream // by id
	// forgetAt is the number of paused streams from which the next request removes ended streams.
	forgetAt     int
	pendingCalls map[uint32]pendingCall  // answers to calls, by token
	trials       map[uint32]pendingTrial // streams whose responses are awaited, by id

	// pushes are the streams of the push listener. The end of a stream has no callback, because the proxy would call it
	// for every stream: see sweepPushes and forgetEnded.
	pushes  map[uint32]*ingest
	sweepAt int // number of entries of the next sweep
}

// New returns a VM of the host, to be started.
func New(h Host) *VM {
	return &VM{host: h, writing: guardWriter{host: h}, paused: map[uint32]*stream{}, pushes: map[uint32]*ingest{},
		pendingCalls: map[uint32]pendingCall{}, trials: map[uint32]pendingTrial{}, forgetAt: sweepLeast, sweepAt: sweepLeast}
}

// TickMS is the interval at which a VM reads the state, flushes counters and reports, ms.
const TickMS = 200

// Start starts the VM with the rules of a configuration, found in field; a started VM stays unchanged. Start has no
// other effect: the proxy also starts VMs for mere validation.
func (v *VM) Start(configuration []byte, field string) error {
	if v.engine != nil {
		return nil
	}
	config, err := policy.ParseBytes(configuration)
	if err != nil {
		return fmt.Errorf("%s is invalid:\n%s", field, indentLines(err.Error()))
	}
	v.engine = policy.NewEngine(config)
	v.tallies = make([]tally, len(config.Rules)+1)
	v.calls = calls{vm: v, inFlight: map[string]*call{}, throttles: throttles{}, guesses: newGuesses()}
	return nil
}

// Config returns the configuration of a started VM.
func (v *VM) Config() *policy.Config { return v.engine.Config() }

// Tick is to be called every TickMS, also if the VM is idle.
func (v *VM) Tick() {
	v.flushCounters()
	v.defineCounters()
	v.forgetAt = sweepLeast
	if v.engine.Config().PushListener {
		v.sweepPushes()
		return
	}
	v.guard.checkOwner(v.host)
	// During an upgrade the push listener may be served by a module without a guard; cached answers may then be
	// outdated until here.
	v.engine.DropCachedAnswers()
	v.readState()
	v.calls.reportFailures(v.host.Now())
	v.calls.throttles.sweep(v.host.Now())
	v.calls.guesses.sweep(v.host.Now())
	v.hits.sendReport(v)
	v.failLateCalls()          // wakes streams
	for id := range v.trials { // last: StreamExists enters streams
		if !v.host.StreamExists(id) {
			v.countNotCompared(id)
		}
	}
}

// readState reads the state record and reports a change.
func (v *VM) readState() bool {
	state, err := wire.ParseState(v.host.Record(wire.RegionState, 0))
	if err != nil {
		return false // none yet, or of another release: keep the earlier state
	}
	before := v.engine.State()
	changed := state.Epoch != before.Epoch
	if changed {
		clear(v.calls.throttles) // set by the sidecar of the old epoch
		v.calls.guesses = newGuesses()
	}
	v.engine.SetState(v.host.Now(), state)
	return changed
}

// pendingCall is an unanswered call.
type pendingCall struct {
	done    func(body []byte)
	untilMS int64 // unix ms
}

// lateMS is the time after the call's timeout when an answer is considered lost, ms: more than a usual correction of a
// clock.
const lateMS = 5000

// callSidecar makes a call to the sidecar; done receives the answer's body, or nil for an unusable one. Like everything
// from the host, the body is valid during the callback. newest is the newest stream when the call was made.
func (v *VM) callSidecar(c Call, done func(body []byte)) (newest uint32, err error) {
	config := v.engine.Config()
	c.Cluster, c.Timeout = config.SidecarCluster, config.SidecarTimeout
	token, newest, err := v.host.CallSidecar(c)
	if err == nil {
		v.pendingCalls[token] = pendingCall{done, v.host.Now() + config.SidecarTimeout.Milliseconds() + lateMS}
	}
	return newest, err
}

// SetNewest tells the VM the greatest id of a stream so far, if the proxy numbers streams over all VMs.
func (v *VM) SetNewest(newest uint32) { v.newest = newest }

// RequestHeaders begins a stream, the new current stream.
func (v *VM) RequestHeaders(id uint32, endOfStream bool) Action {
	if v.engine.Config().PushListener {
		i := &ingest{vm: v}
		if endOfStream {
			delete(v.pushes, id) // ids repeat after 2³² streams
		} else {
			v.pushes[id] = i
		}
		return i.handleHeaders(endOfStream)
	}
	if len(v.paused) >= v.forgetAt {
		v.forgetEnded(id)
	}
	if beganAfter(id, v.newest) {
		v.newest = id
	}
	v.stream, v.replied = stream{vm: v, id: id}, 0
	return v.stream.handleHeaders(v.host.RequestHeaders())
}

// RequestBody is called when size bytes of the body have arrived. It matters only at the push listener: paused streams
// of an edge get no body.
func (v *VM) RequestBody(id uint32, size int, endOfStream bool) Action {
	i := v.pushes[id]
	if i == nil {
		return Continue
	}
	if endOfStream {
		delete(v.pushes, id)
	}
	return i.handleBody(size, endOfStream)
}

// SetUnread sets, for the next callback, how many bytes of earlier replies' bodies clients have yet to read. Hosts of
// proxies with a bound of their own don't call it.
func (v *VM) SetUnread(bytes int) { v.unread = bytes }

// RefuseToken answers a new stream with 401: the host has found a bad token. The rules don't matter. Without keys the
// host can't judge tokens yet, and the answer is 503.
func (v *VM) RefuseToken(id uint32, hasKeys bool) Action {
	d := policy.RefuseToken(hasKeys)
	v.stream = stream{vm: v, id: id}
	v.count(policy.NoRule, d.Auth)
	v.stream.noteRequest(policy.NoRule, "")
	return v.stream.sendReply(&d)
}

// sweepLeast is the number of entries at the first sweep.
const sweepLeast = 1024

// sweepPushes removes ended pushes. It runs when the entries have doubled since the last sweep: there are at most twice
// as many entries as streams, and an entry is checked twice on average.
func (v *VM) sweepPushes() {
	if len(v.pushes) < v.sweepAt {
		return
	}
	for id := range v.pushes {
		if !v.host.StreamExists(id) {
			delete(v.pushes, id)
		}
	}
	v.sweepAt = sweepLeast + 2*len(v.pushes)
}

// forgetEnded removes paused streams that have ended, which otherwise stay until their calls end. It runs in the first
// request after a tick with sweepLeast paused streams, and again after sweepLeast further ones, and takes 0.3 µs per
// stream.
func (v *VM) forgetEnded(current uint32) {
	for id := range v.paused {
		if !v.host.StreamExists(id) {
			v.forgetStream(id)
		}
	}
	v.host.EnterStream(current)
	v.forgetAt = len(v.paused) + sweepLeast
}

// forgetStream removes an ended stream from the waiting ones.
func (v *VM) forgetStream(id uint32) {
	if s := v.paused[id]; s != nil {
		delete(v.paused, id)
		s.call.removeStream(s)
	}
}

// EndStream forgets a stream. Hosts that know the end of a stream call EndStream; the VM asks the rest by
// [Host.StreamExists].
func (v *VM) EndStream(id uint32) {
	delete(v.pushes, id)
	v.forgetStream(id)
	v.countNotCompared(id)
}

// CallResponse passes the body of an answer, nil unless the status is 200, to the waiting function.
func (v *VM) CallResponse(token uint32, body []byte) {
	v.woken = 0
	if a, ok := v.pendingCalls[token]; ok {
		delete(v.pendingCalls, token)
		a.done(body)
	}
}

// failLateCalls fails calls whose answer won't arrive: the proxy drops the calls of a plugin when the listener is
// removed, while the VM stays for a listener with the same rules, and requests may wait for the dropped calls.
func (v *VM) failLateCalls() {
	now := v.host.Now()
	var late []pendingCall
	for token, a := range v.pendingCalls {
		if now > a.untilMS {
			delete(v.pendingCalls, token)
			late = append(late, a)
		}
	}
	if late != nil { // else the newest answer's streams may still be woken
		v.woken = 0
	}
	for _, a := range late {
		a.done(nil)
	}
}

// clientAddress returns the client's address of the current context, without port; "" if unknown.
func (v *VM) clientAddress(from *policy.Source) string {
	switch {
	case from.Header != "":
		return policy.HeaderAddress(v.host.RequestHeaders(), from.Header)
	case from.FilterState != "":
		return policy.CanonicalAddress(string(v.host.FilterState(from.FilterState)))
	}
	return policy.CanonicalAddress(string(v.host.ClientAddress()))
}

// requestOrigin returns the id and the trace of the current context's request, as far as they are valid.
func (v *VM) requestOrigin() Origin {
	o := Origin{RequestID: v.host.RequestHeader(requestIDHeader), Traceparent: v.host.RequestHeader(traceparentHeader)}
	if !limits.ValidRequestID(o.RequestID) {
		o.RequestID = ""
	}
	if !limits.ValidTraceparent(o.Traceparent) {
		o.Traceparent = ""
	}
	return o
}

// tally has the counters of a rule.
type tally struct {
	counts [policy.Counters]uint64 // since the last flush
	ids    [policy.Counters]uint32 // of the proxy's counters, 0 before they are defined
}

// count counts for a rule, by the rule's index or policy.NoRule.
func (v *VM) count(rule int, counter policy.Counter) { v.tallies[rule+1].counts[counter]++ }

// flushCounters adds the counts to the proxy's counters.
func (v *VM) flushCounters() {
	for i := range v.tallies {
		counts := &v.tallies[i].counts
		for c := policy.None + 1; c < policy.Counters; c++ {
			if counts[c] == 0 {
				continue
			}
			if id := v.counterID(i-1, c); id != 0 {
				v.host.IncrementCounter(id, counts[c])
				counts[c] = 0
			}
		}
	}
}

// counterID returns the id of a rule's counter, 0 if undefined.
func (v *VM) counterID(rule int, c policy.Counter) uint32 {
	t := &v.tallies[rule+1]
	if t.ids[c] == 0 {
		t.ids[c] = v.host.DefineCounter(c.StatName(v.engine.Config().RuleName(rule)))
	}
	return t.ids[c]
}

// definedRules is the number of rules with new counters per tick: a counter takes Envoy some 40 µs, and requests wait.
const definedRules = 16

// defineCounters defines the expected counters of the next rules.
func (v *VM) defineCounters() {
	for end := min(v.defined+definedRules, len(v.tallies)); v.defined < end; v.defined++ {
		rule := v.defined - 1
		for c := policy.None + 1; c < policy.Counters; c++ {
			if v.engine.Config().ExpectsCounter(rule, c) {
				v.counterID(rule, c)
			}
		}
	}
}

// Claim implements policy.Claims.
func (v *VM) Claim(metadata, name string) string { return v.host.Claim(metadata, name) }

// Record implements policy.Memory.
func (v *VM) Record(region wire.Region, index uint32) []byte { return v.host.Record(region, index) }

// Guard implements policy.Memory.
func (v *VM) Guard() uint64 { return v.guard.readGuard(v.host) }

// Body implements policy.Memory.
func (v *VM) Body(epoch uint64, variant wire.Variant) *policy.Body {
	if body := v.bodies.get(epoch, variant); body != nil {
		return body
	}
	body, err := wire.FindBody(v.host.Record(wire.RegionBodies, variant.Slot), epoch, variant)
	if err != nil {
		return nil
	}
	return v.bodies.put(epoch, variant, v.host.KeepRecord(body))
}

func indentLines(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }
