package envoyconfig

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/findings"
)

// shippedConfig returns the shipped envoy.yaml with each old text, which must occur, replaced by the new text.
func shippedConfig(t *testing.T, replace ...string) []byte {
	t.Helper()
	return changedConfig(t, "envoy.yaml", replace...)
}

func changedConfig(t *testing.T, name string, replace ...string) []byte {
	t.Helper()
	file, err := os.ReadFile("../../envoy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	text := string(file)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("%s has no %q: bring the test up to date", name, replace[i])
		}
		text = strings.ReplaceAll(text, replace[i], replace[i+1])
	}
	return []byte(text)
}

// TestNative is TestAnalyze for a dynamic module, limited to the differences.
func TestNative(t *testing.T) {
	const session = "#session "
	const wasm = `"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config:
                vm_config:
                  vm_id: gatehouse
                  configuration:
                    "@type": type.googleapis.com/google.protobuf.Struct
                    value: {push_listener: true}
                failure_policy: FAIL_RELOAD
                allow_on_headers_stop_iteration: true
              x:
`
	const push = `"@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
              dynamic_module_config: *module
`
	for _, tt := range []struct {
		name    string
		replace []string
		want    []string // codes
	}{
		{"as shipped", nil, nil},
		{"with sessions", []string{session, ""}, nil},
		{"sessions without claims", []string{session, "", "object_key: gatehouse.claims.gatehouse.ver", "object_key: other"},
			[]string{noClaims.Code}},
		{"claims of a header", []string{session, "", "%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:gatehouse:sub)%",
			"%REQ(x-sub)%"}, []string{noClaims.Code}},
		{"claims of other metadata", []string{session, "", "jwt_authn:gatehouse:ver", "jwt_authn:other:ver"},
			[]string{noClaims.Code}},
		{"sessions of other metadata", []string{session, "", "session: {metadata: gatehouse}", "session: {metadata: other}"},
			[]string{noJWT.Code}},
		{"unknown field", []string{"on_miss:", "on_mis:"}, []string{badRules.Code}},
		{"configuration without a type", []string{`"@type": type.googleapis.com/google.protobuf.Struct`, "x: y"},
			[]string{misplaced.Code, misplaced.Code}},
		{"another module", []string{"dynamic_module_config: *module",
			"dynamic_module_config: {module: {local: {filename: /other.so}}}"}, []string{otherCode.Code}},
		{"push listener of the Wasm module", []string{push, wasm}, []string{otherVM.Code}},
		{"no push listener", []string{"push_listener: true", "x: y", "dynamic_module_config: *module",
			"dynamic_module_config: {name: other}"}, []string{noPush.Code}},
		{"filter off", []string{"          - name: gatehouse\n", "          - name: gatehouse\n            disabled: true\n"},
			[]string{filterOff.Code}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Analyze("envoy.yaml", changedConfig(t, "envoy-native.yaml", tt.replace...))
			if !slices.Equal(findingCodes(got), tt.want) {
				t.Errorf("got %v, want %v", got.Findings, tt.want)
			}
		})
	}
}

func findingCodes(r findings.Report) (codes []string) {
	for _, f := range r.Findings {
		codes = append(codes, f.Code)
	}
	return codes
}

type analyzeTest struct {
	name    string
	replace []string
	want    []string // codes
	at      string   // part of the first finding's place
}

