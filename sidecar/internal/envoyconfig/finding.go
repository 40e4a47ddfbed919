package envoyconfig

import (
	"fmt"
	"slices"
	"strings"
)

// Severity is the severity of a finding.
type Severity string

// The severities.
const (
	// Error is a setting that Envoy refuses, or that breaks a guarantee of Gatehouse: don't deploy it.
	Error Severity = "error"
	// Warning is a setting that works but is probably unintended, or weaker than it could be.
	Warning Severity = "warning"
)

// Kind is one kind of finding. docs/analysis.md lists all of them.
type Kind struct {
	// Code is stable: "GH" and four digits, of which the first two are the part of the configuration.
	Code     string
	Severity Severity
	// Fix is what to change.
	Fix string
}

// Finding is one thing that is wrong at one place.
type Finding struct {
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	// Listener is the name of the listener that it is in, "" if it is in none.
	Listener string `json:"listener,omitempty"`
	// Path is that of the field within the listener or the plugin's rules, "" if there is none.
	Path string `json:"path,omitempty"`
	// Message describes the problem.
	Message string `json:"message"`
	Fix     string `json:"fix"`
}

// Place returns the place of the finding for messages: "listener edge: rules[0].match".
func (f *Finding) Place() string {
	var parts []string
	if f.Listener != "" {
		parts = append(parts, "listener "+f.Listener)
	}
	if f.Path != "" {
		parts = append(parts, f.Path)
	}
	return strings.Join(parts, ": ")
}

// Report is the result of an analysis, errors first, each in the order of the file.
type Report struct {
	// Rules is the number of Gatehouse's rules in all of the file's listeners.
	Rules    int       `json:"rules"`
	Findings []Finding `json:"findings"`
}

// Errors returns the number of findings that are errors.
func (r *Report) Errors() (n int) {
	for _, f := range r.Findings {
		if f.Severity == Error {
			n++
		}
	}
	return n
}

func (r *Report) add(k *Kind, listener, path, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{k.Code, k.Severity, listener, path, fmt.Sprintf(format, args...), k.Fix})
}

func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return strings.Compare(string(a.Severity), string(b.Severity)) })
}

// The kinds. 01: the file and the rules. 02: the plugin. 03: the connection manager and the filters of the edge.
// 04: the push listener. 05: clusters. 06: routes.
var (
	unreadable = Kind{"GH0101", Error, "give one YAML or JSON document: a bootstrap file, a listener, or Envoy's /config_dump"}
	noFilter   = Kind{"GH0102", Error, "add the filter as envoy/envoy.yaml has it"}
	misplaced  = Kind{"GH0103", Error, "put the rules into vm_config.configuration, as a google.protobuf.Struct under value"}
	badRules   = Kind{"GH0104", Error, "correct the field; wasm-filter/README.md lists all fields"}
	openMethod = Kind{"GH0105", Warning, "add methods: [GET] to the rule that only caches"}
	wildcard   = Kind{"GH0106", Error, "cut the path before the wildcard and make it a prefix: prefix: /v1/users/"}

	otherVM       = Kind{"GH0201", Error, "give all of Gatehouse's plugins the same vm_id"}
	failOpen      = Kind{"GH0202", Error, "set failure_policy: FAIL_RELOAD"}
	noReload      = Kind{"GH0203", Warning, "set failure_policy: FAIL_RELOAD"}
	otherCode     = Kind{"GH0204", Warning, "give the edge and the push listener the same code"}
	pushWaits     = Kind{"GH0205", Error, "set allow_on_headers_stop_iteration: true in the push listener's plugin"}
	edgeBuffers   = Kind{"GH0206", Warning, "remove allow_on_headers_stop_iteration from the edge's plugin"}
	filterOff     = Kind{"GH0207", Error, "remove disabled: true from the filter"}
	notNormalized = Kind{"GH0301", Error, "set normalize_path: true"}
	manySpellings = Kind{"GH0302", Warning, "set merge_slashes: true and path_with_escaped_slashes_action: REJECT_REQUEST"}
	underscores   = Kind{"GH0303", Warning, "set common_http_protocol_options.headers_with_underscores_action: REJECT_REQUEST"}
	forgedSource  = Kind{"GH0304", Error, "set use_remote_address: true; behind another proxy set source, see wasm-filter/README.md"}
	behindRouter  = Kind{"GH0305", Error, "move the filter before envoy.filters.http.router"}
	noJWT         = Kind{"GH0306", Error, "put envoy.filters.http.jwt_authn before the filter, with the same name in payload_in_metadata"}
	noIdleTimeout = Kind{"GH0307", Warning, "set stream_idle_timeout: 20s"}
	noSource      = Kind{"GH0308", Error, "put envoy.filters.http.set_filter_state before the filter, with the same name as object_key"}

	noPush      = Kind{"GH0401", Error, "add the listener gatehouse-push as envoy/envoy.yaml has it"}
	openPush    = Kind{"GH0402", Error, "listen on a unix socket: address: {pipe: {path: /run/gatehouse/push.sock, mode: 384}}"}
	pushMode    = Kind{"GH0403", Warning, "set mode: 384, which is 0600"}
	smallPush   = Kind{"GH0404", Error, "set per_connection_buffer_limit_bytes: 4194304 on the push listener"}
	pushLimited = Kind{"GH0405", Warning, "set ignore_global_conn_limit: true and bypass_overload_manager: true on the push listener"}

	noCluster = Kind{"GH0501", Error, "add the cluster, or correct sidecar.cluster"}
	fewCalls  = Kind{"GH0502", Warning, "set circuit_breakers.thresholds: [{max_connections: 2048, max_pending_requests: 4096, max_requests: 4096}]"}
	routeOff  = Kind{"GH0601", Error, "remove the typed_per_filter_config that disables the filter"}
	rewriteIn = Kind{"GH0602", Warning, "give the route's own path a rule with the same auth"}
)

// Kinds returns all kinds of findings, by code.
func Kinds() []Kind {
	return []Kind{
		unreadable, noFilter, misplaced, badRules, openMethod, wildcard,
		otherVM, failOpen, noReload, otherCode, pushWaits, edgeBuffers, filterOff,
		notNormalized, manySpellings, underscores, forgedSource, behindRouter, noJWT, noIdleTimeout, noSource,
		noPush, openPush, pushMode, smallPush, pushLimited,
		noCluster, fewCalls, routeOff, rewriteIn,
	}
}
