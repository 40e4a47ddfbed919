package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/samples"
)

// Route is a way of requests or connections through a server. A route whose requests different rules judge, by host, is
// in the model once for each.
type Route struct {
	Rules HostRules // zero: nobody judges
	Paths
	Targets Targets // of the requests
	// Mirrored has also the targets of mirrored requests.
	Mirrored Targets
	// Choice describes how clients choose the target, "" if clients can't.
	Choice string
	// ClearsIdentity reports whether the route removes clients' identity headers.
	ClearsIdentity func() bool
	// Restricted: the proxy admits only some addresses.
	Restricted bool
	// Reported: an own check of the reader reports that nobody judges here.
	Reported bool
	// Report reports a finding at the route's place.
	Report func(k *findings.Kind, format string, args ...any)
}

// Targets are the destinations of requests: names and addresses.
type Targets []string

// Intersects reports whether the targets have one in common.
func (t Targets) Intersects(other Targets) bool {
	return slices.ContainsFunc(t, func(name string) bool { return slices.Contains(other, name) })
}

// isJudged reports whether rules judge the route's requests.
func (rt *Route) isJudged() bool { return rt.Rules.Config != nil }

// Paths are the paths that a route takes and makes.
type Paths struct {
	// Start is the common start of the paths that the route takes, "" if unknown.
	Start string
	// Takes reports whether the route takes requests for a path; unknown conditions count as true. nil: connections.
	Takes func(path string) bool
	// Rewrite returns the path that the upstream gets for a client's path; false if unknown. nil: the client's.
	Rewrite func(path string) (to string, known bool)
	// Clients returns client paths that are rewritten to a path, if the reader knows them.
	Clients func(path string) []string
	// Heads are texts with which rewritten paths may begin, besides Start.
	Heads []string
	// Made is a text with which rewriting may begin the upstream's paths, "" for none. Substitution has the text's
	// groups.
	Made, Substitution string
	// IsUnclear reports whether the analysis can't decide if rewriting opens a path that the rules protect. nil: never.
	IsUnclear func(*HostRules) bool
	// UpstreamStart is the common start of the upstream's paths, "" if unknown. A start with a slash at its end stands
	// for the paths below.
	UpstreamStart string
}

// UpstreamPath returns the path that the upstream gets for a client's path; false if unknown.
func (p *Paths) UpstreamPath(path string) (to string, known bool) {
	if p.Rewrite == nil {
		return path, true
	}
	return p.Rewrite(path)
}

// IsKnown reports whether the paths that the upstream gets are known.
func (p *Paths) IsKnown() bool {
	_, known := p.UpstreamPath(p.Start)
	return known
}

// clientPaths returns client paths that the route may rewrite to path, and path itself.
func (p *Paths) clientPaths(path string) (all []string) {
	switch {
	case p.Rewrite == nil:
		return []string{path}
	case p.Clients != nil:
		return p.Clients(path)
	}
	for _, head := range slices.Compact(append([]string{"", "/", p.Start}, p.Heads...)) {
		for i := range len(path) + 1 {
			all = append(all, head+path[i:], path[:i]+head+path[i:])
		}
		if p.Substitution != "" {
			all = append(all, strings.Replace(path, p.Substitution, head, 1))
		}
	}
	return slices.DeleteFunc(append(all, path), func(p string) bool { return !strings.HasPrefix(p, "/") })
}

// FindCarriedPath returns one of the paths that the upstream may get by the route; false for none.
func (p *Paths) FindCarriedPath(paths []string) (path string, found bool) {
	for _, path := range paths {
		for _, client := range p.clientPaths(path) {
			if to, known := p.UpstreamPath(client); (to == path || !known) && p.Takes(client) {
				return path, true
			}
		}
	}
	return "", false
}

// samples returns samples of the paths that the route takes.
func (p *Paths) samples() []string {
	return slices.DeleteFunc([]string{p.Start, p.Start + "x", p.Start + "/x"}, func(path string) bool {
		return !p.Takes(path)
	})
}

// RouteSamples returns samples of the paths that a route takes and for which a rule refuses some requests, or would if
// enforced.
func (hr *HostRules) RouteSamples(p *Paths) []string {
	return slices.DeleteFunc(p.samples(), func(path string) bool {
		rule, _ := hr.FindRefusingRule(path)
		return rule < 0
	})
}

// ProtectedSamples returns samples of paths for which the rules refuse some requests, or would if enforced, also of
// paths that a route makes.
func (hr *HostRules) ProtectedSamples(p *Paths) []string {
	candidates := []string{"/", p.Made, p.Made + "x"}
	for _, r := range hr.Own() {
		candidates = append(candidates, samples.PathsOf(&r.Match)...)
	}
	return slices.DeleteFunc(candidates, func(path string) bool {
		_, found := hr.FindRefusingRule(path)
		return !found
	})
}

