package envoyconfig

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// routeLevel is a level of a route's configuration: route configuration, virtual host, route or weighted cluster.
type routeLevel struct {
	at     string
	config object
}

// httpRoute is a route of a connection manager.
type httpRoute struct {
	topology.Route
	at     string
	route  object
	match  object
	levels []routeLevel // from the route configuration down to the weighted clusters
	before []object     // earlier routes of the same virtual host
	host   int          // index of Envoy's virtual host
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
				rt.Paths = rt.readPaths()
				all = append(all, rt)
			}
		}
	}
	return all
}

// matcherRoutes returns the routes that are actions of a virtual host's matcher.
func matcherRoutes(matcher object) (all []object) {
	envoyrules.VisitObjects(map[string]any(matcher), func(o object) bool {
		isRoute := o.Has("match") && (o.Has("route") || o.Has("direct_response") || o.Has("redirect"))
		if isRoute {
			all = append(all, o)
		}
		return !isRoute
	})
	return all
}

// sendsUpstream reports whether the route sends requests to a cluster.
func (rt *httpRoute) sendsUpstream() bool { return rt.route.Has("route") }

// routeTargets returns the targets of a route's requests, with mirrors also those of mirrored requests. chosen
// describes how clients choose the target, "" if clients can't.
func (rt *httpRoute) routeTargets(r *resources, mirrors bool) (all topology.Targets, chosen string) {
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

// readPaths returns the paths that the route takes and makes.
func (rt httpRoute) readPaths() topology.Paths {
	action := rt.route.Object("route")
	rewrite := action.Object("regex_rewrite")
	p := topology.Paths{Start: rt.pathStart(), Takes: rt.matchesPath, Substitution: rewrite.Text("substitution")}
	p.Made, _, _ = strings.Cut(action.Text("prefix_rewrite")+p.Substitution, `\`)
	if rt.rewritesPath() {
		p.Rewrite, p.IsUnclear = rt.upstreamPath, rt.isUnclearRewrite
		for _, text := range []string{rt.match.Object("safe_regex").Text("regex"), rewrite.Object("pattern").Text("regex")} {
			if expression, err := regexp.Compile(strings.TrimPrefix(text, "^")); err == nil && text != "" {
				head, _ := expression.LiteralPrefix()
				p.Heads = append(p.Heads, head, head+"x/", strings.TrimSuffix(head, "/"))
			}
		}
	}
	p.UpstreamStart = rt.upstreamStart()
	rt.Paths = p // of the copy that the functions use
	return p
}

// upstreamStart returns the common start of all paths that the route sends upstream, "" if unknown.
func (rt *httpRoute) upstreamStart() string {
	from, action := rt.pathStart(), rt.route.Object("route")
	if from == "" {
		return action.Text("prefix_rewrite")
	}
	to, known := rt.upstreamPath(from)
	if !known || action.Has("regex_rewrite") {
		return ""
	}
	if rt.match.Text("path") == "" && !strings.HasPrefix(to, "/stats") {
		return to + "/"
	}
	return to
}

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

// isUnclearRewrite reports whether the analysis can't decide if rewriting opens a path, for example for an expression
// with several groups.
func (rt *httpRoute) isUnclearRewrite(hr *topology.HostRules) bool {
	if rt.route.Object("route").Text("prefix_rewrite") != "" {
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
	return slices.ContainsFunc(hr.ProtectedSamples(&rt.Paths), func(path string) bool {
		return strings.HasPrefix(path, head) || strings.HasPrefix(head, path) && whole
	})
}
