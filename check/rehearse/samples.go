package rehearse

import (
	"github.com/gatehouse/gatehouse/check/samples"
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
	methods := samples.Methods(from, to)
	for _, host := range sampleHosts(from, to) {
		at := hosts{c.from.evaluate(&Request{"GET", host, "/"}).host, c.to.evaluate(&Request{"GET", host, "/"}).host}
		if done[at] { // same rules as for an earlier host
			continue
		}
		done[at] = true
		for _, s := range samples.Paths(rulesOf(from, at.from), rulesOf(to, at.to)) {
			for _, method := range methods {
				c.addSample(&Request{method, host, s.Path}, s.RulePath)
			}
		}
	}
	return c
}

func rulesOf(c *policy.Config, host int) []policy.Rule {
	h := c.HostRules(host)
	return c.Rules[h.First:h.End]
}

// sampleHosts returns hosts that the configurations distinguish; only "" if no host matters.
func sampleHosts(from, to *policy.Config) []string {
	if !from.DependsOnHost() && !to.DependsOnHost() {
		return []string{""}
	}
	return samples.Hosts(nil, from, to)
}
