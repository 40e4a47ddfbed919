//go:build native

package main

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/native-filter/coalesce"
	"github.com/gatehouse/gatehouse/native-filter/dynmod"
	"github.com/gatehouse/gatehouse/native-filter/memory"
	"github.com/gatehouse/gatehouse/wasm-filter/headermap"
	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
)

// shared is the memory of all filters of the process.
var shared memory.Store

// proxy is the host of one worker's vm: Envoy, by its ABI for dynamic modules. Its methods are called under the
// worker's lock.
type proxy struct {
	worker *worker
	stream *dynmod.Stream // whose callback runs; nil in others
	raw    []byte         // its headers, reused
	read   bool           // raw has them
	answer dynmod.Answer
	body   []byte // of the answer to a call, during callResponse
	// joined are fetches of the current callback that others had made before.
	joined []joined
}

// joined is a fetch that was made when the newest stream was made, which began before those of this worker that wait
// for it: see stream.cameAfter.
type joined struct {
	key  string
	made uint32
}

// begin begins the callback of a stream, on its own thread.
func (p *proxy) begin(s *dynmod.Stream) {
	p.enterStream(s)
	// Streams are numbered over all workers, also while this one was idle: see stream.cameAfter.
	p.worker.vm.newest = s.Newest()
	p.answer.Reset() // not elsewhere: Envoy may be sending it
}

// enterStream makes a stream the current one, or none for nil.
func (p *proxy) enterStream(s *dynmod.Stream) { p.stream, p.read, p.joined = s, false, p.joined[:0] }

func (*proxy) now() int64 { return time.Now().UnixMilli() }

func (p *proxy) configuration() []byte { return p.worker.filter.configuration }

func (*proxy) pluginConfiguration(int) []byte { return nil }

// setTickPeriod implements host: the filter ticks by itself.
func (*proxy) setTickPeriod(uint32) error { return nil }

func (*proxy) record(region wire.Region, index uint32) []byte { return shared.Record(region, index) }

// keep implements host: nobody changes a record.
func (*proxy) keep(record []byte) []byte { return record }

func (*proxy) setRecord(region wire.Region, index uint32, value []byte) error {
	return shared.SetRecord(region, index, value)
}

func (*proxy) state() ([]byte, uint32) { return shared.State() }

func (*proxy) setState(value []byte, cas uint32) bool { return shared.SetState(value, cas) }

func (*proxy) guard() uint64 { return shared.Guard() }

func (*proxy) addGuard(n int64) error {
	shared.AddGuard(n)
	return nil
}

// requestHeaders copies the headers once in a callback: what Envoy returns isn't valid any more when one is removed.
func (p *proxy) requestHeaders() []byte {
	if p.stream != nil && !p.read {
		p.raw, p.read = p.stream.AppendHeaders(p.raw[:0]), true
	}
	if !p.read {
		return nil
	}
	return p.raw
}

func (p *proxy) requestHeader(name string) (values string) {
	fields, _ := headermap.ParseFields(p.requestHeaders())
	for found := false; fields.More(); {
		if n, value := fields.Next(); n != name {
			continue
		} else if found {
			values += "," + value
		} else {
			values, found = value, true
		}
	}
	return values
}

func (p *proxy) requestBody(size int) []byte {
	body := p.stream.Body()
	return body[:min(size, len(body))]
}

func (p *proxy) source() []byte { return p.stream.Source() }

func (p *proxy) filterState(name string) []byte { return p.stream.FilterState(name) }

// claimsState begins the names of claims in the filter state. A module can't read the nested metadata of Envoy's JWT
// filter, so envoy-native.yaml has a filter that copies the claims there.
const claimsState = "gatehouse.claims."

func (p *proxy) claim(metadata, name string) string {
	return string(p.stream.FilterState(claimsState + metadata + "." + name))
}

func (p *proxy) removeRequestHeader(name string) {
	p.check(p.stream.RemoveHeader(name), "remove request header", name)
}

// addRequestHeader implements host. Envoy 1.40 refuses an empty value of a module, so a device without permissions has no
// header with them, as in nginx.
func (p *proxy) addRequestHeader(name, value string) {
	if value == "" {
		return
	}
	p.check(p.stream.AddHeader(name, value), "add request header", name)
}

// noteStates are the names of notes in the filter state, the same as of the Wasm module, so that the configuration of
// access logs and routes is the same, too.
var noteStates = [...]string{
	policy.NoteCacheStatus:  "wasm." + policy.NoteCacheStatus.String(),
	policy.NoteVary:         "wasm." + policy.NoteVary.String(),
	policy.NoteCacheControl: "wasm." + policy.NoteCacheControl.String(),
	policy.NoteNoStore:      "wasm." + policy.NoteNoStore.String(),
	policy.NoteDevice:       "wasm." + policy.NoteDevice.String(),
	policy.NoteRule:         "wasm." + policy.NoteRule.String(),
}

func (p *proxy) note(n policy.Note, value string) {
	p.check(p.stream.SetFilterState(uint(n), noteStates[n], value), "set filter state", noteStates[n])
}

func (p *proxy) reply(status int, details string, headers, body []byte) {
	p.answer.Set(status, details, headers, body)
}

// resume implements host. Nothing calls it: the worker resumes a stream by the result of a callback.
func (*proxy) resume() {}

// enter implements host. It is called on the thread of another worker, or none: so it wakes the stream on its own,
// where worker.Woken continues it, and reports that the stream has ended.
func (p *proxy) enter(id uint32) bool {
	p.worker.wake(id)
	return false
}

// exists implements host: worker.Destroyed removes what has ended.
func (*proxy) exists(uint32) bool { return true }

var errStopped = errors.New("the configuration has gone")

func (p *proxy) call(cluster, path string, body []byte, from origin, timeout time.Duration) (uint32, error) {
	w := p.worker
	w.token++
	token, key := w.token, path+string(body)
	if path == hitsPath {
		key = "" // each report counts
	}
	newest := w.vm.newest
	call := coalesce.Call{Cluster: cluster, Headers: from.headers(path), Body: bytes.Clone(body), Timeout: timeout}
	for i := range call.Headers { // the next callback overwrites them, and the main thread sends them later
		call.Headers[i][1] = strings.Clone(call.Headers[i][1])
	}
	made, ok := w.filter.calls.Join(key, newest, call, func(answer []byte) { w.answered(token, answer) })
	if !ok {
		return 0, errStopped
	}
	if path == fetchPath && made != newest {
		p.joined = append(p.joined, joined{key, made})
	}
	return token, nil
}

func (p *proxy) callBody(size int) []byte {
	if p.body == nil {
		return nil
	}
	return p.body[:min(size, len(p.body))]
}

// defineCounter implements host: all counters are defined with the configuration, as Envoy demands.
func (p *proxy) defineCounter(name string) uint32 { return p.worker.filter.counters[name] }

func (p *proxy) count(id uint32, n uint64) { p.worker.filter.config.Count(uint64(id-1), n) }

func (*proxy) warn(message string) { dynmod.Log(dynmod.Warn, message) }

func (*proxy) critical(message string) { dynmod.Log(dynmod.Critical, message) }

// check logs that Envoy refused an operation that should always succeed.
func (*proxy) check(ok bool, what, of string) {
	if !ok {
		dynmod.Log(dynmod.Error, "gatehouse: "+what+" "+of+": refused")
	}
}
