package policy

import (
	"errors"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Action is what the filter does with a request.
type Action uint8

// The actions.
const (
	Pass     Action = iota // send it upstream
	Reply                  // answer it
	Verify                 // pause it, ask the sidecar for a verdict, decide again
	Fetch                  // pause it, ask the sidecar for the object, decide again
	Exchange               // pause it, ask the sidecar for a token, decide again
)

// Decision is what to do with one request, and which counters it increments.
type Decision struct {
	Action Action

	Status  int    // Reply
	Headers []byte // Reply; as headermap.Append writes them; may belong to the edge
	Body    []byte // Reply; may belong to Memory
	Reason  Reason // Reply that isn't from the cache, see Details; and see WouldBeRefused

	// Credential is the request's, if its rule requires one. It must be verified now (Verify), for a token (Exchange),
	// or in the background of an answered request (Refresh).
	Credential Credential
	Digest     wire.Digest
	Refresh    bool
	New        bool // Verify, Exchange: the device never authenticated
	Hint       Hint

	Key string // Fetch, a Reply from the cache, or WouldHit: the cache key

	CacheStatus string // Pass: for the response, "" if no cache rule applies
	WouldHit    string // Pass: the entity-tag of what the cache would answer if it were served, "" for nothing
	Device      string // Pass: the authenticated device, "" if no auth rule applies
	Permissions uint64 // Pass: its permissions, see [Engine.Names]

	// ReloadState means that shared memory has another epoch, or a permission that is not in this state: read the state
	// again and, if it changed, decide again.
	ReloadState bool
	Auth        Counter // counter of the request, 0 if none
	Cache       Counter
}

// Memory is shared memory for one request. Its results stay valid until the request is answered.
type Memory interface {
	// Record returns the record at a place, nil if none was ever written.
	Record(region wire.Region, index uint32) []byte
	// Body returns the bytes of v, nil if its slot has another body by now.
	Body(epoch uint64, v wire.Variant) *Body
	// Guard returns another number whenever an object may have changed; 0 if that is unknown now.
	Guard() uint64
}

// Body is a body that Memory caches for more than one request; its Bytes are nil once it was dropped.
type Body struct{ Bytes []byte }

// Answers are the sidecar's answers for this request so far.
type Answers struct {
	Verify *wire.VerifyResponse // nil: not asked, or no answer
	// Unreachable means that the sidecar was asked for a verdict or token and gave no answer.
	Unreachable bool
	// Fetch is nil if the sidecar was not asked, and has epoch 0 if it did not answer.
	Fetch *wire.FetchResponse
	// Session is nil if the sidecar was not asked for a token, or did not answer.
	Session *wire.SessionResponse
	// Suspect means that wrong secrets of the device came from the request's network lately, so what shared memory tells
	// about this one doesn't count: see [Hint].
	Suspect bool
	// Refused is why a request would be refused under a rule that isn't enforced, once that is known; Auth 0: unknown.
	Refused Refusal
	// ThrottledS is for how many seconds the edge refuses credentials like this one without a call; 0: it doesn't.
	ThrottledS uint16
}

// Refusal is the reason of a refusal, and what counts it.
type Refusal struct {
	Auth   Counter
	Reason Reason
}

// Hint is what shared memory tells about the secret of a request. Who guesses may learn it at the sidecar's pace only.
type Hint uint8

// The hints.
const (
	NoHint Hint = iota // nothing, or the request has a token
	Right              // there is a verdict, perhaps an expired one, that allows it
	Wrong              // the device's only right secret is another one
)

// Engine decides requests by one configuration and the last state that the VM has read. It is not safe for concurrent
// use.
type Engine struct {
	config *Config
	state  wire.State // Epoch 0: none yet
	readMS int64      // when it was read, unix ms
	// distrusted has the times of a state that was read before the clock was set back, or that were in the future when
	// it was read. They may have any age, even when the clock has reached them.
	distrusted struct{ heartbeatMS, inStepMS int64 }
	// prefixes has, for each rule, the common prefix of all paths that it covers.
	prefixes []string
	// by has the rules of the host of the last request, see Locate.
	governor  *governor
	known     knownHeaders // those of by; here, because reading them is part of every request
	governors *governors   // nil if the host of a request doesn't matter
	// removed are the client headers that no upstream gets, and removedBits the bits of their names.
	removed     []string
	removedBits uint64
	// needs has the permission bits that each rule requires; unknown tells for each rule whether it requires a name
	// that no device has.
	requiredBits    []uint64
	requiresUnknown []bool
	// permissionNames caches the names of sets of permissions, at most maxSets.
	permissionNames map[uint64]string
	purges          []wire.Purge // that were under way when the guard was purgesGuard; 0: to be read again
	purgesGuard     uint64

	cachedAnswers [maxCachedAnswers]cachedAnswer

	// For the last decision, which refers to them.
	fields  [8 + limits.MaxHeaderLines][2]string
	headers []byte
	text    []byte
	secret  []byte // of its API key
}

// maxSets is the maximum number of sets in permissionNames.
const maxSets = 256

// NewEngine returns an Engine without a state.
func NewEngine(c *Config) *Engine {
	e := &Engine{config: c, requiredBits: make([]uint64, len(c.Rules)), requiresUnknown: make([]bool, len(c.Rules)),
		permissionNames: map[uint64]string{}}
	e.setGovernor(newGovernor(c, "", c.HostRules(NoVirtualHost)))
	e.governors = newHosts(c, e.governor)
	e.registerRemoved(identityHeaders)
	if !c.KeepOverrides {
		e.registerRemoved(overrideHeaders)
	}
	for i := range c.Rules {
		e.prefixes = append(e.prefixes, trimSlashes(c.Rules[i].Match.Prefix+c.Rules[i].Match.Path))
	}
	return e
}

const varyEncoding = "accept-encoding"

// Config returns the edge's configuration.
func (e *Engine) Config() *Config { return e.config }

// State returns the newest state; its epoch is 0 before there is one.
func (e *Engine) State() *wire.State { return &e.state }

// SetState sets a state that was read at nowMS, unix ms, and drops cached answers.
func (e *Engine) SetState(nowMS int64, s wire.State) {
	setBack := nowMS < e.readMS
	e.state, e.readMS, e.purges = s, nowMS, s.Purges
	if setBack || s.HeartbeatMS > nowMS+sameClockMS {
		e.distrusted.heartbeatMS = s.HeartbeatMS
	}
	if setBack || s.InStepMS > nowMS+sameClockMS {
		e.distrusted.inStepMS = s.InStepMS
	}
	e.DropCachedAnswers()
	clear(e.permissionNames)
	for i := range e.config.Rules {
		e.requiredBits[i], e.requiresUnknown[i] = 0, false
		if e.config.Rules[i].Auth == nil {
			continue
		}
		for _, name := range e.config.Rules[i].Auth.Permissions {
			bit := indexOf(s.Permissions, name)
			if bit < 0 {
				e.requiresUnknown[i] = true
				continue
			}
			e.requiredBits[i] |= 1 << bit
		}
	}
}

// Decide sets d to the decision on one request at nowMS, unix ms; [Engine.Govern] reports whether a request needs one.
// It is a function of its arguments and the edge's state: cached answers only change what is read from mem. The
// decision refers to the request, to results of mem and to the edge's memory, so it is valid until the next one. It is
// set in place, here and below, because it is large.
func (e *Engine) Decide(d *Decision, nowMS int64, r *Request, mem Memory, answers *Answers) {
	*d = Decision{}
	e.text = e.text[:0]
	if r.rule < 0 {
		switch {
		case r.ambiguous:
			d.setForbidden(AmbiguousPath)
		case e.governor.decidesUnmatched:
			d.setForbidden(e.governor.refusal)
		}
		if r.tolerated || !r.ambiguous && e.governor.WouldDenyByDefault {
			d.passUnenforced()
		}
		return
	}
	rule := &e.config.Rules[r.rule]
	if rule.IssueSession {
		e.issueToken(d, nowMS, r, mem, answers)
		return
	}
	if rule.Auth != nil {
		if answers.Refused.Auth != None {
			e.recallRefusal(d, r, answers)
		} else if e.authorizeDevice(d, nowMS, r, mem, answers); d.Action != Pass {
			if !rule.Auth.Trial || d.Action != Reply {
				return
			}
			d.passUnenforced()
		}
	}
	if rule.Cache != nil {
		if rule.Cache.Trial {
			e.tryCache(d, nowMS, rule, r, mem)
		} else {
			e.answerFromCache(d, nowMS, rule, r, mem, answers)
		}
	}
	if r.tolerated && !d.WouldBeRefused() && d.Action <= Reply {
		d.Auth, d.Reason = WouldForbid, AmbiguousPath
	}
}

func isOtherEpoch(err error) bool {
	return errors.Is(err, wire.ErrEpoch) || errors.Is(err, wire.ErrLayout)
}
