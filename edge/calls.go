package edge

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// maxCalls and maxFetches bound the calls of one VM in flight. maxFetches bounds the calls that wait for Redis:
// verifications don't need Redis and must continue when Redis hangs. Requests beyond a bound are decided as without an
// answer of the sidecar.
const (
	maxCalls   = 4096
	maxFetches = 256
	// MaxWaiting bounds the requests of one VM that wait for calls: all requests of a call are answered at once. A
	// request may wait for a fetch only while less than half of MaxWaiting is in use.
	MaxWaiting = 8192
)

// calls coalesces a VM's calls to the sidecar: at most one call is in flight per credential or key, and all requests
// for the same answer wait for this call. The answer arrives even if the first stream has gone.
type calls struct {
	vm         *VM
	inFlight   map[string]*call
	fetches    int // in flight
	throttles  throttles
	guesses    guesses
	failed     int    // since the last report
	failure    string // of one failed call
	reportedMS int64  // time of the last report, unix ms
}

// call is a call to the sidecar without an answer.
type call struct {
	key     string
	path    string
	body    []byte
	source  string    // of the call's first request
	device  string    // the device of the call's secret, "" for none
	right   bool      // the secret is right by shared memory
	newest  uint32    // the newest stream when the call was made
	waiting []*stream // some may have ended, see vm.forgetEnded
}

// joinCall makes a request wait for an answer of the sidecar. It returns false if the sidecar can't or needn't be
// called; the request's answers have the result.
func (c *calls) joinCall(s *stream, d *policy.Decision, from *policy.Source, nowMS int64) bool {
	pending := c.inFlight[callKey(d)]
	most := MaxWaiting
	if d.Action == policy.Fetch {
		most /= 2
	}
	if len(c.vm.paused) >= most {
		c.countFailure(fmt.Sprintf("too many requests wait for %s: %d, the maximum", callPath(d.Action), most))
		s.takeAnswer(&call{path: callPath(d.Action)}, nil)
		return false
	}
	if pending == nil {
		source := c.vm.clientAddress(from)
		if s.answers.ThrottledS = c.throttledS(d, source, nowMS); s.answers.ThrottledS > 0 {
			return false
		}
		pending = c.newCall(d, source)
		if !c.dispatchCall(pending) {
			c.learnThrottle(pending, nil)
			s.takeAnswer(pending, nil)
			return false
		}
	}
	if d.Action == policy.Fetch {
		// The credential may be revoked before the object arrives: shared memory will show the revocation. Otherwise
		// shared memory mostly has the same verdict.
		s.answers.Verify = nil
	}
	pending.addStream(s.pauseStream())
	return true
}

// addStream makes a stream wait for the call.
func (c *call) addStream(s *stream) {
	s.call, s.callIndex = c, len(c.waiting)
	c.waiting = append(c.waiting, s)
}

// removeStream makes a stream no longer wait. The call goes on without any: its answer serves later requests, too.
func (c *call) removeStream(s *stream) {
	last := len(c.waiting) - 1
	moved := c.waiting[last]
	c.waiting[s.callIndex], moved.callIndex = moved, s.callIndex
	c.waiting[last] = nil
	c.waiting = c.waiting[:last]
}

// throttledS returns for how many seconds the sidecar refuses this kind of credential from a source anyway; 0: not at
// all. Without a throttle, and unless this secret is known to be right, the device's secrets become suspect from the
// source's network until the answer.
func (c *calls) throttledS(d *policy.Decision, source string, nowMS int64) uint16 {
	if d.New {
		return c.throttles.retryAfter(source, nowMS)
	}
	network, ok := wire.Network(source)
	if !ok || d.Action == policy.Fetch || d.Credential.Session != "" {
		return 0
	}
	p := deviceNetwork{d.Credential.ID, network}
	if k, found := c.guesses.findGuess(p, nowMS); found {
		return k.throttledS(nowMS)
	}
	if d.Hint != policy.Right {
		c.guesses.recordCall(p, nowMS)
	}
	return 0
}

// refreshVerdict verifies a credential in the background of an authenticated request of a rule.
func (c *calls) refreshVerdict(d *policy.Decision, from *policy.Source, rule int) {
	verify := policy.Decision{Action: policy.Verify, Credential: d.Credential, Digest: d.Digest, Hint: d.Hint}
	if c.inFlight[callKey(&verify)] == nil && c.dispatchCall(c.newCall(&verify, c.vm.clientAddress(from))) {
		c.vm.count(rule, policy.CallRefresh)
	}
}

