package nginxconfig

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/nginx"
)

// rules are what the edge reads.
type rules struct {
	*policy.Config
	all []rule
}

type rule struct {
	policy.Match
	of *policy.Rule
}

// protects reports whether the rule wants a credential.
func (r *rule) protects() bool { return r.of.Auth != nil || r.of.IssueSession }

func (r *rule) caches() bool { return r.of.Cache != nil }

func (r *rule) text() string { return r.Path + r.Prefix }

// readRules reads the rules that were given, in a file of this name, or else those of the file that edge.init names.
// Without any, each path counts as one that needs a credential.
func (a *analysis) readRules(file string, given []byte, named string) {
	text := given
	if text == nil {
		var err error
		file = named
		if text, err = a.reader.readAbsolute(named); err != nil {
			a.add(&rulesUnread, nil, "init_by_lua", "rules: %q: %s: each path is taken for one that needs a credential",
				named, err)
			return
		}
	}
	in := findings.Place{File: file}
	places, err := placesOf(text)
	if err != nil {
		a.report.AddSyntax(&badRules, in, err)
		return
	}
	c, err := nginx.Parse(text)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			line = strings.TrimSuffix(line, "\n")
			if field, message, found := strings.Cut(line, ": "); found && places.Tree != nil && !strings.Contains(field, " ") {
				a.report.AddOfRules(&badRules, in, &places, field, "%s", message)
				continue
			}
			a.report.Add(&badRules, in, "%s", line)
		}
		return
	}
	a.rules, a.report.Rules = &rules{Config: c}, len(c.Rules)
	for i := range c.Rules {
		a.rules.all = append(a.rules.all, rule{c.Rules[i].Match, &c.Rules[i]})
	}
	for i := range c.Rules {
		field, path := ".match.path", c.Rules[i].Match.Path
		if path == "" {
			field, path = ".match.prefix", c.Rules[i].Match.Prefix
		}
		if strings.ContainsAny(path, "*{}") {
			a.report.AddOfRules(&wildcard, in, &places, c.RuleField(i)+field,
				"%q: rules know no wildcards, so this one covers only requests that spell it so", path)
		}
	}
	for _, doubt := range c.Doubts() {
		kind := map[policy.DoubtKind]*findings.Kind{policy.OpenMethods: &openMethod, policy.OpenPart: &openPart,
			policy.UnknownMethod: &unknownMethod, policy.NotEnforced: &notEnforced}[doubt.Kind]
		a.report.AddOfRules(kind, in, &places, doubt.Field, "%s", doubt.Text)
	}
}

// placesOf returns the places of rules in a text, rendered or not.
func placesOf(text []byte) (findings.Rules, error) {
	source, err := findings.ParseSource(text)
	if err != nil {
		return findings.Rules{}, err
	}
	at := source.Root()
	if rules, found := at.Child("rules"); found {
		if _, rendered := at.Child("format"); rendered {
			at = rules
		}
	}
	tree, err := at.Tree()
	return findings.Rules{Source: source, At: at, Tree: tree}, err
}

// RulesOf returns the rules that an nginx.conf names, which [Analyze] reads likewise.
func RulesOf(file string, text []byte) (*policy.Config, error) {
	tree, reader := load(file, text)
	if len(reader.wrong) > 0 {
		return nil, errors.New(reader.wrong[0])
	}
	a := newAnalysis(file)
	a.reader = reader
	for _, d := range tree {
		if d.name == "http" {
			a.http = newScope(d, nil)
		}
	}
	if a.http == nil {
		return nil, errors.New("has no http block")
	}
	code, _, _ := a.calls(a.http, "init_by_lua", edgeModule, callInit)
	named := rulesFile.FindStringSubmatch(code)
	if named == nil {
		return nil, errors.New("its init_by_lua names no rules")
	}
	given, err := reader.readAbsolute(named[1])
	if err != nil {
		return nil, fmt.Errorf("rules %q: %w", named[1], err)
	}
	return nginx.Parse(given)
}

// covers reports whether a request that a rule of this kind governs may get to the scope.
func (a *analysis) covers(s *scope, kind func(*rule) bool) bool {
	if a.rules == nil {
		return true
	}
	return slices.ContainsFunc(a.rulesOf(s), func(r rule) bool { return kind(&r) && s.takes(&r) })
}

// opens returns the path of a rule, and the path by which clients get there with less than the rule asks, if requests
// of a scope for from are sent upstream as to. With below, from has all paths below it, too; with keeps, what follows
// from then follows to.
func (a *analysis) opens(s *scope, from string, below bool, to string, keeps bool) (client, path string, found bool) {
	if a.rules == nil {
		return "", "", false
	}
	for _, asker := range a.peers(s) {
		if client, path, found = a.opensTo(s, &asker, from, below, to, keeps); found {
			return client, path, true
		}
	}
	return "", "", false
}

// opensTo is opens for the rules of one who judges requests to the same upstream.
func (a *analysis) opensTo(s *scope, asker *judge, from string, below bool, to string, keeps bool) (client, path string,
	found bool) {
	for i := asker.First; i < asker.End; i++ {
		r := &a.rules.all[i]
		if !r.protects() {
			continue
		}
		client, upstream := from, to
		switch {
		case r.Prefix != "" && (strings.HasPrefix(to, r.Prefix) || !keeps && to+"/" == r.Prefix):
			if below {
				client += "x"
			}
			if keeps {
				upstream += "x"
			}
		case !keeps && r.Path != "" && withSlash(to) == withSlash(r.Path):
		case keeps && strings.HasPrefix(r.text(), to):
			client, upstream = from+r.text()[len(to):], r.text()
			if r.Prefix != "" {
				client, upstream = client+"x", upstream+"x"
			}
		default:
			continue
		}
		if a.asksLess(s, client, asker, upstream) {
			return client, r.text(), true
		}
	}
	return "", "", false
}

// asksLess reports whether a judge of a scope asks less for a path than another judge for a path of the upstream.
func (a *analysis) asksLess(s *scope, client string, asker *judge, upstream string) bool {
	return slices.ContainsFunc(a.judgesOf(s), func(by judge) bool {
		return slices.ContainsFunc(a.rules.SampleMethods(), func(method string) bool {
			return a.need(&by, method, client).Weaker(a.need(asker, method, upstream))
		})
	})
}
