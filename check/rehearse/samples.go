package rehearse

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Compare compares two configurations by samples of the requests that the configurations distinguish. Each request
// whose path has one reading (see package policy) has a sample with the same outcome, in both configurations: no opened
// path stays unseen.
func Compare(from, to *policy.Config) []Change { return compareSamples(from, to).Changes() }

func compareSamples(from, to *policy.Config) *Comparison {
	c := NewComparison(from, to)
	type hosts struct{ from, to int }
	done := map[hosts]bool{}
	methods := sampleMethods(from, to)
	for _, host := range sampleHosts(from, to) {
		at := hosts{c.from.evaluate(&Request{"GET", host, "/"}).host, c.to.evaluate(&Request{"GET", host, "/"}).host}
		if done[at] { // same rules as for an earlier host
			continue
		}
		done[at] = true
		for _, s := range samplePaths(rulesOf(from, at.from), rulesOf(to, at.to)) {
			for _, method := range methods {
				c.addSample(&Request{method, host, s.path}, s.rulePath)
			}
		}
	}
	return c
}

func rulesOf(c *policy.Config, host int) []policy.Rule {
	h := c.HostRules(host)
	return c.Rules[h.First:h.End]
}

// sampleMethods returns all methods in rules, the usual methods, and an unknown method.
func sampleMethods(configs ...*policy.Config) []string {
	methods := []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"}
	for _, c := range configs {
		for _, method := range c.SampleMethods() {
			if !slices.Contains(methods, method) {
				methods = append(methods, method)
			}
		}
	}
	return append(methods, makeUnlike(methods, "PROPFIND", "X"))
}

// sampleHosts returns each domain (a domain with * gets one more label) and a host of no domain; only "" if no host
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

// sample is a path, and the path of the sampled rule.
type sample struct{ path, rulePath string }

// samplePaths returns each rule's path, without and with a slash at the end, and "/"; and for each path a longer path
// with which no other rule's path begins.
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
		samples = append(samples, t, sample{t.path + freeCharacter(t.path, texts), t.rulePath})
	}
	return samples
}

// freeCharacter returns a character that follows text in none of the texts.
func freeCharacter(text string, texts []sample) string {
	for c := range strings.SplitSeq(pathCharacters, "") {
		if !slices.ContainsFunc(texts, func(other sample) bool { return strings.HasPrefix(other.path, text+c) }) {
			return c
		}
	}
	return "" // every character is taken: such rules are adversarial, and the sample repeats text
}

// pathCharacters are the characters of paths with one reading, the plainest first.
const pathCharacters = "xyzabcdefghijklmnopqrstuvw0123456789-_ABCDEFGHIJKLMNOPQRSTUVWXYZ~!$&'()*+,=:@"

// makeUnlike appends more to text until the list doesn't have text.
func makeUnlike(list []string, text, more string) string {
	for slices.Contains(list, text) {
		text += more
	}
	return text
}