// ProtectedPaths returns the paths for which the upstream gets only requests that satisfy the rules: in the client's
// spelling and in the upstream's.
func (rt *Route) ProtectedPaths() (paths []string) {
	for _, path := range append(rt.Rules.ProtectedSamples(&rt.Paths), rt.Rules.RouteSamples(&rt.Paths)...) {
		if to, _ := rt.UpstreamPath(path); rt.Takes(path) {
			paths = append(paths, path, to)
		}
	}
	return paths
}

// Protected is a route with paths for which the upstream gets only requests that satisfy the rules.
type Protected struct {
	*Route
	Server  *Server
	Reached Targets  // targets, also through other servers
	paths   []string // the protected paths
}

// NewProtected returns a judged route with its protected paths.
func NewProtected(rt *Route) *Protected { return &Protected{Route: rt, paths: rt.ProtectedPaths()} }

// leadsTo reports whether requests for protected paths get from the route to an unjudged route of a server behind.
func (pr *Protected) leadsTo(behind *Route) bool {
	if _, found := behind.FindCarriedPath(pr.paths); found || slices.ContainsFunc(pr.paths, behind.Takes) {
		return true
	}
	return slices.ContainsFunc(behind.samples(), func(path string) bool {
		return slices.ContainsFunc(pr.clientPaths(path), func(client string) bool {
			to, known := pr.UpstreamPath(client)
			_, refuses := pr.Rules.FindRefusingRule(client)
			return refuses && (to == path || !known) && pr.Takes(client)
		})
	})
}

// evasionSamples returns the route's protected paths, and samples of the paths that the other route takes or makes.
func (pr *Protected) evasionSamples(other *Route) []string {
	paths := append(pr.Rules.ProtectedSamples(&other.Paths), pr.Rules.RouteSamples(&other.Paths)...)
	if other.isJudged() {
		for _, r := range other.Rules.Own() { // the other rules may ask less for a part of a protected prefix
			paths = append(paths, slices.DeleteFunc(samples.PathsOf(&r.Match), func(path string) bool {
				_, found := pr.Rules.FindRefusingRule(path)
				return !found
			})...)
		}
	}
	return append(slices.DeleteFunc(paths, func(path string) bool { return !pr.Takes(path) }), pr.paths...)
}

// Weaker is a request for which the rules of one route ask less than those of another route with the same upstream.
type Weaker struct{ Method, Path, less, more string }

// FindWeaker returns a request by the route for which the rules ask less than a protected route's; nil for none.
// offers: a rule with auth may offer devices what another host's default denies.
func (rt *Route) FindWeaker(pr *Protected, offers bool) *Weaker {
	own := slices.DeleteFunc(rt.samples(), func(path string) bool { return !pr.Takes(path) })
	for _, path := range append(pr.evasionSamples(rt), own...) {
		upstream, _ := pr.UpstreamPath(path)
		for _, client := range append(rt.clientPaths(path), rt.clientPaths(upstream)...) {
			if to, known := rt.UpstreamPath(client); !known || to != path && to != upstream || !rt.Takes(client) {
				continue
			}
			for _, method := range pr.Rules.Methods {
				need, asked := rt.Rules.NeedOf(method, client), pr.Rules.NeedOf(method, path)
				if need.Weaker(asked) && !(offers && asked.Rule < 0 && need.Credential) {
					return &Weaker{method, path, rt.Rules.describeNeed(&need), pr.Rules.describeNeed(&asked)}
				}
			}
		}
	}
	return nil
}

// OpenedPath is a client path, rewritten to an upstream path for which rules ask more.
type OpenedPath struct {
	method, client, upstream string
	rule                     string // the evaded rule
}

func (o *OpenedPath) String() string {
	return fmt.Sprintf("makes %s of %s behind the filter, and %s asks more of %s there", o.upstream, o.client, o.rule,
		o.method)
}

// FindOpenedPath returns a client path, judged by the rules by, whose rewriting evades the rules of the upstream's
// path; nil for none.
func (p *Paths) FindOpenedPath(by, rules *HostRules) *OpenedPath {
	for _, client := range p.openableClientPaths(rules) {
		to, known := p.UpstreamPath(client)
		if !known || !p.Takes(client) || !strings.HasPrefix(client, "/") {
			continue
		}
		for _, method := range rules.Methods {
			if asked := rules.NeedOf(method, to); by.NeedOf(method, client).Weaker(asked) {
				return &OpenedPath{method, client, to, rules.RuleName(asked.Rule)}
			}
		}
	}
	return nil
}

// openableClientPaths returns client paths that a route may open: paths rewritten to protected samples, the route's
// own, and samples of each rule (rewriting may make a path longer than any sample).
func (p *Paths) openableClientPaths(rules *HostRules) (all []string) {
	for _, path := range rules.ProtectedSamples(p) {
		all = append(all, slices.DeleteFunc(p.clientPaths(path), func(client string) bool {
			to, _ := p.UpstreamPath(client)
			return to != path
		})...)
	}
	all = append(all, p.Start, p.Start+"x")
	for _, r := range rules.Own() {
		all = append(all, samples.PathsOf(&r.Match)...)
	}
	return all
}
