package main

import (
	"fmt"
	"slices"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
)

// maxCalls bounds the calls of one VM that are in flight or wait for a tick. What comes
// beyond is answered as if the sidecar had not.
const maxCalls = 4096

// calls coalesces the calls to the sidecar of one plugin: for each credential or key one
// is in flight, and every request that needs its answer waits for it.
type calls struct {
	plugin   *plugin
	inFlight map[string]*call
	// active is the stream that the SDK books a call on: the one whose callback runs,
	// which needn't be the one that is entered; nil is the plugin.
	active  *stream
	failed  int    // since the last tick
	failure string // one of them
}

// call is one question to the sidecar.
type call struct {
	key     string
	path    string
	body    []byte
	waiting []*stream
	caller  *stream // that the call is booked on, nil if on the plugin
	// due says that the next tick is to make the call: it is a refresh, which nobody
	// waits for, or its caller is gone. The SDK drops the answer to a call whose caller
	// is gone, and those behind it would hang; a call made from a tick always comes back.
	due bool
}

// join lets a request wait for what it needs. It returns false if the sidecar can't be
// asked; the request's answers say so then.
func (c *calls) join(s *stream, d *policy.Decision) bool {
	pending := c.find(d)
	if pending == nil {
		pending = newCall(d, c.plugin.vm.host.source())
		if len(c.inFlight) >= maxCalls || !c.dispatch(pending) {
			c.fail(fmt.Sprintf("no call to %s: %d calls are in flight, at most %d", pending.path, len(c.inFlight), maxCalls))
			s.answer(pending, nil)
			return false
		}
		c.inFlight[pending.key] = pending
	}
	pending.waiting = append(pending.waiting, s)
	s.waiting = pending
	return true
}

// refresh verifies a credential behind the request that it was good for.
func (c *calls) refresh(d *policy.Decision) {
	verify := policy.Decision{Action: policy.Verify, Credential: d.Credential, Digest: d.Digest}
	if c.find(&verify) != nil || len(c.inFlight) >= maxCalls {
		return
	}
	c.plugin.vm.count(policy.AuthRefresh)
	pending := newCall(&verify, c.plugin.vm.host.source())
	pending.due = true
	c.inFlight[pending.key] = pending
}

// leave forgets a stream that has ended. The calls that are booked on it are made once
// more by the next tick, for those that still wait.
func (c *calls) leave(s *stream) {
	if s.waiting != nil {
		s.waiting.waiting = slices.DeleteFunc(s.waiting.waiting, func(w *stream) bool { return w == s })
		s.waiting = nil
	}
	for _, pending := range s.made {
		switch {
		case c.inFlight[pending.key] != pending: // came back
		case len(pending.waiting) > 0:
			pending.due = true
		default:
			delete(c.inFlight, pending.key)
		}
	}
}

// tick makes the calls that are due, and says what has failed.
func (c *calls) tick() {
	c.active = nil
	for key, pending := range c.inFlight {
		if !pending.due {
			continue
		}
		pending.due = false
		if !c.dispatch(pending) {
			delete(c.inFlight, key)
			c.deliver(pending, nil)
		}
	}
	if c.failed > 0 {
		c.plugin.vm.host.warn(fmt.Sprintf("gatehouse: %d calls to cluster %q failed in the last %d ms, e.g. %s: is the sidecar running, and its socket the one that the cluster names?",
			c.failed, c.plugin.edge.Config().SidecarCluster, tickMS, c.failure))
		c.failed = 0
	}
}

// dispatch makes a call. false: it can't be made.
func (c *calls) dispatch(pending *call) bool {
	config := c.plugin.edge.Config()
	if pending.caller = c.active; pending.caller != nil {
		pending.caller.made = append(pending.caller.made, pending)
	}
	err := c.plugin.vm.host.call(config.SidecarCluster, pending.path, pending.body, config.SidecarTimeout, func(body []byte) {
		c.active = pending.caller
		delete(c.inFlight, pending.key)
		if body == nil {
			c.fail(pending.path + ": no answer of status 200 in time")
		}
		c.deliver(pending, body)
	})
	return err == nil
}

// deliver continues every request that waits.
func (c *calls) deliver(pending *call, body []byte) {
	waiting := pending.waiting
	pending.waiting = nil
	for _, s := range waiting {
		s.waiting = nil
		s.answer(pending, body)
		s.answered()
	}
}

func (c *calls) fail(why string) {
	c.failed++
	c.failure = why
	c.plugin.vm.count(policy.CallFailed)
}

const (
	verifyPath  = "/v1/verify"
	fetchPath   = "/v1/fetch"
	sessionPath = "/v1/session"
)

func (c *calls) find(d *policy.Decision) *call {
	return c.inFlight[callKey(d)]
}

// callKey tells questions apart: two requests of one key need one answer.
func callKey(d *policy.Decision) string {
	if d.Action == policy.Fetch {
		return fetchPath + d.Key
	}
	return path(d.Action) + string(d.Digest[:])
}

// path is where the sidecar answers what an action asks.
func path(a policy.Action) string {
	switch a {
	case policy.Fetch:
		return fetchPath
	case policy.Exchange:
		return sessionPath
	}
	return verifyPath
}

// newCall is the question that a decision raises for a request from source.
func newCall(d *policy.Decision, source string) *call {
	pending := &call{key: callKey(d), path: path(d.Action), body: []byte(d.Key)}
	if d.Action != policy.Fetch {
		shown := &d.Credential
		request := wire.VerifyRequest{DeviceID: shown.ID, Secret: shown.Secret, Source: source, Session: shown.Session}
		pending.body = wire.AppendVerifyRequest(nil, &request)
	}
	return pending
}

// answer keeps what the sidecar said, nil for nothing usable, for the next decision.
func (s *stream) answer(to *call, body []byte) {
	if to.path == fetchPath {
		fetched, err := wire.ParseFetchResponse(body)
		if err != nil {
			fetched = wire.FetchResponse{}
		}
		s.answers.Fetch = &fetched
		return
	}
	if to.path == sessionPath {
		issued, err := wire.ParseSessionResponse(body)
		if err != nil {
			s.answers.Unreachable = true
			return
		}
		s.answers.Session = &issued
		return
	}
	verified, err := wire.ParseVerifyResponse(body)
	if err != nil {
		s.answers.Unreachable = true
		return
	}
	s.answers.Verify = &verified
}
