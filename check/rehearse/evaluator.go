// Package rehearse compares two sets of rules by the filter's own policy, and reports requests with different outcomes.
package rehearse

import (
	"fmt"
	"slices"

	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// Request is the part of a request that rules judge.
type Request struct {
	Method string `json:"method"`
	Host   string `json:"host,omitempty"` // "": it has none
	Path   string `json:"path"`           // with or without the query
}

// evaluator judges requests by one configuration.
type evaluator struct {
	engine *policy.Engine
	config *policy.Config
	raw    []byte
}

func newEvaluator(c *policy.Config) *evaluator {
	return &evaluator{engine: policy.NewEngine(c), config: c}
}

// outcome is the judgement of a request, small enough for a key of maps.
type outcome struct {
	rule       int           // -1: no rule
	reason     policy.Reason // of a refusal without a rule; policy.Unreadable: no refusal
	host       int           // the virtual host
	readMethod bool          // a method that the cache answers
}

func (e *evaluator) evaluate(r *Request) outcome {
	headers := [...][2]string{{":method", r.Method}, {":path", r.Path}, {":authority", r.Host}}
	n := len(headers)
	if r.Host == "" {
		n--
	}
	e.raw = headermap.Append(e.raw[:0], headers[:n])
	fields, _ := headermap.ParseFields(e.raw)
	at := e.engine.Locate(fields)
	request := at.Read(nil)
	got := outcome{rule: -1, readMethod: r.Method == "GET" || r.Method == "HEAD"}
	got.host, _ = request.VirtualHost()
	if !request.Governed() {
		return got
	}
	if got.rule, _ = request.Rule(); got.rule < 0 {
		var d policy.Decision
		request.Decide(&d, 0, nil, &policy.Answers{}) // without a rule Decide reads no memory
		if d.Action == policy.Reply {
			got.reason = d.Reason
		}
	}
	return got
}

// ruleOf returns the outcome's rule, nil for none.
func (e *evaluator) ruleOf(o outcome) *policy.Rule {
	if o.rule < 0 {
		return nil
	}
	return &e.config.Rules[o.rule]
}

// outcomeName returns the rule's name. Without a rule outcomeName returns the reason of the refusal or "none", with the
// virtual host as prefix like names of rules.
func (e *evaluator) outcomeName(o outcome) string {
	if o.rule >= 0 {
		return e.config.Rules[o.rule].Name
	}
	name := "none"
	if o.reason != policy.Unreadable {
		name = (&policy.Decision{Reason: o.reason}).Details()
	}
	if space := e.virtualHostName(o); space != "" {
		name = space + "/" + name
	}
	return name
}

// virtualHostName returns the name of the virtual host, "" for none.
func (e *evaluator) virtualHostName(o outcome) string {
	if o.host == policy.NoVirtualHost {
		return ""
	}
	return e.config.VirtualHosts[o.host].Name
}

func (e *evaluator) needOf(o outcome) policy.Need {
	if o.rule >= 0 {
		return e.config.NeedOfRule(o.rule)
	}
	return policy.Need{Rule: o.rule, Refused: o.reason != policy.Unreadable}
}

// credentialLocation describes the part of a request that holds the credential.
func (e *evaluator) credentialLocation(o outcome) string {
	c := e.config.HostRules(o.host).Credentials
	c.Forward = false
	return fmt.Sprintf("%+v %q", c, e.config.SessionMetadata)
}

// cacheKey describes the key by which the cache answers, "" without an answer.
func (e *evaluator) cacheKey(o outcome) string {
	r := e.ruleOf(o)
	if r == nil || r.Cache == nil || r.Cache.Trial || !o.readMethod {
		return ""
	}
	query := "all"
	if r.Cache.Query != nil {
		query = fmt.Sprintf("%q", slices.Sorted(slices.Values(r.Cache.Query)))
	}
	return fmt.Sprintf("%q %s %t %t %q", e.virtualHostName(o), query, r.Cache.PerDevice, r.Cache.PerHost,
		slices.Sorted(slices.Values(r.Cache.Languages)))
}
