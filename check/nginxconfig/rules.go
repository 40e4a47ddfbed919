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

// rules are the rules that the edge reads.
type rules struct {
	*policy.Config
	all []rule
}

type rule struct {
	policy.Match
	of *policy.Rule
}

// needsCredential reports whether the rule needs a credential.
func (r *rule) needsCredential() bool { return r.of.Auth != nil || r.of.IssueSession }

func (r *rule) hasCache() bool { return r.of.Cache != nil }

func (r *rule) pathOrPrefix() string { return r.Path + r.Prefix }

// readRules reads the given rules, the content of file, or else the file that edge.init names. Without rules, each path
// counts as needing a credential.
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
	places, err := rulesIn(text)
	if err != nil {
		a.report.AddSyntax(&badRules, in, err)
		return
	}
	c, err := nginx.Parse(text)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			line = strings.TrimSuffix(line, "\n")
			if field, message, found := strings.Cut(line, ": "); found && places.Tree != nil && !strings.Contains(field, " ") {
				a.report.AddInRules(&badRules, in, &places, field, "%s", message)
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
			a.report.AddInRules(&wildcard, in, &places, c.RuleField(i)+field,
				"%q: rules know no wildcards, so this one covers only requests that spell it so", path)
		}
	}
	for _, doubt := range c.Doubts() {
		kind := map[policy.DoubtKind]*findings.Kind{policy.OpenMethods: &openMethod, policy.OpenPart: &openPart,
			policy.UnknownMethod: &unknownMethod, policy.NotEnforced: &notEnforced}[doubt.Kind]
		a.report.AddInRules(kind, in, &places, doubt.Field, "%s", doubt.Text)
	}
}

// rulesIn returns the rules in a text, rendered or not, with their lines.
func rulesIn(text []byte) (findings.Rules, error) {
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

// RulesOf returns the rules that an nginx.conf names. [Analyze] reads the same rules.
func RulesOf(file string, text []byte) (*policy.Config, error) {
	tree, reader := loadFiles(file, text)
	if len(reader.problems) > 0 {
		return nil, errors.New(reader.problems[0])
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
	code, _, _ := a.findCall(a.http, "init_by_lua", edgeModule, callInit)
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

// mayGovern reports whether requests under a rule of this kind may get to the scope.
func (a *analysis) mayGovern(s *scope, kind func(*rule) bool) bool {
	if a.rules == nil {
		return true
	}
	return slices.ContainsFunc(a.rulesOf(s), func(r rule) bool { return kind(&r) && s.mayTake(&r) })
}

// findOpenedPath looks for a rule that clients evade if the scope sends requests for the path from upstream as the path
// to. below: the scope takes all paths below from, too. keeps: the text behind from follows to. The result is the
// client's path and the rule's path.
func (a *analysis) findOpenedPath(s *scope, from string, below bool, to string, keeps bool) (
	client, path string, found bool) {
	if a.rules == nil {
		return "", "", false
	}
	for _, upstreamRules := range a.peerHostRules(s) {
		if client, path, found = a.findOpenedPathOf(s, &upstreamRules, from, below, to, keeps); found {
			return client, path, true
		}
	}
	return "", "", false
}

// findOpenedPathOf is findOpenedPath for the rules upstreamRules of one host of the same upstream.
func (a *analysis) findOpenedPathOf(s *scope, upstreamRules *hostRules, from string, below bool, to string,
	keeps bool) (client, path string, found bool) {
	for i := upstreamRules.First; i < upstreamRules.End; i++ {
		r := &a.rules.all[i]
		if !r.needsCredential() {
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
		case !keeps && r.Path != "" && addSlash(to) == addSlash(r.Path):
		case keeps && strings.HasPrefix(r.pathOrPrefix(), to):
			client, upstream = from+r.pathOrPrefix()[len(to):], r.pathOrPrefix()
			if r.Prefix != "" {
				client, upstream = client+"x", upstream+"x"
			}
		default:
			continue
		}
		if a.asksLess(s, client, upstreamRules, upstream) {
			return client, r.pathOrPrefix(), true
		}
	}
	return "", "", false
}

// asksLess reports whether the scope's rules ask less for the client's path than upstreamRules for the upstream's path.
func (a *analysis) asksLess(s *scope, client string, upstreamRules *hostRules, upstream string) bool {
	return slices.ContainsFunc(a.hostRulesOf(s), func(by hostRules) bool {
		return slices.ContainsFunc(a.rules.SampleMethods(), func(method string) bool {
			return a.needOf(&by, method, client).Weaker(a.needOf(upstreamRules, method, upstream))
		})
	})
}
