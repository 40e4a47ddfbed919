//go:build native

package main

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/native-filter/dynmod"
	"github.com/gatehouse/gatehouse/native-filter/memory"
)

// shared is the memory of all filters of the process.
var shared memory.Store

// proxy is the host of one worker's VM: Envoy, by the ABI for dynamic modules. Methods are called under the worker's
// lock.
type proxy struct {
	worker *worker
	stream *dynmod.Stream // the current stream; nil for none
	raw    []byte         // the stream's headers, reused
	read   bool           // raw has them
	answer dynmod.Answer
}

// beginCallback begins the callback of a stream, on the stream's thread.
func (p *proxy) beginCallback(s *dynmod.Stream) {
	p.enterStream(s)
	p.worker.vm.SetNewest(s.Newest())
	p.answer.Reset() // not earlier: Envoy may be sending the answer
}

// enterStream makes a stream the current stream; nil: none.
func (p *proxy) enterStream(s *dynmod.Stream) { p.stream, p.read = s, false }

func (*proxy) Now() int64 { return time.Now().UnixMilli() }

func (*proxy) Record(region wire.Region, index uint32) []byte { return shared.Record(region, index) }

// KeepRecord implements edge.Host: nobody changes a record.
func (*proxy) KeepRecord(record []byte) []byte { return record }

func (*proxy) SetRecord(region wire.Region, index uint32, value []byte) error {
	return shared.SetRecord(region, index, value)
}

func (*proxy) State() ([]byte, uint32) { return shared.State() }

func (*proxy) SetState(value []byte, cas uint32) bool { return shared.SetState(value, cas) }

func (*proxy) Guard() uint64 { return shared.Guard() }

func (*proxy) AddGuard(n int64) error {
	shared.AddGuard(n)
	return nil
}

// RequestHeaders implements edge.Host. It copies the headers once in a callback: Envoy's buffers become invalid with
// the removal of a header.
func (p *proxy) RequestHeaders() []byte {
	if p.stream != nil && !p.read {
		p.raw, p.read = p.stream.AppendHeaders(p.raw[:0]), true
	}
	if !p.read {
		return nil
	}
	return p.raw
}

func (p *proxy) RequestHeader(name string) string {
	return headermap.JoinedValues(p.RequestHeaders(), name)
}

func (p *proxy) RequestBody(size int) []byte {
	body := p.stream.Body()
	return body[:min(size, len(body))]
}

func (p *proxy) ClientAddress() []byte { return p.stream.ClientAddress() }

func (p *proxy) FilterState(name string) []byte { return p.stream.FilterState(name) }

// claimsState is the prefix of claims in the filter state. A module can't read the nested metadata of Envoy's JWT
// filter: envoy-native.yaml has a filter that copies the claims to the filter state.
const claimsState = "gatehouse.claims."

func (p *proxy) Claim(metadata, name string) string {
	return string(p.stream.FilterState(claimsState + metadata + "." + name))
}

func (p *proxy) RemoveRequestHeader(name string) {
	p.logRefused(p.stream.RemoveHeader(name), "remove request header", name)
}

// AddRequestHeader implements edge.Host. Envoy 1.40 refuses an empty value of a module: a device without permissions
// has no permissions header, as in nginx.
func (p *proxy) AddRequestHeader(name, value string) {
	if value == "" {
		return
	}
	p.logRefused(p.stream.AddHeader(name, value), "add request header", name)
}

// noteStates are the names of notes in the filter state, the same as the Wasm module's: the configuration of access
// logs and routes is the same, too.
var noteStates = [...]string{
	policy.NoteCacheStatus:  "wasm." + policy.NoteCacheStatus.String(),
	policy.NoteVary:         "wasm." + policy.NoteVary.String(),
	policy.NoteCacheControl: "wasm." + policy.NoteCacheControl.String(),
	policy.NoteNoStore:      "wasm." + policy.NoteNoStore.String(),
	policy.NoteDevice:       "wasm." + policy.NoteDevice.String(),
	policy.NoteRule:         "wasm." + policy.NoteRule.String(),
	policy.NoteReason:       "wasm." + policy.NoteReason.String(),
}

func (p *proxy) SetNote(n policy.Note, value string) {
	p.logRefused(p.stream.SetFilterState(uint(n), noteStates[n], value), "set filter state", noteStates[n])
}

// AwaitResponse implements edge.Host.
func (p *proxy) AwaitResponse() bool {
	p.stream.AwaitResponse()
	return true
}

func (p *proxy) Reply(status int, details string, headers, body []byte) {
	p.answer.Set(status, details, headers, body)
}

// WakeStream implements edge.Host. It is called on a foreign thread; on the stream's thread, filter.Woken continues the
// stream.
func (p *proxy) WakeStream(id uint32, goOn func() edge.Action) {
	if h := p.worker.held[id]; h != nil {
		h.goOn = goOn
		h.stream.Wake()
	}
}

// StreamExists implements edge.Host: filter.Destroyed tells the VM the end of streams.
func (*proxy) StreamExists(uint32) bool { return true }

func (*proxy) EnterStream(uint32) {}

var errStopped = errors.New("the configuration has gone")

// CallSidecar implements edge.Host: the main thread makes the call, later.
func (p *proxy) CallSidecar(c edge.Call) (token, newest uint32, err error) {
	w := p.worker
	w.token++
	token = w.token
	// The next callback overwrites Body and From.
	c.Body = bytes.Clone(c.Body)
	c.From = edge.Origin{RequestID: strings.Clone(c.From.RequestID), Traceparent: strings.Clone(c.From.Traceparent)}
	newest, ok := w.filter.calls.JoinCall(c, func(answer []byte) { w.deliverAnswer(token, answer) })
	if !ok {
		return 0, 0, errStopped
	}
	return token, newest, nil
}

// DefineCounter implements edge.Host: all counters are defined with the configuration, as Envoy demands.
func (p *proxy) DefineCounter(name string) uint32 { return p.worker.filter.counters[name] }

func (p *proxy) IncrementCounter(id uint32, n uint64) {
	p.worker.filter.config.IncrementCounter(uint64(id-1), n)
}

func (*proxy) Warn(message string) { dynmod.Log(dynmod.Warn, message) }

// logRefused logs the failure of an operation that should always succeed.
func (*proxy) logRefused(ok bool, what, of string) {
	if !ok {
		dynmod.Log(dynmod.Error, "gatehouse: "+what+" "+of+": refused")
	}
}
