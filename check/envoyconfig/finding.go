package envoyconfig

import (
	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/topology"
)

// add reports a finding in a listener, "" for none.
func (a *analysis) add(k *findings.Kind, listener, path, format string, args ...any) {
	at := findings.Place{Listener: listener, Path: path, Line: a.lines.findLine(listener, path)}
	a.report.Add(k, at, format, args...)
}

// addInRules reports a finding about a field of a plugin's rules.
func (a *analysis) addInRules(k *findings.Kind, p *plugin, field, format string, args ...any) {
	a.report.AddInRules(k, p.rulesPlace(), &p.source, field, format, args...)
}

// rulesPlace returns the place of the plugin's rules.
func (p *plugin) rulesPlace() findings.Place {
	at := findings.Place{Listener: p.ListenerName()}
	if p.Document != nil {
		at.File = p.Document.Name
	}
	return at
}

// ruleChecks returns the checks of a plugin's rules.
func (a *analysis) ruleChecks(p *plugin) *topology.RuleChecks {
	at := p.rulesPlace()
	if p.Raw == nil { // no field to name
		at.Path, at.Line = p.Field, a.lines.findLine(at.Listener, p.Field)
	}
	return &topology.RuleChecks{Report: &a.report, Proxy: findings.Envoy, Place: at, Source: &p.source}
}

// Kinds of findings. 01: file and rules. 02: plugin. 03: connection manager and filters of the edge. 04: push listener.
// 05: clusters. 06: routes.
var (
	misplaced = findings.ErrorKind("GH0103",
		"put the rules into vm_config.configuration, as a google.protobuf.Struct under value")
	noLabels = findings.WarningKind("GH0107", "add stats_config.stats_tags as envoy/envoy.yaml has it")

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
	behindRouter = findings.ErrorKind("GH0305", "move the filter before envoy.filters.http.router")
	noJWT        = findings.ErrorKind("GH0306",
		"put envoy.filters.http.jwt_authn before the filter, with the same name in payload_in_metadata")
	noIdleTimeout = findings.WarningKind("GH0307", "set stream_idle_timeout: 20s")
	noSource      = findings.ErrorKind("GH0308",
		"put envoy.filters.http.set_filter_state before the filter, with the same name as object_key")
	noClaims = findings.ErrorKind("GH0309",
		"put the filter gatehouse-claims before the filter as envoy/envoy-native.yaml has it")
	ownFilters  = findings.ErrorKind("GH0310", "remove filters from upgrade_configs, or put the filter among them")
	injects     = findings.ErrorKind("GH0313", "remove the header there")
	otherIssuer = findings.ErrorKind("GH0315", "give the claims of other issuers' tokens another payload_in_metadata")
	otherPort   = findings.ErrorKind("GH0316", "set ignore_port_in_host_matching: true")
	ownAddress  = findings.ErrorKind("GH0320",
		"remove internal_address_config, or set source: {filter_state: …}, see envoy/envoy.yaml")

	rewrites = findings.ErrorKind("GH0321",
		"exclude Gatehouse's answers by a first mapper: docs/requests.md, Local replies")
	losesEncodings = findings.WarningKind("GH0324", "put the compressor behind the filter")

	pushLimited = findings.WarningKind("GH0405",
		"set ignore_global_conn_limit: true and bypass_overload_manager: true on the push listener")

	noCluster = findings.ErrorKind("GH0501", "add the cluster, or correct sidecar.cluster")
	fewCalls  = findings.WarningKind("GH0502",
		"set circuit_breakers.thresholds: [{max_connections: 2048, max_pending_requests: 4096, max_requests: 4096}]")
	weakerEdge = findings.WarningKind("GH0504", "give both listeners the same rules, or let one listen on loopback")
	sharedKeys = findings.WarningKind("GH0607",
		"give the hosts of each upstream a virtual host of the rules, or cache with scope: host")
	unseenRoutes = findings.WarningKind("GH0609", "check the whole /config_dump of a running Envoy, which has them")
	noHost       = findings.WarningKind("GH0610", "correct the domains, or add them to Envoy")
	addsHeader   = findings.WarningKind("GH0612", "remove the header there; for upstream answers let the upstream send it")
)

// Kinds of findings that the other proxy has, too.
var (
	unreadable    = topology.Unreadable[findings.Envoy]
	noFilter      = topology.NoFilter[findings.Envoy]
	badRules      = topology.BadRules[findings.Envoy]
	openMethod    = topology.OpenMethod[findings.Envoy]
	wildcard      = topology.Wildcard[findings.Envoy]
	openPart      = topology.OpenPart[findings.Envoy]
	unknownMethod = topology.UnknownMethod[findings.Envoy]
	openAdmin     = topology.OpenAdmin[findings.Envoy]
	notEnforced   = topology.NotEnforced[findings.Envoy]
	forgedSource  = topology.ForgedSource[findings.Envoy]
	tunnel        = topology.Tunnel[findings.Envoy]
	otherCache    = topology.SharedCache[findings.Envoy]
	translated    = topology.Translated[findings.Envoy]
	changesAnswer = topology.ChangedAnswer[findings.Envoy]
	changesHeader = topology.ChangedHeader[findings.Envoy]
	noPush        = topology.NoPush[findings.Envoy]
	openPush      = topology.OpenPush[findings.Envoy]
	pushMode      = topology.OpenSocket[findings.Envoy]
	smallPush     = topology.SmallPush[findings.Envoy]
	unjudged      = topology.Unjudged[findings.Envoy]
	routeOff      = topology.SwitchedOff[findings.Envoy]
	rewriteIn     = topology.OpenRewrite[findings.Envoy]
	unclear       = topology.UnclearRewrite[findings.Envoy]
	toPrivate     = topology.ToPrivate[findings.Envoy]
	clientsChoose = topology.ClientsChoose[findings.Envoy]
	setsIdentity  = topology.SetsIdentity[findings.Envoy]
	sharedAnswers = topology.SharedAnswers[findings.Envoy]
	weakerHost    = topology.WeakerHost[findings.Envoy]
)

// Kinds returns the kinds of findings of this proxy only, by code.
func Kinds() []findings.Kind {
	return []findings.Kind{
		misplaced, noLabels, noFile, otherVM, failOpen, noReload, otherCode, pushWaits, edgeBuffers, filterOff,
		notCertain, matchedOnly, notNormalized, manySpellings, underscores, behindRouter, noJWT, noIdleTimeout,
		noSource, noClaims, ownFilters, injects, otherIssuer, otherPort, ownAddress, rewrites, losesEncodings,
		pushLimited, noCluster, fewCalls, weakerEdge, sharedKeys, unseenRoutes, noHost, addsHeader,
	}
}
