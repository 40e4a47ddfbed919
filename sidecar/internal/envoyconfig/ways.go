package envoyconfig

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// routeLevel is a route, or a part of one, or what has routes.
type routeLevel struct {
	at string
	of object
}

// httpRoute is a route of a connection manager.
type httpRoute struct {
	at     string
	route  object
	match  object
	levels []routeLevel // the route configuration, the virtual host, the route, and its weighted clusters
	before []object     // routes of the same virtual host that come first
	host   int          // the index of the virtual host
	rules  hostRules    // of its requests, where the filter is
}

// listRoutes returns all routes of a connection manager that are known.
func (r *resources) listRoutes(manager object) (all []httpRoute) {
	configs, _ := r.routeConfigs(manager)
	for _, config := range configs {
		for h, host := range config.list("virtual_hosts") {
			at := "virtual host " + host.text("name")
			outer := []routeLevel{{"route_config", config}, {at, host}}
			routes := append(host.list("routes"), matcherRoutes(host.object("matcher"))...)
			for i, route := range routes {
				rt := httpRoute{at: fmt.Sprintf("%s: routes[%d]", at, i), route: route, match: route.object("match"),
					before: routes[:i], host: h}
				rt.levels = append(slices.Clone(outer), routeLevel{rt.at, route})
				for j, cluster := range route.object("route").object("weighted_clusters").list("clusters") {
					rt.levels = append(rt.levels, routeLevel{fmt.Sprintf("%s.route.weighted_clusters[%d]", rt.at, j), cluster})
				}
				all = append(all, rt)
			}
		}
	}
	return all
}

// matcherRoutes returns the routes that are actions of a virtual host's matcher.
func matcherRoutes(v any) (all []object) {
	switch v := v.(type) {
	case object:
		return matcherRoutes(map[string]any(v))
	case []any:
		for _, item := range v {
			all = append(all, matcherRoutes(item)...)
		}
	case map[string]any:
		o := object(v)
		if o.has("match") && (o.has("route") || o.has("direct_response") || o.has("redirect")) {
			return []object{o}
		}
		for _, key := range o.keys() {
			all = append(all, matcherRoutes(o[key])...)
		}
	}
	return all
}

// sendsUpstream reports whether requests of the route go to a cluster.
func (rt *httpRoute) sendsUpstream() bool { return rt.route.has("route") }

// routeTargets are where the requests of a route go, with mirrors also copies of them; chosen tells how clients choose that,
// "" if they don't.
func (rt *httpRoute) routeTargets(r *resources, mirrors bool) (all targets, chosen string) {
	action := rt.route.object("route")
	names := []string{action.text("cluster")}
	for _, cluster := range action.object("weighted_clusters").list("clusters") {
		names = append(names, cluster.text("name"))
		if cluster.has("cluster_header") {
			chosen = "by the header " + cluster.text("cluster_header")
		}
	}
	for _, l := range rt.levels {
		if !mirrors {
			break
		}
		for _, mirror := range slices.Concat(l.of.list("request_mirror_policies"),
			l.of.object("route").list("request_mirror_policies")) {
			names = append(names, mirror.text("cluster"))
			if mirror.has("cluster_header") {
				chosen = "by the header " + mirror.text("cluster_header")
			}
		}
	}
	if action.has("cluster_header") {
		chosen = "by the header " + action.text("cluster_header")
	}
	plugin := action.field("inline_cluster_specifier_plugin")
	if name := action.text("cluster_specifier_plugin"); name != "" {
		for _, p := range rt.levels[0].of.list("cluster_specifier_plugins") {
			if p.object("extension").text("name") == name {
				plugin = map[string]any(p)
			}
		}
		if plugin == nil {
			chosen = "by the plugin " + name
		}
	}
	if plugin != nil {
		if all = r.namedTargets(plugin); all == nil {
			chosen = "by a plugin"
		}
	}
	for _, name := range names {
		all = append(all, r.clusterTargets(name)...)
		if how := r.clusterClientChoice(name); how != "" && chosen == "" {
			chosen = how
		}
	}
	return all, chosen
}

// clearsIdentity reports whether no identity header of a client gets upstream by a route without the filter: the route removes
// them, and the connection manager other spellings.
func (rt *httpRoute) clearsIdentity(manager object) bool {
	switch manager.object("common_http_protocol_options").text("headers_with_underscores_action") {
	case "REJECT_REQUEST", "DROP_HEADER":
	default:
		return false
	}
	for _, name := range []string{policy.DeviceHeader, policy.PermissionsHeader} {
		found := slices.ContainsFunc(rt.levels[:3], func(l routeLevel) bool {
			list, _ := l.of.field("request_headers_to_remove").([]any)
			return slices.ContainsFunc(list, func(v any) bool { s, _ := v.(string); return strings.EqualFold(s, name) })
		})
		if !found {
			return false
		}
	}
	return true
}

