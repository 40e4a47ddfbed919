package nginxconfig

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/nginx"
)

// unknownRules stand for rules that can't be read: each path counts as one that needs a credential.
const unknownRules = `{"credentials": {"basic": true}, "rules": [{"match": {"prefix": "/"}, "auth": {}, "cache": {}}]}`

func hasCache(r *policy.Rule) bool { return r.Cache != nil }

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
	if c := checkRules(&a.report, findings.Place{File: file}, text, nginx.Parse); c != nil {
		a.rules = c
	}
}

// AnalyzeRules judges rules alone, rendered or not, of nginx or of Envoy.
func AnalyzeRules(text []byte) (report findings.Report) {
	checkRules(&report, findings.Place{}, text, func(text []byte) (*policy.Config, error) {
		c, err := nginx.Parse(text)
		if places, failed := rulesIn(text); err != nil && failed == nil {
			if c, failed = policy.Parse(places.Tree); failed == nil {
				return c, nil // a feature of Envoy's
			}
		}
		return c, err
	})
	report.Sort()
	return report
}

// checkRules adds the findings about rules to a report, and returns the rules; nil: the edge refuses the rules.
func checkRules(report *findings.Report, in findings.Place, text []byte, parse func([]byte) (*policy.Config, error),
) *policy.Config {
	places, err := rulesIn(text)
	if err != nil {
		report.AddSyntax(&badRules, in, err)
		return nil
	}
	checks := topology.RuleChecks{Report: report, Proxy: findings.Nginx, Place: in, Source: &places}
	c, err := parse(text)
	if err != nil {
		checks.ReportErrors(err)
		return nil
	}
	report.Rules = len(c.Rules)
	checks.Check(c)
	return c
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
	a, _ := newAnalysis(file, text)
	if len(a.reader.problems) > 0 {
		return nil, errors.New(a.reader.problems[0])
	}
	code, _, _ := a.reader.findCall(a.http, "init_by_lua", edgeModule, callInit)
	named := rulesFile.FindStringSubmatch(code)
	if named == nil {
		return nil, errors.New("its init_by_lua names no rules")
	}
	given, err := a.reader.readAbsolute(named[1])
	if err != nil {
		return nil, fmt.Errorf("rules %q: %w", named[1], err)
	}
	return nginx.Parse(given)
}

// mayGovern reports whether requests under a rule of this kind may get to the scope.
func (a *analysis) mayGovern(s *scope, kind func(*policy.Rule) bool) bool {
	return slices.ContainsFunc(a.rulesOf(s), func(r policy.Rule) bool { return kind(&r) && s.mayTake(&r.Match) })
}

// findOpenedPath looks for a rule that clients evade if the scope sends requests for the path from upstream as the path
// to; nil for none. below: the scope takes all paths below from, too. keeps: the text behind from follows to.
func (a *analysis) findOpenedPath(s *scope, from string, below bool, to string, keeps bool) *topology.OpenedPath {
	p := topology.Paths{Start: from, Made: to,
		Takes: func(path string) bool { return path == from || below && strings.HasPrefix(path, from) },
		Rewrite: func(path string) (string, bool) {
			if keeps {
				return to + strings.TrimPrefix(path, from), true
			}
			return to, true
		}}
	return a.findOpenedBy(s, &p)
}

// findOpenedBy is findOpenedPath for any paths.
func (a *analysis) findOpenedBy(s *scope, p *topology.Paths) *topology.OpenedPath {
	for _, by := range a.hostRulesOf(s) {
		for _, rules := range a.peerHostRules(s) {
			if o := p.FindOpenedPath(&by, &rules); o != nil {
				return o
			}
		}
	}
	return nil
}
