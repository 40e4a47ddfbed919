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

	call      *call // the awaited call
	callIndex int   // in call.waiting
}

// handleHeaders decides the request by the answers so far.
func (s *stream) handleHeaders(headers []byte) Action {
	v := s.vm
	fields, ok := headermap.ParseFields(headers)
	if !ok {
		d := policy.RefuseUnreadable() // no rule has passed an unreadable request
		v.count(policy.NoRule, d.Auth)
		s.noteRequest(policy.NoRule, "")
		return s.sendReply(&d)
	}
	at := v.engine.Locate(fields)
	if at.Passes {
		return Continue
	}
	request := at.Read(v)
	if !request.Governed() {
		s.removeForged(&request)
		return Continue
	}
	return s.decideRequest(&request)
}

// MaxReplied bounds the bodies, bytes, of the replies to streams woken by one answer of the sidecar: the proxy keeps a
// copy of each body until all streams have gone on, and thousands of requests may wait for one answer.
const MaxReplied = 64 << 20

// SmallBody is the largest body of a reply, bytes, that fits into the buffer of the client's socket. Small bodies don't
// count as unread.
const SmallBody = 16 << 10

// isCrowded reports whether there is no room for a reply's body of size bytes; otherwise the room is taken.
func (v *VM) isCrowded(size int) bool {
	if v.replied+size > MaxReplied {
		return true
	}
	if size > SmallBody && v.unread+size > MaxReplied {
		return true
	}
	v.replied += size
	return false
}

// decideRequest decides a request under a rule.
func (s *stream) decideRequest(request *policy.Request) Action {
	v := s.vm
	rule, _ := request.Rule()
	var d policy.Decision
	for {
		now := v.host.Now()
		request.Decide(&d, now, v, &s.answers)
		if d.ReloadState && v.readState() {
			now = v.host.Now() // not before the state was read
			request.Decide(&d, now, v, &s.answers)
		}
		if d.Hint != policy.NoHint && (d.Hint == policy.Wrong || v.calls.guesses.count > 0) &&
			v.calls.mustAsk(s, &d, request.Source(), now) {
			continue
		}
		if v.isCrowded(len(d.Body)) {
			d.WithholdBody()
		}
		if d.Action != policy.Fetch { // afterwards the credential is judged again
			v.count(d.CountedUnder(rule), d.Auth)
		}
		v.count(rule, d.Cache)
		if d.Refresh {
			v.calls.refreshVerdict(&d, request.Source(), rule)
		}
		switch d.Action {
		case policy.Reply:
			if d.Key != "" {
				v.hits.sampleHit(d.Key)
			}
			if d.WouldBeRefused() {
				s.noteUnenforced(&d, rule)
			} else if d.Cache == policy.None || v.engine.Config().LogHits {
				s.noteRequest(rule, d.Credential.ID)
			}
			return s.sendReply(&d)
		case policy.Pass:
			s.passUpstream(&d, request)
			return Continue
		case policy.Verify, policy.Fetch, policy.Exchange:
			s.answers.Refused = d.Refusal()
			if v.calls.joinCall(s, &d, request.Source(), now) {
				return Pause
			}
		}
	}
}

func (s *stream) sendReply(d *policy.Decision) Action {
	s.vm.host.Reply(d.Status, d.Details(), d.Headers, d.Body)
	return Pause
}

// noteRequest sets the rule and device of a request for access logs. Cached answers call it with log_hits only, because
// it costs time.
func (s *stream) noteRequest(rule int, device string) {
	v := s.vm
	v.host.SetNote(policy.NoteRule, v.engine.Config().RuleName(rule))
	if device != "" {
		v.host.SetNote(policy.NoteDevice, device)
	}
}

// noteUnenforced is noteRequest for a request that passes because the rule isn't enforced.
func (s *stream) noteUnenforced(d *policy.Decision, rule int) {
	s.noteRequest(rule, d.Credential.ID)
	s.vm.host.SetNote(policy.NoteReason, d.Reason.WouldDeny())
}

// passUpstream sends a request upstream with only the authenticated identity, and without a used secret.
func (s *stream) passUpstream(d *policy.Decision, r *policy.Request) {
	v := s.vm
	rule, _ := r.Rule()
	if d.WouldBeRefused() {
		s.noteUnenforced(d, rule)
	} else {
		s.noteRequest(rule, d.Device)
	}
	if d.WouldHit != "" {
		s.tryHit(d, rule)
	}
	if d.CacheStatus != "" {
		v.host.SetNote(policy.NoteCacheStatus, d.CacheStatus)
		if r.HasIfModifiedSince() {
			v.host.RemoveRequestHeader("if-modified-since")
		}
		if r.HasDatedRange() {
			v.host.RemoveRequestHeader("range")
		}
	}
	s.removeForged(r)
	if d.Device != "" {
		for _, name := range r.SecretHeaders() {
			v.host.RemoveRequestHeader(name)
		}
		if r.MayHaveConnection {
			s.cleanConnection()
		}
		v.host.AddRequestHeader(policy.DeviceHeader, d.Device)
		v.host.AddRequestHeader(policy.PermissionsHeader, d.Permissions)
		if vary := r.UpstreamVary(); vary != "" {
			v.host.SetNote(policy.NoteVary, vary)
			v.host.SetNote(policy.NoteCacheControl, "private")
			if vary == policy.VaryAll {
				v.host.SetNote(policy.NoteNoStore, "no-store")
			}
		}
	}
}

// cleanConnection removes names of headers from Connection: the next proxy would remove the named headers.
func (s *stream) cleanConnection() {
	h := s.vm.host
	if kept, changed := policy.ConnectionOptions(h.RequestHeader("connection")); changed {
		h.RemoveRequestHeader("connection")
		if kept != "" {
			h.AddRequestHeader("connection", kept)
		}
	}
}

// removeForged removes client headers that forge an identity, or override method or target.
func (s *stream) removeForged(r *policy.Request) {
	for _, name := range r.Removed {
		s.vm.host.RemoveRequestHeader(name)
	}
}

// pauseStream returns a copy of the stream for the time of the pause.
func (s *stream) pauseStream() *stream {
	s.vm.forgetStream(s.id) // ids repeat after 2³² streams
	held := new(stream)
	*held = *s
	s.vm.paused[s.id] = held
	return held
}

// wakeStream wakes a paused request after the call's return.
func (s *stream) wakeStream() {
	delete(s.vm.paused, s.id)
	s.vm.host.WakeStream(s.id, s.decideAgain)
}

// decideAgain decides a paused request.
func (s *stream) decideAgain() Action {
	v := s.vm
	v.replied = v.woken
	a := s.handleHeaders(v.host.RequestHeaders())
	v.woken = v.replied
	return a
}
