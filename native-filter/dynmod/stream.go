//go:build native

package dynmod

// #include "stream.h"
import "C"

import (
	"encoding/binary"
	"math"
	"runtime"
	"unsafe"
)

// Stream is the filter of one request. Only callbacks of the request may use it, except for Wake.
type Stream C.stream

// ID returns the stream's number. Numbers are in the order of the streams' beginning, over all workers; they repeat
// after 2³².
func (s *Stream) ID() uint32 { return uint32(s.id) }

// Thread returns the number of the serving thread, from 0.
func (s *Stream) Thread() int { return int(s.thread) }

// Hold makes Envoy's end of the stream known to Filter.Destroyed.
func (s *Stream) Hold() { s.held = true }

// AwaitResponse makes Envoy's response, or the end of a stream without a response, known to Filter.
func (s *Stream) AwaitResponse() { s.held, s.awaited = true, true }

// PrepareWake makes Wake possible.
func (s *Stream) PrepareWake() {
	if s.scheduler == nil {
		s.scheduler = C.envoy_dynamic_module_callback_http_filter_scheduler_new(s.envoy)
	}
}

// Wake makes Envoy call Filter.Woken on the stream's thread. It may be called on any thread, but not after
// Filter.Destroyed has returned.
func (s *Stream) Wake() { C.envoy_dynamic_module_callback_http_filter_scheduler_commit(s.scheduler, 0) }

// AppendHeaders appends the request's headers in the form of Proxy-Wasm, see package headermap; nothing if unreadable.
// Call it before the callback changes a header.
func (s *Stream) AppendHeaders(dst []byte) []byte {
	headers := unsafe.Slice((*C.header)(s.headers), int(s.header_count))
	if len(headers) == 0 {
		return dst
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(headers)))
	for i := range headers {
		h := &headers[i]
		dst = binary.LittleEndian.AppendUint64(dst, uint64(uint32(h.key_length))|uint64(h.value_length)<<32)
	}
	for i := range headers {
		h := &headers[i]
		dst = append(append(dst, unsafe.Slice((*byte)(unsafe.Pointer(h.key)), int(h.key_length))...), 0)
		dst = append(append(dst, unsafe.Slice((*byte)(unsafe.Pointer(h.value)), int(h.value_length))...), 0)
	}
	return dst
}

// RemoveHeader removes a request header.
func (s *Stream) RemoveHeader(name string) bool {
	s.changed = true
	return bool(C.envoy_dynamic_module_callback_http_set_header(s.envoy, C.REQUEST_HEADERS, lendString(name), C.buffer{}))
}

// AddHeader adds a request header.
func (s *Stream) AddHeader(name, value string) bool {
	s.changed = true
	return bool(C.envoy_dynamic_module_callback_http_add_header(s.envoy, C.REQUEST_HEADERS, lendString(name),
		lendString(value)))
}

// Newest returns the number of the newest stream of the process when the callback began.
func (s *Stream) Newest() uint32 { return uint32(s.newest) }

// BodySize returns the length of the request's body so far, during Filter.RequestBody; for an incomplete body, more
// than any wanted length.
func (s *Stream) BodySize() int {
	if s.body_incomplete {
		return math.MaxInt32
	}
	return int(s.body_length)
}

// Body returns the request's body so far, during Filter.RequestBody.
func (s *Stream) Body() []byte { return borrowBytes(C.buffer{s.body, s.body_length}) }

// ClientAddress returns the client's address with port, as trusted by Envoy; nil if unknown.
func (s *Stream) ClientAddress() []byte {
	var out C.buffer
	if !C.envoy_dynamic_module_callback_http_filter_get_attribute_string(s.envoy, C.ATTRIBUTE_SOURCE_ADDRESS, &out) {
		return nil
	}
	return borrowBytes(out)
}

// FilterState returns an object from the filter state of the request or its connection, as text; nil for none.
func (s *Stream) FilterState(name string) []byte {
	var out C.buffer
	if C.envoy_dynamic_module_callback_http_get_filter_state_bytes(s.envoy, lendString(name), &out) ||
		C.envoy_dynamic_module_callback_http_get_filter_state_typed(s.envoy, lendString(name), &out) {
		return borrowBytes(out)
	}
	return nil
}

// SetFilterState sets a text in the request's filter state. bit is a number below 32 for the name: Envoy allows one
// write, so the first text stays.
func (s *Stream) SetFilterState(bit uint, name, value string) bool {
	if s.noted&(1<<bit) != 0 {
		return true
	}
	s.noted |= 1 << bit
	return bool(C.envoy_dynamic_module_callback_http_set_filter_state_bytes(s.envoy, lendString(name), lendString(value)))
}

// Answer is a reply, composed in a callback and sent later. The memory belongs to the Answer until Reset.
type Answer struct {
	pinner  runtime.Pinner
	status  int
	fields  []byte
	details string
	body    []byte
}

// Reset releases the memory of a sent answer.
func (a *Answer) Reset() {
	if a.status != 0 {
		a.pinner.Unpin()
		*a = Answer{pinner: a.pinner}
	}
}

// Set sets the answer: fields in the form of Proxy-Wasm, see package headermap, and details for access logs. Their
// memory must not change before Reset.
func (a *Answer) Set(status int, details string, fields, body []byte) {
	a.Reset()
	a.status, a.fields, a.details, a.body = status, fields, details, body
}

// IsSet reports whether an answer is set.
func (a *Answer) IsSet() bool { return a.status != 0 }

// noFields is a header map without fields.
var noFields = []byte{0, 0, 0, 0}

// Reply makes an answer the result of the current callback, which must return [Reply].
func (s *Stream) Reply(a *Answer) Action {
	if len(a.fields) < 4 {
		a.fields = noFields
	}
	room := unsafe.Slice((*byte)(unsafe.Pointer(s.room)), C.ROOM)
	give := func(t string) C.buffer {
		if len(t) <= len(room) { // copying costs less than pinning
			at := room[:len(t)]
			copy(at, t)
			room = room[len(t):]
			return C.buffer{(*C.char)(unsafe.Pointer(unsafe.SliceData(at))), C.size_t(len(t))}
		}
		a.pinner.Pin(unsafe.StringData(t))
		return lendString(t)
	}
	s.answer = C.reply{C.uint32_t(a.status), give(asString(a.fields)).ptr, give(asString(a.body)), give(a.details)}
	return Reply
}
