package findings

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

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

// SampleHosts returns one example host for every combination of domains, of the proxy and of the rules, that can match.
func SampleHosts(domains []Domain, rules *policy.Config) (hosts []string) {
	const some = "gatehouse-check"
	texts := []string{"*"}
	for _, d := range domains {
		texts = append(texts, d.Text)
	}
	for _, host := range rules.VirtualHosts {
		texts = append(texts, host.Domains...)
	}
	for _, text := range texts {
		hosts = append(hosts, strings.Replace(text, "*", some, 1))
		if beginning, found := strings.CutSuffix(text, "*"); found && beginning != "" {
			for _, other := range texts {
				if end, found := strings.CutPrefix(other, "*"); found {
					hosts = append(hosts, beginning+strings.TrimPrefix(end, "."), beginning+some+end)
				}
			}
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
