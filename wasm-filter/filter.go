package main

import (
	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

// stream is one request at an edge. It translates between the host's callbacks and
// policy, and holds what the sidecar answered while the request is paused.
type stream struct {
	types.DefaultHttpContext
	plugin      *plugin
	id          uint32
	answers     policy.Answers
	waiting     *call   // that the request is paused for
	made        []*call // that are booked on this stream
	cacheStatus string
}

// OnHttpRequestHeaders implements types.HttpContext.
func (s *stream) OnHttpRequestHeaders(int, bool) types.Action {
	s.plugin.calls.active = s
	return s.proceed()
}

// OnHttpResponseHeaders implements types.HttpContext.
func (s *stream) OnHttpResponseHeaders(int, bool) types.Action {
	if s.cacheStatus != "" {
		s.plugin.vm.host.addResponseHeader("cache-status", s.cacheStatus)
	}
	return types.ActionContinue
}

// OnHttpStreamDone implements types.HttpContext.
func (s *stream) OnHttpStreamDone() { s.plugin.calls.leave(s) }

// proceed decides the request as far as it can with what is known now.
func (s *stream) proceed() types.Action {
	p := s.plugin
	headers := p.vm.host.requestHeaders()
	if headers == nil { // a request that can't be read is one that no rule has let through
		d := policy.Unreadable()
		return s.reply(&d)
	}
	request := p.edge.Config().ReadRequest(headers)
	request.Token = p.vm
	for {
		d := p.edge.Decide(p.vm.host.now(), &request, p.vm, &s.answers)
		if d.Outdated && p.readState() {
			d = p.edge.Decide(p.vm.host.now(), &request, p.vm, &s.answers)
		}
		p.vm.count(d.Auth)
		p.vm.count(d.Cache)
		if d.Refresh {
			p.calls.refresh(&d)
		}
		switch d.Action {
		case policy.Reply:
			if d.Key != "" {
				p.hits.hit(d.Key)
			}
			return s.reply(&d)
		case policy.Pass:
			s.pass(&d, &request)
			return types.ActionContinue
		case policy.Verify, policy.Fetch, policy.Exchange:
			if p.calls.join(s, &d) {
				return types.ActionPause
			}
		}
	}
}

func (s *stream) reply(d *policy.Decision) types.Action {
	// The local reply runs through this filter's response callbacks: no second Cache-Status.
	s.cacheStatus = ""
	if err := s.plugin.vm.host.reply(d.Status, d.Headers, d.Body); err != nil {
		s.plugin.vm.host.warn("gatehouse: local reply: " + err.Error())
	}
	return types.ActionPause
}

// pass sends a request upstream with the identity that was established, and no other.
func (s *stream) pass(d *policy.Decision, r *policy.Request) {
	h := s.plugin.vm.host
	s.cacheStatus = d.CacheStatus
	for _, name := range r.Forged {
		h.removeRequestHeader(name)
	}
	if d.Device != "" {
		h.addRequestHeader(policy.DeviceHeader, d.Device)
		h.addRequestHeader(policy.PermissionsHeader, d.Permissions)
	}
}

// answered continues a paused request when its call has come back.
func (s *stream) answered() {
	if !s.plugin.vm.host.enter(s.id) {
		return // gone in the meantime
	}
	if s.proceed() == types.ActionContinue {
		s.plugin.vm.host.resume()
	}
}

// Claim implements policy.Claims.
func (v *vm) Claim(metadata, name string) string { return v.host.claim(metadata, name) }

// Record implements policy.Memory.
func (v *vm) Record(region wire.Region, index uint32) []byte { return v.host.record(region, index) }

// Body implements policy.Memory.
func (v *vm) Body(epoch uint64, variant wire.Variant) []byte {
	if body := v.bodies.get(epoch, variant); body != nil {
		return body
	}
	body, err := wire.FindBody(v.host.record(wire.RegionBodies, variant.Slot), epoch, variant)
	if err != nil {
		return nil
	}
	v.bodies.put(epoch, variant, body)
	return body
}
