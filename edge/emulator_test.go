package edge

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/wasm-filter/abi"
)

// emulator is a proxy in memory: it calls the VM as Envoy does, and records the VM's calls. Results are in an arena,
// which is filled with garbage before every callback, to reveal results kept for longer than a callback.
type emulator struct {
	vm      *VM
	push    *VM // of emulateBoth
	arena   abi.Arena
	handed  [][]byte // by the arena, in the current callback
	clock   int64
	config  []byte
	records map[string][]byte
	streams map[uint32]*exchange
	nextID  uint32
	current uint32 // context
	calls   []sent
	stats   []string // names of counters, by their id - 1
	counts  map[string]uint64
	logs    []string
	from    string            // address of clients
	states  map[string]string // the filter state
	claims  map[string]string // of a token, in the metadata "gatehouse"
	// beforeState, if set, is called before each write of the state.
	beforeState func()
	stateCAS    uint32 // of the newest state
	gauge       uint64 // the guard
	reads       int    // of records of objects

	mute bool // request headers can't be read
	full bool // no call can be made

	blind bool // to responses

	answer []byte // to the call of the current callback
	body   []byte // of the request of the current callback
	buffer []byte // of request headers
	enters int
}

// exchange is a stream as the proxy sees it.
type exchange struct {
	request     [][2]string
	action      Action
	reply       *reply
	resumed     bool
	cacheStatus string
	notes       []string // the other notes
	awaited     bool     // its response
	ended       bool     // though its context exists
}

type reply struct {
	status  int
	details string
	headers [][2]string
	body    []byte
}

type sent struct {
	token         uint32
	cluster, path string
	body          []byte
	from          Origin
}

const pluginID = 1

// emulate starts a VM, with a state in shared data unless it is a push listener's.
func emulate(t testing.TB, config string) *emulator {
	t.Helper()
	e := &emulator{clock: 1_700_000_000_000, from: "203.0.113.7", stateCAS: 1, config: []byte(config),
		records: map[string][]byte{}, streams: map[uint32]*exchange{}, nextID: pluginID, counts: map[string]uint64{}}
	e.start(t)
	if !e.vm.engine.Config().PushListener {
		s := state
		s.InStepMS = e.clock
		e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &s)
		e.tick()
	}
	return e
}

// start starts a VM with this configuration, beside any existing VM.
func (e *emulator) start(t testing.TB) {
	t.Helper()
	e.vm = New(e)
	e.callback(pluginID, func() {
		if err := e.vm.Start(e.config, "configuration"); err != nil {
			t.Fatal(err)
		}
	})
}

func place(region wire.Region, index uint32) string {
	return string(wire.AppendPlace(nil, region, index))
}

// callback runs a callback of a context.
func (e *emulator) callback(id uint32, f func()) {
	e.overwrite()
	e.current = id
	f()
}

// overwrite invalidates the results of earlier callbacks.
func (e *emulator) overwrite() {
	for _, b := range e.handed {
		for i := range b {
			b[i] = 0xdb
		}
	}
	e.handed = e.handed[:0]
	e.arena.Reset()
}

func (e *emulator) result(value []byte) []byte {
	b := e.arena.Allocate(len(value))
	copy(b, value)
	e.handed = append(e.handed, b)
	return e.arena.Last(len(value))
}

// begin creates a stream and passes its headers to the VM.
func (e *emulator) begin(headers [][2]string, endOfStream bool) uint32 {
	e.nextID++
	id, x := e.nextID, &exchange{request: headers}
	e.streams[id] = x
	e.callback(id, func() { x.action = e.vm.RequestHeaders(id, endOfStream) })
	return id
}

// end ends a stream without notice to the VM.
func (e *emulator) end(id uint32) { delete(e.streams, id) }

// reset ends a stream whose context the proxy deletes later.
func (e *emulator) reset(id uint32) { e.streams[id].ended = true }

func (e *emulator) tick() { e.callback(pluginID, func() { e.vm.Tick() }) }

// answered delivers the answer to a call, nil for a failure.
func (e *emulator) answered(c sent, body []byte) {
	e.answer = body
	e.callback(pluginID, func() { e.vm.CallResponse(c.token, e.callBody()) })
}

func (e *emulator) Now() int64 { return e.clock }

func (e *emulator) Record(region wire.Region, index uint32) []byte {
	var key [wire.PlaceSize]byte
	if region == wire.RegionObjects {
		e.reads++
	}
	record, ok := e.records[string(wire.AppendPlace(key[:0], region, index))]
	if !ok {
		return nil
	}
	return e.result(record)
}

func (*emulator) KeepRecord(record []byte) []byte { return bytes.Clone(record) }

func (e *emulator) SetRecord(region wire.Region, index uint32, value []byte) error {
	e.records[place(region, index)] = bytes.Clone(value)
	return nil
}

func (e *emulator) State() ([]byte, uint32) {
	return e.Record(wire.RegionState, 0), e.stateCAS
}

func (e *emulator) SetState(value []byte, cas uint32) bool {
	if e.beforeState != nil {
		e.beforeState()
	}
	if cas != 0 && cas != e.stateCAS {
		return false
	}
	e.stateCAS++
	e.records[place(wire.RegionState, 0)] = bytes.Clone(value)
	return true
}

