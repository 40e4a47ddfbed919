package main

import (
	"github.com/gatehouse/gatehouse/wasm-filter/headermap"
	"github.com/gatehouse/gatehouse/wasm-filter/policy"
)

// stream is one request at an edge. It translates between the host's callbacks and policy, and stores the sidecar's
// answers while the request is paused.
type stream struct {
	vm      *vm
	id      uint32
	answers policy.Answers

	call  *call // that it waits for
	place int   // in call.waiting
}

// advance decides the request as far as the answers so far allow.
func (s *stream) advance(headers []byte) action {
	v := s.vm
	fields, ok := headermap.ParseFields(headers)
	if !ok {
		d := policy.RefuseUnreadable() // no rule has passed an unreadable request
		v.count(policy.NoRule, d.Auth)
		s.describe(policy.NoRule, "")
		return s.reply(&d)
	}
	at := v.engine.Locate(fields)
	if at.Passes {
		return actionContinue
	}
	request := v.engine.Read(fields, v)
	if !v.engine.Govern(&request, &at) {
		s.stripForged(&request)
		return actionContinue
	}
	return s.decide(&request)
}

// maxReplied bounds the bodies, bytes, of the replies in one callback: the proxy keeps a copy of each until the
// callback ends, and thousands of requests may wait for one answer of the sidecar.
const maxReplied = 64 << 20

// decide decides a request that a rule covers.
func (s *stream) decide(request *policy.Request) action {
	v := s.vm
	rule, _ := request.Rule()
	var d policy.Decision
	for {
		now := v.host.now()
		v.engine.Decide(&d, now, request, v, &s.answers)
		if d.ReloadState && v.readState() {
			now = v.host.now() // not before the state was read
			v.engine.Decide(&d, now, request, v, &s.answers)
		}
		if d.Guess != policy.NoGuess && (d.Guess == policy.Wrong || v.calls.guesses.count > 0) && v.calls.doubts(s, &d, now) {
			continue
		}
		if v.replied += len(d.Body); v.replied > maxReplied { //mutant:TestRepliesAreBounded false
			v.replied -= len(d.Body)
			d.Withhold()
		}
		if d.Action != policy.Fetch { // afterwards the credential is judged again
			v.count(rule, d.Auth)
		}
		v.count(rule, d.Cache)
		if d.Refresh {
			v.calls.refresh(&d, rule)
		}
		switch d.Action {
		case policy.Reply:
			if d.Key != "" {
				v.hits.hit(d.Key)
			}
			if d.Cache == policy.None || v.engine.Config().LogHits {
				s.describe(rule, d.Credential.ID)
			}
			return s.reply(&d)
		case policy.Pass:
			s.pass(&d, request)
			return actionContinue
		case policy.Verify, policy.Fetch, policy.Exchange:
			if v.calls.join(s, &d, now) {
				return actionPause
			}
		}
	}
}

func (s *stream) reply(d *policy.Decision) action {
	s.vm.host.reply(d.Status, d.Details(), d.Headers, d.Body)
	return actionPause
}

// describe sets the rule and device of a request for access logs. Requests that are answered from the cache have them
// only with log_hits, because it costs time.
func (s *stream) describe(rule int, device string) {
	v := s.vm
	v.host.note(policy.NoteRule, v.engine.Config().RuleName(rule))
	if device != "" {
		v.host.note(policy.NoteDevice, device)
	}
}

// pass sends a request upstream with only the authenticated identity, and without its secret.
func (s *stream) pass(d *policy.Decision, r *policy.Request) {
	v := s.vm
	rule, _ := r.Rule()
	s.describe(rule, d.Device)
	if d.CacheStatus != "" {
		v.host.note(policy.NoteCacheStatus, d.CacheStatus)
		if r.Dated() {
			v.host.removeRequestHeader("if-modified-since") //mutant:TestDateStaysHere deleted
		}
	}
	s.stripForged(r)
	if d.Device != "" {
		for _, name := range v.engine.SecretHeaders(r) {
			v.host.removeRequestHeader(name) //mutant:TestSecretStaysHere deleted
		}
		v.host.addRequestHeader(policy.DeviceHeader, d.Device)
		v.host.addRequestHeader(policy.PermissionsHeader, v.engine.Names(d.Permissions))
		if vary := v.engine.Vary(r); vary != "" { //mutant:TestPrivacy false
			v.host.note(policy.NoteVary, vary)
			v.host.note(policy.NoteCacheControl, "private")
			if vary == policy.VaryAll { //mutant:TestPrivacy false
				v.host.note(policy.NoteNoStore, "no-store")
			}
		}
	}
}

// stripForged removes client headers that forge an identity, or override method or target.
func (s *stream) stripForged(r *policy.Request) {
	for _, name := range r.Removed {
		s.vm.host.removeRequestHeader(name)
	}
}

// park returns a copy of the stream for the time of its pause.
func (s *stream) park() *stream {
	s.vm.forget(s.id) // ids repeat after 2³² streams
	held := new(stream)
	*held = *s
	s.vm.paused[s.id] = held
	return held
}

// answered continues a paused request when its call has returned.
func (s *stream) answered() {
	v := s.vm
	delete(v.paused, s.id)
	if !v.host.enter(s.id) {
		return
	}
	if s.advance(v.host.requestHeaders()) == actionContinue {
		v.host.resume()
	}
}
