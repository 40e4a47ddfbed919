package policy

import (
	"slices"
	"strings"
)

// Need is what the rules ask of a request.
type Need struct {
	// Rule is the index of the rule that covers the request, -1 if none does.
	Rule int
	// Refused means that no request of this kind passes.
	Refused     bool
	Credential  bool
	Permissions []string
}

// Need returns what the rules ask of a request whose method and path have one reading, and whose host has no virtual
// host.
func (c *Config) Need(method, path string) Need {
	return c.NeedOf(c.HostRules(NoVirtualHost), method, path)
}

// NeedOf is Need for a host with these rules.
func (c *Config) NeedOf(h HostRules, method, path string) Need {
	for i := h.First; i < h.End; i++ {
		if c.Rules[i].Match.matches(method, path) {
			return c.NeedOfRule(i)
		}
	}
	return Need{Rule: -1, Refused: h.DenyByDefault}
}

// NeedOfRule returns what the rule of this index asks of the requests that it governs.
func (c *Config) NeedOfRule(index int) Need {
	r := &c.Rules[index]
	n := Need{Rule: index, Credential: r.enforcesAuth()}
	if r.Auth != nil && !r.Auth.Trial {
		n.Permissions = r.Auth.Permissions
	}
	return n
}

// Weaker reports whether n lets a request pass that other may refuse.
func (n Need) Weaker(other Need) bool {
	return !n.Refused && (other.Refused || other.Credential && !n.Credential ||
		slices.ContainsFunc(other.Permissions, func(p string) bool { return !slices.Contains(n.Permissions, p) }))
}

// Samples returns paths that the match covers.
func (m *Match) Samples() []string {
	if m.Prefix != "" {
		return []string{m.Prefix, strings.TrimSuffix(m.Prefix, "/") + "/x"}
	}
	return []string{m.Path}
}

// SampleMethods returns methods of which each rule that distinguishes some has one that it covers, and one that it
// doesn't.
func (c *Config) SampleMethods() []string {
	methods := []string{"GET", "POST", "PUT", "DELETE", "PATCH"}
	for i := range c.Rules {
		methods = append(methods, c.Rules[i].Match.Methods...)
	}
	slices.Sort(methods)
	return slices.Compact(methods)
}