func (e *emulator) Guard() uint64 { return e.gauge }

func (e *emulator) AddGuard(n int64) error {
	e.gauge += uint64(n)
	return nil
}

func (e *emulator) RequestHeaders() []byte {
	if e.mute {
		return nil
	}
	e.buffer = headermap.Append(e.buffer[:0], e.streams[e.current].request)
	return e.result(e.buffer)
}

func (e *emulator) RequestHeader(name string) string {
	var values []string
	for _, h := range e.streams[e.current].request {
		if h[0] == name {
			values = append(values, h[1])
		}
	}
	value := e.result([]byte(strings.Join(values, ",")))
	return unsafe.String(unsafe.SliceData(value), len(value))
}

func (e *emulator) RequestBody(size int) []byte { return e.result(e.body[:size]) }

func (e *emulator) ClientAddress() []byte { return e.result([]byte(e.from)) }

func (e *emulator) FilterState(name string) []byte { return e.result([]byte(e.states[name])) }

func (e *emulator) Claim(metadata, name string) string {
	if metadata != "gatehouse" {
		return ""
	}
	value := e.result([]byte(e.claims[name]))
	return unsafe.String(unsafe.SliceData(value), len(value))
}

func (e *emulator) RemoveRequestHeader(name string) {
	x := e.streams[e.current]
	x.request = slices.DeleteFunc(x.request, func(h [2]string) bool { return h[0] == name })
}

func (e *emulator) AddRequestHeader(name, value string) {
	x := e.streams[e.current]
	x.request = append(x.request, [2]string{clone(name), clone(value)})
}

func (e *emulator) SetNote(n policy.Note, value string) {
	x := e.streams[e.current]
	if n == policy.NoteCacheStatus {
		x.cacheStatus = clone(value)
		return
	}
	x.notes = append(x.notes, n.String()+": "+value)
}

func (e *emulator) AwaitResponse() bool {
	e.streams[e.current].awaited = !e.blind
	return !e.blind
}

// respond passes the response of the upstream to the VM.
func (e *emulator) respond(id uint32, etag string) {
	e.callback(id, func() {
		value := e.result([]byte(etag))
		e.vm.CompareResponse(id, unsafe.String(unsafe.SliceData(value), len(value)))
	})
}

func (e *emulator) Reply(status int, details string, headers, body []byte) {
	x := e.streams[e.current]
	if x.ended {
		panic(fmt.Sprintf("a reply to stream %d, which has ended", e.current))
	}
	if x.reply != nil {
		panic(fmt.Sprintf("a second reply to stream %d", e.current))
	}
	all, ok := headermap.Parse(bytes.Clone(headers))
	if !ok {
		panic(fmt.Sprintf("a reply to stream %d with malformed headers %q", e.current, headers))
	}
	x.reply = &reply{status: status, details: details, headers: all, body: bytes.Clone(body)}
}

func (e *emulator) WakeStream(id uint32, goOn func() Action) {
	if e.StreamExists(id) && !e.streams[id].ended && goOn() == Continue {
		e.streams[id].resumed = true
	}
}

func (e *emulator) EnterStream(id uint32) { e.current = id }

func (e *emulator) StreamExists(id uint32) bool {
	e.enters++
	e.overwrite()
	e.current = id // like Proxy-Wasm
	_, ok := e.streams[id]
	return ok
}

func (e *emulator) CallSidecar(c Call) (token, newest uint32, err error) {
	if e.full {
		return 0, 0, errors.New("no cluster")
	}
	token = uint32(len(e.calls) + 1)
	headers := fields(c.Headers())
	e.calls = append(e.calls, sent{token, c.Cluster, c.Path, bytes.Clone(c.Body),
		Origin{clone(headers[requestIDHeader]), clone(headers[traceparentHeader])}})
	return token, c.Newest, nil
}

// callBody returns the answer to the call of the current callback.
func (e *emulator) callBody() []byte {
	if e.answer == nil {
		return nil
	}
	return e.result(e.answer)
}

func (e *emulator) DefineCounter(name string) uint32 {
	e.stats = append(e.stats, name)
	e.counts[name] += 0
	return uint32(len(e.stats))
}

func (e *emulator) IncrementCounter(id uint32, n uint64) {
	if n == 0 {
		panic("the proxy refuses to add nothing")
	}
	e.counts[e.stats[id-1]] += n
}

// counted returns a counter, summed over the rules.
func (e *emulator) counted(c policy.Counter) (sum uint64) {
	rules := map[string]bool{}
	for i := range e.vm.tallies {
		rules[c.StatName(e.vm.engine.Config().RuleName(i-1))] = true
	}
	for name := range rules {
		sum += e.counts[name]
	}
	return sum
}

func (e *emulator) Warn(message string) { e.logs = append(e.logs, message) }

// clone copies text of the current callback.
func clone(s string) string { return string([]byte(s)) }

// went reports whether a stream went upstream.
func (x *exchange) went() bool { return x.action == Continue || x.resumed }

// fields returns a header list as a map.
func fields(headers [][2]string) map[string]string {
	return maps.Collect(func(yield func(string, string) bool) {
		for _, h := range headers {
			if !yield(h[0], h[1]) {
				return
			}
		}
	})
}
