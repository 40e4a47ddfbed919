package envoyconfig

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/policy"
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
		a.add(k, p.listenerName(), p.fieldPath(path), format, args...)
	}
	switch policy := p.config.text("failure_policy"); {
	case p.native, policy == "FAIL_RELOAD": // a dynamic module answers 503 itself; the field doesn't exist
	case policy == "FAIL_OPEN", p.config.number("failure_policy", 0) == 3: // protobuf's JSON also allows the enum's number
		add(&failOpen, "failure_policy",
			"is FAIL_OPEN: after a trap of the module every request goes upstream without a credential")
	default:
		if p.config.flag("fail_open") {
			add(&failOpen, "fail_open", "is true: after a trap of the module every request goes upstream without a credential")
		} else {
			add(&noReload, "failure_policy",
				"is not FAIL_RELOAD: after a trap of the module a worker answers 503 until Envoy is restarted")
		}
	}
	if p.httpFilter().flag("disabled") {
		a.add(&filterOff, p.listenerName(), fmt.Sprintf("http_filters[%d].disabled", p.index),
			"is true: no request is judged but on routes that switch the filter on")
	}
}

// fieldPath returns the path of a field of the plugin's configuration.
func (p *plugin) fieldPath(field string) string {
	if name := p.httpFilter().text("name"); name != "" {
		return "filter " + name + ": " + field
	}
	return field
}

// httpFilter returns the plugin's entry in http_filters, nil if absent.
func (p *plugin) httpFilter() object {
	if p.index < len(p.filters) {
		return p.filters[p.index]
	}
	return nil
}