// TestAnalyze removes each setting on which the edge rests: the analysis finds the loss. The shipped file has no
// findings.
func TestAnalyze(t *testing.T) {
	const session, jwt = "#session ", "payload_in_metadata: gatehouse"
	disable := func(indent string) string {
		return indent +
			`typed_per_filter_config: {gatehouse: {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}}`
	}
	replies := func(config string) []string {
		const anchor = "          stat_prefix: edge\n"
		return []string{anchor, "          local_reply_config: " + config + "\n" + anchor}
	}
	filterFirst := func(kind, fields string) []string {
		return []string{shippedFilters, shippedFilters + `          - {name: f, typed_config: {"@type": "x/envoy.extensions.filters.http.` +
			kind + `"` + fields + "}}\n"}
	}
	const errors = "{status_code_filter: {comparison: {op: GE, value: {default_value: 400}}}}"
	const challenge = "{status_code_filter: {comparison: {value: {default_value: 401}}}}"
	const asJSON = "body_format_override: {json_format: {error: x}}"
	const excluded = `{extension_filter: {typed_config: {"@type": x/y, expression: "response.code < 400 || 'cache-status' in response.headers"}}}`
	const routes = "              routes:\n              - match: {prefix: /}\n                route: {cluster: " +
		"upstream, timeout: 15s}"
	tests := []analyzeTest{
		{"as shipped", nil, nil, ""},
		{"with sessions", []string{session, ""}, nil, ""},
		{"no YAML", []string{"static_resources:", "static_resources: ["}, []string{unreadable.Code}, ""},
		{"no filter", []string{"vm_id: gatehouse", "vm_id: other", "\n                      rules:",
			"\n                      regeln:", "push_listener: true", "lauscher: true"}, []string{noFilter.Code}, ""},
		{"configuration without a type", []string{`"@type": type.googleapis.com/google.protobuf.Struct`, "x: y"},
			[]string{misplaced.Code, misplaced.Code}, "listener edge: vm_config.configuration"},
		{"unknown field", []string{"on_miss:", "on_mis:"}, []string{badRules.Code},
			"listener edge: rule fleet-config: rules[2].cache.on_mis"},
		{"a rule behind one that caches part of it",
			[]string{"default: pass",
				"- match: {prefix: /v1/}\n                        auth: {}\n                      default: pass"},
			[]string{openMethod.Code}, "listener edge: rule products: rules[1].match"},
		{"a trial", []string{"default: pass", "default: would_deny"}, []string{notEnforced.Code}, "listener edge: default"},
		{"braces", []string{"path: /v1/me/config", "path: '/v1/{id}/config'"}, []string{wildcard.Code},
			"listener edge: rule device-config: rules[3].match.path"},
		{"star", []string{"prefix: /v1/products/", "prefix: /v1/*/"}, []string{wildcard.Code}, "rules[1].match"},
		{"counters without labels", []string{"tag_name: rule,", "tag_name: other,"}, []string{noLabels.Code},
			"stats_config.stats_tags"},
		{"no stats_config", []string{"stats_config:\n", "x:\n"}, []string{noLabels.Code}, ""},
		{"vm_id of the push listener", []string{"vm_id: gatehouse # the edge's", "vm_id: gatehouse2"},
			[]string{otherVM.Code}, "listener gatehouse-push: filter gatehouse-push: vm_config.vm_id"},
		{"fail open", []string{"&failure_policy FAIL_RELOAD", "FAIL_OPEN", "*failure_policy", "FAIL_RELOAD"},
			[]string{failOpen.Code}, "listener edge: filter gatehouse: failure_policy"},
		{"fail open, the old way", []string{"failure_policy: &failure_policy FAIL_RELOAD", "fail_open: true",
			"*failure_policy", "FAIL_RELOAD"}, []string{failOpen.Code}, "fail_open"},
		{"fail closed", []string{"&failure_policy FAIL_RELOAD", "&failure_policy FAIL_CLOSED"},
			[]string{noReload.Code, noReload.Code}, "failure_policy"},
		{"another module", []string{"code: *code", "code: {local: {filename: /other.wasm}}"},
			[]string{otherCode.Code}, "gatehouse-push"},
		{"push waits", []string{"allow_on_headers_stop_iteration: true", "allow_on_headers_stop_iteration: false"},
			[]string{pushWaits.Code}, "gatehouse-push"},
		{"edge buffers", []string{"failure_policy: &failure_policy",
			"allow_on_headers_stop_iteration: true\n                failure_policy: &failure_policy"},
			[]string{edgeBuffers.Code}, "edge"},
		{"filter off", []string{"          - name: gatehouse\n", "          - name: gatehouse\n            disabled: true\n"},
			[]string{filterOff.Code}, "http_filters[0].disabled"},
		{"paths as they come", []string{"normalize_path: true", "normalize_path: false"},
			[]string{notNormalized.Code}, "normalize_path"},
		{"slashes as they come", []string{"merge_slashes: true", "merge_slashes: false"}, []string{manySpellings.Code}, ""},
		{"escaped slashes", []string{"action: REJECT_REQUEST\n          common", "action: KEEP_UNCHANGED\n          common"},
			[]string{manySpellings.Code}, "path_with_escaped_slashes_action"},
		{"underscores", []string{"headers_with_underscores_action: REJECT_REQUEST", "headers_with_underscores_action: ALLOW"},
			[]string{underscores.Code}, "headers_with_underscores_action"},
		{"sources of the client's", []string{"use_remote_address: true", "use_remote_address: false"},
			[]string{forgedSource.Code}, "listener edge: use_remote_address"},
		{"sources from the connection", []string{"#source ", "", "use_remote_address: true", "use_remote_address: false"},
			nil, ""},
		{"sources that Envoy takes from a header", []string{"max_staleness: 30s", "source: envoy",
			"use_remote_address: true", "use_remote_address: false"}, []string{forgedSource.Code}, ""},
		{"sources that nobody writes", []string{"#source source", "source"}, []string{noSource.Code},
			"listener edge: source.filter_state"},
		{"sources that internal clients write", []string{"#source source: {filter_state: gatehouse.source}",
			"source: {header: X-Envoy-External-Address}", "use_remote_address: true",
			"use_remote_address: true\n          internal_address_config: {cidr_ranges: [{address_prefix: 10.0.0.0, " +
				"prefix_len: 8}]}"},
			[]string{ownAddress.Code}, "listener edge: internal_address_config"},
		{"sources that Envoy writes", []string{"#source source: {filter_state: gatehouse.source}",
			"source: {header: x-envoy-external-address}",
			"use_remote_address: true", "use_remote_address: true\n          internal_address_config: {unix_sockets: false}"},
			nil, ""},
		{"sources count for credentials only", []string{"use_remote_address: true", "use_remote_address: false",
			"\n                        auth: {permissions: [telemetry.write]}",
			"", "\n                        auth: {permissions: [config.read]}", "",
			"prefix: /v1/telemetry, methods: [POST]", "prefix: /v1/telemetry", "cache: {scope: device}", "cache: {}"}, nil, ""},
		{"behind the router", []string{"          http_filters:\n          # Order", `          http_filters:
          - {name: r, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          # Order`}, []string{behindRouter.Code}, "http_filters[1]"},
		{"tokens from another header", []string{session, "", "{name: authorization, value_prefix: \"Bearer \"}",
			"{name: X-Token}"}, []string{sharedAnswers.Code}, "virtual host upstream: routes[0]"},
		{"tokens from another header that Vary names",
			[]string{session, "", "{name: authorization, value_prefix: \"Bearer \"}", "{name: X-Token}",
				"domains: [\"*\"]", "domains: [\"*\"]\n              response_headers_to_add: [{header: {key: vary, value: " +
					"x-token}}]"}, nil, ""},
		{"answers for one device that caches keep", []string{"gatehouse_no_store", "gatehouse_other"},
			[]string{sharedAnswers.Code}, "virtual host upstream: routes[0]"},
		{"Vary that a virtual host removes", []string{"            name: edge\n            # Cache-Status",
			"            name: edge\n            most_specific_header_mutations_wins: true\n            # Cache-Status",
			"domains: [\"*\"]\n              routes:\n              - match: {prefix: /}\n                route: {cluster: " +
				"upstream", "domains: [\"*\"]\n              response_headers_to_remove: [Vary]\n              routes:\n         " +
				"     - match: {prefix: /}\n                route: {cluster: upstream"},
			[]string{sharedAnswers.Code}, "virtual host upstream: routes[0]"},
		{"the upstream's Vary, removed before ours is added",
			[]string{"domains: [\"*\"]\n              routes:\n              - match: {prefix: /}\n                route: " +
				"{cluster: upstream", "domains: [\"*\"]\n              response_headers_to_remove: [Vary]\n              " +
				"routes:\n              - match: {prefix: /}\n                route: {cluster: upstream"}, nil, ""},
		{"no Vary", []string{"gatehouse_vary", "gatehouse_other"}, []string{sharedAnswers.Code}, ""},
		{"tokens written elsewhere", []string{session, "", jwt, "payload_in_metadata: other"}, []string{noJWT.Code},
			"session.metadata"},
		{"tokens of two issuers", []string{"          #session       gatehouse:\n",
			"          #session       other: {issuer: other, payload_in_metadata: gatehouse}\n          #session       " +
				"gatehouse:\n", session, ""},
			[]string{otherIssuer.Code}, "session.metadata"},
		{"claims of another issuer elsewhere", []string{"          #session       gatehouse:\n",
			"          #session       other: {issuer: other, payload_in_metadata: other}\n          #session       gatehouse:\n",
			session, ""}, nil, ""},
		{"local replies as JSON", replies("{body_format: {json_format: {error: '%LOCAL_REPLY_BODY%'}}}"),
			[]string{rewrites.Code}, "listener edge: local_reply_config.body_format"},
		{"local replies with errors as JSON", replies("{mappers: [{filter: " + errors + ", body: {inline_string: sorry}}]}"),
			[]string{rewrites.Code}, "listener edge: local_reply_config.mappers[0]"},
		{"local replies with another status",
			replies("{mappers: [{filter: " + challenge + ", status_code: 200}]}"), []string{rewrites.Code}, "mappers[0]"},
		{"local replies with another page for a 401",
			replies("{mappers: [{filter: " + challenge + ", body: {inline_string: sorry}}]}"), nil, ""},
		{"local replies with another challenge", replies("{mappers: [{filter: " + challenge +
			", headers_to_add: [{header: {key: WWW-Authenticate, value: x}}]}]}"),
			[]string{rewrites.Code}, "mappers[0]"},
		{"local replies with flags as JSON",
			replies("{mappers: [{filter: {response_flag_filter: {}}, " + asJSON + "}]}"), nil, ""},
		{"local replies as JSON but for Gatehouse's", replies("{mappers: [{filter: " + excluded + ", body_format_override: " +
			"{text_format_source: {inline_string: '%LOCAL_REPLY_BODY%'}}}], body_format: {json_format: {error: x}}}"), nil, ""},
		{"local replies as JSON, tokens too", slices.Concat([]string{"#session ", ""}, replies("{mappers: [{filter: "+
			strings.Replace(excluded, "response.code < 400 || ", "", 1)+", body_format_override: "+
			"{text_format_source: {inline_string: '%LOCAL_REPLY_BODY%'}}}], body_format: {json_format: {error: x}}}")),
			[]string{rewrites.Code}, "local_reply_config.body_format"},
		{"another status for a 401, which isn't excluded", replies("{mappers: [{filter: " + excluded +
			", body_format_override: {text_format: '%LOCAL_REPLY_BODY%'}}, {filter: " + challenge + ", status_code: 200}]}"),
			[]string{rewrites.Code}, "mappers[1]"},
		{"Gatehouse's excluded too late", replies("{mappers: [{filter: " + errors + ", " + asJSON + "}, " +
			"{filter: " + excluded + ", body_format_override: {text_format: '%LOCAL_REPLY_BODY%'}}]}"),
			[]string{rewrites.Code}, "mappers[0]"},
		{"answers to pushes as JSON", []string{"          stat_prefix: gatehouse_push",
			"          local_reply_config: {body_format: {json_format: {error: x}}}\n          stat_prefix: gatehouse_push"},
			[]string{rewrites.Code},
			"listener gatehouse-push: local_reply_config.body_format"},
		{"a compressor before", filterFirst("compressor.v3.Compressor", ""), []string{changesAnswer.Code}, "http_filters[0]"},
		{"a compressor that keeps entity-tags", filterFirst("compressor.v3.Compressor",
			", response_direction_config: {disable_on_etag_header: true}"), nil, ""},
		{"a compressor that hides what clients accept", filterFirst("compressor.v3.Compressor",
			", response_direction_config: {disable_on_etag_header: true, remove_accept_encoding_header: true}"),
			[]string{losesEncodings.Code}, "http_filters[0].response_direction_config"},
		{"a header removed", filterFirst("header_mutation.v3.HeaderMutation",
			", mutations: {response_mutations: [{remove: ETag}]}"), []string{changesHeader.Code}, "http_filters[0]"},
		{"another header added", filterFirst("header_mutation.v3.HeaderMutation",
			", mutations: {response_mutations: [{append: {header: {key: content-security-policy, value: x}}}]}"), nil, ""},
		{"a header added to all answers", []string{routes, "              response_headers_to_add: [{header: {key: " +
			"Cache-Control, value: no-store}}]\n" + routes}, []string{addsHeader.Code},
			"virtual host upstream.response_headers_to_add"},
		{"no idle timeout", []string{"stream_idle_timeout: 20s", "stream_idle_timeout: 0s"},
			[]string{noIdleTimeout.Code}, ""},
		{"no push listener", []string{"push_listener: true", "max_staleness: 30s", "name: gatehouse-push",
			"name: second", "allow_on_headers_stop_iteration: true", ""},
			[]string{notNormalized.Code, noPush.Code, manySpellings.Code, underscores.Code}, ""},
		{"push by TCP", []string{"pipe: {path: /run/gatehouse/push.sock, mode: 384}",
			"socket_address: {address: 127.0.0.1, port_value: 9}"}, []string{openPush.Code}, "listener gatehouse-push: address"},
		{"a socket for all", []string{", mode: 384}", "}"}, []string{pushMode.Code}, "address.pipe.mode"},
		{"a socket for an agent's group", []string{", mode: 384}", ", mode: 432}"}, nil, ""},
		{"small pushes", []string{"per_connection_buffer_limit_bytes: 4194304", "per_connection_buffer_limit_bytes: 32768"},
			[]string{smallPush.Code}, "listener gatehouse-push: per_connection_buffer_limit_bytes"},
		{"pushes with Envoy's own limit", []string{"per_connection_buffer_limit_bytes: 4194304", "x: 1"},
			[]string{smallPush.Code}, ""},
		{"pushes limited", []string{"bypass_overload_manager: true", "bypass_overload_manager: false"},
			[]string{pushLimited.Code}, ""},
		{"no such cluster", []string{"sidecar: {cluster: gatehouse-sidecar", "sidecar: {cluster: elsewhere"},
			[]string{noCluster.Code}, "sidecar.cluster"},
		{"few calls", []string{"max_connections: 2048", "max_connections: 100"}, []string{fewCalls.Code},
			"cluster gatehouse-sidecar: circuit_breakers"},
		{"a route without the filter",
			[]string{"              routes:\n              - match: {prefix: /}\n                route",
				"              routes:\n              - match: {path: /v1/fleet/config}\n                route: {cluster: " +
					"upstream}\n" +
					disable("                ") + "\n              - match: {prefix: /}\n                route"},
			[]string{routeOff.Code}, "listener edge: virtual host upstream: routes[0]"},
		{"another route without the filter",
			[]string{"              routes:\n              - match: {prefix: /}\n                route",
				"              routes:\n              - match: {prefix: /v1/products/}\n                route: {cluster: " +
					"upstream}\n" +
					disable("                ") + "\n              - match: {prefix: /}\n                route"},
			[]string{routeOff.Code}, "routes[0]"},
		{"an open route without the filter and identity headers", []string{routes, `              routes:
              - match: {prefix: /v1/products/}
                route: {cluster: upstream}
                request_headers_to_remove: [X-Gatehouse-Device, x-gatehouse-permissions]
` + disable("                ") + "\n              - match: {prefix: /}\n                route: {cluster: upstream}"},
			nil, ""},
		{"all routes without the filter", []string{"            name: edge\n            # Cache-Status",
			"            name: edge\n" + disable("            ") + "\n            # What"},
			[]string{routeOff.Code}, "route_config"},
		{"a part of a route without the filter", []string{routes, `              routes:
              - match: {prefix: /v1/}
                route: {weighted_clusters: {clusters: [{name: upstream, weight: 1, typed_per_filter_config: {gatehouse: {disabled: true}}}]}}`},
			[]string{routeOff.Code}, "routes[0].route.weighted_clusters[0]"},
		{"deny by default, a route without the filter", []string{"default: pass", "default: deny",
			"              routes:\n              - match: {prefix: /}\n                route",
			"              routes:\n              - match: {path: /open}\n                route: {cluster: upstream}\n" +
				disable("                ") + "\n              - match: {prefix: /}\n                route"},
			[]string{routeOff.Code}, ""},
		{"rewritten behind the filter", []string{routes, `              routes:
              - match: {prefix: /public/}
                route: {cluster: upstream, prefix_rewrite: /v1/}`}, []string{rewriteIn.Code}, "routes[0].route"},
		{"rewritten elsewhere", []string{routes, `              routes:
              - match: {prefix: /public/}
                route: {cluster: upstream, prefix_rewrite: /v2/}`}, nil, ""},
	}
	tests = slices.Concat(tests, bypasses(), virtualHosts())
	seen := map[string]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			report := Analyze("envoy.yaml", shippedConfig(t, test.replace...))
			got := findingCodes(report)
			if !slices.Equal(got, test.want) {
				t.Fatalf("got %+v, want %q", report.Findings, test.want)
			}
			for _, code := range got {
				seen[code] = true
			}
			if len(got) > 0 && !strings.Contains(report.Findings[0].Place.Text(), test.at) {
				t.Errorf("found at %q, want %q", report.Findings[0].Place.Text(), test.at)
			}
		})
	}
	for _, kind := range Kinds() {
		// found in TestNative, TestWeakerEdge and TestFilterFile
		if !seen[kind.Code] && kind.Code != noClaims.Code && kind.Code != weakerEdge.Code && kind.Code != noFile.Code {
			t.Errorf("no case finds %s", kind.Code)
		}
	}
}

// TestRefuserIsNamed: a rule may need a credential for methods other than GET only.
func TestRefuserIsNamed(t *testing.T) {
	report := Analyze("envoy.yaml",
		shippedConfig(t,
			routeFirst("{match: {path: /v1/telemetry}, route: {cluster: upstream}, typed_per_filter_config: {gatehouse: "+
				"{disabled: true}}}")...))
	if len(report.Findings) != 1 || !strings.Contains(report.Findings[0].Message, "rules[0] asks") {
		t.Errorf("got %v, want that rules[0] asks", report.Findings)
	}
}
