//go:build sdk

package main

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
)

// The SDK assigns a call to the context whose callback runs, whatever context was entered since, and drops the answer
// when that context has gone. So calls are made in that context, and calls of a stream that ends are made once more
// from the next tick, in the context of a plugin: other requests may wait for the answer.

// caller is a context that calls are assigned to.
type caller struct {
	id    uint32
	calls map[uint32]*request // unanswered ones, by token; nil for none
}

// request is a call.
type request struct {
	token         uint32 // of the first call; the VM identifies the answer by it
	cluster, path string
	body          []byte
	from          origin
	timeout       time.Duration
}

// begin is called when a callback of c begins.
func (p *proxy) begin(c *caller) { p.running, p.entered = c, c.id }

// end is called when the stream of c ends.
func (p *proxy) end(c *caller) {
	p.dropped = slices.AppendSeq(p.dropped, maps.Values(c.calls))
	c.calls = nil
}

// askAgain repeats the calls whose answers the SDK drops.
func (p *proxy) askAgain() {
	for _, r := range p.dropped {
		if _, err := p.dispatch(r); err != nil {
			proxywasm.LogWarnf("gatehouse: no second call to %s: %v", r.path, err) // the VM gives up waiting
		}
	}
	p.dropped = nil
}

func (p *proxy) call(cluster, path string, body []byte, from origin, timeout time.Duration) (token uint32, err error) {
	r := &request{cluster: cluster, path: path, body: bytes.Clone(body), from: from, timeout: timeout}
	r.token, err = p.dispatch(r)
	return r.token, err
}

// dispatch makes a call in the context of the callback that runs.
func (p *proxy) dispatch(r *request) (token uint32, err error) {
	by, entered := p.running, p.entered
	p.exists(by.id)
	defer p.exists(entered)
	token, err = proxywasm.DispatchHttpCall(r.cluster, r.from.headers(r.path),
		r.body, nil, uint32(r.timeout.Milliseconds()), func(_, size, _ int) {
			delete(by.calls, token)
			p.begin(by)
			module.callResponse(r.token, size)
		})
	if err == nil {
		if by.calls == nil {
			by.calls = map[uint32]*request{}
		}
		by.calls[token] = r
	}
	return token, err
}
