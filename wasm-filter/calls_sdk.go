//go:build sdk

package main

import (
	"bytes"
	"maps"
	"slices"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/gatehouse/gatehouse/edge"
)

// The SDK assigns a call to the context of the running callback, even if another context was entered, and drops the
// answer when the context has gone. So calls are made in the context of the callback, and calls of an ending stream are
// made once more from the next tick, in the context of a plugin: other requests may wait for the answer.

// caller is a context with calls.
type caller struct {
	id    uint32
	calls map[uint32]*request // unanswered ones, by token; nil for none
}

// request is a call.
type request struct {
	edge.Call
	token uint32 // of the first call; the VM's id of the answer
}

// beginCallback is called when a callback of c begins.
func (p *proxy) beginCallback(c *caller) { p.running, p.entered = c, c.id }

// endStream is called when the stream of c ends.
func (p *proxy) endStream(c *caller) {
	p.dropped = slices.AppendSeq(p.dropped, maps.Values(c.calls))
	c.calls = nil
}

// askAgain repeats the calls of ended streams, whose answers the SDK drops.
func (p *proxy) askAgain() {
	for _, r := range p.dropped {
		if _, err := p.dispatchCall(r); err != nil {
			proxywasm.LogWarnf("gatehouse: no second call to %s: %v", r.Path, err) // the VM gives up waiting
		}
	}
	p.dropped = nil
}

func (p *proxy) CallSidecar(c edge.Call) (token, newest uint32, err error) {
	r := &request{Call: c}
	r.Body = bytes.Clone(c.Body)
	r.token, err = p.dispatchCall(r)
	return r.token, c.Newest, err
}

// dispatchCall makes a call in the context of the running callback.
func (p *proxy) dispatchCall(r *request) (token uint32, err error) {
	by, entered := p.running, p.entered
	p.EnterStream(by.id)
	defer p.EnterStream(entered)
	token, err = proxywasm.DispatchHttpCall(r.Cluster, r.Headers(),
		r.Body, nil, uint32(r.Timeout.Milliseconds()), func(_, size, _ int) {
			delete(by.calls, token)
			p.beginCallback(by)
			module.CallResponse(r.token, p.callBody(size))
		})
	if err == nil {
		if by.calls == nil {
			by.calls = map[uint32]*request{}
		}
		by.calls[token] = r
	}
	return token, err
}
