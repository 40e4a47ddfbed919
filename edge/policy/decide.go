package policy

import (
	"errors"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// Action is the filter's action on a request.
type Action uint8

// The actions.
const (
	Pass     Action = iota // send the request upstream
	Reply                  // answer the request
	Verify                 // pause the request, ask the sidecar for a verdict, decide again
	Fetch                  // pause the request, ask the sidecar for the object, decide again
	Exchange               // pause the request, ask the sidecar for a token, decide again
)

// Decision is the decision on one request, with the counters to increment.
type Decision struct {
	Action Action

	Status  int    // Reply
	Headers []byte // Reply; as headermap.Append writes them; may belong to the edge
	Body    []byte // Reply; may belong to Memory
	Reason  Reason // Reply, but not from the cache, see Details; and see WouldBeRefused

	// Credential is the request's, if its rule requires a credential: to be verified now (Verify) or in the background
	// of an answered request (Refresh), or to be exchanged for a token (Exchange).
	Credential Credential
	Digest     wire.Digest
	Refresh    bool
	New        bool // Verify, Exchange: the device never authenticated
	Hint       Hint

	Key string // Fetch, a Reply from the cache, or WouldHit: the cache key

	CacheStatus string // Pass: for the response, "" if no cache rule applies
	WouldHit    string // Pass: the entity-tag of a would-be hit of a cache on trial, "" for none
	Device      string // Pass: the authenticated device, "" if no auth rule applies
	Permissions string // Pass: the device's permission names, joined by commas

	// ReloadState means that shared memory has another epoch: read the state again and, after a change, decide again.
	ReloadState bool
	Auth        Counter // counter of the request, 0 if none
	Cache       Counter
}

// Memory is shared memory for one request. Results stay valid until the request is answered.
type Memory interface {
	// Record returns the record at a place, nil if none was ever written.
	Record(region wire.Region, index uint32) []byte
	// Body returns the bytes of v, nil if the slot has another body by now.
	Body(epoch uint64, v wire.Variant) *Body
	// Guard returns another number after any possible change of an object; 0: unknown now.
	Guard() uint64
}

// Body is a body that Memory caches for several requests; Bytes is nil after the cache has dropped the body.
type Body struct{ Bytes []byte }

// Answers are the sidecar's answers for this request.
type Answers struct {
	Verify *wire.VerifyResponse // nil: not asked, or no answer
	// Unreachable means that the sidecar gave no answer to a call for a verdict or token.
	Unreachable bool
	// Fetch is nil if the sidecar was not asked, and has epoch 0 if it did not answer.
	Fetch *wire.FetchResponse
	// Session is nil if the sidecar was not asked for a token, or did not answer.
	Session *wire.SessionResponse
	// Suspect means that wrong secrets of the device came from the request's network lately: the verdict on this secret
	// is not taken from shared memory, see [Hint].
	Suspect bool
	// Refused is the reason of a refusal under a rule that isn't enforced; Auth 0: unknown.
	Refused Refusal
	// ThrottledS is for how many seconds the edge refuses this kind of credential without a call; 0: not at all.
	ThrottledS uint16
}

// Refusal is the reason of a refusal, and its counter.
type Refusal struct {
	Auth   Counter
	Reason Reason
}

// Hint is the information of shared memory about a request's secret. A guesser may learn it at the sidecar's pace only.
type Hint uint8

// The hints.
const (
	NoHint Hint = iota // nothing, or the request has a token
	Right              // an allow verdict on the secret, perhaps expired
	Wrong              // the device has another secret, the only right one
)

// Engine decides requests by one configuration and the VM's last state. Each call leads to the next: [Engine.Locate],
// [Location.Read], [Request.Decide]. Engine is not safe for concurrent use.
type Engine struct {
	config     *Config
	hosts      *hosts
	removed    removedHeaders
	state      edgeState
	authorizer authorizer
	responder  responder
}

// NewEngine returns an Engine without a state.
func NewEngine(c *Config) *Engine {
	e := &Engine{config: c, hosts: newHosts(c), state: edgeState{config: c}}
	e.authorizer = authorizer{config: c, state: &e.state}
	e.responder.config, e.responder.state = c, &e.state
	e.removed.addNames(identityHeaders)
	if !c.KeepOverrides {
		e.removed.addNames(overrideHeaders)
	}
	return e
}

const varyEncoding = "accept-encoding"

// Config returns the edge's configuration.
func (e *Engine) Config() *Config { return e.config }

// State returns the newest state; the epoch is 0 before the first.
func (e *Engine) State() *wire.State { return &e.state.State }

// SetState sets a state, read at nowMS, unix ms, and drops cached answers.
func (e *Engine) SetState(nowMS int64, s wire.State) {
	e.state.setState(nowMS, s)
	e.responder.cache.purges = s.Purges
	e.DropCachedAnswers()
}

// DropCachedAnswers drops all cached answers, and the purges.
func (e *Engine) DropCachedAnswers() { e.responder.cache.dropAnswers() }

// Decide sets d to the decision on the request at nowMS, unix ms; [Request.Governed] reports whether a request needs a
// decision. Decide is a function of its arguments and the edge's state: cached answers only save reads of mem. The
// decision refers to the request, to results of mem and to the edge's memory, and is valid until the next decision. It
// is large, and therefore set in place, here and below.
func (r *Request) Decide(d *Decision, nowMS int64, mem Memory, answers *Answers) {
	*d = Decision{}
	e := r.engine
	e.responder.text = e.responder.text[:0]
	if r.rule < 0 {
		switch {
		case r.ambiguous:
			d.setForbidden(AmbiguousPath)
		case r.governor.decidesUnmatched:
			d.setForbidden(r.governor.refusal)
		}
		if r.tolerated || !r.ambiguous && r.governor.WouldDenyByDefault {
			d.passUnenforced()
		}
		return
	}
	rule := &e.config.Rules[r.rule]
	if rule.IssueSession {
		e.authorizer.issueToken(d, nowMS, r, mem, answers)
		return
	}
	if rule.Auth != nil {
		if answers.Refused.Auth != None {
			e.authorizer.recallRefusal(d, r, answers)
		} else if e.authorizer.authorizeDevice(d, nowMS, r, mem, answers); d.Action != Pass {
			if !rule.Auth.Trial || d.Action != Reply {
				return
			}
			d.passUnenforced()
		}
	}
	if rule.Cache != nil {
		if rule.Cache.Trial {
			e.responder.tryCache(d, nowMS, rule, r, mem)
		} else {
			e.responder.answerFromCache(d, nowMS, rule, r, mem, answers)
		}
	}
	if r.tolerated && !d.WouldBeRefused() && d.Action <= Reply {
		d.Auth, d.Reason = WouldForbid, AmbiguousPath
	}
}

func isOtherEpoch(err error) bool {
	return errors.Is(err, wire.ErrEpoch) || errors.Is(err, wire.ErrLayout)
}
