package findings

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Domain is one by which a proxy finds a virtual host or server, in lower case, and the index of that.
type Domain struct {
	Text  string
	Owner int
}

// Route returns what a proxy finds for a host, -1 for nothing: by the host itself, then the longest end, the longest
// beginning, and "*".
func Route(domains []Domain, host string) int {
	const end = 1 << 16 // comes before beginnings
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

// SampleHosts returns hosts of which each set of hosts that these domains and those of the rules distinguish has one.
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
