//go:build !sdk

package main

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/wasm-filter/abi"
)

// proxy is the host of the module.
type proxy struct {
	place [wire.PlaceSize]byte // reusable after a call: the proxy has copied the key
	gauge uint32               // id of the guard's gauge, 0 before its first use
}

func (*proxy) Now() int64 { return abi.NowMS() }

// configuration returns the VM's configuration, during configure.
func (*proxy) configuration() []byte {
	return orNil(abi.BufferBytes(abi.VMConfiguration, math.MaxInt32))
}

func (*proxy) pluginConfiguration(size int) []byte {
	return orNil(abi.BufferBytes(abi.PluginConfiguration, size))
}

func (*proxy) setTickPeriod(ms uint32) error { return abi.SetTickPeriod(ms) }

func (p *proxy) Record(region wire.Region, index uint32) []byte {
	value, _, err := abi.SharedData(p.recordKey(region, index))
	return orNil(value, err)
}

func (*proxy) KeepRecord(record []byte) []byte { return bytes.Clone(record) }

func (p *proxy) SetRecord(region wire.Region, index uint32, value []byte) error {
	return abi.SetSharedData(p.recordKey(region, index), value, 0)
}

func (p *proxy) State() ([]byte, uint32) {
	value, cas, err := abi.SharedData(p.recordKey(wire.RegionState, 0))
	return orNil(value, err), cas
}

func (p *proxy) SetState(value []byte, cas uint32) bool {
	return abi.SetSharedData(p.recordKey(wire.RegionState, 0), value, cas) == nil
}

func (p *proxy) Guard() uint64 {
	if p.defineGuard() != nil {
		return 0
	}
	return orZero(abi.Metric(p.gauge))
}

func (p *proxy) AddGuard(n int64) error {
	if err := p.defineGuard(); err != nil {
		return err
	}
	return abi.Add(p.gauge, n)
}

func (p *proxy) defineGuard() (err error) {
	if p.gauge == 0 {
		p.gauge, err = abi.DefineGauge(guardGauge)
	}
	return err
}

// recordKey returns the shared-data key of a place, valid until the next call.
func (p *proxy) recordKey(region wire.Region, index uint32) string {
	return unsafe.String(unsafe.SliceData(wire.AppendPlace(p.place[:0], region, index)), wire.PlaceSize)
}

func (*proxy) RequestHeaders() []byte { return orNil(abi.Pairs(abi.RequestHeaders)) }

func (*proxy) RequestHeader(name string) string {
	value, err := abi.Header(abi.RequestHeaders, name)
	if err != nil {
		return ""
	}
	return value
}

func (*proxy) RequestBody(size int) []byte { return orNil(abi.BufferBytes(abi.RequestBody, size)) }

func (*proxy) ClientAddress() []byte { return orNil(abi.Property("source\x00address")) }

func (*proxy) FilterState(name string) []byte { return orNil(abi.Property("filter_state\x00" + name)) }

func (*proxy) Claim(metadata, name string) string {
	value := orNil(abi.Property("metadata\x00filter_metadata\x00" + claimsFilter + "\x00" + metadata + "\x00" + name))
	return unsafe.String(unsafe.SliceData(value), len(value))
}

func (p *proxy) RemoveRequestHeader(name string) {
	p.logFailure(abi.RemoveHeader(abi.RequestHeaders, name), "remove request header", name)
}

func (p *proxy) AddRequestHeader(name, value string) {
	p.logFailure(abi.AddHeader(abi.RequestHeaders, name, value), "add request header", name)
}

// SetNote implements edge.Host: Envoy stores a property in the filter state, under its name after "wasm.".
func (p *proxy) SetNote(n policy.Note, value string) {
	p.logFailure(abi.SetProperty(n.String(), value), "set property", n.String())
}

// AwaitResponse implements edge.Host: the callback would cost a crossing for every response.
func (*proxy) AwaitResponse() bool { return false }

func (p *proxy) Reply(status int, details string, headers, body []byte) {
	p.logFailure(abi.Reply(status, details, headers, body), "local reply", "")
}

func (p *proxy) WakeStream(stream uint32, goOn func() edge.Action) {
	abi.BeginCallback() // one answer may wake many streams
	if p.enterPaused(stream) && goOn() == edge.Continue {
		p.logFailure(abi.ContinueRequest(), "resume request", "")
	}
}

// enterPaused makes a paused stream the current context; false if the stream has ended, or the proxy has answered.
// Envoy destroys a reset stream at once, but the context later: in between, a reply would end Envoy. Only a destroyed
// stream has a duration. A stream that Envoy has answered, after a timeout, may exist until the client has read the
// answer.
func (p *proxy) enterPaused(stream uint32) bool {
	if !p.StreamExists(stream) {
		return false
	}
	if _, err := abi.Property("request\x00duration"); err == nil {
		return false
	}
	return !isAnswered(orNil(abi.Property("response\x00code")))
}

func (*proxy) StreamExists(stream uint32) bool { return abi.Enter(stream) == nil }

func (*proxy) EnterStream(stream uint32) { _ = abi.Enter(stream) }

func (*proxy) CallSidecar(c edge.Call) (token, newest uint32, err error) {
	token, err = abi.Call(c.Cluster, headermap.Append(nil, c.Headers()), c.Body, c.Timeout)
	return token, c.Newest, err
}

// callBody returns the first size bytes of the answer in the current callback, nil unless the status is 200. A reset
// call has no headers; a failed connection has a 503's.
func (*proxy) callBody(size int) []byte {
	if status, err := abi.Header(abi.CallResponseHeaders, ":status"); err != nil || status != "200" {
		return nil
	}
	return orNil(abi.BufferBytes(abi.CallResponseBody, size))
}

func (p *proxy) DefineCounter(name string) uint32 {
	id, err := abi.DefineCounter(name)
	if err != nil {
		p.logFailure(err, "define counter", name)
		return 0
	}
	return id
}

func (p *proxy) IncrementCounter(id uint32, n uint64) {
	p.logFailure(abi.Add(id, int64(n)), "add to counter", strconv.Itoa(int(id)))
}

func (*proxy) Warn(message string) { abi.Log(abi.LevelWarn, message) }

func (*proxy) logCritical(message string) { abi.Log(abi.LevelCritical, message) }

// logFailure logs the failure of an operation that should always succeed.
func (*proxy) logFailure(err error, what, of string) {
	if err != nil {
		abi.Log(abi.LevelError, fmt.Sprintf("gatehouse: %s %q: %v", what, of, err))
	}
}

func orZero(value uint64, err error) uint64 {
	if err != nil {
		return 0
	}
	return value
}

func orNil(value []byte, err error) []byte {
	if err != nil {
		return nil
	}
	return value
}

func boolToU32(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
