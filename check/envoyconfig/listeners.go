package envoyconfig

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

const (
	routerType = "envoy.extensions.filters.http.router.v3.Router"
	stateType  = "envoy.extensions.filters.http.set_filter_state.v3.Config"
	jwtType    = "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
	// defaultBuffer is Envoy's default limit of a connection's buffer, bytes.
	defaultBuffer = 1 << 20
	// verifyQueue is the default length of the sidecar's queue (--bcrypt.queue).
	verifyQueue = 1024
)

// checkPlugin checks the settings that edge plugins and push plugins have in common.
func (a *analysis) checkPlugin(p *plugin) {
	add := func(k *findings.Kind, path, format string, args ...any) {
		a.add(k, p.ListenerName(), p.fieldPath(path), format, args...)
	}
	switch policy := p.Config.Text("failure_policy"); {
	case p.Native, policy == "FAIL_RELOAD": // a dynamic module answers 503 itself; the field doesn't exist
	case policy == "FAIL_OPEN", p.Config.Number("failure_policy", 0) == 3: // protobuf's JSON also allows the enum's number
		add(&failOpen, "failure_policy",
			"is FAIL_OPEN: after a trap of the module every request goes upstream without a credential")
	default:
		if p.Config.Flag("fail_open") {
			add(&failOpen, "fail_open", "is true: after a trap of the module every request goes upstream without a credential")
		} else {
			add(&noReload, "failure_policy",
				"is not FAIL_RELOAD: after a trap of the module a worker answers 503 until Envoy is restarted")
		}
	}
	if p.httpFilter().Flag("disabled") {
		a.add(&filterOff, p.ListenerName(), fmt.Sprintf("http_filters[%d].disabled", p.Index),
			"is true: no request is judged but on routes that switch the filter on")
	}
}

// fieldPath returns the path of a field of the plugin's configuration.
func (p *plugin) fieldPath(field string) string {
	if name := p.httpFilter().Text("name"); name != "" {
		return "filter " + name + ": " + field
	}
	return field
}

// httpFilter returns the plugin's entry in http_filters, nil if absent.
func (p *plugin) httpFilter() object {
	if p.Index < len(p.Filters) {
		return p.Filters[p.Index]
	}
	return nil
}

// checkEdge checks a plugin with rules.
func (a *analysis) checkEdge(p *plugin) {
	a.ruleChecks(p).Check(p.Rules)
	p.auth = slices.ContainsFunc(p.Rules.Rules, func(r policy.Rule) bool { return r.NeedsCredential() })
	if p.Config.Flag("allow_on_headers_stop_iteration") {
		a.add(&edgeBuffers, p.ListenerName(), p.fieldPath("allow_on_headers_stop_iteration"),
			"is true at the edge: bodies of requests that wait for a verdict are buffered whole, and beyond the limit "+
				"answered 413")
	}
	a.checkSidecarCluster(p)
	if p.Manager != nil {
		a.checkManager(p)
		a.checkFilterOrder(p)
		a.checkFilterPosition(p)
		a.checkHeaders(p)
		a.checkRoutes(p)
		a.checkPrivateAnswers(p)
		a.checkResponses(p)
		a.checkSharedKeys(p)
		a.checkHosts(p)
	}
}

func (a *analysis) checkSidecarCluster(p *plugin) {
	name := p.Rules.SidecarCluster
	cluster, found := a.clusters[name]
	if !found {
		if name != "" && a.complete {
			names := object{}
			for known := range a.clusters {
				names[known] = true
			}
			a.addInRules(&noCluster, p, "sidecar.cluster", "%q is not a cluster of this file (has: %s)",
				name, strings.Join(names.Keys(), ", "))
		}
		return
	}
	connections := 1024.0 // Envoy's default
	for _, t := range cluster.Object("circuit_breakers").List("thresholds") {
		if priority := t.Text("priority"); priority == "" || priority == "DEFAULT" {
			connections = t.Number("max_connections", connections)
		}
	}
	if p.auth && connections <= verifyQueue {
		a.add(&fewCalls, "", "cluster "+name+": circuit_breakers",
			"%g connections: calls beyond them wait in Envoy, first come, first served, and not in the sidecar's fair queue "+
				"of %d", connections, verifyQueue)
	}
}