// pathStart is what begins the paths that the route takes, "" if only an expression tells.
func (rt *httpRoute) pathStart() string {
	return rt.match.text("path") + rt.match.text("prefix") + rt.match.text("path_separated_prefix")
}

// matchesPath reports whether the route takes requests for a path; one whose condition isn't known does.
func (rt *httpRoute) matchesPath(path string) bool {
	return matchPath(rt.match, path) && !slices.ContainsFunc(rt.before, func(route object) bool {
		match := route.object("match")
		if match.has("path_match_policy") || match.has("headers") || match.has("query_parameters") ||
			match.has("runtime_fraction") || match.has("grpc") ||
			match.has("dynamic_metadata") || match.has("tls_context") || match.has("cookies") || match.has("filter_state") {
			return false
		}
		return matchPath(match, path)
	})
}

func matchPath(match object, path string) bool {
	if sensitive, found := match.field("case_sensitive").(bool); found && !sensitive {
		return matchPath(object{"path": lowerField(match, "path"), "prefix": lowerField(match, "prefix"),
			"path_separated_prefix": lowerField(match, "path_separated_prefix")}, strings.ToLower(path))
	}
	switch {
	case match.has("connect_matcher"):
		return false
	case match.text("path") != "":
		return path == match.text("path")
	case match.text("prefix") != "":
		return strings.HasPrefix(path, match.text("prefix"))
	case match.text("path_separated_prefix") != "":
		rest, found := strings.CutPrefix(path, match.text("path_separated_prefix"))
		return found && (rest == "" || rest[0] == '/')
	case match.has("safe_regex"):
		expression, err := regexp.Compile(`^(?:` + match.object("safe_regex").text("regex") + `)$`)
		return err != nil || expression.MatchString(path)
	}
	return true
}

func lowerField(match object, name string) any {
	if !match.has(name) {
		return nil
	}
	return strings.ToLower(match.text(name))
}

var groupReference = regexp.MustCompile(`\\(\d)`)

// upstreamPath returns the path that the upstream gets for a client's; false if that isn't known.
func (rt *httpRoute) upstreamPath(path string) (string, bool) {
	action := rt.route.object("route")
	switch to := action.text("prefix_rewrite"); {
	case action.has("path_rewrite_policy"), action.has("path_rewrite"):
		return path, false
	case to != "":
		from := rt.match.text("prefix") + rt.match.text("path_separated_prefix")
		if from == "" || len(path) < len(from) { // the whole path
			return to, true
		}
		return to + path[len(from):], true
	case action.has("regex_rewrite"):
		rewrite := action.object("regex_rewrite")
		expression, err := regexp.Compile(rewrite.object("pattern").text("regex"))
		if err != nil {
			return path, false
		}
		return expression.ReplaceAllString(path,
			groupReference.ReplaceAllString(strings.ReplaceAll(rewrite.text("substitution"), "$", "$$"), "$${$1}")), true
	}
	return path, true
}

// rewritesPath reports whether the upstream gets another path than the client's.
func (rt *httpRoute) rewritesPath() bool {
	action := rt.route.object("route")
	return action.text("prefix_rewrite") != "" || action.has("regex_rewrite") || action.has("path_rewrite_policy") ||
		action.has("path_rewrite")
}

// clientPaths returns paths of clients that the route may make path upstream, and path itself.
func (rt *httpRoute) clientPaths(path string) (all []string) {
	if !rt.rewritesPath() {
		return []string{path}
	}
	heads := []string{"", "/", rt.match.text("prefix"), rt.match.text("path_separated_prefix"), rt.match.text("path")}
	rewrite := rt.route.object("route").object("regex_rewrite")
	for _, text := range []string{rt.match.object("safe_regex").text("regex"), rewrite.object("pattern").text("regex")} {
		if expression, err := regexp.Compile(strings.TrimPrefix(text, "^")); err == nil && text != "" {
			head, _ := expression.LiteralPrefix()
			heads = append(heads, head, head+"x/", strings.TrimSuffix(head, "/"))
		}
	}
	for _, head := range slices.Compact(heads) {
		for i := range len(path) + 1 {
			all = append(all, head+path[i:], path[:i]+head+path[i:])
		}
		if to := rewrite.text("substitution"); to != "" {
			all = append(all, strings.Replace(path, to, head, 1))
		}
	}
	return slices.DeleteFunc(append(all, path), func(p string) bool { return !strings.HasPrefix(p, "/") })
}

