// Package samples has requests that distinguish rules: each request whose path has one reading has a sample with the
// same outcome.
package samples

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Methods returns all methods in rules, the usual methods, and an unknown method.
func Methods(configs ...*policy.Config) []string {
	methods := []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"}
	for _, c := range configs {
		for i := range c.Rules {
			for _, method := range c.Rules[i].Match.Methods {
				if !slices.Contains(methods, method) {
					methods = append(methods, method)
				}
			}
		}
	}
	unknown := "PROPFIND"
	for slices.Contains(methods, unknown) {
		unknown += "X"
	}
	return append(methods, unknown)
}

// Path is a path, and the path of the sampled rule.
type Path struct{ Path, RulePath string }

// Paths returns each rule's path, without and with a slash at the end, and "/"; and for each path a longer path
// with which no other rule's path begins.
func Paths(rules ...[]policy.Rule) (all []Path) {
	texts := []Path{{"/", "/"}}
	for _, some := range rules {
		for i := range some {
			text := some[i].Match.Path + some[i].Match.Prefix
			bare := strings.TrimRight(text, "/")
			for _, path := range []string{text, bare, bare + "/"} {
				if path != "" && !slices.ContainsFunc(texts, func(t Path) bool { return t.Path == path }) {
					texts = append(texts, Path{path, text})
				}
			}
		}
	}
	for _, t := range texts {
		all = append(all, t, Path{t.Path + freeCharacter(t.Path, texts), t.RulePath})
	}
	return all
}

// PathsOf returns sample paths that a match covers.
func PathsOf(m *policy.Match) []string {
	if m.Prefix != "" {
		return []string{m.Prefix, strings.TrimSuffix(m.Prefix, "/") + "/x"}
	}
	return []string{m.Path}
}

// freeCharacter returns a character that follows text in none of the texts.
func freeCharacter(text string, texts []Path) string {
	for c := range strings.SplitSeq(pathCharacters, "") {
		if !slices.ContainsFunc(texts, func(other Path) bool { return strings.HasPrefix(other.Path, text+c) }) {
			return c
		}
	}
	return "" // every character is taken: such rules are adversarial, and the sample repeats text
}

// pathCharacters are the characters of paths with one reading, the plainest first.
const pathCharacters = "xyzabcdefghijklmnopqrstuvw0123456789-_ABCDEFGHIJKLMNOPQRSTUVWXYZ~!$&'()*+,=:@"

// Domain is a domain, in lower case, of a proxy's virtual host or server; Owner is the index of the virtual host or
// server.
type Domain struct {
	Text  string
	Owner int
}

// FindOwner returns the owner of a host, -1 for none, in the order of proxies: the host itself, the longest suffix, the
// longest prefix, "*".
func FindOwner(domains []Domain, host string) int {
	const end = 1 << 16 // suffixes rank before prefixes
	found, best := -1, -1
	for _, d := range domains {
		fixed, rank := strings.Trim(d.Text, "*"), -1
		switch {
		case d.Text == host:
			return d.Owner
		case d.Text == "*":
			rank = 0
		case len(host) <= len(fixed): // a "*" is for at least one byte
		case strings.HasPrefix(d.Text, "*") && strings.HasSuffix(host, fixed):
			rank = end + len(fixed)
		case strings.HasSuffix(d.Text, "*") && strings.HasPrefix(host, fixed):
			rank = len(fixed)
		}
		if rank > best {
			found, best = d.Owner, rank
		}
	}
	return found
}

// Hosts returns one example host for every combination of domains, of the proxy and of the rules, that can match, and a
// host of no domain but "*".
func Hosts(domains []Domain, rules ...*policy.Config) (hosts []string) {
	texts := []string{"*"}
	for _, d := range domains {
		texts = append(texts, d.Text)
	}
	for _, c := range rules {
		for i := range c.VirtualHosts {
			texts = append(texts, c.VirtualHosts[i].Domains...)
		}
	}
	label := "www"
	for slices.ContainsFunc(texts, func(text string) bool { return strings.HasPrefix(text+".", label+".") }) {
		label += "w"
	}
	for _, text := range texts {
		hosts = append(hosts, strings.Replace(text, "*", label, 1))
		if beginning, found := strings.CutSuffix(text, "*"); found && beginning != "" {
			for _, other := range texts {
				if end, found := strings.CutPrefix(other, "*"); found {
					hosts = append(hosts, beginning+strings.TrimPrefix(end, "."), beginning+label+end)
				}
			}
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
