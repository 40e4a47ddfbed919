package topology

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// Idea is a kind of findings in both proxies' configurations, by [findings.Proxy]. The codes differ: lists of ignored
// codes name them. docs/analysis.md has one row for each idea.
type Idea [2]findings.Kind

// sameAdvice returns an idea whose severity and advice are the same for both proxies.
func sameAdvice(severity findings.Severity, envoy, nginx, fix string) Idea {
	return Idea{{Code: envoy, Severity: severity, Fix: fix}, {Code: nginx, Severity: severity, Fix: fix}}
}

// File and rules.
var (
	Unreadable = Idea{
		findings.ErrorKind("GH0101", "give one YAML or JSON document: a bootstrap file, a listener, or Envoy's /config_dump"),
		findings.ErrorKind("GH1101", "correct the file; on another machine than nginx's, check the output of nginx -T"),
	}
	NoFilter = Idea{
		findings.ErrorKind("GH0102", "add the filter as envoy/envoy.yaml has it"),
		findings.ErrorKind("GH1102",
			"add the parts of nginx/nginx.conf, and include server.conf in each server that Gatehouse protects"),
	}
	BadRules   = sameAdvice(findings.Error, "GH0104", "GH1109", "correct the field; docs/rules.md lists all fields")
	OpenMethod = sameAdvice(findings.Warning, "GH0105", "GH1110", "put the rule with auth above it; if anybody may read "+
		"these paths, add methods: [GET] to the rule that only caches")
	Wildcard = sameAdvice(findings.Error, "GH0106", "GH1114",
		"cut the path before the wildcard, and make it a prefix")
	OpenPart      = sameAdvice(findings.Error, "GH0108", "GH1111", "put the narrower rule above the broader one")
	UnknownMethod = sameAdvice(findings.Error, "GH0109", "GH1112", "correct the method: methods: [POST]")
	NotEnforced   = sameAdvice(findings.Warning, "GH0111", "GH1113",
		"enforce or serve it once it would do only what you want")
)

// Requests.
var (
	OpenAdmin = Idea{
		findings.ErrorKind("GH0110",
			"listen on loopback: admin: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}"),
		findings.WarningKind("GH1504", "listen on loopback: listen 127.0.0.1:9901"),
	}
	ForgedSource = Idea{
		findings.ErrorKind("GH0304", "set use_remote_address: true; behind another proxy set source, see docs/requests.md"),
		findings.WarningKind("GH1304", "name only the addresses of your proxies in set_real_ip_from"),
	}
	Tunnel = Idea{
		findings.ErrorKind("GH0311", "remove the route for CONNECT"),
		findings.WarningKind("GH1209", "pass on websocket only: map $http_upgrade $websocket { websocket websocket; } and "+
			"proxy_set_header Upgrade $websocket"),
	}
	Translated = Idea{
		findings.ErrorKind("GH0314", "put that filter before Gatehouse's, so that rules see what the upstream gets"),
		findings.ErrorKind("GH1208", "remove proxy_method or set_method, or give the rule the client's method, too"),
	}
	Unjudged = Idea{
		findings.ErrorKind("GH0503", "put the filter there with the same rules, or listen on loopback"),
		findings.ErrorKind("GH1203",
			"include server.conf in the server, or listen on loopback; for paths that need no credential, clear "+
				"X-Gatehouse-Device and X-Gatehouse-Permissions there with proxy_set_header, without underscores_in_headers on "+
				"and ignore_invalid_headers off"),
	}
	SwitchedOff = Idea{
		findings.ErrorKind("GH0601", "remove the typed_per_filter_config that disables the filter"),
		findings.ErrorKind("GH1201", "remove the access_by_lua, or call require(\"gatehouse.edge\").access() at its end"),
	}
	OpenRewrite = Idea{
		findings.ErrorKind("GH0602", "give the route's own path a rule with the same auth"),
		findings.ErrorKind("GH1205", "give the path that clients send a rule with the same auth"),
	}
	UnclearRewrite = Idea{
		findings.WarningKind("GH0603", "use prefix_rewrite, or an expression that begins with ^ and a fixed path"),
		findings.WarningKind("GH1211", "use a simpler expression, or several; check knows those of Go"),
	}
	ToPrivate = Idea{
		findings.ErrorKind("GH0604", "remove the route, or lead it to the upstream"),
		findings.ErrorKind("GH1206", "remove the location, or pass its requests to the service"),
	}
	ClientsChoose = Idea{
		findings.ErrorKind("GH0605", "name the cluster in the route or tcp_proxy"),
		findings.ErrorKind("GH1207", "name the upstream, or choose it by a map of constants"),
	}
	SetsIdentity = Idea{
		findings.ErrorKind("GH0606", "remove the header there: the filter sets it"),
		findings.ErrorKind("GH1301", "remove the line: the plugin sets this header"),
	}
	WeakerHost = sameAdvice(findings.Error, "GH0611", "GH1210", "give both hosts the same rule for this path, or the "+
		"host that asks less default: deny, or each host an upstream of its own")
)

