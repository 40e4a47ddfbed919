//go:build native

package fakeenvoy

/*
// The hooks are in another package.
#cgo LDFLAGS: -Wl,--unresolved-symbols=ignore-all
#cgo CFLAGS: -O2 -Wall -Wextra -Werror
#include <stdlib.h>
#include "fake.h"
*/
import "C"

import (
	"runtime"
)

// Config is a configuration of the module. Allocations in C stay: tests are short.
type Config struct{ c *C.fake_config }

// NewConfig makes a configuration; ok is false if the module refuses it.
func NewConfig(configuration string) (c *Config, ok bool) {
	c = &Config{(*C.fake_config)(C.calloc(1, C.sizeof_fake_config))}
	return c, bool(C.fake_config_new(c.c, text(configuration)))
}

// Destroy ends the configuration, whose requests must have ended.
func (c *Config) Destroy() { C.fake_config_destroy(c.c) }

// EndAtCommit ends the configuration at the next commit of its scheduler, as if the scheduler were the last owner.
func (c *Config) EndAtCommit() { C.fake_config_end_at_commit(c.c) }

// Ended reports whether the configuration has ended at a commit.
func (c *Config) Ended() bool { return bool(C.fake_config_ended(c.c)) }

// Main runs the module's work for the main thread.
func (c *Config) Main() { C.fake_main(c.c) }

// Calls returns the bodies of all calls so far, by number, for the caller of Main.
func (c *Config) Calls() (bodies []string) {
	for _, b := range c.c.bodies[:c.c.calls] {
		bodies = append(bodies, C.GoStringN(b.ptr, C.int(b.length)))
	}
	return bodies
}

// Headers returns the headers of a call, a line for each.
func (c *Config) Headers(id int) string {
	return C.GoStringN(c.c.heads[id].ptr, C.int(c.c.heads[id].length))
}

// Answer answers a call with 200.
func (c *Config) Answer(id int, body []byte) {
	status := header(":status", "200")
	chunk := text(string(body))
	C.fake_answer(c.c, C.uint64_t(id), &status, &chunk)
}

// SetNewest sets the number of the newest stream of the process.
func SetNewest(id uint32) { C.fake_set_newest(C.uint32_t(id)) }

// Worker is a thread that serves requests.
type Worker struct{ do chan func() }

// NewWorker starts a worker, which ends with Stop.
func NewWorker() *Worker {
	w := &Worker{make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range w.do {
			f()
		}
	}()
	return w
}

// Do runs f on the worker's thread until f returns.
func (w *Worker) Do(f func()) {
	done := make(chan struct{})
	w.do <- func() { defer close(done); f() }
	<-done
}

// Stop ends the worker.
func (w *Worker) Stop() { close(w.do) }

// Request is a request in the module. Methods run on the request's worker.
type Request struct{ f *C.fake_filter }

// Begin begins a request with these headers.
func (c *Config) Begin(endOfStream bool, headers ...[2]string) *Request {
	r := &Request{(*C.fake_filter)(C.calloc(1, C.sizeof_fake_filter))}
	for i, h := range headers {
		r.f.headers[i] = header(h[0], h[1])
	}
	r.f.header_count = C.size_t(len(headers))
	C.fake_begin(c.c, r.f, C.bool(endOfStream))
	return r
}

// Body sends a part of the body.
func (r *Request) Body(part []byte, endOfStream bool) {
	r.f.chunk = text(string(part))
	C.fake_body(r.f, C.bool(endOfStream))
}

// Run runs the work scheduled for the request; false for none.
func (r *Request) Run() bool { return bool(C.fake_run(r.f)) }

// End ends the request.
func (r *Request) End() { C.fake_end(r.f) }

// Status returns the status of the reply, 0 for none.
func (r *Request) Status() int { return int(r.f.status) }

// Text returns the body of the reply.
func (r *Request) Text() string { return C.GoStringN(r.f.body.ptr, C.int(r.f.body.length)) }

// Passed reports whether the request went on, at once or later.
func (r *Request) Passed() bool { return r.f.status == 0 && (r.f.action == 0 || bool(r.f.resumed)) }

// RouteChosen reports whether the module had the route chosen again.
func (r *Request) RouteChosen() bool { return bool(r.f.route_chosen) }

// text copies s into C.
func text(s string) C.buffer { return C.buffer{C.CString(s), C.size_t(len(s))} }

func header(name, value string) C.header {
	n, v := text(name), text(value)
	return C.header{n.ptr, n.length, v.ptr, v.length}
}
