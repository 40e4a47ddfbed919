package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/samples"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// RuleChecks are the checks of the rules of one proxy's edge.
type RuleChecks struct {
	Report *findings.Report
	Proxy  findings.Proxy
	Place  findings.Place
	Source *findings.Rules
}

func (rc *RuleChecks) add(idea *Idea, field, format string, args ...any) {
	rc.Report.AddInRules(&idea[rc.Proxy], rc.Place, rc.Source, field, format, args...)
}

// ReportErrors reports the mistakes of rules that the edge refuses.
func (rc *RuleChecks) ReportErrors(err error) {
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSuffix(line, "\n")
		if field, message, found := strings.Cut(line, ": "); found && rc.Source.Tree != nil && !strings.Contains(field, " ") {
			rc.add(&BadRules, field, "%s", message)
		} else {
			rc.Report.Add(&BadRules[rc.Proxy], rc.Place, "%s", line)
		}
	}
}

// Check reports valid settings of rules, and of the defaults, that are probably mistakes.
func (rc *RuleChecks) Check(c *policy.Config) {
	for i := range c.Rules {
		field, path := ".match.path", c.Rules[i].Match.Path
		if path == "" {
			field, path = ".match.prefix", c.Rules[i].Match.Prefix
		}
		if strings.ContainsAny(path, "*{}") {
			rc.add(&Wildcard, c.RuleField(i)+field,
				"%q: rules know no wildcards, so this one covers only requests that spell it so"+policy.FixMark+
					"make it prefix: %s", path, path[:strings.LastIndexByte(path[:strings.IndexAny(path, "*{}")], '/')+1])
		}
	}
	for _, hr := range AllHostRules(c) {
		if hr.WouldDenyByDefault {
			rc.add(&NotEnforced, hr.defaultField(), "would_deny passes requests that no rule matches")
		}
	}
	opened := map[int][]int{} // by rule with auth: the rules that take its writes
	for i := range c.Rules {
		if j := ruleOpenedBy(c, i); j > 0 {
			opened[j] = append(opened[j], i)
		}
	}
	for i := range c.Rules {
		field, r := c.RuleField(i), &c.Rules[i]
		unknown := slices.DeleteFunc(slices.Clone(r.Match.Methods), func(name string) bool {
			return slices.Contains(policy.Methods(), name)
		})
		if len(unknown) > 0 {
			rc.add(&UnknownMethod, fmt.Sprintf("%s.match.methods[%d]", field, slices.Index(r.Match.Methods, unknown[0])),
				"%s: is no registered method, so what clients send isn't covered", strings.Join(unknown, ", "))
		}
		if by := opened[i]; len(by) == 1 {
			rc.add(&OpenMethod, c.RuleField(by[0])+".match", "has no methods, so what is no GET goes upstream without a "+
				"credential, and never reaches %s, which asks for one", c.RuleTitle(i))
		} else if len(by) > 1 {
			rc.add(&OpenMethod, field+".match", "never gets what is no GET for the paths of %s, which have no methods: such "+
				"requests go upstream without a credential", c.RuleTitles(by))
		}
		if r.Auth != nil && r.Auth.Trial {
			rc.add(&NotEnforced, field+".auth.enforce", "is false, so requests pass without a credential")
		}
		if r.Cache != nil && r.Cache.Trial {
			rc.add(&NotEnforced, field+".cache.serve", "is false, so all requests go upstream")
		}
		rc.reportTakenMethods(c, i)
	}
}

// ruleOpenedBy returns the rule with auth whose writes go to rule i, which only caches; 0 for none.
func ruleOpenedBy(c *policy.Config, i int) int {
	if c.Rules[i].Cache == nil || c.Rules[i].Auth != nil || c.Rules[i].Match.Methods != nil {
		return 0
	}
	for j := i + 1; j < c.HostRules(c.VirtualHostOf(i)).End; j++ {
		if c.Rules[j].Auth != nil && withoutMethods(c, j).Covers(&c.Rules[i].Match) {
			return j
		}
	}
	return 0
}

// reportTakenMethods reports narrower rules after rule i that ask for more, and lose methods to rule i.
func (rc *RuleChecks) reportTakenMethods(c *policy.Config, i int) {
	var lost []int
	var methods []string
	for j := i + 1; j < c.HostRules(c.VirtualHostOf(i)).End; j++ {
		if taken := takenMethods(c, i, j); len(taken) > 0 {
			lost, methods = append(lost, j), append(methods, taken...)
		}
	}
	if lost == nil {
		return
	}
	verb := "ask for"
	if len(lost) == 1 {
		verb = "asks for"
	}
	slices.Sort(methods)
	rc.add(&OpenPart, c.RuleField(i)+".match", "takes %s from %s, below it, which %s more: such requests are not asked "+
		"for it", strings.Join(slices.Compact(methods), ", "), c.RuleTitles(lost), verb)
}

// takenMethods returns the methods of rule j's paths that the broader rule i takes, although rule j asks for more.
func takenMethods(c *policy.Config, i, j int) (methods []string) {
	broad, narrow := withoutMethods(c, i), withoutMethods(c, j)
	if !broad.Covers(narrow) || narrow.Covers(broad) || !c.NeedOfRule(i).Weaker(c.NeedOfRule(j)) {
		return nil
	}
	only := policy.HostRules{First: j, End: j + 1}
	for _, method := range c.Rules[i].Match.Methods { // without methods, rule j would be unreachable
		if method == "OPTIONS" { // browsers send a preflight without a credential
			continue
		}
		for _, path := range samples.PathsOf(narrow) {
			if c.NeedOf(only, method, path).Rule == j && c.NeedOf(c.HostRules(c.VirtualHostOf(i)), method, path).Rule == i {
				methods = append(methods, method)
				break
			}
		}
	}
	return methods
}

// withoutMethods returns a rule's match for all methods.
func withoutMethods(c *policy.Config, rule int) *policy.Match {
	m := &c.Rules[rule].Match
	return &policy.Match{Path: m.Path, Prefix: m.Prefix}
}