// checkManager checks the connection manager of an edge.
func (a *analysis) checkManager(p *plugin) {
	add := func(k *findings.Kind, path, message string) { a.add(k, p.ListenerName(), path, "%s", message) }
	m := p.Manager
	if !m.Flag("normalize_path") {
		add(&notNormalized, "normalize_path", "is not true: rules and upstream see paths in the client's spelling, so "+
			"cached answers are missed and paths with dots are refused")
	}
	if action := m.Text("path_with_escaped_slashes_action"); !m.Flag("merge_slashes") || action == "" ||
		action == "IMPLEMENTATION_SPECIFIC_DEFAULT" || action == "KEEP_UNCHANGED" {
		add(&manySpellings, "path_with_escaped_slashes_action",
			"merge_slashes is not true, or escaped slashes (%2F, %5C) are kept: a path has several spellings, of which all "+
				"but one are misses")
	}
	if action := m.Object("common_http_protocol_options").Text("headers_with_underscores_action"); action == "" ||
		action == "ALLOW" {
		add(&underscores, "common_http_protocol_options.headers_with_underscores_action",
			"is ALLOW: an upstream that takes '_' for '-' may read a client's header as another one than the edge judged")
	}
	unset := func(hr topology.HostRules) bool { return hr.NeedsCredential() && hr.Source == policy.Source{} }
	if !m.Flag("use_remote_address") && slices.ContainsFunc(topology.AllHostRules(p.Rules), unset) {
		add(&forgedSource, "use_remote_address", "is not true, and source is not set: a request's source is what the "+
			"client writes into x-forwarded-for, so wrong secrets are limited for whom it names")
	}
	a.checkExternalAddress(p)
	if timeout := m.Text("stream_idle_timeout"); timeout == "0s" || timeout == "0" {
		add(&noIdleTimeout, "stream_idle_timeout", "is 0: a request that waits in a VM when that VM traps waits for ever")
	}
}

// checkFilterOrder checks the filters before and behind Gatehouse's.
func (a *analysis) checkFilterOrder(p *plugin) {
	states := []string{}
	for i, filter := range p.Filters {
		kind, config := a.WithDiscovered(filter).Object("typed_config").Typed()
		switch {
		case envoyrules.IsType(kind, routerType) && i < p.Index:
			a.add(&behindRouter, p.ListenerName(), fmt.Sprintf("http_filters[%d]", p.Index),
				"stands behind the router, which ends the chain: no request is judged")
		case envoyrules.IsType(kind, stateType) && i < p.Index:
			for _, state := range config.List("on_request_headers") {
				states = append(states, state.Text("object_key"))
			}
		}
	}
	before := a.storedByFilters(p.Manager, p.Filters[:p.Index])
	var sources []string
	for _, hr := range topology.AllHostRules(p.Rules) {
		source := hr.Source.FilterState
		if source == "" || slices.Contains(sources, source) {
			continue
		}
		sources = append(sources, source)
		if i := slices.IndexFunc(before, func(s storedValue) bool {
			return s.key == source && s.isClientChosen(p.Manager)
		}); i >= 0 {
			a.add(&forgedSource, p.ListenerName(), before[i].at,
				"stores what clients may choose: "+topology.NoLimitsText)
		}
		if !slices.Contains(states, source) {
			a.addInRules(&noSource, p, "source.filter_state",
				"%q: no set_filter_state filter before this one writes it, so no request has a source", source)
		}
	}
	providers := a.jwtProviders(p)
	for _, provider := range providers {
		if one, other := providers[0].Text("issuer"), provider.Text("issuer"); one != other {
			a.addInRules(&otherIssuer, p, "session.metadata",
				"%q: jwt_authn writes there the claims of tokens of several issuers, %q and %q: each can name any device",
				p.Rules.SessionMetadata, one, other)
			break
		}
	}
	if p.Rules.SessionMetadata != "" && providers == nil {
		a.addInRules(&noJWT, p, "session.metadata",
			"%q: no jwt_authn filter before this one writes there, so no token counts", p.Rules.SessionMetadata)
	} else if p.Native && p.Rules.SessionMetadata != "" {
		a.checkClaims(p, states, before)
	}
}

// checkClaims checks that filter state, from which a dynamic module reads claims, has claims of tokens and nothing
// else.
func (a *analysis) checkClaims(p *plugin, states []string, before []storedValue) {
	for _, claim := range []string{policy.SubjectClaim, policy.RecordClaim} {
		state := "gatehouse.claims." + p.Rules.SessionMetadata + "." + claim
		if !slices.Contains(states, state) {
			a.addInRules(&noClaims, p, "session.metadata",
				"%q: no set_filter_state filter before this one writes %s, so no token counts", p.Rules.SessionMetadata, state)
		}
		want := fmt.Sprintf("%%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:%s:%s)%%", p.Rules.SessionMetadata, claim)
		if i := slices.IndexFunc(before, func(s storedValue) bool { return s.key == state && s.format != want }); i >= 0 {
			a.add(&noClaims, p.ListenerName(), before[i].at,
				"writes %s, but not the claim of a token, %s: any client may be any device", state, want)
		}
	}
}