// routeSamples are samples of the paths that a route takes, where a rule refuses some requests.
func (j *hostRules) routeSamples(rt *httpRoute) []string {
	from := rt.pathStart()
	return slices.DeleteFunc([]string{from, from + "x", from + "/x"}, func(path string) bool {
		return !rt.matchesPath(path) || !slices.ContainsFunc(j.rules.SampleMethods(), func(method string) bool {
			need := j.needOf(method, path)
			return need.Rule >= 0 && (policy.Need{}).Weaker(need)
		})
	})
}

// protectedSamples are samples of paths of which the rules refuse some requests, also of those that a route rewrites to.
func (j *hostRules) protectedSamples(rt *httpRoute) (paths []string) {
	action := rt.route.object("route")
	to, _, _ := strings.Cut(action.text("prefix_rewrite")+action.object("regex_rewrite").text("substitution"), `\`)
	candidates := []string{"/", to, to + "x"}
	for _, r := range j.ownRules() {
		candidates = append(candidates, r.Match.Samples()...)
	}
	for _, path := range candidates {
		if _, found := j.findRefusingRule(path); found {
			paths = append(paths, path)
		}
	}
	return paths
}

// findRefusingRule reports whether the rules refuse some requests for a path, and returns a rule that does, -1 if only the default
// does.
func (j *hostRules) findRefusingRule(path string) (rule int, found bool) {
	rule = -1
	for _, method := range j.rules.SampleMethods() {
		if need := j.needOf(method, path); (policy.Need{}).Weaker(need) {
			if found = true; rule < 0 {
				rule = need.Rule
			}
		}
	}
	return rule, found
}

// findCarriedPath returns one of these paths that the upstream may get by the route; false if there is none.
func (rt *httpRoute) findCarriedPath(paths []string) (path string, found bool) {
	for _, path := range paths {
		for _, client := range rt.clientPaths(path) {
			if to, known := rt.upstreamPath(client); (to == path || !known) && rt.matchesPath(client) {
				return path, true
			}
		}
	}
	return "", false
}

// openedPath is a path of clients that the upstream gets as one for which the rules ask more.
type openedPath struct {
	method, client, upstream string
	rule                     int // that is evaded, -1 for the default
}

// findOpenedPath returns a path that clients get to by the rewriting of a route without what its rule asks.
func (rt *httpRoute) findOpenedPath() (o openedPath, found bool) {
	j := &rt.rules
	for _, client := range j.openableClientPaths(rt) {
		to, known := rt.upstreamPath(client)
		if !known || !rt.matchesPath(client) || !strings.HasPrefix(client, "/") {
			continue
		}
		for _, method := range j.rules.SampleMethods() {
			if asked := j.needOf(method, to); j.needOf(method, client).Weaker(asked) {
				return openedPath{method, client, to, asked.Rule}, true
			}
		}
	}
	return openedPath{}, false
}

// openableClientPaths are paths of clients that a route may open: those that become protected samples, the route's own, and those
// of each rule, since what a rule covers may become longer than any sample.
func (j *hostRules) openableClientPaths(rt *httpRoute) (all []string) {
	for _, path := range j.protectedSamples(rt) {
		all = append(all, slices.DeleteFunc(rt.clientPaths(path), func(client string) bool {
			to, _ := rt.upstreamPath(client)
			return to != path
		})...)
	}
	all = append(all, rt.pathStart(), rt.pathStart()+"x")
	for _, r := range j.ownRules() {
		all = append(all, r.Match.Samples()...)
	}
	return all
}

// isUnclearRewrite reports whether it can't be told if rewriting opens a path, for example of an expression with several groups.
func (rt *httpRoute) isUnclearRewrite() bool {
	if !rt.rewritesPath() || rt.route.object("route").text("prefix_rewrite") != "" {
		return false
	}
	rewrite := rt.route.object("route").object("regex_rewrite")
	if _, known := rt.upstreamPath("/"); !known {
		return true
	}
	head, _, whole := strings.Cut(rewrite.text("substitution"), `\`)
	if anchored := strings.HasPrefix(rewrite.object("pattern").text("regex"), "^"); !anchored || head == "" {
		return true
	}
	return slices.ContainsFunc(rt.rules.protectedSamples(rt), func(path string) bool {
		return strings.HasPrefix(path, head) || strings.HasPrefix(head, path) && whole
	})
}

// ruleName names the rule that asks something of a request, or the default.
func (j *hostRules) ruleName(rule int) string {
	if rule < 0 {
		if j.host != policy.NoVirtualHost {
			return j.displayName() + ".default: deny"
		}
		return "default: deny"
	}
	return j.rules.RuleField(rule)
}
