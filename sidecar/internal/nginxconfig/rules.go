package nginxconfig

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/nginx"
	"github.com/gatehouse/gatehouse/sidecar/internal/findings"
)

// rules are what the edge reads: rendered ones.
type rules struct {
	Format        int    `json:"format"`
	SourceHeader  string `json:"source_header"`
	DenyByDefault bool   `json:"deny_by_default"`
	Rules         []rule `json:"rules"`
}

// config is the part of the rules that decides what a request needs.
func (r *rules) config() *policy.Config {
	c := &policy.Config{DenyByDefault: r.DenyByDefault}
	for _, from := range r.Rules {
		rule := policy.Rule{Match: policy.Match{Path: from.Path, Prefix: from.Prefix, Methods: from.Methods}, IssueSession: from.Session}
		if from.Auth != nil {
			rule.Auth = &policy.Auth{Permissions: from.Auth.Permissions}
		}
		if from.Cache != nil {
			rule.Cache = &policy.Cache{}
		}
		c.Rules = append(c.Rules, rule)
	}
	return c
}

type rule struct {
	Path    string   `json:"path"`
	Prefix  string   `json:"prefix"`
	Methods []string `json:"methods"`
	Auth    *struct {
		Permissions []string `json:"permissions"`
	} `json:"auth"`
	Cache   *struct{} `json:"cache"`
	Session bool      `json:"session"`
}

// protects reports whether the rule wants a credential.
func (r *rule) protects() bool { return r.Auth != nil || r.Session }

func (r *rule) caches() bool { return r.Cache != nil }

func (r *rule) text() string { return r.Path + r.Prefix }

// parseRules reads rules, rendered or not.
func parseRules(text []byte) (*rules, error) {
	var r rules
	if err := json.Unmarshal(text, &r); err == nil && r.Format != 0 {
		if r.Format != nginx.Format {
			return nil, fmt.Errorf("has format %d, want %d", r.Format, nginx.Format)
		}
		return &r, nil
	}
	rendered, _, err := nginx.Render(text)
	if err != nil {
		return nil, err
	}
	return &r, json.Unmarshal(rendered, &r)
}

// readRules reads the rules that were given, or else those that edge.init names. Without any, each path counts as one
// that needs a credential.
func (a *analysis) readRules(given []byte, named string) {
	text, name := given, "rules"
	if text == nil {
		var err error
		name = named
		if text, err = a.source.readAbsolute(named); err != nil {
			a.add(&rulesUnread, nil, "init_by_lua", "rules: %q: %s: each path is taken for one that needs a credential", named, err)
			return
		}
	}
	r, err := parseRules(text)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			a.add(&badRules, nil, name, "%s", strings.TrimSuffix(line, "\n"))
		}
		return
	}
	a.rules, a.report.Rules = r, len(r.Rules)
	for _, doubt := range r.config().Doubts() {
		kind := map[policy.DoubtKind]*findings.Kind{policy.OpenMethods: &openMethod, policy.OpenPart: &openPart, policy.UnknownMethod: &unknownMethod}[doubt.Kind]
		a.add(kind, nil, doubt.Field, "%s", doubt.Text)
	}
}

// covers reports whether a request that a rule of this kind governs may get to the scope.
func (a *analysis) covers(s *scope, kind func(*rule) bool) bool {
	if a.rules == nil {
		return true
	}
	for i := range a.rules.Rules {
		if r := &a.rules.Rules[i]; kind(r) && s.takes(r) {
			return true
		}
	}
	return false
}

// opens returns the path of a rule, and the path by which clients get there with less than the rule asks, if requests for
// from are sent upstream as to. With below, from has all paths below it, too; with keeps, what follows from then follows
// to.
func (a *analysis) opens(from string, below bool, to string, keeps bool) (client, path string, found bool) {
	if a.rules == nil {
		return "", "", false
	}
	config := a.rules.config()
	for i := range a.rules.Rules {
		r := &a.rules.Rules[i]
		if !r.protects() {
			continue
		}
		client, upstream := from, to
		switch {
		case r.Prefix != "" && strings.HasPrefix(to, r.Prefix):
			if below {
				client += "x"
			}
			if keeps {
				upstream += "x"
			}
		case !keeps && to == r.Path:
		case keeps && strings.HasPrefix(r.text(), to):
			client, upstream = from+r.text()[len(to):], r.text()
			if r.Prefix != "" {
				client, upstream = client+"x", upstream+"x"
			}
		default:
			continue
		}
		if slices.ContainsFunc(config.SampleMethods(), func(method string) bool {
			return config.Need(method, client).Weaker(config.Need(method, upstream))
		}) {
			return client, r.text(), true
		}
	}
	return "", "", false
}
