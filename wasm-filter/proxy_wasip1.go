//go:build !sdk

package main

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"time"
	"unsafe"

	"github.com/gatehouse/gatehouse/wasm-filter/abi"
	"github.com/gatehouse/gatehouse/wasm-filter/headermap"
	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
)

type proxy struct { // the host that the module runs in
	place [wire.PlaceSize]byte // reusable when a call returns, because the proxy has copied it
	gauge uint32               // id of the guard's gauge, 0 before its first use
}

func (*proxy) now() int64 { return abi.NowMS() }

func (*proxy) configuration() []byte {
	return orNil(abi.BufferBytes(abi.VMConfiguration, math.MaxInt32))
}

func (*proxy) pluginConfiguration(size int) []byte {
	return orNil(abi.BufferBytes(abi.PluginConfiguration, size))
}

func (*proxy) setTickPeriod(ms uint32) error { return abi.SetTickPeriod(ms) }

func (p *proxy) record(region wire.Region, index uint32) []byte {
	value, _, err := abi.SharedData(p.key(region, index))
	return orNil(value, err)
}

func (*proxy) keep(record []byte) []byte { return bytes.Clone(record) }

func (p *proxy) setRecord(region wire.Region, index uint32, value []byte) error {
	return abi.SetSharedData(p.key(region, index), value, 0)
}

func (p *proxy) state() ([]byte, uint32) {
	value, cas, err := abi.SharedData(p.key(wire.RegionState, 0))
	return orNil(value, err), cas
}

func (p *proxy) setState(value []byte, cas uint32) bool {
	return abi.SetSharedData(p.key(wire.RegionState, 0), value, cas) == nil
}

func (p *proxy) guard() uint64 {
	if p.defineGuard() != nil {
		return 0
	}
	return orZero(abi.Metric(p.gauge))
}

func (p *proxy) addGuard(n int64) error {
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

// key returns the shared-data key of a place; the next call overwrites it.
func (p *proxy) key(region wire.Region, index uint32) string {
	return unsafe.String(unsafe.SliceData(wire.AppendPlace(p.place[:0], region, index)), wire.PlaceSize)
}

func (*proxy) requestHeaders() []byte { return orNil(abi.Pairs(abi.RequestHeaders)) }

func (*proxy) requestHeader(name string) string {
	value, err := abi.Header(abi.RequestHeaders, name)
	if err != nil {
		return ""
	}
	return value
}

func (*proxy) requestBody(size int) []byte { return orNil(abi.BufferBytes(abi.RequestBody, size)) }

func (*proxy) source() []byte { return orNil(abi.Property("source\x00address")) }

func (*proxy) filterState(name string) []byte { return orNil(abi.Property("filter_state\x00" + name)) }

func (*proxy) claim(metadata, name string) string {
	value := orNil(abi.Property("metadata\x00filter_metadata\x00" + claimsFilter + "\x00" + metadata + "\x00" + name))
	return unsafe.String(unsafe.SliceData(value), len(value))
}

func (p *proxy) removeRequestHeader(name string) {
	p.check(abi.RemoveHeader(abi.RequestHeaders, name), "remove request header", name)
}

func (p *proxy) addRequestHeader(name, value string) {
	p.check(abi.AddHeader(abi.RequestHeaders, name, value), "add request header", name)
}

// note implements host: Envoy stores a property in the filter state, under its name after "wasm.".
func (p *proxy) note(n policy.Note, value string) {
	p.check(abi.SetProperty(n.String(), value), "set property", n.String())
}

func (p *proxy) reply(status int, details string, headers, body []byte) {
	p.check(abi.Reply(status, details, headers, body), "local reply", "")
}

func (p *proxy) resume() { p.check(abi.ContinueRequest(), "resume request", "") }

// enter implements host. Envoy destroys a stream that is reset at once, but its context later: in between, a reply would
// end Envoy. Only a destroyed stream has a duration. A stream that Envoy has answered, after a timeout, may exist until
// its client has read that.
func (p *proxy) enter(stream uint32) bool {
	abi.BeginCallback() // one answer may continue many streams
	if !p.exists(stream) {
		return false
	}
	if _, err := abi.Property("request\x00duration"); err == nil {
		return false
	}
	return !answered(orNil(abi.Property("response\x00code")))
}

func (*proxy) exists(stream uint32) bool { return abi.Enter(stream) == nil }

func (*proxy) call(cluster, path string, body []byte, from origin, timeout time.Duration) (uint32, error) {
	return abi.Call(cluster, headermap.Append(nil, from.headers(path)), body, timeout)
}

// callBody implements host. A call that was reset has no headers; one that could not connect has a 503's.
func (*proxy) callBody(size int) []byte {
	if status, err := abi.Header(abi.CallResponseHeaders, ":status"); err != nil || status != "200" {
		return nil
	}
	return orNil(abi.BufferBytes(abi.CallResponseBody, size))
}

func (p *proxy) defineCounter(name string) uint32 {
	id, err := abi.DefineCounter(name)
	if err != nil {
		p.check(err, "define counter", name)
		return 0
	}
	return id
}

func (p *proxy) count(id uint32, n uint64) {
	p.check(abi.Add(id, int64(n)), "add to counter", strconv.Itoa(int(id)))
}

func (*proxy) warn(message string) { abi.Log(abi.LevelWarn, message) }

func (*proxy) critical(message string) { abi.Log(abi.LevelCritical, message) }

// check logs that the proxy refused an operation that should always succeed.
func (*proxy) check(err error, what, of string) {
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

func truth(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
