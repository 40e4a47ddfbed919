//go:build nginx

package main

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#cgo noescape shim_log
#cgo noescape shim_headers
#cgo noescape shim_remove_header
#cgo noescape shim_set_header
#cgo noescape shim_set_variable
#cgo noescape shim_variable
#cgo noescape shim_await
#cgo nocallback shim_log
#cgo nocallback shim_headers
#cgo nocallback shim_remove_header
#cgo nocallback shim_set_header
#cgo nocallback shim_set_variable
#cgo nocallback shim_variable
#cgo nocallback shim_await
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
	"unsafe"

	"github.com/gatehouse/gatehouse/nginx/memfile"
)

// procs is the number of Ps of Go's scheduler: nginx's thread keeps a P between calls, and a yield must find another P.
// By default Go takes a P for each core, and a single P where nginx is bound to a core. native-filter/dynmod/yield.go
// explains why nginx's thread yields; TestGoVersion in dynmod fails when Go changes.
const procs = 3

// current is the edge of this process. nginx calls current on one thread.
var current *worker

//export gh_start
func gh_start(rules *C.char, length C.size_t, issuer, path *C.char, bytes, objects, verdicts C.double) (why *C.char) {
	defer func() {
		if value := recover(); value != nil {
			why = C.CString(fmt.Sprintf("panic: %v\n%s", value, debug.Stack()))
		}
	}()
	if missing := C.shim_bind(); missing != nil {
		return C.CString("this nginx, or its lua-nginx-module, has no " + C.GoString(missing))
	}
	runtime.GOMAXPROCS(procs)
	file, err := memfile.Open(C.GoString(path), memfile.SizeFor(int64(bytes), int64(objects), int64(verdicts)))
	if err != nil {
		return C.CString(err.Error())
	}
	w, err := newWorker(file, C.GoBytes(unsafe.Pointer(rules), C.int(length)), C.GoString(issuer))
	if err != nil {
		return C.CString(err.Error())
	}
	current = w
	return nil
}

//export goJudge
func goJudge(q *C.gh_request, out *C.gh_out, head *C.gh_answer_head) (action C.int) {
	defer func() {
		if value := recover(); value != nil {
			current.handlePanic(value)
			out.more = 1
			action = -1
		}
	}()
	if q.yield != 0 {
		runtime.Gosched()
	}
	return current.judgeRequest(q, out, head)
}

//export goEnded
func goEnded(q *C.gh_awaited) {
	defer recoverPanic()
	current.edge.responseEnded(q.r, uint32(q.id))
}

//export gh_tick
func gh_tick() {
	defer recoverPanic()
	current.tick()
}

//export gh_next
func gh_next(out *C.gh_out) (what C.int) {
	defer recoverPanic()
	return current.nextTask(out)
}

//export gh_answer
func gh_answer(token C.uint32_t, body *C.char, length C.size_t) {
	defer recoverPanic()
	var answer []byte
	if body != nil {
		answer = append([]byte{}, viewBytes(body, length)...)
	}
	current.deliverAnswer(uint32(token), answer)
}

//export goPush
func goPush(q *C.gh_request, body *C.char, length C.size_t, out *C.gh_out) {
	defer func() {
		if value := recover(); value != nil {
			current.handlePanic(value)
			out.status, out.name_length, out.body_length = 500, 0, 0
		}
	}()
	current.handlePush(q, viewBytes(body, length), out)
}

// recoverPanic recovers from a panic in a function that has no answer.
func recoverPanic() {
	if value := recover(); value != nil {
		current.handlePanic(value)
	}
}

// viewBytes returns C's bytes.
func viewBytes(p *C.char, length C.size_t) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), int(length))
}

func viewText(p *C.char, length C.size_t) string {
	return unsafe.String((*byte)(unsafe.Pointer(p)), int(length))
}

// lendText returns text for C. The text must stay referenced while C reads: Go's collector doesn't move memory.
func lendText(s string) (*C.char, C.size_t) {
	return (*C.char)(unsafe.Pointer(unsafe.StringData(s))), C.size_t(len(s))
}

func lendBytes(b []byte) (*C.char, C.size_t) {
	return (*C.char)(unsafe.Pointer(unsafe.SliceData(b))), C.size_t(len(b))
}

// Levels of nginx's log.
const (
	levelCritical = 3
	levelWarn     = 5
)

func logMessage(level int, message string) {
	p, n := lendText(message)
	C.shim_log(C.int(level), p, n)
}

// logPanicsEvery is the time between logged panics.
const logPanicsEvery = time.Minute

var panicLogged time.Time

// handlePanic logs a panic, one a minute, and counts panics. The state of the VMs is unknown, so all VMs are made anew;
// waiting requests get a 503.
func (w *worker) handlePanic(value any) {
	if time.Since(panicLogged) >= logPanicsEvery {
		panicLogged = time.Now()
		logMessage(levelCritical, fmt.Sprintf("gatehouse: panic: %v\n%s", value, debug.Stack()))
	}
	w.renewVMs()
}
