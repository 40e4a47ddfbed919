//go:build nginx

package main

// #include "shim.h"
import "C"

import (
	"bytes"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/nginx/jwt"
)

// host is the host of a worker's VM: nginx, by shim.c.
type host struct {
	worker  *worker
	rules   []byte
	vm      *edge.VM
	hosted  bool                    // the rules depend on the request's host
	held    map[uint32]*heldRequest // by id
	awaited map[uint32]bool         // by id of the request
	request unsafe.Pointer          // the current request; nil for none
	id      uint32                  // of request
	raw     []byte                  // headers of request
	claims  jwt.Claims              // of request's token
	removed []string                // removed headers of request, see headersApplied
	added   [][2]string             // added headers of request, names and values
	answer  answer
	spared  bool   // a note has the reason
	body    []byte // of the request, at the push listener
}

// answer is a reply. C and Lua read the answer until the next reply.
type answer struct {
	set           bool
	status        int
	details       string
	headers, body []byte
}

// heldRequest is a request that waits for the sidecar.
type heldRequest struct {
	claims jwt.Claims
	taken  bool               // the request has a token
	goOn   func() edge.Action // once the answer has arrived
	failed bool               // the VM has panicked
	till   time.Time          // end of the wait
}

// startVM makes the VM.
func (h *host) startVM() error {
	h.vm = edge.New(h)
	if err := h.vm.Start(h.rules, "rules"); err != nil {
		return err
	}
	h.hosted = h.vm.Config().DependsOnHost()
	h.vm.Tick() // the first request finds the memory's state
	return nil
}

// enterRequest makes request the current request; nil: none.
func (h *host) enterRequest(request unsafe.Pointer) {
	h.request, h.claims, h.removed, h.added = request, jwt.Claims{}, h.removed[:0], h.added[:0]
	h.answer.set, h.spared = false, false
}

// forgetGone forgets requests that ended during a wait: with lua_check_client_abort Lua ends requests.
func (h *host) forgetGone(now time.Time) {
	for id, held := range h.held {
		if now.After(held.till) {
			delete(h.held, id)
		}
	}
}

// Now implements edge.Host.
func (*host) Now() int64 { return time.Now().UnixMilli() }

// Record implements edge.Host. After a restart of nginx, requests find nothing until the sidecar has confirmed the
// memory.
func (h *host) Record(region wire.Region, index uint32) []byte {
	if h == h.worker.edge && (h.worker.lost || !h.worker.memory.IsConfirmed()) {
		return nil
	}
	return h.worker.memory.Record(region, index)
}

// KeepRecord implements edge.Host.
func (*host) KeepRecord(record []byte) []byte { return bytes.Clone(record) }

// SetRecord implements edge.Host.
func (h *host) SetRecord(region wire.Region, index uint32, value []byte) error {
	return h.worker.memory.SetRecord(region, index, value)
}

// State implements edge.Host.
func (h *host) State() ([]byte, uint32) { return h.worker.memory.State() }

// SetState implements edge.Host.
func (h *host) SetState(value []byte, cas uint32) bool { return h.worker.memory.SetState(value, cas) }

// Guard implements edge.Host.
func (h *host) Guard() uint64 { return h.worker.memory.Guard() }

// AddGuard implements edge.Host.
func (h *host) AddGuard(n int64) error {
	h.worker.memory.AddGuard(n)
	return nil
}

// RequestHeaders implements edge.Host.
func (h *host) RequestHeaders() []byte { return h.raw }

// RequestHeader implements edge.Host. The id is nginx's own, whatever the client sends.
func (h *host) RequestHeader(name string) string {
	if name == "x-request-id" {
		return h.readVariable("request_id")
	}
	return headermap.JoinedValues(h.raw, name)
}

// RequestBody implements edge.Host.
func (h *host) RequestBody(size int) []byte { return h.body[:size] }

// ClientAddress implements edge.Host.
func (h *host) ClientAddress() []byte { return []byte(h.readVariable("remote_addr")) }

// FilterState implements edge.Host: gatehousectl refuses rules with filter_state.
func (*host) FilterState(string) []byte { return nil }

// Claim implements edge.Host. Any metadata enables tokens.
func (h *host) Claim(_, name string) string {
	switch name {
	case policy.SubjectClaim:
		return h.claims.Subject
	case policy.RecordClaim:
		return h.claims.Record
	}
	return ""
}

// RemoveRequestHeader implements edge.Host.
func (h *host) RemoveRequestHeader(name string) {
	h.removed = append(h.removed, name)
	p, n := lendText(name)
	C.shim_remove_header(h.request, p, n)
}