// checkPush checks the push listener.
func (a *analysis) checkPush(p *plugin) {
	add := func(k *findings.Kind, path, format string, args ...any) {
		a.add(k, p.ListenerName(), path, format, args...)
	}
	if !p.Native && !p.Config.Flag("allow_on_headers_stop_iteration") {
		add(&pushWaits, p.fieldPath("allow_on_headers_stop_iteration"),
			"is not true: each push waits for a body that never comes, so the edge gets nothing")
	}
	if p.Listener == nil {
		return
	}
	addresses := []object{p.Listener.Object("address")}
	for _, more := range p.Listener.List("additional_addresses") {
		addresses = append(addresses, more.Object("address"))
	}
	for _, address := range addresses {
		if pipe := address.Object("pipe"); pipe == nil {
			add(&openPush, "address", topology.OpenPushText)
		} else if mode := pipe.Number("mode", 0); mode != 0o600 && mode != 0o660 { // 0660: for the group of an agent
			add(&pushMode, "address.pipe.mode",
				"is not 384 (0600), or 432 (0660) for an agent: whoever may open the socket can write the cache and the verdicts")
		}
	}
	if limit := p.Listener.Number("per_connection_buffer_limit_bytes", defaultBuffer); limit < limits.MaxBatch {
		add(&smallPush, "per_connection_buffer_limit_bytes",
			"%g: a batch has up to %d bytes, and is answered 413 beyond the limit", limit, limits.MaxBatch)
	}
	if p.Manager != nil {
		replies := []answer{{200, true, false}, {409, true, false}} // the sidecar reads these bodies
		(&answerChecks{a, p, replies}).checkLocalReplies()
	}
	if !p.Listener.Flag("ignore_global_conn_limit") || !p.Listener.Flag("bypass_overload_manager") {
		add(&pushLimited, "ignore_global_conn_limit",
			"limits of the edge count here, too: a flood at the edge delays revocations")
	}
}

// hasUnreadRules reports whether the rules of a plugin can't be read.
func (a *analysis) hasUnreadRules() bool {
	return slices.ContainsFunc(a.plugins, func(p *plugin) bool { return p.Rules == nil })
}

// checkPluginPairs checks that the push plugin and the edge plugin fit each other.
func (a *analysis) checkPluginPairs() {
	if a.hasUnreadRules() {
		return // a plugin without readable rules may be an edge or a push listener
	}
	edges := slices.DeleteFunc(slices.Clone(a.plugins), func(p *plugin) bool { return p.Rules.PushListener })
	pushes := slices.DeleteFunc(slices.Clone(a.plugins), func(p *plugin) bool { return !p.Rules.PushListener })
	if len(edges) > 0 && len(pushes) == 0 && a.complete {
		a.add(&noPush, "", "", topology.NoPushText)
	}
	for _, push := range pushes {
		for _, edge := range edges {
			if push.Native != edge.Native {
				a.add(&otherVM, push.ListenerName(), push.fieldPath("typed_config"),
					"is of another type than that of listener %s: what is pushed is in another memory than what the edge reads",
					edge.ListenerName())
				break
			}
			if got, want := push.VM.Text("vm_id"), edge.VM.Text("vm_id"); got != want {
				a.add(&otherVM, push.ListenerName(), push.fieldPath("vm_config.vm_id"),
					"%q, but listener %s has %q: what is pushed is in another shared memory than what the edge reads",
					got, edge.ListenerName(), want)
				break
			}
			if push.Native && !reflect.DeepEqual(push.ModuleSource(), edge.ModuleSource()) {
				a.add(&otherCode, push.ListenerName(), push.fieldPath("dynamic_module_config.module"),
					"is another module than that of listener %s: what is pushed is in another memory than what the edge reads",
					edge.ListenerName())
				break
			}
			if !reflect.DeepEqual(push.VM.Field("code"), edge.VM.Field("code")) {
				a.add(&otherCode, push.ListenerName(), push.fieldPath("vm_config.code"),
					"is another module than that of listener %s: they may not agree on the layout of shared memory",
					edge.ListenerName())
				break
			}
		}
	}
}
