// Package rehearse tells which requests other rules would judge differently, by the filter's own policy.
package rehearse

import (
	"fmt"
	"slices"

	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// Request is what rules judge of a request.
type Request struct {
	Method string `json:"method"`
	Host   string `json:"host,omitempty"` // "": it has none
	Path   string `json:"path"`           // with or without the query
}

// judge judges requests by one configuration.
type judge struct {
	engine *policy.Engine
	config *policy.Config
	raw    []byte
}

func newJudge(c *policy.Config) *judge { return &judge{engine: policy.NewEngine(c), config: c} }

// judgement is how a request is judged, small enough to be a key of maps.
type judgement struct {
	rule   int           // -1: no rule
	reason policy.Reason // of a refusal without a rule; policy.Unreadable: the request isn't refused
	host   int           // the virtual host
	reads  bool          // the cache may answer the method
}

func (j *judge) judge(r *Request) judgement {
	headers := [...][2]string{{":method", r.Method}, {":path", r.Path}, {":authority", r.Host}}
	n := len(headers)
	if r.Host == "" {
		n--
	}
	j.raw = headermap.Append(j.raw[:0], headers[:n])
	fields, _ := headermap.ParseFields(j.raw)
	at := j.engine.Locate(fields)
	got := judgement{rule: -1, reads: r.Method == "GET" || r.Method == "HEAD"}
	got.host, _ = j.engine.VirtualHost()
	if at.Passes {
		return got
	}
	request := j.engine.Read(fields, nil)
	if !j.engine.Govern(&request, &at) {
		return got
	}
	if got.rule, _ = request.Rule(); got.rule < 0 {
		var d policy.Decision
		j.engine.Decide(&d, 0, &request, nil, &policy.Answers{}) // without a rule it reads no memory
		if d.Action == policy.Reply {
			got.reason = d.Reason
		}
	}
	return got
}

// rule returns the judgement's rule, nil for none.
func (j *judge) rule(g judgement) *policy.Rule {
	if g.rule < 0 {
		return nil
	}
	return &j.config.Rules[g.rule]
}

// name returns the rule's name or, without one, the reason of the refusal, or "none": like a rule's name with the
// virtual host before it.
func (j *judge) name(g judgement) string {
	if g.rule >= 0 {
		return j.config.Rules[g.rule].Name
	}
	name := "none"
	if g.reason != policy.Unreadable {
		name = (&policy.Decision{Reason: g.reason}).Details()
	}
	if space := j.space(g); space != "" {
		name = space + "/" + name
	}
	return name
}

// space returns the name of the virtual host, "" for none.
func (j *judge) space(g judgement) string {
	if g.host == policy.NoVirtualHost {
		return ""
	}
	return j.config.VirtualHosts[g.host].Name
}

func (j *judge) need(g judgement) policy.Need {
	if g.rule >= 0 {
		return j.config.NeedOfRule(g.rule)
	}
	return policy.Need{Rule: g.rule, Refused: g.reason != policy.Unreadable}
}

// shown tells where a request shows its credential.
func (j *judge) shown(g judgement) string {
	c := j.config.HostRules(g.host).Credentials
	c.Forward = false
	return fmt.Sprintf("%+v %q", c, j.config.SessionMetadata)
}

// cached tells by which key the cache answers; "": it doesn't.
func (j *judge) cached(g judgement) string {
	r := j.rule(g)
	if r == nil || r.Cache == nil || r.Cache.Trial || !g.reads {
		return ""
	}
	query := "all"
	if r.Cache.Query != nil {
		query = fmt.Sprintf("%q", slices.Sorted(slices.Values(r.Cache.Query)))
	}
	return fmt.Sprintf("%q %s %t %t %q", j.space(g), query, r.Cache.PerDevice, r.Cache.PerHost,
		slices.Sorted(slices.Values(r.Cache.Languages)))
}
