//go:build native

package dynmod

// #include "stream.h"
import "C"

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// filters has the filters by number, from 1; for Envoy, the number is the configuration's pointer. A request reads the
// slice without a lock, so the slice is replaced, not changed.
var filters struct {
	byNumber atomic.Pointer[[]*loaded]
	mu       sync.Mutex // serializes changes
}

// loaded is a filter in use by Envoy.
type loaded struct {
	filter Filter
	config *Config
}

// filterOf returns the filter with a number; nil if gone.
func filterOf(number C.uintptr_t) Filter {
	if l := (*filters.byNumber.Load())[number-1]; l != nil {
		return l.filter
	}
	return nil
}

// registerFilter returns a number for a filter, perhaps the number of a filter that has gone.
func registerFilter(l *loaded) C.uintptr_t {
	filters.mu.Lock()
	defer filters.mu.Unlock()
	var all []*loaded
	if before := filters.byNumber.Load(); before != nil {
		all = append(all, *before...)
	}
	at := 0
	for at < len(all) && all[at] != nil {
		at++
	}
	if at == len(all) {
		all = append(all, nil)
	}
	all[at] = l
	filters.byNumber.Store(&all)
	return C.uintptr_t(at + 1)
}

func unregisterFilter(number C.uintptr_t) {
	filters.mu.Lock()
	defer filters.mu.Unlock()
	all := append([]*loaded(nil), *filters.byNumber.Load()...)
	all[number-1] = nil
	filters.byNumber.Store(&all)
}

//export goStart
func goStart() (ok C.bool) {
	defer func() { logPanic(recover(), "start") }()
	setProcs(1)
	letGarbageGrow()
	return true
}

//export goConfigNew
func goConfigNew(envoy unsafe.Pointer, configuration C.buffer) (number C.uintptr_t) {
	defer func() { logPanic(recover(), "new configuration") }()
	c := &Config{envoy, C.envoy_dynamic_module_callback_http_filter_config_scheduler_new(envoy)}
	filter := New(c, append([]byte(nil), borrowBytes(configuration)...))
	if filter == nil {
		C.envoy_dynamic_module_callback_http_filter_config_scheduler_delete(c.scheduler)
		return 0
	}
	return registerFilter(&loaded{filter, c})
}

//export goConfigDestroy
func goConfigDestroy(number C.uintptr_t) {
	defer func() { logPanic(recover(), "end of a configuration") }()
	l := (*filters.byNumber.Load())[number-1]
	l.filter.Destroy() // while Destroy waits for answers, the number must be known
	unregisterFilter(number)
	C.envoy_dynamic_module_callback_http_filter_config_scheduler_delete(l.config.scheduler)
}

//export goConfigScheduled
func goConfigScheduled(number C.uintptr_t) {
	defer func() { reportPanic(number, nil, recover()) }()
	if f := filterOf(number); f != nil {
		f.Scheduled()
	}
}

//export goCalloutDone
func goCalloutDone(number C.uintptr_t, id C.uint64_t, status C.buffer, chunks *C.buffer, count C.size_t) {
	defer func() { reportPanic(number, nil, recover()) }()
	body := []byte{}
	for _, chunk := range unsafe.Slice(chunks, int(count)) {
		body = append(body, borrowBytes(chunk)...)
	}
	if f := filterOf(number); f != nil {
		f.CalloutDone(uint64(id), string(borrowBytes(status)), body)
	}
}

//export goRequestHeaders
func goRequestHeaders(raw *C.stream, end C.bool) (action C.int) {
	s := (*Stream)(raw)
	defer refuseOnPanic(s, &action)
	return C.int(filterOf(raw.config).RequestHeaders(s, bool(end)))
}

//export goRequestBody
func goRequestBody(raw *C.stream, end C.bool) (action C.int) {
	s := (*Stream)(raw)
	defer refuseOnPanic(s, &action)
	return C.int(filterOf(raw.config).RequestBody(s, bool(end)))
}

//export goWoken
func goWoken(raw *C.stream) (action C.int) {
	s := (*Stream)(raw)
	defer refuseOnPanic(s, &action)
	return C.int(filterOf(raw.config).Woken(s))
}

//export goResponse
func goResponse(raw *C.stream, etag C.buffer) {
	s := (*Stream)(raw)
	defer func() { reportPanic(raw.config, s, recover()) }()
	filterOf(raw.config).Response(s, string(borrowBytes(etag)))
}

//export goDestroyed
func goDestroyed(raw *C.stream) {
	s := (*Stream)(raw)
	defer func() { reportPanic(raw.config, s, recover()) }()
	filterOf(raw.config).Destroyed(s)
}

// refuseOnPanic answers a request with 503 after a panic in its callback: the request must never be let in.
func refuseOnPanic(s *Stream, action *C.int) {
	if value := recover(); value != nil {
		*action = C.GO_REFUSE
		reportPanic(s.config, s, value)
	}
}

// reportPanic reports a panic's value, unless nil.
func reportPanic(number C.uintptr_t, s *Stream, value any) {
	if value == nil {
		return
	}
	defer func() { logPanic(recover(), "report of a panic") }()
	logPanic(value, "callback")
	filterOf(number).Panicked(s, value)
}

// logged is when a panic was logged last, unix s.
var logged atomic.Int64

// logEveryS is the time between logged panics, s.
const logEveryS = 60

// logPanic logs a panic's value, unless nil, with the stack; one a minute.
func logPanic(value any, where string) {
	if value == nil {
		return
	}
	now, last := time.Now().Unix(), logged.Load()
	if now-last >= logEveryS && logged.CompareAndSwap(last, now) {
		Log(Critical, fmt.Sprintf("gatehouse: panic in %s: %v\n%s", where, value, debug.Stack()))
	}
}

// LogPanic logs the value of a panic in a goroutine of the module, where a panic would end Envoy; nil: nothing.
func LogPanic(value any) { logPanic(value, "goroutine") }
