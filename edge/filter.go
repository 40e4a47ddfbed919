package edge

import (
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// stream is one request at an edge. It translates between the host's callbacks and policy, and stores the sidecar's
// answers while the request is paused.
type stream struct {
	vm      *VM
	id      uint32
	answers policy.Answers

	call  *flight // that it waits for
	place int     // in call.waiting
}

// advance decides the request as far as the answers so far allow.
func (s *stream) advance(headers []byte) Action {
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
		return Continue
	}
	request := v.engine.Read(fields, v)
	if !v.engine.Govern(&request, &at) {
		s.stripForged(&request)
		return Continue
	}
	return s.decide(&request)
}

// MaxReplied bounds the bodies, bytes, of the replies to streams that one answer of the sidecar wakes: the proxy keeps
// a copy of each until they have all gone on, and thousands of requests may wait for one answer.
const MaxReplied = 64 << 20

// SmallBody is the size, bytes, up to which a reply's body fits into the buffer of the client's socket. It doesn't
// count as unread.
const SmallBody = 16 << 10

// crowded reports whether there is no room for a reply's body of so many bytes; otherwise that takes it.
func (v *VM) crowded(size int) bool {
	if v.replied+size > MaxReplied {
		return true
	}
	if size > SmallBody && v.unread+size > MaxReplied {
		return true
	}
	v.replied += size
	return false
}

// decide decides a request that a rule covers.
func (s *stream) decide(request *policy.Request) Action {
	v := s.vm
	rule, _ := request.Rule()
	var d policy.Decision
	for {
		now := v.host.Now()
		v.engine.Decide(&d, now, request, v, &s.answers)
		if d.ReloadState && v.readState() {
			now = v.host.Now() // not before the state was read
			v.engine.Decide(&d, now, request, v, &s.answers)
		}
		if d.Hint != policy.NoHint && (d.Hint == policy.Wrong || v.calls.guesses.count > 0) && v.calls.doubts(s, &d, now) {
			continue
		}
		if v.crowded(len(d.Body)) {
			d.WithholdBody()
		}
		if d.Action != policy.Fetch { // afterwards the credential is judged again
			v.count(d.CountedUnder(rule), d.Auth)
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
			if d.WouldBeRefused() {
				s.describeSpared(&d, rule)
			} else if d.Cache == policy.None || v.engine.Config().LogHits {
				s.describe(rule, d.Credential.ID)
			}
			return s.reply(&d)
		case policy.Pass:
			s.pass(&d, request)
			return Continue
		case policy.Verify, policy.Fetch, policy.Exchange:
			s.answers.Refused = d.Refusal()
			if v.calls.join(s, &d, now) {
				return Pause
			}
		}
	}
}

func (s *stream) reply(d *policy.Decision) Action {
	s.vm.host.Reply(d.Status, d.Details(), d.Headers, d.Body)
	return Pause
}

// describe sets the rule and device of a request for access logs. Requests that are answered from the cache have them
// only with log_hits, because it costs time.
func (s *stream) describe(rule int, device string) {
	v := s.vm
	v.host.Note(policy.NoteRule, v.engine.Config().RuleName(rule))
	if device != "" {
		v.host.Note(policy.NoteDevice, device)
	}
}

// describeSpared is describe for a request that isn't refused, because its rule isn't enforced.
func (s *stream) describeSpared(d *policy.Decision, rule int) {
	s.describe(rule, d.Credential.ID)
	s.vm.host.Note(policy.NoteReason, d.Reason.WouldDeny())
}

// pass sends a request upstream with only the authenticated identity, and without its secret if that was needed.
func (s *stream) pass(d *policy.Decision, r *policy.Request) {
	v := s.vm
	rule, _ := r.Rule()
	if d.WouldBeRefused() {
		s.describeSpared(d, rule)
	} else {
		s.describe(rule, d.Device)
	}
	if d.WouldHit != "" {
		s.try(d, rule)
	}
	if d.CacheStatus != "" {
		v.host.Note(policy.NoteCacheStatus, d.CacheStatus)
		if r.HasIfModifiedSince() {
			v.host.RemoveRequestHeader("if-modified-since")
		}
		if r.HasDatedRange() {
			v.host.RemoveRequestHeader("range")
		}
	}
	s.stripForged(r)
	if d.Device != "" {
		for _, name := range v.engine.SecretHeaders(r) {
			v.host.RemoveRequestHeader(name)
		}
		if r.MayHaveConnection {
			s.keepIdentity()
		}
		v.host.AddRequestHeader(policy.DeviceHeader, d.Device)
		v.host.AddRequestHeader(policy.PermissionsHeader, v.engine.PermissionNames(d.Permissions))
		if vary := v.engine.UpstreamVary(r); vary != "" {
			v.host.Note(policy.NoteVary, vary)
			v.host.Note(policy.NoteCacheControl, "private")
			if vary == policy.VaryAll {
				v.host.Note(policy.NoteNoStore, "no-store")
			}
		}
	}
}

// keepIdentity removes names of headers from Connection: the next proxy would remove those headers.
func (s *stream) keepIdentity() {
	h := s.vm.host
	if kept, changed := policy.ConnectionOptions(h.RequestHeader("connection")); changed {
		h.RemoveRequestHeader("connection")
		if kept != "" {
			h.AddRequestHeader("connection", kept)
		}
	}
}

// stripForged removes client headers that forge an identity, or override method or target.
func (s *stream) stripForged(r *policy.Request) {
	for _, name := range r.Removed {
		s.vm.host.RemoveRequestHeader(name)
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

// wake wakes a paused request when its call has returned.
func (s *stream) wake() {
	delete(s.vm.paused, s.id)
	s.vm.host.Wake(s.id, s.goOn)
}

// goOn decides a request that was paused.
func (s *stream) goOn() Action {
	v := s.vm
	v.replied = v.woken
	a := s.advance(v.host.RequestHeaders())
	v.woken = v.replied
	return a
}