// dispatchCall makes a call for the request of the current context; false if the call fails at once.
func (c *calls) dispatchCall(pending *call) bool {
	fetches := 0
	if pending.path == fetchPath {
		fetches = 1
	}
	if len(c.inFlight) >= maxCalls || c.fetches+fetches > maxFetches {
		c.countFailure(fmt.Sprintf("no call to %s: %d are in flight, %d to %s, the maximum is %d and %d",
			pending.path, len(c.inFlight), c.fetches, fetchPath, maxCalls, maxFetches))
		return false
	}
	asked := Call{Path: pending.path, Body: pending.body, From: c.vm.requestOrigin(), Newest: pending.newest, Shared: true}
	newest, err := c.vm.callSidecar(asked, func(body []byte) {
		delete(c.inFlight, pending.key)
		c.fetches -= fetches
		if body == nil {
			c.countFailure(pending.path + ": no answer of status 200 in time")
		}
		c.deliverAnswer(pending, body)
	})
	if err != nil {
		c.countFailure(fmt.Sprintf("no call to %s: %v", pending.path, err))
		return false
	}
	pending.newest = newest
	c.inFlight[pending.key] = pending
	c.fetches += fetches
	return true
}

// deliverAnswer continues every waiting request.
func (c *calls) deliverAnswer(pending *call, body []byte) {
	body = bytes.Clone(body) // requests refer to body until a second call
	c.learnThrottle(pending, body)
	for _, s := range pending.waiting {
		s.takeAnswer(pending, body)
		s.wakeStream()
	}
}

// learnThrottle stores the throttles in an answer, nil for an unusable answer: they apply to later credentials.
func (c *calls) learnThrottle(to *call, body []byte) {
	network, ok := wire.Network(to.source)
	if !ok || to.device == "" {
		return
	}
	outcome, throttleMS := throttleOf(to.path, body)
	now := c.vm.host.Now()
	if outcome == wire.Unavailable {
		c.throttles.addSource(to.source, now, throttleMS)
	}
	c.guesses.recordAnswer(deviceNetwork{to.device, network}, now, outcome, throttleMS, to.right)
}

// throttleOf returns an answer's outcome, 0 for an unusable answer, and the length of the throttle, ms.
func throttleOf(path string, body []byte) (wire.Outcome, uint32) {
	if path == sessionPath {
		issued, _ := wire.ParseSessionResponse(body)
		return issued.Outcome, issued.ThrottleMS
	}
	verified, _ := wire.ParseVerifyResponse(body)
	return verified.Outcome, verified.ThrottleMS
}

func (c *calls) countFailure(why string) {
	c.failed++
	c.failure = why
	c.vm.count(policy.NoRule, policy.CallFailed)
}

// reportEveryMS is how often continuing failures are logged, ms.
const reportEveryMS = 60_000

// reportFailures logs the failures since the last report; the first failure at once.
func (c *calls) reportFailures(nowMS int64) {
	if since := nowMS - c.reportedMS; c.failed == 0 || 0 <= since && since < reportEveryMS {
		return
	}
	c.vm.host.Warn(
		fmt.Sprintf("gatehouse: %d calls to the sidecar, cluster %q, failed since the last report, e.g. %s: check that it "+
			"runs and listens on the socket that the edge calls",
			c.failed, c.vm.engine.Config().SidecarCluster, c.failure))
	c.failed, c.reportedMS = 0, nowMS
}

const (
	verifyPath  = "/v1/verify"
	fetchPath   = "/v1/fetch"
	sessionPath = "/v1/session"
)

// callKey returns a call's key: requests with the same key share an answer.
func callKey(d *policy.Decision) string {
	if d.Action == policy.Fetch {
		return fetchPath + d.Key
	}
	return callPath(d.Action) + string(d.Digest[:])
}

// callPath returns the sidecar's path for an action.
func callPath(a policy.Action) string {
	switch a {
	case policy.Fetch:
		return fetchPath
	case policy.Exchange:
		return sessionPath
	}
	return verifyPath
}

// newCall returns the call for a decision on a request from source.
func (c *calls) newCall(d *policy.Decision, source string) *call {
	pending := &call{key: callKey(d), path: callPath(d.Action), body: []byte(d.Key), source: source, newest: c.vm.newest}
	if d.Action != policy.Fetch {
		shown := &d.Credential
		request := wire.VerifyRequest{DeviceID: shown.ID, Secret: shown.Secret, Source: source, Session: shown.Session}
		pending.body = wire.AppendVerifyRequest(nil, &request)
		if shown.Session == "" {
			pending.device, pending.right = strings.Clone(shown.ID), d.Hint == policy.Right
		}
	}
	return pending
}

// takeAnswer stores the sidecar's answer, nil for an unusable answer, for the next decision.
func (s *stream) takeAnswer(to *call, body []byte) {
	s.answers.Suspect = false
	if to.path == fetchPath {
		fetched, err := wire.ParseFetchResponse(body)
		if err != nil {
			fetched = wire.FetchResponse{}
		} else if s.arrivedAfter(to) {
			return
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

// arrivedAfter reports whether a request arrived after a call was made. The object of such a call may be older than an
// object that the client already has from another worker. So the request is decided anew: from shared memory, which
// mostly has the object by now, or by a second call, after all waiting requests of the first call.
func (s *stream) arrivedAfter(c *call) bool { return beganAfter(s.id, c.newest) }

// beganAfter reports whether stream a began after stream b, by their ids, which repeat after 2³². Headers may arrive
// in another order, if an earlier filter delays some.
func beganAfter(a, b uint32) bool { return int32(a-b) > 0 }
