package policy

import (
	"slices"
)

// Need is a request's requirements by the rules.
type Need struct {
	// Rule is the index of the rule that covers the request, -1 for none.
	Rule int
	// Refused means that the rules refuse every such request.
	Refused     bool
	Credential  bool
	Permissions []string
}

// Need returns the requirements of a request whose method and path have a single reading, on a host without a virtual
// host.
func (c *Config) Need(method, path string) Need {
	return c.NeedOf(c.HostRules(NoVirtualHost), method, path)
}

// NeedOf is Need for a host with the rules h.
func (c *Config) NeedOf(h HostRules, method, path string) Need {
	for i := h.First; i < h.End; i++ {
		if c.Rules[i].Match.matches(method, path) {
			return c.NeedOfRule(i)
		}
	}
	return Need{Rule: -1, Refused: h.DenyByDefault}
}

// NeedOfRule returns the requirements of a rule, by the rule's index.
func (c *Config) NeedOfRule(index int) Need {
	r := &c.Rules[index]
	n := Need{Rule: index, Credential: r.enforcesAuth()}
	if r.Auth != nil && !r.Auth.Trial {
		n.Permissions = r.Auth.Permissions
	}
	return n
}

// Weaker reports whether n passes a request that other may refuse.
func (n Need) Weaker(other Need) bool {
	return !n.Refused && (other.Refused || other.Credential && !n.Credential ||
		slices.ContainsFunc(other.Permissions, func(p string) bool { return !slices.Contains(n.Permissions, p) }))
}
