package topology

import (
	"reflect"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/samples"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// HostRules are the rules for a host's requests: those of a virtual host, or those of the top level.
type HostRules struct {
	Config *policy.Config // nil: nobody judges
	policy.HostRules
	Host    int      // index of the virtual host in the rules
	Methods []string // samples
	Example string   // a host in quotes, "" if the place of findings tells the host
}

// NewHostRules returns the rules of a virtual host by index.
func NewHostRules(c *policy.Config, host int) HostRules {
	return HostRules{c, c.HostRules(host), host, samples.Methods(c), ""}
}

// AllHostRules returns the rules of each host.
func AllHostRules(c *policy.Config) (all []HostRules) {
	for host := policy.NoVirtualHost; host < len(c.VirtualHosts); host++ {
		all = append(all, NewHostRules(c, host))
	}
	return all
}

// isSameSet reports whether both are from equal rules.
func (hr *HostRules) isSameSet(other *HostRules) bool {
	a, b := hr.Config, other.Config
	return a == b || a.HostRules(policy.NoVirtualHost) == b.HostRules(policy.NoVirtualHost) &&
		reflect.DeepEqual(a.Rules, b.Rules) && reflect.DeepEqual(a.VirtualHosts, b.VirtualHosts)
}

// Own returns the host's rules.
func (hr *HostRules) Own() []policy.Rule { return hr.Config.Rules[hr.First:hr.End] }

// NeedsCredential reports whether some rule needs a credential.
func (hr *HostRules) NeedsCredential() bool {
	return slices.ContainsFunc(hr.Own(), func(r policy.Rule) bool { return r.NeedsCredential() })
}

// NeedOf returns the requirements of a request.
func (hr *HostRules) NeedOf(method, path string) policy.Need {
	return hr.Config.NeedOf(hr.HostRules, method, path)
}

// DisplayName names the rules for messages.
func (hr *HostRules) DisplayName() string {
	if hr.Host == policy.NoVirtualHost {
		return "the top level of the rules"
	}
	return "virtual_hosts." + hr.Config.VirtualHosts[hr.Host].Name
}

// describeNeed says which rule makes a requirement, and which.
func (hr *HostRules) describeNeed(n *policy.Need) string {
	switch {
	case n.Refused:
		return hr.RuleName(n.Rule) + " refuses it"
	case n.Rule < 0:
		return "no rule matches, so it passes"
	case len(n.Permissions) > 0:
		return hr.RuleName(n.Rule) + " wants " + strings.Join(n.Permissions, ", ")
	case n.Credential:
		return hr.RuleName(n.Rule) + " wants a credential"
	}
	return hr.RuleName(n.Rule) + " wants no credential"
}

// RuleName names a refusing rule, -1 for the default.
func (hr *HostRules) RuleName(rule int) string {
	if rule < 0 {
		return hr.defaultField() + ": deny"
	}
	return hr.Config.RuleField(rule)
}

func (hr *HostRules) defaultField() string {
	if hr.Host == policy.NoVirtualHost {
		return "default"
	}
	return hr.DisplayName() + ".default"
}

// FindRefusingRule reports whether the rules refuse some requests for a path, or would if enforced, and returns the
// rule, -1 for the default.
func (hr *HostRules) FindRefusingRule(path string) (rule int, found bool) {
	rule = -1
	for _, method := range hr.Methods {
		need := hr.NeedOf(method, path)
		if (policy.Need{}).Weaker(need) || need.Rule >= 0 && hr.Config.Rules[need.Rule].NeedsCredential() {
			if found = true; rule < 0 {
				rule = need.Rule
			}
		}
	}
	return rule, found
}