// checkEdge checks a plugin with rules.
func (a *analysis) checkEdge(p *plugin) {
	for _, doubt := range p.rules.Doubts() {
		kind := map[policy.DoubtKind]*findings.Kind{policy.OpenMethods: &openMethod, policy.OpenPart: &openPart,
			policy.UnknownMethod: &unknownMethod, policy.NotEnforced: &notEnforced}[doubt.Kind]
		a.addInRules(kind, p, doubt.Field, "%s", doubt.Text)
	}
	for i, rule := range p.rules.Rules {
		p.auth = p.auth || needsCredential(&rule)
		if path := rule.Match.Path + rule.Match.Prefix; strings.ContainsAny(path, "*{}") {
			field := ".match.path"
			if rule.Match.Prefix != "" {
				field = ".match.prefix"
			}
			a.addInRules(&wildcard, p, p.rules.RuleField(i)+field,
				"%q: rules know no wildcards, so this one covers only requests that spell it so", path)
		}
	}
	if p.config.flag("allow_on_headers_stop_iteration") {
		a.add(&edgeBuffers, p.listenerName(), p.fieldPath("allow_on_headers_stop_iteration"),
			"is true at the edge: bodies of requests that wait for a verdict are buffered whole, and beyond the limit "+
				"answered 413")
	}
	a.checkSidecarCluster(p)
	if p.manager != nil {
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

// needsCredential reports whether a rule needs a credential.
func needsCredential(r *policy.Rule) bool { return r.Auth != nil || r.IssueSession }

func (a *analysis) checkSidecarCluster(p *plugin) {
	name := p.rules.SidecarCluster
	cluster, found := a.clusters[name]
	if !found {
		if name != "" && a.complete {
			names := object{}
			for known := range a.clusters {
				names[known] = true
			}
			a.addInRules(&noCluster, p, "sidecar.cluster", "%q is not a cluster of this file (has: %s)",
				name, strings.Join(names.keys(), ", "))
		}
		return
	}
	connections := 1024.0 // Envoy's default
	for _, t := range cluster.object("circuit_breakers").list("thresholds") {
		if priority := t.text("priority"); priority == "" || priority == "DEFAULT" {
			connections = t.number("max_connections", connections)
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
	add := func(k *findings.Kind, path, format string, args ...any) {
		a.add(k, p.listenerName(), path, format, args...)
	}
	m := p.manager
	if !m.flag("normalize_path") {
		add(&notNormalized, "normalize_path", "is not true: rules and upstream see paths in the client's spelling, so "+
			"cached answers are missed and paths with dots are refused")
	}
	if action := m.text("path_with_escaped_slashes_action"); !m.flag("merge_slashes") || action == "" ||
		action == "IMPLEMENTATION_SPECIFIC_DEFAULT" || action == "KEEP_UNCHANGED" {
		add(&manySpellings, "path_with_escaped_slashes_action",
			"merge_slashes is not true, or escaped slashes (%%2F, %%5C) are kept: a path has several spellings, of which all "+
				"but one are misses")
	}
	if action := m.object("common_http_protocol_options").text("headers_with_underscores_action"); action == "" ||
		action == "ALLOW" {
		add(&underscores, "common_http_protocol_options.headers_with_underscores_action",
			"is ALLOW: an upstream that takes '_' for '-' may read a client's header as another one than the edge judged")
	}
	if !m.flag("use_remote_address") && slices.ContainsFunc(p.allHostRules(), func(hr hostRules) bool {
		return hr.needsCredential() && hr.Source == policy.Source{}
	}) {
		add(&forgedSource, "use_remote_address", "is not true, and source is not set: a request's source is what the "+
			"client writes into x-forwarded-for, so wrong secrets are limited for whom it names")
	}
	a.checkExternalAddress(p)
	if timeout := m.text("stream_idle_timeout"); timeout == "0s" || timeout == "0" {
		add(&noIdleTimeout, "stream_idle_timeout", "is 0: a request that waits in a VM when that VM traps waits for ever")
	}
}

// checkFilterOrder checks the filters before and behind Gatehouse's.
func (a *analysis) checkFilterOrder(p *plugin) {
	states := []string{}
	for i, filter := range p.filters {
		kind, config := a.withDiscovered(filter).object("typed_config").typed()
		switch {
		case isType(kind, routerType) && i < p.index:
			a.add(&behindRouter, p.listenerName(), fmt.Sprintf("http_filters[%d]", p.index),
				"stands behind the router, which ends the chain: no request is judged")
		case isType(kind, stateType) && i < p.index:
			for _, state := range config.list("on_request_headers") {
				states = append(states, state.text("object_key"))
			}
		}
	}
	before := a.storedByFilters(p.manager, p.filters[:p.index])
	var sources []string
	for _, hr := range p.allHostRules() {
		source := hr.Source.FilterState
		if source == "" || slices.Contains(sources, source) {
			continue
		}
		sources = append(sources, source)
		if i := slices.IndexFunc(before, func(s storedValue) bool {
			return s.key == source && s.isClientChosen(p.manager)
		}); i >= 0 {
			a.add(&forgedSource, p.listenerName(), before[i].at,
				"stores what clients may choose: they can evade limits of wrong secrets, and have others limited")
		}
		if !slices.Contains(states, source) {
			a.addInRules(&noSource, p, "source.filter_state",
				"%q: no set_filter_state filter before this one writes it, so no request has a source", source)
		}
	}
	providers := a.jwtProviders(p)
	for _, provider := range providers {
		if one, other := providers[0].text("issuer"), provider.text("issuer"); one != other {
			a.addInRules(&otherIssuer, p, "session.metadata",
				"%q: jwt_authn writes there the claims of tokens of several issuers, %q and %q: each can name any device",
				p.rules.SessionMetadata, one, other)
			break
		}
	}
	if p.rules.SessionMetadata != "" && providers == nil {
		a.addInRules(&noJWT, p, "session.metadata",
			"%q: no jwt_authn filter before this one writes there, so no token counts", p.rules.SessionMetadata)
	} else if p.native && p.rules.SessionMetadata != "" {
		a.checkClaims(p, states, before)
	}
}

// checkClaims checks that filter state, from which a dynamic module reads claims, has claims of tokens and nothing
// else.
func (a *analysis) checkClaims(p *plugin, states []string, before []storedValue) {
	for _, claim := range []string{policy.SubjectClaim, policy.RecordClaim} {
		state := "gatehouse.claims." + p.rules.SessionMetadata + "." + claim
		if !slices.Contains(states, state) {
			a.addInRules(&noClaims, p, "session.metadata",
				"%q: no set_filter_state filter before this one writes %s, so no token counts", p.rules.SessionMetadata, state)
		}
		want := fmt.Sprintf("%%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:%s:%s)%%", p.rules.SessionMetadata, claim)
		if i := slices.IndexFunc(before, func(s storedValue) bool { return s.key == state && s.format != want }); i >= 0 {
			a.add(&noClaims, p.listenerName(), before[i].at,
				"writes %s, but not the claim of a token, %s: any client may be any device",
				state, want)
		}
	}
}

// checkPush checks the push listener.
func (a *analysis) checkPush(p *plugin) {
	add := func(k *findings.Kind, path, format string, args ...any) {
		a.add(k, p.listenerName(), path, format, args...)
	}
	if !p.native && !p.config.flag("allow_on_headers_stop_iteration") {
		add(&pushWaits, p.fieldPath("allow_on_headers_stop_iteration"),
			"is not true: each push waits for a body that never comes, so the edge gets nothing")
	}
	if p.listener == nil {
		return
	}
	addresses := []object{p.listener.object("address")}
	for _, more := range p.listener.list("additional_addresses") {
		addresses = append(addresses, more.object("address"))
	}
	for _, address := range addresses {
		if pipe := address.object("pipe"); pipe == nil {
			add(&openPush, "address", "is no unix socket: anyone who can reach it can write the cache and the verdicts")
		} else if pipe.number("mode", 0) != 0o600 {
			add(&pushMode, "address.pipe.mode",
				"is not 384 (0600): whoever may open the socket can write the cache and the verdicts")
		}
	}
	if limit := p.listener.number("per_connection_buffer_limit_bytes", defaultBuffer); limit < limits.MaxBatch {
		add(&smallPush, "per_connection_buffer_limit_bytes",
			"%g: a batch has up to %d bytes, and is answered 413 beyond the limit", limit, limits.MaxBatch)
	}
	if p.manager != nil {
		a.checkLocalReplies(p, []answer{{200, true, false}, {409, true, false}}) // the sidecar reads these bodies
	}
	if !p.listener.flag("ignore_global_conn_limit") || !p.listener.flag("bypass_overload_manager") {
		add(&pushLimited, "ignore_global_conn_limit",
			"limits of the edge count here, too: a flood at the edge delays revocations")
	}
}

// hasUnreadRules reports whether the rules of a plugin can't be read.
func (a *analysis) hasUnreadRules() bool {
	return slices.ContainsFunc(a.plugins, func(p *plugin) bool { return p.rules == nil })
}

// checkPluginPairs checks that the push plugin and the edge plugin fit each other.
func (a *analysis) checkPluginPairs() {
	if a.hasUnreadRules() {
		return // a plugin without readable rules may be an edge or a push listener
	}
	edges := slices.DeleteFunc(slices.Clone(a.plugins), func(p *plugin) bool { return p.rules.PushListener })
	pushes := slices.DeleteFunc(slices.Clone(a.plugins), func(p *plugin) bool { return !p.rules.PushListener })
	if len(edges) > 0 && len(pushes) == 0 && a.complete {
		a.add(&noPush, "", "", "has no push listener: the sidecar can't bring anything to the edge, so every request goes "+
			"upstream or is answered 503")
	}
	for _, push := range pushes {
		for _, edge := range edges {
			if push.native != edge.native {
				a.add(&otherVM, push.listenerName(), push.fieldPath("typed_config"),
					"is of another type than that of listener %s: what is pushed is in another memory than what the edge reads",
					edge.listenerName())
				break
			}
			if got, want := push.vm.text("vm_id"), edge.vm.text("vm_id"); got != want {
				a.add(&otherVM, push.listenerName(), push.fieldPath("vm_config.vm_id"),
					"%q, but listener %s has %q: what is pushed is in another shared memory than what the edge reads",
					got, edge.listenerName(), want)
				break
			}
			if push.native && !reflect.DeepEqual(push.moduleSource(), edge.moduleSource()) {
				a.add(&otherCode, push.listenerName(), push.fieldPath("dynamic_module_config.module"),
					"is another module than that of listener %s: what is pushed is in another memory than what the edge reads",
					edge.listenerName())
				break
			}
			if !reflect.DeepEqual(push.vm.field("code"), edge.vm.field("code")) {
				a.add(&otherCode, push.listenerName(), push.fieldPath("vm_config.code"),
					"is another module than that of listener %s: they may not agree on the layout of shared memory",
					edge.listenerName())
				break
			}
		}
	}
}
