//go:build native

package dynmod

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror
#cgo noescape envoy_dynamic_module_callback_log
#cgo noescape envoy_dynamic_module_callback_http_set_header
#cgo noescape envoy_dynamic_module_callback_http_add_header
#cgo noescape envoy_dynamic_module_callback_http_set_filter_state_bytes
#cgo noescape envoy_dynamic_module_callback_http_get_filter_state_bytes
#cgo noescape envoy_dynamic_module_callback_http_get_filter_state_typed
#cgo noescape envoy_dynamic_module_callback_http_filter_get_attribute_string
#cgo nocallback envoy_dynamic_module_callback_log
#cgo nocallback envoy_dynamic_module_callback_http_set_header
#cgo nocallback envoy_dynamic_module_callback_http_add_header
#cgo nocallback envoy_dynamic_module_callback_http_set_filter_state_bytes
#cgo nocallback envoy_dynamic_module_callback_http_get_filter_state_bytes
#cgo nocallback envoy_dynamic_module_callback_http_get_filter_state_typed
#cgo nocallback envoy_dynamic_module_callback_http_filter_get_attribute_string
#include <stdlib.h>
#include "stream.h"
*/
import "C"

import (
	"time"
	"unsafe"
)

// Action is the module's action on a stream after a callback.
type Action int

// The actions.
const (
	Continue Action = C.GO_CONTINUE  // to the next filter; a paused stream is resumed
	Pause    Action = C.GO_PAUSE     // until the stream is woken
	Reply    Action = C.GO_REPLY     // with Stream.Reply's answer
	WantBody Action = C.GO_WANT_BODY // before anything else
	Nothing  Action = C.GO_NOTHING   // of a stream that stays paused
	Refuse   Action = C.GO_REFUSE    // with 503, as after a panic
)

// Filter is one configuration of the module's filter, made by [New]. Envoy calls it from all workers and from the main
// thread.
type Filter interface {
	// RequestHeaders is called when a stream begins.
	RequestHeaders(s *Stream, endOfStream bool) Action
	// RequestBody is called with each part of a wanted body.
	RequestBody(s *Stream, endOfStream bool) Action
	// Woken is called for a woken stream, on the stream's thread.
	Woken(s *Stream) Action
	// Response is called with the entity-tag, "" for none, of the response to a stream that was awaited.
	Response(s *Stream, etag string)
	// Destroyed is called when a held stream has gone, as the stream's last call.
	Destroyed(s *Stream)
	// Scheduled is called on the main thread after Config.Schedule.
	Scheduled()
	// CalloutDone is called on the main thread with an answer, whose status is "" for a failed call.
	CalloutDone(id uint64, status string, body []byte)
	// Panicked is called after a panic in any other method, with the stream if known.
	Panicked(s *Stream, value any)
	// Destroy is called when the configuration goes; no stream is left. A configuration by discovery (ECDS) may go with
	// its last stream, on the stream's thread.
	Destroy()
}

// New makes a filter of a configuration, or returns nil for a refused configuration. The module sets New before Envoy
// loads the module.
var New func(c *Config, configuration []byte) Filter

// Config is Envoy's part of a configuration.
type Config struct {
	envoy     unsafe.Pointer
	scheduler unsafe.Pointer
}

// Schedule makes Envoy call Filter.Scheduled on the main thread. Schedule may be called on any thread.
func (c *Config) Schedule() {
	C.envoy_dynamic_module_callback_http_filter_config_scheduler_commit(c.scheduler, 0)
}

// DefineCounter defines a counter, only while [New] runs.
func (c *Config) DefineCounter(name string) (id uint64, ok bool) {
	var defined C.size_t
	result := C.envoy_dynamic_module_callback_http_filter_config_define_counter(c.envoy, lendString(name), nil, 0,
		&defined)
	return uint64(defined), result == C.METRIC_SUCCESS
}

// IncrementCounter adds n to a counter, on any thread.
func (c *Config) IncrementCounter(id, n uint64) {
	C.envoy_dynamic_module_callback_http_filter_config_increment_counter(c.envoy, C.size_t(id), nil, 0, C.uint64_t(n))
}

// StartCallout posts a body to a cluster, with headers including pseudo-headers, on the main thread only. It returns
// false after an immediate failure.
func (c *Config) StartCallout(cluster string, headers [][2]string, body []byte, timeout time.Duration) (id uint64,
	ok bool) {
	raw := (*[1 << 20]C.header)(C.calloc(C.size_t(len(headers)+1), C.sizeof_header))[:len(headers)]
	defer C.free(unsafe.Pointer(unsafe.SliceData(raw)))
	for i, h := range headers {
		raw[i].key, raw[i].key_length = C.CString(h[0]), C.size_t(len(h[0]))
		raw[i].value, raw[i].value_length = C.CString(h[1]), C.size_t(len(h[1]))
		defer C.free(unsafe.Pointer(raw[i].key))
		defer C.free(unsafe.Pointer(raw[i].value))
	}
	var started C.uint64_t
	result := C.envoy_dynamic_module_callback_http_filter_config_http_callout(c.envoy, &started, lendString(cluster),
		unsafe.SliceData(raw), C.size_t(len(raw)), lendString(asString(body)), C.uint64_t(timeout.Milliseconds()))
	return uint64(started), result == C.CALLOUT_STARTED
}

// Validating reports whether Envoy merely validates its configuration.
func Validating() bool { return bool(C.envoy_dynamic_module_callback_is_validation_mode()) }

// Level is a level of Envoy's log.
type Level int

// The levels in use.
const (
	Info     Level = 2
	Warn     Level = 3
	Error    Level = 4
	Critical Level = 5
)

// Log writes into Envoy's log.
func Log(l Level, message string) { C.envoy_dynamic_module_callback_log(C.int(l), lendString(message)) }

// lendString returns s as a buffer for a function that copies the text.
func lendString(s string) C.buffer {
	return C.buffer{(*C.char)(unsafe.Pointer(unsafe.StringData(s))), C.size_t(len(s))}
}

func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// borrowBytes returns the bytes of Envoy's buffer, nil for an empty buffer, valid until the callback returns or changes
// the bytes.
func borrowBytes(b C.buffer) []byte {
	if b.length == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(b.ptr)), int(b.length))
}
