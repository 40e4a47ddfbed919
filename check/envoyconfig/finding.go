package envoyconfig

import "github.com/gatehouse/gatehouse/check/findings"

// add reports a finding in a listener, "" for none.
func (a *analysis) add(k *findings.Kind, listener, path, format string, args ...any) {
	at := findings.Place{Listener: listener, Path: path, Line: a.findLine(listener, path)}
	a.report.Add(k, at, format, args...)
}

// addInRules reports a finding about a field of a plugin's rules.
func (a *analysis) addInRules(k *findings.Kind, p *plugin, field, format string, args ...any) {
	at := findings.Place{Listener: p.ListenerName()}
	if p.Document != nil {
		at.File = p.Document.Name
	}
	a.report.AddInRules(k, at, &p.source, field, format, args...)
}

// Kinds of findings. 01: file and rules. 02: plugin. 03: connection manager and filters of the edge. 04: push listener.
// 05: clusters. 06: routes.
var (
	unreadable = findings.ErrorKind("GH0101",
		"give one YAML or JSON document: a bootstrap file, a listener, or Envoy's /config_dump")
	noFilter  = findings.ErrorKind("GH0102", "add the filter as envoy/envoy.yaml has it")
	misplaced = findings.ErrorKind("GH0103",
		"put the rules into vm_config.configuration, as a google.protobuf.Struct under value")
	badRules   = findings.ErrorKind("GH0104", "correct the field; docs/rules.md lists all fields")
	openMethod = findings.WarningKind("GH0105", "put the rule with auth above it; if anybody may read these paths, add "+
		"methods: [GET] to the rule that only caches")
	wildcard = findings.ErrorKind("GH0106", "cut the path before the wildcard and make it a prefix: prefix: /v1/users/")
	noLabels = findings.WarningKind("GH0107", "add stats_config.stats_tags as envoy/envoy.yaml has it")

	openPart      = findings.ErrorKind("GH0108", "put the narrower rule above the broader one")
	unknownMethod = findings.ErrorKind("GH0109", "correct the method: methods: [POST]")
	openAdmin     = findings.ErrorKind("GH0110",
		"listen on loopback: admin: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}")

	notEnforced = findings.WarningKind("GH0111",
		"enforce or serve it once it would do only what you want")

	noFile = findings.ErrorKind("GH0112",
		"write the file, as gatehousectl envoy render does, or put it beside the configuration")

	otherVM       = findings.ErrorKind("GH0201", "give all of Gatehouse's plugins the same vm_id")
	failOpen      = findings.ErrorKind("GH0202", "set failure_policy: FAIL_RELOAD")
	noReload      = findings.WarningKind("GH0203", "set failure_policy: FAIL_RELOAD")
	otherCode     = findings.WarningKind("GH0204", "give the edge and the push listener the same code")
	pushWaits     = findings.ErrorKind("GH0205", "set allow_on_headers_stop_iteration: true in the push listener's plugin")
	edgeBuffers   = findings.WarningKind("GH0206", "remove allow_on_headers_stop_iteration from the edge's plugin")
	filterOff     = findings.ErrorKind("GH0207", "remove disabled: true from the filter")
	notCertain    = findings.ErrorKind("GH0208", "remove is_optional, or the default_config, from the filter")
	matchedOnly   = findings.ErrorKind("GH0209", "put the filter into http_filters itself")
	notNormalized = findings.ErrorKind("GH0301", "set normalize_path: true")
	manySpellings = findings.WarningKind("GH0302",
		"set merge_slashes: true and path_with_escaped_slashes_action: REJECT_REQUEST")
	underscores = findings.WarningKind("GH0303",
		"set common_http_protocol_options.headers_with_underscores_action: REJECT_REQUEST")
	forgedSource = findings.ErrorKind("GH0304",
		"set use_remote_address: true; behind another proxy set source, see docs/requests.md")
	behindRouter = findings.ErrorKind("GH0305", "move the filter before envoy.filters.http.router")
	noJWT        = findings.ErrorKind("GH0306",
		"put envoy.filters.http.jwt_authn before the filter, with the same name in payload_in_metadata")
	noIdleTimeout = findings.WarningKind("GH0307", "set stream_idle_timeout: 20s")
	noSource      = findings.ErrorKind("GH0308",
		"put envoy.filters.http.set_filter_state before the filter, with the same name as object_key")
	noClaims = findings.ErrorKind("GH0309",
		"put the filter gatehouse-claims before the filter as envoy/envoy-native.yaml has it")
	ownFilters = findings.ErrorKind("GH0310", "remove filters from upgrade_configs, or put the filter among them")
	tunnel     = findings.ErrorKind("GH0311", "remove the route for CONNECT")
	otherCache = findings.ErrorKind("GH0312", "remove the cache filter, or give it a listener without auth")
	injects    = findings.ErrorKind("GH0313", "remove the header there")
	translated = findings.ErrorKind("GH0314",
		"put that filter before Gatehouse's, so that rules see what the upstream gets")
	otherIssuer = findings.ErrorKind("GH0315", "give the claims of other issuers' tokens another payload_in_metadata")
	otherPort   = findings.ErrorKind("GH0316", "set ignore_port_in_host_matching: true")
	ownAddress  = findings.ErrorKind("GH0320",
		"remove internal_address_config, or set source: {filter_state: …}, see envoy/envoy.yaml")

	rewrites = findings.ErrorKind("GH0321",
		"exclude Gatehouse's answers by a first mapper: docs/requests.md, Local replies")
	changesAnswer = findings.ErrorKind("GH0322", "switch the filter off for routes that Gatehouse answers; for a "+
		"compressor, set disable_on_etag_header: true and not weaken_etag_on_compress")
	changesHeader = findings.WarningKind("GH0323",
		"leave that header, or switch the filter off for routes that Gatehouse answers")
	losesEncodings = findings.WarningKind("GH0324", "put the compressor behind the filter")

	noPush   = findings.ErrorKind("GH0401", "add the listener gatehouse-push as envoy/envoy.yaml has it")
	openPush = findings.ErrorKind("GH0402", "listen on a unix socket: address: {pipe: {path: "+
		"/run/gatehouse/push.sock, mode: 384}}")
	pushMode    = findings.WarningKind("GH0403", "set mode: 384, which is 0600")
	smallPush   = findings.ErrorKind("GH0404", "set per_connection_buffer_limit_bytes: 4194304 on the push listener")
	pushLimited = findings.WarningKind("GH0405",
		"set ignore_global_conn_limit: true and bypass_overload_manager: true on the push listener")

	noCluster = findings.ErrorKind("GH0501", "add the cluster, or correct sidecar.cluster")
	fewCalls  = findings.WarningKind("GH0502",
		"set circuit_breakers.thresholds: [{max_connections: 2048, max_pending_requests: 4096, max_requests: 4096}]")
	unjudged   = findings.ErrorKind("GH0503", "put the filter there with the same rules, or listen on loopback")
	weakerEdge = findings.WarningKind("GH0504", "give both listeners the same rules, or let one listen on loopback")
	routeOff   = findings.ErrorKind("GH0601", "remove the typed_per_filter_config that disables the filter")
	rewriteIn  = findings.ErrorKind("GH0602", "give the route's own path a rule with the same auth")
	unclear    = findings.WarningKind("GH0603",
		"use prefix_rewrite, or an expression that begins with ^ and a fixed path")
	toPrivate     = findings.ErrorKind("GH0604", "remove the route, or lead it to the upstream")
	clientsChoose = findings.ErrorKind("GH0605", "name the cluster in the route or tcp_proxy")
	setsIdentity  = findings.ErrorKind("GH0606", "remove the header there: the filter sets it")
	sharedKeys    = findings.WarningKind("GH0607",
		"give the hosts of each upstream a virtual host of the rules, or cache with scope: host")
	sharedAnswers = findings.WarningKind("GH0608",
		"add the lines of response_headers_to_add in envoy/envoy.yaml there; for a token's header another one: {key: vary, "+
			"value: NAME}")
	unseenRoutes = findings.WarningKind("GH0609", "check the whole /config_dump of a running Envoy, which has them")
	noHost       = findings.WarningKind("GH0610", "correct the domains, or add them to Envoy")
	weakerHost   = findings.ErrorKind("GH0611", "give both hosts the same rules there, or the other default: deny, or "+
		"each an upstream")
	addsHeader = findings.WarningKind("GH0612", "remove the header there; for upstream answers let the upstream send it")
)

// Kinds returns all kinds of findings, by code.
func Kinds() []findings.Kind {
	return []findings.Kind{
		unreadable, noFilter, misplaced, badRules, openMethod, wildcard, noLabels, openPart, unknownMethod, openAdmin,
		notEnforced, noFile,
		otherVM, failOpen, noReload, otherCode, pushWaits, edgeBuffers, filterOff, notCertain, matchedOnly,
		notNormalized, manySpellings, underscores, forgedSource, behindRouter, noJWT, noIdleTimeout, noSource, noClaims,
		ownFilters, tunnel, otherCache, injects, translated, otherIssuer, otherPort, ownAddress,
		rewrites, changesAnswer, changesHeader, losesEncodings,
		noPush, openPush, pushMode, smallPush, pushLimited,
		noCluster, fewCalls, unjudged, weakerEdge,
		routeOff, rewriteIn, unclear, toPrivate, clientsChoose, setsIdentity, sharedKeys, sharedAnswers, unseenRoutes,
		noHost, weakerHost, addsHeader,
	}
}
