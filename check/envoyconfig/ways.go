package envoyconfig

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// routeLevel is a level of a route's configuration: route configuration, virtual host, route or weighted cluster.
type routeLevel struct {
	at string
	of object
}

// httpRoute is a route of a connection manager.
type httpRoute struct {
	at        string
	route     object
	match     object
	levels    []routeLevel // from the route configuration down to the weighted clusters
	before    []object     // earlier routes of the same virtual host
	host      int          // index of Envoy's virtual host
	hostRules hostRules    // the rules that judge the requests, if the filter does
}

// listRoutes returns all known routes of a connection manager.
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

// sendsUpstream reports whether the route sends requests to a cluster.
func (rt *httpRoute) sendsUpstream() bool { return rt.route.has("route") }

// routeTargets returns the targets of a route's requests, with mirrors also those of mirrored requests. chosen
// describes how clients choose the target, "" if clients can't.
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

// clearsIdentity reports whether a route without the filter removes clients' identity headers: the route removes the
// headers, and the connection manager rejects spellings with underscores.
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

// pathStart returns the common start of the paths that the route takes, "" for a regular expression.
func (rt *httpRoute) pathStart() string {
	return rt.match.text("path") + rt.match.text("prefix") + rt.match.text("path_separated_prefix")
}

// matchesPath reports whether the route takes requests for a path. A route with an unknown condition counts as taking
// the request.
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

// upstreamPath returns the path that the upstream gets for a client's path; false if unknown.
func (rt *httpRoute) upstreamPath(path string) (string, bool) {
	action := rt.route.object("route")
	switch to := action.text("prefix_rewrite"); {
	case action.has("path_rewrite_policy"), action.has("path_rewrite"):
		return path, false
	case to != "":
		from := rt.match.text("prefix") + rt.match.text("path_separated_prefix")
		if from == "" || len(path) < len(from) { // the whole path is replaced
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

// clientPaths returns client paths that the route may rewrite to path, and path itself.
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

// routeSamples returns samples of the paths that a route takes and for which a rule refuses some requests.
func (hr *hostRules) routeSamples(rt *httpRoute) []string {
	from := rt.pathStart()
	return slices.DeleteFunc([]string{from, from + "x", from + "/x"}, func(path string) bool {
		return !rt.matchesPath(path) || !slices.ContainsFunc(hr.rules.SampleMethods(), func(method string) bool {
			need := hr.needOf(method, path)
			return need.Rule >= 0 && (policy.Need{}).Weaker(need)
		})
	})
}

// protectedSamples returns samples of paths for which the rules refuse some requests, also of paths that a route
// produces by rewriting.
func (hr *hostRules) protectedSamples(rt *httpRoute) (paths []string) {
	action := rt.route.object("route")
	to, _, _ := strings.Cut(action.text("prefix_rewrite")+action.object("regex_rewrite").text("substitution"), `\`)
	candidates := []string{"/", to, to + "x"}
	for _, r := range hr.ownRules() {
		candidates = append(candidates, r.Match.Samples()...)
	}
	for _, path := range candidates {
		if _, found := hr.findRefusingRule(path); found {
			paths = append(paths, path)
		}
	}
	return paths
}

// findRefusingRule reports whether the rules refuse some requests for a path, and returns the refusing rule, -1 for the
// default.
func (hr *hostRules) findRefusingRule(path string) (rule int, found bool) {
	rule = -1
	for _, method := range hr.rules.SampleMethods() {
		if need := hr.needOf(method, path); (policy.Need{}).Weaker(need) {
			if found = true; rule < 0 {
				rule = need.Rule
			}
		}
	}
	return rule, found
}

// findCarriedPath returns one of the paths that the upstream may get by the route; false for none.
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

// openedPath is a client path, rewritten by a route to an upstream path for which the rules ask more.
type openedPath struct {
	method, client, upstream string
	rule                     int // the evaded rule, -1 for the default
}

// findOpenedPath returns a client path whose rewriting evades the rule of the upstream path.
func (rt *httpRoute) findOpenedPath() (o openedPath, found bool) {
	hr := &rt.hostRules
	for _, client := range hr.openableClientPaths(rt) {
		to, known := rt.upstreamPath(client)
		if !known || !rt.matchesPath(client) || !strings.HasPrefix(client, "/") {
			continue
		}
		for _, method := range hr.rules.SampleMethods() {
			if asked := hr.needOf(method, to); hr.needOf(method, client).Weaker(asked) {
				return openedPath{method, client, to, asked.Rule}, true
			}
		}
	}
	return openedPath{}, false
}

// openableClientPaths returns client paths that a route may open: paths rewritten to protected samples, the route's
// own, and samples of each rule (rewriting may make a path longer than any sample).
func (hr *hostRules) openableClientPaths(rt *httpRoute) (all []string) {
	for _, path := range hr.protectedSamples(rt) {
		all = append(all, slices.DeleteFunc(rt.clientPaths(path), func(client string) bool {
			to, _ := rt.upstreamPath(client)
			return to != path
		})...)
	}
	all = append(all, rt.pathStart(), rt.pathStart()+"x")
	for _, r := range hr.ownRules() {
		all = append(all, r.Match.Samples()...)
	}
	return all
}

// isUnclearRewrite reports whether the analysis can't decide if rewriting opens a path, for example for an expression
// with several groups.
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
	return slices.ContainsFunc(rt.hostRules.protectedSamples(rt), func(path string) bool {
		return strings.HasPrefix(path, head) || strings.HasPrefix(head, path) && whole
	})
}

// ruleName names a refusing rule, or the default.
func (hr *hostRules) ruleName(rule int) string {
	if rule < 0 {
		if hr.host != policy.NoVirtualHost {
			return hr.displayName() + ".default: deny"
		}
		return "default: deny"
	}
	return hr.rules.RuleField(rule)
}