// AddRequestHeader implements edge.Host. nginx-lua removes a header with an empty value.
func (h *host) AddRequestHeader(name, value string) {
	if value == "" {
		h.RemoveRequestHeader(name)
		return
	}
	h.added = append(h.added, [2]string{name, value})
	p, n := lendText(name)
	v, m := lendText(value)
	C.shim_set_header(h.request, p, n, v, m)
}

// headersApplied reports whether all changes of the request's headers took effect. nginx-lua changes no header of a
// request with status 400, by the operator's Lua or an error_page, and finds no header with characters that names can't
// have: nginx-lua returns no error in both cases.
func (h *host) headersApplied() bool {
	if len(h.removed) == 0 && len(h.added) == 0 {
		return true
	}
	var headers *C.gh_element
	count := C.shim_headers(h.request, &headers)
	if count < 0 {
		return false
	}
	missing := len(h.added)
	for _, e := range unsafe.Slice(headers, int(count)) {
		name := textOf(e.key)
		switch i := slices.IndexFunc(h.added, func(f [2]string) bool { return f[0] == name }); {
		case i >= 0 && h.added[i][1] == textOf(e.value):
			missing--
		case i >= 0 || slices.Contains(h.removed, name):
			return false
		}
	}
	return missing == 0
}

// variables are nginx's variables of notes; http.conf uses them. Cache-Control's variable tells whether an answer is
// stored.
var variables = [...]string{
	policy.NoteCacheStatus:  "gatehouse_cache_status",
	policy.NoteVary:         "gatehouse_vary",
	policy.NoteCacheControl: "gatehouse_private",
	policy.NoteNoStore:      "gatehouse_private",
	policy.NoteDevice:       "gatehouse_device",
	policy.NoteRule:         "gatehouse_rule",
	policy.NoteReason:       "gatehouse_reason",
}

// SetNote implements edge.Host.
func (h *host) SetNote(n policy.Note, value string) {
	h.spared = h.spared || n == policy.NoteReason
	h.setVariable(variables[n], value)
}

func (h *host) setVariable(name, value string) {
	p, n := lendText(name)
	v, m := lendText(value)
	C.shim_set_variable(h.request, p, n, v, m)
}

func (h *host) readVariable(name string) string { return strings.Clone(h.viewVariable(name)) }

// viewVariable returns nginx's own memory.
func (h *host) viewVariable(name string) string {
	var value *C.char
	var size C.size_t
	p, n := lendText(name)
	if h.request == nil || C.shim_variable(h.request, p, n, &value, &size) != 0 {
		return ""
	}
	return viewText(value, size)
}

// Reply implements edge.Host.
func (h *host) Reply(status int, details string, headers, body []byte) {
	h.answer = answer{true, status, details, headers, body}
}

// WakeStream implements edge.Host: Lua continues the request.
func (h *host) WakeStream(id uint32, goOn func() edge.Action) {
	if held := h.held[id]; held != nil {
		held.goOn = goOn
		h.worker.woken = append(h.worker.woken, id)
	}
}

// StreamExists implements edge.Host.
func (h *host) StreamExists(id uint32) bool { return h.held[id] != nil || h.awaited[id] }

// AwaitResponse implements edge.Host.
func (h *host) AwaitResponse() bool {
	ok := C.shim_await(h.request, C.uint32_t(h.id)) == 0
	if ok {
		h.awaited[h.id] = true
	}
	return ok
}

// responseEnded tells the VM the response of an awaited request: none if the client has gone before.
func (h *host) responseEnded(request unsafe.Pointer, id uint32) {
	delete(h.awaited, id)
	h.enterRequest(request)
	if h.viewVariable("bytes_sent") == "0" {
		h.vm.EndStream(id)
	} else {
		h.vm.CompareResponse(id, h.viewVariable("sent_http_etag"))
	}
	h.enterRequest(nil)
}

// EnterStream implements edge.Host.
func (*host) EnterStream(uint32) {}

// CallSidecar implements edge.Host: Lua makes the call.
func (h *host) CallSidecar(c edge.Call) (token, newest uint32, err error) {
	head := ""
	if c.From.RequestID != "" {
		head += "X-Request-Id: " + c.From.RequestID + "\r\n"
	}
	if c.From.Traceparent != "" {
		head += "Traceparent: " + c.From.Traceparent + "\r\n"
	}
	body := append([]byte{}, c.Body...) // not nil
	return h.worker.queueCall(call{path: c.Path, head: head, body: body, timeout: c.Timeout}), c.Newest, nil
}

// DefineCounter implements edge.Host.
func (h *host) DefineCounter(name string) uint32 {
	return h.worker.counters.counterID(seriesName(name))
}

// IncrementCounter implements edge.Host.
func (h *host) IncrementCounter(id uint32, n uint64) { h.worker.counters.addCount(id, n) }

// Warn implements edge.Host.
func (*host) Warn(message string) { logMessage(levelWarn, message) }
