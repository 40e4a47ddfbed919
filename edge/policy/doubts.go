package policy

import (
	"fmt"
	"slices"
	"strings"
)

// DoubtKind is a kind of doubts about rules.
type DoubtKind uint8

// The kinds.
const (
	// OpenMethods: a rule that only caches takes all methods of paths which a later rule protects.
	OpenMethods DoubtKind = iota
	// OpenPart: a rule takes some methods of a narrower rule with more requirements.
	OpenPart
	// UnknownMethod: a rule names a method that nobody sends.
	UnknownMethod
	// NotEnforced: a rule or a default is still on trial: requests pass.
	NotEnforced
)

// Doubt is a valid setting, but probably a mistake.
type Doubt struct {
	Kind  DoubtKind
	Field string
	Text  string
}

// Doubts returns the doubtful settings of the rules, in order, and of the defaults.
func (c *Config) Doubts() (doubts []Doubt) {
	for host := NoVirtualHost; host < len(c.VirtualHosts); host++ {
		field := "default"
		if host != NoVirtualHost {
			field = virtualHostField(c.VirtualHosts[host].Name) + ".default"
		}
		if c.HostRules(host).WouldDenyByDefault {
			doubts = append(doubts, Doubt{NotEnforced, field, "would_deny passes requests that no rule matches"})
		}
	}
	opened := map[int][]int{} // by rule with auth: the rules that take its writes
	for i := range c.Rules {
		if j := c.ruleOpenedBy(i); j > 0 {
			opened[j] = append(opened[j], i)
		}
	}
	for i := range c.Rules {
		field := c.RuleField(i) + ".match"
		methods := c.Rules[i].Match.Methods
		if unknown := slices.DeleteFunc(slices.Clone(methods), isRegisteredMethod); len(unknown) > 0 {
			doubts = append(doubts,
				Doubt{UnknownMethod, fmt.Sprintf("%s.methods[%d]", field, slices.Index(methods, unknown[0])),
					fmt.Sprintf("%s: is no registered method, so what clients send isn't covered", strings.Join(unknown, ", "))})
		}
		if by := opened[i]; len(by) == 1 {
			doubts = append(doubts,
				Doubt{OpenMethods, c.RuleField(by[0]) + ".match",
					fmt.Sprintf("has no methods, so what is no GET goes upstream without a credential, and never reaches %s, "+
						"which asks for one", c.RuleTitle(i))})
		} else if len(by) > 1 {
			doubts = append(doubts,
				Doubt{OpenMethods, field,
					fmt.Sprintf("never gets what is no GET for the paths of %s, which have no methods: such requests go upstream "+
						"without a credential", c.ruleTitles(by))})
		}
		if c.Rules[i].isAuthTrial() {
			doubts = append(doubts, Doubt{NotEnforced, c.RuleField(i) + ".auth.enforce",
				"is false, so requests pass without a credential"})
		}
		if r := &c.Rules[i]; r.Cache != nil && r.Cache.Trial {
			doubts = append(doubts, Doubt{NotEnforced, c.RuleField(i) + ".cache.serve",
				"is false, so all requests go upstream"})
		}
		if text := c.describeTakenMethods(i); text != "" {
			doubts = append(doubts, Doubt{OpenPart, field, text})
		}
	}
	return doubts
}

// ruleOpenedBy returns the rule with auth whose writes go to rule i, which only caches; 0 for none.
func (c *Config) ruleOpenedBy(i int) int {
	if c.Rules[i].Cache == nil || c.Rules[i].Auth != nil || c.Rules[i].Match.Methods != nil {
		return 0
	}
	for j := i + 1; j < c.HostRules(c.VirtualHostOf(i)).End; j++ {
		if c.Rules[j].Auth != nil && c.Rules[j].Match.withoutMethods().covers(&c.Rules[i].Match) {
			return j
		}
	}
	return 0
}

// describeTakenMethods describes the narrower rules after rule i that ask for more, and lose methods to rule i.
func (c *Config) describeTakenMethods(i int) string {
	var lost, methods []string
	for j := i + 1; j < c.HostRules(c.VirtualHostOf(i)).End; j++ {
		taken := c.takenMethods(i, j)
		if len(taken) > 0 {
			lost, methods = append(lost, c.RuleTitle(j)), append(methods, taken...)
		}
	}
	if lost == nil {
		return ""
	}
	slices.Sort(methods)
	return fmt.Sprintf("takes %s from %s, below it, which %s more: such requests are not asked for it",
		strings.Join(slices.Compact(methods), ", "), strings.Join(lost, ", "), verbFor(len(lost)))
}

func verbFor(n int) string {
	if n == 1 {
		return "asks for"
	}
	return "ask for"
}

// takenMethods returns the methods of rule j's paths that the broader rule i takes, although rule j asks for more.
func (c *Config) takenMethods(i, j int) (methods []string) {
	broad, narrow := &c.Rules[i], &c.Rules[j]
	if !broad.Match.withoutMethods().covers(narrow.Match.withoutMethods()) ||
		narrow.Match.withoutMethods().covers(broad.Match.withoutMethods()) ||
		!c.NeedOfRule(i).Weaker(c.NeedOfRule(j)) {
		return nil
	}
	for _, method := range c.SampleMethods() {
		if method == "OPTIONS" { // browsers send a preflight without a credential
			continue
		}
		for _, path := range narrow.Match.Samples() {
			if narrow.Match.matches(method, path) && c.NeedOf(c.HostRules(c.VirtualHostOf(i)), method, path).Rule == i {
				methods = append(methods, method)
				break
			}
		}
	}
	return methods
}

// withoutMethods is the match for all methods.
func (m *Match) withoutMethods() *Match { return &Match{Path: m.Path, Prefix: m.Prefix} }

// registeredMethods are the methods of IANA's registry, and further methods that proxies accept.
var registeredMethods = strings.Fields(`ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL
	LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PROPFIND
	PROPPATCH PURGE PUT QUERY REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF
	VERSION-CONTROL M-SEARCH MKCALL NOTIFY SOURCE SUBSCRIBE UNSUBSCRIBE`)

// Methods returns the methods that rules may name without a doubt, in the order of their names.
func Methods() []string { return slices.Sorted(slices.Values(registeredMethods)) }

func isRegisteredMethod(name string) bool { return slices.Contains(registeredMethods, name) }
