package rehearse

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Compare compares two configurations by samples of what both distinguish. For each request whose path has one reading
// (see package policy) there is a sample that both judge in the same way: so nothing becomes open unseen.
func Compare(from, to *policy.Config) []Change { return compare(from, to).Changes() }

func compare(from, to *policy.Config) *Comparison {
	c := NewComparison(from, to)
	type hosts struct{ from, to int }
	done := map[hosts]bool{}
	methods := sampleMethods(from, to)
	for _, host := range sampleHosts(from, to) {
		at := hosts{c.from.judge(&Request{"GET", host, "/"}).host, c.to.judge(&Request{"GET", host, "/"}).host}
		if done[at] { // the same rules judge it
			continue
		}
		done[at] = true
		for _, s := range samplePaths(rulesOf(from, at.from), rulesOf(to, at.to)) {
			for _, method := range methods {
				c.add(&Request{method, host, s.path}, s.of)
			}
		}
	}
	return c
}

func rulesOf(c *policy.Config, host int) []policy.Rule {
	h := c.HostRules(host)
	return c.Rules[h.First:h.End]
}

// sampleMethods returns all methods that a rule names, the usual ones, and another one.
func sampleMethods(configs ...*policy.Config) []string {
	methods := []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"}
	for _, c := range configs {
		for _, method := range c.SampleMethods() {
			if !slices.Contains(methods, method) {
				methods = append(methods, method)
			}
		}
	}
	return append(methods, unlike(methods, "PROPFIND", "X"))
}

// sampleHosts returns each domain, one label more for a domain with *, and a host of no domain; "" for none if no host
// matters.
func sampleHosts(configs ...*policy.Config) []string {
	var domains []string
	matters := false
	for _, c := range configs {
		matters = matters || c.DependsOnHost()
		for i := range c.VirtualHosts {
			domains = append(domains, c.VirtualHosts[i].Domains...)
		}
	}
	if !matters {
		return []string{""}
	}
	slices.Sort(domains)
	domains = slices.Compact(domains)
	var hosts []string
	for _, domain := range domains {
		if end, wild := strings.CutPrefix(domain, "*."); wild {
			domain = "www." + end
			for slices.Contains(domains, domain) {
				domain = "w" + domain
			}
		}
		if domain != "*" {
			hosts = append(hosts, domain)
		}
	}
	other := "other.example"
	for slices.ContainsFunc(domains, func(d string) bool {
		return d == other || len(d) > 1 && d[0] == '*' && strings.HasSuffix(other, d[1:])
	}) {
		other += "x"
	}
	return append(hosts, other)
}

// sample is a path, and the path of the rule that it is a sample of.
type sample struct{ path, of string }

// samplePaths returns each rule's path without and with a slash at its end, and for each of them and "/" a longer path
// that no other rule's path begins.
func samplePaths(rules ...[]policy.Rule) (samples []sample) {
	texts := []sample{{"/", "/"}}
	for _, some := range rules {
		for i := range some {
			text := some[i].Match.Path + some[i].Match.Prefix
			bare := strings.TrimRight(text, "/")
			for _, path := range []string{text, bare, bare + "/"} {
				if path != "" && !slices.ContainsFunc(texts, func(t sample) bool { return t.path == path }) {
					texts = append(texts, sample{path, text})
				}
			}
		}
	}
	for _, t := range texts {
		samples = append(samples, t, sample{t.path + next(t.path, texts), t.of})
	}
	return samples
}

// next returns a character that follows a text in none of the texts.
func next(text string, texts []sample) string {
	for c := range strings.SplitSeq(following, "") {
		if !slices.ContainsFunc(texts, func(other sample) bool { return strings.HasPrefix(other.path, text+c) }) {
			return c
		}
	}
	return "" // only rules made for it get here
}

// following are the characters of paths with one reading, the plainest first.
const following = "xyzabcdefghijklmnopqrstuvw0123456789-_ABCDEFGHIJKLMNOPQRSTUVWXYZ~!$&'()*+,=:@"

// unlike returns text, with more appended until it is none of the list.
func unlike(list []string, text, more string) string {
	for slices.Contains(list, text) {
		text += more
	}
	return text
}