// Answers.
var (
	SharedCache = Idea{
		findings.ErrorKind("GH0312", "remove the cache filter, or give it a listener without auth"),
		findings.ErrorKind("GH1401",
			"set proxy_cache_bypass $gatehouse_private and proxy_no_cache $gatehouse_private, or remove the cache"),
	}
	ChangedAnswer = Idea{
		findings.ErrorKind("GH0322", "switch the filter off for routes that Gatehouse answers; for a compressor, set "+
			"disable_on_etag_header: true and not weaken_etag_on_compress"),
		findings.ErrorKind("GH1404", "move it to a location without cached paths"),
	}
	ChangedHeader = Idea{
		findings.WarningKind("GH0323", "leave that header, or switch the filter off for routes that Gatehouse answers"),
		findings.WarningKind("GH1405",
			"let publisher and upstream send that header, or move the line to a location without cached paths"),
	}
	SharedAnswers = Idea{
		findings.WarningKind("GH0608", "add the lines of response_headers_to_add in envoy/envoy.yaml there; for a token's "+
			"header another one: {key: vary, value: NAME}"),
		findings.WarningKind("GH1402", "repeat the add_header lines of server.conf there"),
	}
)

// Push listener.
var (
	NoPush = Idea{
		findings.ErrorKind("GH0401", "add the listener gatehouse-push as envoy/envoy.yaml has it"),
		findings.ErrorKind("GH1501", "add the server with push.conf as nginx/nginx.conf has it"),
	}
	OpenPush = Idea{
		findings.ErrorKind("GH0402",
			"listen on a unix socket: address: {pipe: {path: /run/gatehouse/push.sock, mode: 384}}"),
		findings.ErrorKind("GH1502", "listen on a unix socket: listen unix:/run/gatehouse/push.sock"),
	}
	OpenSocket = Idea{
		findings.WarningKind("GH0403", "set mode: 384, which is 0600"),
		findings.ErrorKind("GH1505", "chmod 700 the directory, and give it to the user of nginx and the sidecar"),
	}
	SmallPush = Idea{
		findings.ErrorKind("GH0404", "set per_connection_buffer_limit_bytes: 4194304 on the push listener"),
		findings.ErrorKind("GH1503", "include push.conf, which sets client_max_body_size 4m"),
	}
)

// Messages of findings about a single setting.
const (
	NoPushText = "has no push listener: the sidecar can't bring anything to the edge, so every request goes upstream or " +
		"is answered 503"
	OpenPushText = "is no unix socket: anyone who can reach it can write the cache and the verdicts"
	SetsText     = "sets %s behind the filter: the upstream takes any client for that device"
	NoLimitsText = "they can evade limits of wrong secrets, and have others limited"
)

// IdentityHeader returns the identity header as which upstreams may read a name, "" for none.
func IdentityHeader(name string) string {
	name = NormalizeHeader(name)
	if name == policy.DeviceHeader || name == policy.PermissionsHeader {
		return name
	}
	return ""
}

// NormalizeHeader returns a header's name as upstreams may read it.
func NormalizeHeader(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// Ideas returns all ideas, by the code for Envoy.
func Ideas() []Idea {
	all := []Idea{
		Unreadable, NoFilter, BadRules, OpenMethod, Wildcard, OpenPart, UnknownMethod, NotEnforced, OpenAdmin,
		ForgedSource, Tunnel, Translated, Unjudged, SwitchedOff, OpenRewrite, UnclearRewrite, ToPrivate,
		ClientsChoose, SetsIdentity, WeakerHost, SharedCache, ChangedAnswer, ChangedHeader, SharedAnswers, NoPush,
		OpenPush, OpenSocket, SmallPush,
	}
	slices.SortFunc(all, func(a, b Idea) int { return strings.Compare(a[findings.Envoy].Code, b[findings.Envoy].Code) })
	return all
}
