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
	at     string
	config object
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
		for h, host := range config.List("virtual_hosts") {
			at := "virtual host " + host.Text("name")
			outer := []routeLevel{{"route_config", config}, {at, host}}
			routes := append(host.List("routes"), matcherRoutes(host.Object("matcher"))...)
			for i, route := range routes {
				rt := httpRoute{at: fmt.Sprintf("%s: routes[%d]", at, i), route: route, match: route.Object("match"),
					before: routes[:i], host: h}
				rt.levels = append(slices.Clone(outer), routeLevel{rt.at, route})
				for j, cluster := range route.Object("route").Object("weighted_clusters").List("clusters") {
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
		if o.Has("match") && (o.Has("route") || o.Has("direct_response") || o.Has("redirect")) {
			return []object{o}
		}
		for _, key := range o.Keys() {
			all = append(all, matcherRoutes(o[key])...)
		}
	}
	return all
}

// sendsUpstream reports whether the route sends requests to a cluster.
func (rt *httpRoute) sendsUpstream() bool { return rt.route.Has("route") }

// routeTargets returns the targets of a route's requests, with mirrors also those of mirrored requests. chosen
// describes how clients choose the target, "" if clients can't.
func (rt *httpRoute) routeTargets(r *resources, mirrors bool) (all targets, chosen string) {
	action := rt.route.Object("route")
	names := []string{action.Text("cluster")}
	for _, cluster := range action.Object("weighted_clusters").List("clusters") {
		names = append(names, cluster.Text("name"))
		if cluster.Has("cluster_header") {
			chosen = "by the header " + cluster.Text("cluster_header")
		}
	}
	for _, l := range rt.levels {
		if !mirrors {
			break
		}
		for _, mirror := range slices.Concat(l.config.List("request_mirror_policies"),
			l.config.Object("route").List("request_mirror_policies")) {
			names = append(names, mirror.Text("cluster"))
			if mirror.Has("cluster_header") {
				chosen = "by the header " + mirror.Text("cluster_header")
			}
		}
	}
	if action.Has("cluster_header") {
		chosen = "by the header " + action.Text("cluster_header")
	}
	plugin := action.Field("inline_cluster_specifier_plugin")
	if name := action.Text("cluster_specifier_plugin"); name != "" {
		for _, p := range rt.levels[0].config.List("cluster_specifier_plugins") {
			if p.Object("extension").Text("name") == name {
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
	switch manager.Object("common_http_protocol_options").Text("headers_with_underscores_action") {
	case "REJECT_REQUEST", "DROP_HEADER":
	default:
		return false
	}
	for _, name := range []string{policy.DeviceHeader, policy.PermissionsHeader} {
		found := slices.ContainsFunc(rt.levels[:3], func(l routeLevel) bool {
			list, _ := l.config.Field("request_headers_to_remove").([]any)
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
	return rt.match.Text("path") + rt.match.Text("prefix") + rt.match.Text("path_separated_prefix")
}

// matchesPath reports whether the route takes requests for a path. A route with an unknown condition counts as taking
// the request.
func (rt *httpRoute) matchesPath(path string) bool {
	return matchPath(rt.match, path) && !slices.ContainsFunc(rt.before, func(route object) bool {
		match := route.Object("match")
		if match.Has("path_match_policy") || match.Has("headers") || match.Has("query_parameters") ||
			match.Has("runtime_fraction") || match.Has("grpc") ||
			match.Has("dynamic_metadata") || match.Has("tls_context") || match.Has("cookies") || match.Has("filter_state") {
			return false
		}
		return matchPath(match, path)
	})
}

func matchPath(match object, path string) bool {
	if sensitive, found := match.Field("case_sensitive").(bool); found && !sensitive {
		return matchPath(object{"path": lowerField(match, "path"), "prefix": lowerField(match, "prefix"),
			"path_separated_prefix": lowerField(match, "path_separated_prefix")}, strings.ToLower(path))
	}
	switch {
	case match.Has("connect_matcher"):
		return false
	case match.Text("path") != "":
		return path == match.Text("path")
	case match.Text("prefix") != "":
		return strings.HasPrefix(path, match.Text("prefix"))
	case match.Text("path_separated_prefix") != "":
		rest, found := strings.CutPrefix(path, match.Text("path_separated_prefix"))
		return found && (rest == "" || rest[0] == '/')
	case match.Has("safe_regex"):
		expression, err := regexp.Compile(`^(?:` + match.Object("safe_regex").Text("regex") + `)$`)
		return err != nil || expression.MatchString(path)
	}
	return true
}

func lowerField(match object, name string) any {
	if !match.Has(name) {
		return nil
	}
	return strings.ToLower(match.Text(name))
}

var groupReference = regexp.MustCompile(`\\(\d)`)

// upstreamPath returns the path that the upstream gets for a client's path; false if unknown.
func (rt *httpRoute) upstreamPath(path string) (string, bool) {
	action := rt.route.Object("route")
	switch to := action.Text("prefix_rewrite"); {
	case action.Has("path_rewrite_policy"), action.Has("path_rewrite"):
		return path, false
	case to != "":
		from := rt.match.Text("prefix") + rt.match.Text("path_separated_prefix")
		if from == "" || len(path) < len(from) { // the whole path is replaced
			return to, true
		}
		return to + path[len(from):], true
	case action.Has("regex_rewrite"):
		rewrite := action.Object("regex_rewrite")
		expression, err := regexp.Compile(rewrite.Object("pattern").Text("regex"))
		if err != nil {
			return path, false
		}
		return expression.ReplaceAllString(path,
			groupReference.ReplaceAllString(strings.ReplaceAll(rewrite.Text("substitution"), "$", "$$"), "$${$1}")), true
	}
	return path, true
}

// rewritesPath reports whether the upstream gets another path than the client's.
func (rt *httpRoute) rewritesPath() bool {
	action := rt.route.Object("route")
	return action.Text("prefix_rewrite") != "" || action.Has("regex_rewrite") || action.Has("path_rewrite_policy") ||
		action.Has("path_rewrite")
}

// clientPaths returns client paths that the route may rewrite to path, and path itself.
func (rt *httpRoute) clientPaths(path string) (all []string) {
	if !rt.rewritesPath() {
		return []string{path}
	}
	heads := []string{"", "/", rt.match.Text("prefix"), rt.match.Text("path_separated_prefix"), rt.match.Text("path")}
	rewrite := rt.route.Object("route").Object("regex_rewrite")
	for _, text := range []string{rt.match.Object("safe_regex").Text("regex"), rewrite.Object("pattern").Text("regex")} {
		if expression, err := regexp.Compile(strings.TrimPrefix(text, "^")); err == nil && text != "" {
			head, _ := expression.LiteralPrefix()
			heads = append(heads, head, head+"x/", strings.TrimSuffix(head, "/"))
		}
	}
	for _, head := range slices.Compact(heads) {
		for i := range len(path) + 1 {
			all = append(all, head+path[i:], path[:i]+head+path[i:])
		}
		if to := rewrite.Text("substitution"); to != "" {
			all = append(all, strings.Replace(path, to, head, 1))
		}
	}
	return slices.DeleteFunc(append(all, path), func(p string) bool { return !strings.HasPrefix(p, "/") })
}

// routeSamples returns samples of the paths that a route takes and for which a rule refuses some requests.
func (hr *hostRules) routeSamples(rt *httpRoute) []string {
	from := rt.pathStart()
	return slices.DeleteFunc([]string{from, from + "x", from + "/x"}, func(path string) bool {
		return !rt.matchesPath(path) || !slices.ContainsFunc(hr.Rules.SampleMethods(), func(method string) bool {
			need := hr.needOf(method, path)
			return need.Rule >= 0 && (policy.Need{}).Weaker(need)
		})
	})
}

// protectedSamples returns samples of paths for which the rules refuse some requests, also of paths that a route
// produces by rewriting.
func (hr *hostRules) protectedSamples(rt *httpRoute) (paths []string) {
	action := rt.route.Object("route")
	to, _, _ := strings.Cut(action.Text("prefix_rewrite")+action.Object("regex_rewrite").Text("substitution"), `\`)
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
	for _, method := range hr.Rules.SampleMethods() {
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
		for _, method := range hr.Rules.SampleMethods() {
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
	if !rt.rewritesPath() || rt.route.Object("route").Text("prefix_rewrite") != "" {
		return false
	}
	rewrite := rt.route.Object("route").Object("regex_rewrite")
	if _, known := rt.upstreamPath("/"); !known {
		return true
	}
	head, _, whole := strings.Cut(rewrite.Text("substitution"), `\`)
	if anchored := strings.HasPrefix(rewrite.Object("pattern").Text("regex"), "^"); !anchored || head == "" {
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
	return hr.Rules.RuleField(rule)
}
