package bypass

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// itemsByKey yields a map's items by key, so that a seed always gives the same settings.
func itemsByKey[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}

// allSettings returns all compared settings: each mechanism with each place or condition, and headers by chance.
func allSettings(r *rand.Rand) (all []setting) {
	for _, list := range [][]setting{localReplies(), headerSettings(r), customResponses(), compressionSettings(),
		cacheSettings(), neighbourSettings(), managerFields()} {
		all = append(all, list...)
	}
	return all
}

const (
	filterTypes = "type.googleapis.com/envoy.extensions.filters.http."
	celFilter   = `{"extension_filter": {"name": "envoy.access_loggers.extension_filters.cel", "typed_config": {
		"@type": "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter", "expression": %q}}}`
	sameBody = `{"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}}`
	jsonBody = `{"json_format": {"code": "%RESPONSE_CODE%", "error": "%LOCAL_REPLY_BODY%"}}`
)

func statusFilter(op string, status int) string {
	return fmt.Sprintf(`{"status_code_filter": {"comparison": {"op": %q, "value": {"default_value": %d, "runtime_key": "none"}}}}`,
		op, status)
}

// localReplies are settings of local_reply_config: each kind of a mapper's filter with each of the mapper's further
// fields.
func localReplies() (all []setting) {
	add := func(name, text string, uncertain bool) {
		all = append(all, setting{"local_reply_config: " + name,
			func(g *gen) { g.hcm["local_reply_config"] = parse("%s", text) }, uncertain, false})
	}
	filters := []struct {
		name, text string
		uncertain  bool
	}{
		{"status >= 400", statusFilter("GE", 400), false},
		{"status <= 299", statusFilter("LE", 299), false},
		{"status 404", statusFilter("EQ", 404), false},
		{"status 304", statusFilter("EQ", 304), false},
		{"status 401", statusFilter("EQ", 401), false},
		{"status 503", statusFilter("EQ", 503), false},
		{"status not 503", statusFilter("NE", 503), false},
		{"status >= 500", statusFilter("GE", 500), false},
		{"any flag", `{"response_flag_filter": {}}`, false},
		{"a flag", `{"response_flag_filter": {"flags": ["UH", "UF"]}}`, false},
		{"a header", `{"header_filter": {"header": {"name": "accept-encoding", "present_match": true}}}`, false},
		{"a header that is absent", `{"header_filter": {"header": {"name": "x-never", "present_match": true}}}`, true},
		{"no health check", `{"not_health_check_filter": {}}`, false},
		{"traces", `{"traceable_filter": {}}`, true},
		{"always", `{"runtime_filter": {"runtime_key": "none", "percent_sampled": {"numerator": 100}}}`, true},
		{"never", `{"runtime_filter": {"runtime_key": "none", "percent_sampled": {"numerator": 0}}}`, true},
		{"slow", `{"duration_filter": {"comparison": {"op": "GE", "value": {"default_value": 60000, "runtime_key": "none"}}}}`, true},
		{"errors with flags", fmt.Sprintf(`{"and_filter": {"filters": [%s, {"response_flag_filter": {}}]}}`, statusFilter("GE", 400)), false},
		{"errors from 404 to 404", fmt.Sprintf(`{"and_filter": {"filters": [%s, %s]}}`, statusFilter("GE", 404), statusFilter("LE", 404)), false},
		{"flags or 503", fmt.Sprintf(`{"or_filter": {"filters": [{"response_flag_filter": {}}, %s]}}`, statusFilter("EQ", 503)), false},
		{"flags or 404", fmt.Sprintf(`{"or_filter": {"filters": [{"response_flag_filter": {}}, %s]}}`, statusFilter("EQ", 404)), false},
		{"gRPC", `{"grpc_status_filter": {"statuses": ["UNAVAILABLE"]}}`, true},
		{"metadata", `{"metadata_filter": {"matcher": {"filter": "x", "path": [{"key": "y"}], "value": {"string_match": {"exact": "z"}}}, "match_if_key_not_found": false}}`, true},
		{"CEL: status", fmt.Sprintf(celFilter, "response.code >= 400"), false},
		{"CEL: from the cache", fmt.Sprintf(celFilter, `"cache-status" in response.headers`), false},
		{"CEL: not from the cache", fmt.Sprintf(celFilter, "!('cache-status' in response.headers)"), false},
		{"CEL: errors not from the cache", fmt.Sprintf(`{"and_filter": {"filters": [%s, %s]}}`, statusFilter("GE", 400),
			fmt.Sprintf(celFilter, "!('cache-status' in response.headers)")), false},
	}
	actions := []struct{ name, text string }{
		{"body", `"body": {"inline_string": "sorry"}`},
		{"format", `"body_format_override": ` + jsonBody},
		{"prefix", `"body_format_override": {"text_format_source": {"inline_string": "error: %LOCAL_REPLY_BODY%"}}`},
		{"status", `"status_code": 599`},
		{"our header", `"headers_to_add": [{"header": {"key": "etag", "value": "\"x\""}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]`},
		{"another header", `"headers_to_add": [{"header": {"key": "x-frame-options", "value": "DENY"}}]`},
		{"the same body", `"body_format_override": ` + sameBody},
	}
	for _, f := range filters {
		for _, a := range actions {
			add(f.name+": "+a.name, fmt.Sprintf(`{"mappers": [{"filter": %s, %s}]}`, f.text, a.text), f.uncertain)
		}
	}
	add("nothing", `{}`, false)
	add("body_format", `{"body_format": `+jsonBody+`}`, false)
	add("the same body_format", `{"body_format": `+sameBody+`}`, false)
	add("the same body_format with a type",
		`{"body_format": {"content_type": "text/html", "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}}}`, false)
	add("the same body_format, older field", `{"body_format": {"text_format": "%LOCAL_REPLY_BODY%"}}`, false)
	exclude := func(filter string) string {
		return fmt.Sprintf(`{"filter": %s, "body_format_override": %s}`, filter, sameBody)
	}
	recipe := exclude(fmt.Sprintf(celFilter, "response.code < 400 || 'cache-status' in response.headers"))
	for _, rest := range []string{`"body_format": ` + jsonBody, `"body_format": {"text_format_source": {"inline_string": "x"}}`} {
		add("excluded: "+rest, fmt.Sprintf(`{"mappers": [%s], %s}`, recipe, rest), false)
	}
	for _, f := range filters {
		add("excluded: "+f.name,
			fmt.Sprintf(`{"mappers": [%s, {"filter": %s, "body_format_override": %s}]}`, recipe, f.text, jsonBody), false)
		if !f.uncertain {
			add("excluding "+f.name, fmt.Sprintf(`{"mappers": [%s], "body_format": %s}`, exclude(f.text), jsonBody), false)
		}
	}
	add("excluded too late", fmt.Sprintf(`{"mappers": [{"filter": %s, "body_format_override": %s}, %s]}`,
		statusFilter("GE", 400), jsonBody, recipe), false)
	return all
}

var (
	described = map[string]string{"etag": `\"other\"`, "cache-control": "no-store", "content-type": "text/x",
		"last-modified": "Thu, 02 Jan 2025 00:00:00 GMT", "cache-status": "other; hit", "content-encoding": "x",
		"content-language": "fr", "vary": "origin"}
	others = map[string]string{"x-frame-options": "DENY", "access-control-allow-origin": "*",
		"x-content-type-options": "nosniff"}
	appendActions = []string{"APPEND_IF_EXISTS_OR_ADD", "ADD_IF_ABSENT", "OVERWRITE_IF_EXISTS_OR_ADD",
		"OVERWRITE_IF_EXISTS"}
)

// headerSettings are all ways to add and remove headers, each for the entity-tag, a random header that describes
// content, and an unrelated header.
func headerSettings(r *rand.Rand) (all []setting) {
	names := func() []string {
		list := []string{"etag"}
		for name := range itemsByKey(described) {
			if name != "etag" && r.IntN(len(described)) == 0 {
				list = append(list, name)
			}
		}
		for name := range itemsByKey(others) {
			if r.IntN(len(others)) == 0 {
				list = append(list, name)
			}
		}
		return list
	}
	value := func(name string) string { return described[name] + others[name] }
	add := func(name string, apply func(g *gen)) { all = append(all, setting{name: name, apply: apply}) }
	option := func(name, action string) string {
		return fmt.Sprintf(`{"header": {"key": %q, "value": "%s"}, "append_action": %q}`, name, value(name), action)
	}
	levels := map[string]func(g *gen) tree{
		"route_config": (*gen).routeConfig, "virtual host": func(g *gen) tree { return g.host }, "route": (*gen).lastRoute,
		"weighted cluster": func(g *gen) tree {
			g.lastRoute()["route"] = parse(`{"weighted_clusters": {"clusters": [{"name": %q, "weight": 1}]}}`, g.name("upstream"))
			return at(g.lastRoute(), "route", "weighted_clusters", "clusters", 0).(tree)
		},
	}
	for level, of := range itemsByKey(levels) {
		for _, action := range appendActions {
			for _, name := range names() {
				add(fmt.Sprintf("%s: response_headers_to_add %s: %s", level, name, action), func(g *gen) {
					join(of(g), "response_headers_to_add", parse("%s", option(name, action)))
				})
			}
		}
		for _, name := range names() {
			add(fmt.Sprintf("%s: response_headers_to_remove %s", level, name), func(g *gen) {
				join(of(g), "response_headers_to_remove", name)
			})
		}
	}
	mutations := map[string]func(name string) string{
		"remove": func(name string) string { return fmt.Sprintf(`{"remove": %q}`, name) },
		"remove_on_match": func(name string) string {
			return fmt.Sprintf(`{"remove_on_match": {"key_matcher": {"prefix": %q}}}`, name[:len(name)-1])
		},
	}
	for _, action := range appendActions {
		mutations[action] = func(name string) string { return fmt.Sprintf(`{"append": %s}`, option(name, action)) }
	}
	mutates := func(field, text string) tree {
		return parse(`{"name": "m", "typed_config": {"@type": "%sheader_mutation.v3.HeaderMutation", "mutations": {%q: [%s]}}}`,
			filterTypes, field, text)
	}
	for what, mutation := range itemsByKey(mutations) {
		for _, name := range names() {
			text := mutation(name)
			for where, position := range itemsByKey(positions) {
				add(fmt.Sprintf("header_mutation %s: %s %s", where, what, name), func(g *gen) {
					g.insert(position(g), mutates("response_mutations", text))
				})
			}
			add(fmt.Sprintf("header_mutation of a virtual host: %s %s", what, name), func(g *gen) {
				g.insert(0, mutates("request_mutations", `{"remove": "x-none"}`))
				g.host["typed_per_filter_config"] = parse(
					`{"m": {"@type": "%sheader_mutation.v3.HeaderMutationPerRoute", "mutations": {"response_mutations": [%s]}}}`,
					filterTypes, text)
			})
			add(fmt.Sprintf("header_mutation, disabled: %s %s", what, name), func(g *gen) {
				f := mutates("response_mutations", text)
				f["disabled"] = true
				g.insert(0, f)
			})
			add(fmt.Sprintf("header_mutation, disabled on the virtual host: %s %s", what, name), func(g *gen) {
				g.insert(0, mutates("response_mutations", text))
				g.host["typed_per_filter_config"] = parse("{\"m\": %s}", disabled)
			})
			add(fmt.Sprintf("header_mutation, disabled, on for the virtual host: %s %s", what, name), func(g *gen) {
				f := mutates("response_mutations", text)
				f["disabled"] = true
				g.insert(0, f)
				g.host["typed_per_filter_config"] = parse(
					`{"m": {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {"@type": "%sheader_mutation.v3.HeaderMutationPerRoute", "mutations": {}}}}`,
					filterTypes)
			})
			add(fmt.Sprintf("header_mutation of requests: %s %s", what, name), func(g *gen) {
				g.insert(0, mutates("request_mutations", text))
			})
			add(fmt.Sprintf("header_mutation of trailers: %s %s", what, name), func(g *gen) {
				g.insert(0, mutates("response_trailers_mutations", text))
			})
			add(fmt.Sprintf("transform: %s %s", what, name), func(g *gen) {
				g.insert(0, parse(`{"name": "t", "typed_config": {"@type": "%stransform.v3.TransformConfig",
					"response_transformation": {"headers_mutations": [%s]}}}`, filterTypes, text))
			})
			add(fmt.Sprintf("header_mutation in a matcher: %s %s", what, name), func(g *gen) {
				g.insert(0, parse(`{"name": "wrap", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher",
					"extension_config": %s, "xds_matcher": {"matcher_tree": {"input": {"name": "header", "typed_config": {"@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput", "header_name": "x-never"}},
					"exact_match_map": {"map": {"1": {"action": {"name": "skip", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.common.matcher.action.v3.SkipFilter"}}}}}}}}}`,
					marshal(mutates("response_mutations", text))))
			})
		}
	}
	for call, format := range itemsByKey(map[string]string{"add": `h:headers():add('%s', '%s')`, "replace": `h:headers():replace("%s", "%s")`,
		"remove": `h:headers():remove('%s') -- %s`}) {
		for _, name := range names() {
			code := fmt.Sprintf(format, name, strings.ReplaceAll(value(name), `\"`, ``))
			for where, position := range itemsByKey(positions) {
				add(fmt.Sprintf("lua %s: %s %s", where, call, name), func(g *gen) {
					g.insert(position(g), lua("l", "function envoy_on_response(h)\n  "+code+"\nend"))
				})
			}
			add(fmt.Sprintf("lua of a virtual host: %s %s", call, name), func(g *gen) {
				g.insert(0, lua("l", ""))
				g.host["typed_per_filter_config"] = parse(
					`{"l": {"@type": "%slua.v3.LuaPerRoute", "source_code": {"inline_string": %q}}}`, filterTypes,
					"function envoy_on_response(h)\n  "+code+"\nend")
			})
			add(fmt.Sprintf("lua of requests: %s %s", call, name), func(g *gen) {
				g.insert(0, lua("l", "function envoy_on_request(h)\n  "+code+"\nend\n"+
					"function envoy_on_response(h)\n  h:logTrace(h:headers():get('etag') or '')\nend"))
			})
		}
	}
	add("lua: status", func(g *gen) {
		g.insert(0, lua("l", "function envoy_on_response(h)\n  h:headers():replace(':status', '500')\nend"))
	})
	add("lua: body", func(g *gen) {
		g.insert(0, lua("l", "function envoy_on_response(h)\n  h:body(true):setBytes('x')\nend"))
	})
	for _, name := range names() {
		add("header_to_metadata, remove: "+name, func(g *gen) {
			g.insert(0, parse(`{"name": "h", "typed_config": {"@type": "%sheader_to_metadata.v3.Config", "response_rules":
				[{"header": %q, "on_header_present": {"metadata_namespace": "x", "key": "k"}, "remove": true}]}}`, filterTypes, name))
		})
		add("header_to_metadata: "+name, func(g *gen) {
			g.insert(0, parse(`{"name": "h", "typed_config": {"@type": "%sheader_to_metadata.v3.Config", "response_rules":
				[{"header": %q, "on_header_present": {"metadata_namespace": "x", "key": "k"}}]}}`, filterTypes, name))
		})
	}
	add("transform: body", func(g *gen) {
		g.insert(0, parse(`{"name": "t", "typed_config": {"@type": "%stransform.v3.TransformConfig",
			"response_transformation": {"body_transformation": {"body_format": {"json_format": {"x": "y"}}, "action": "REPLACE"}}}}`, filterTypes))
	})
	return all
}

const disabled = `{"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true}`

// positions are the positions of a filter, in the order of requests.
var positions = map[string]func(g *gen) int{
	"before": func(*gen) int { return 0 },
	"behind": func(g *gen) int { return g.filterAt() + 1 },
}

func customResponses() (all []setting) {
	add := func(name string, apply func(g *gen)) { all = append(all, setting{name: name, apply: apply}) }
	policies := map[string]string{
		"body":           `"body": {"inline_string": "sorry"}`,
		"format":         `"body": {"inline_string": "sorry"}, "body_format": ` + jsonBody,
		"status":         `"status_code": 599`,
		"our header":     `"response_headers_to_add": [{"header": {"key": "etag", "value": "\"x\""}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]`,
		"another header": `"response_headers_to_add": [{"header": {"key": "x-frame-options", "value": "DENY"}}]`,
	}
	inputs := map[string][2]string{
		"4xx": {"HttpResponseStatusCodeClassMatchInput", "4xx"}, "5xx": {"HttpResponseStatusCodeClassMatchInput", "5xx"},
		"2xx": {"HttpResponseStatusCodeClassMatchInput", "2xx"}, "404": {"HttpResponseStatusCodeMatchInput", "404"},
		"503": {"HttpResponseStatusCodeMatchInput", "503"}, "401": {"HttpResponseStatusCodeMatchInput", "401"},
	}
	for status, input := range itemsByKey(inputs) {
		for what, policy := range itemsByKey(policies) {
			config := fmt.Sprintf(`{"@type": "%scustom_response.v3.CustomResponse", "custom_response_matcher": {"matcher_list": {"matchers": [{
				"predicate": {"single_predicate": {"input": {"name": "i", "typed_config": {"@type": "type.googleapis.com/envoy.type.matcher.v3.%s"}}, "value_match": {"exact": %q}}},
				"on_match": {"action": {"name": "a", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.http.custom_response.local_response_policy.v3.LocalResponsePolicy", %s}}}}]}}}`,
				filterTypes, input[0], input[1], policy)
			for where, position := range itemsByKey(positions) {
				add(fmt.Sprintf("custom_response %s: %s: %s", where, status, what), func(g *gen) {
					g.insert(position(g), parse(`{"name": "c", "typed_config": %s}`, config))
				})
			}
			add(fmt.Sprintf("custom_response of a route: %s: %s", status, what), func(g *gen) {
				g.insert(0, parse(`{"name": "c", "typed_config": {"@type": "%scustom_response.v3.CustomResponse"}}`, filterTypes))
				g.lastRoute()["typed_per_filter_config"] = parse(`{"c": %s}`, config)
			})
		}
	}
	return all
}

func compressionSettings() (all []setting) {
	library := func(kind, direction string) string {
		name := strings.ToUpper(kind[:1]) + kind[1:]
		return fmt.Sprintf(`{"name": "text_optimized", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.compression.%[1]s.%[3]s.v3.%[2]s"}}`,
			kind, name, direction)
	}
	compressor := func(kind, fields string) tree {
		return parse(`{"name": "z", "typed_config": {"@type": "%scompressor.v3.Compressor", "compressor_library": %s%s}}`,
			filterTypes, library(kind, "compressor"), fields)
	}
	const off = `{"enabled": {"default_value": false, "runtime_key": "none"}}`
	for name, fields := range itemsByKey(map[string]string{
		"": "", "disable_on_etag_header": `, "response_direction_config": {"disable_on_etag_header": true}`,
		"weaken_etag_on_compress":           `, "response_direction_config": {"weaken_etag_on_compress": true, "disable_on_etag_header": true}`,
		"another type":                      `, "response_direction_config": {"common_config": {"content_type": ["image/svg+xml"]}}`,
		"long":                              `, "response_direction_config": {"common_config": {"min_content_length": 1000000}}`,
		"off":                               `, "response_direction_config": {"common_config": ` + off + `}`,
		"requests only":                     `, "request_direction_config": {"common_config": {}}, "response_direction_config": {"common_config": ` + off + `}`,
		"remove_accept_encoding_header":     `, "response_direction_config": {"remove_accept_encoding_header": true, "disable_on_etag_header": true}`,
		"off remove_accept_encoding_header": `, "response_direction_config": {"remove_accept_encoding_header": true, "common_config": ` + off + `}`,
		"status":                            `, "response_direction_config": {"status_header_enabled": true, "disable_on_etag_header": true}`,
		"uncompressible codes":              `, "response_direction_config": {"uncompressible_response_codes": [200, 206]}`,
		"older fields":                      `, "content_type": ["text/plain"], "disable_on_etag_header": true`,
	}) {
		for _, kind := range []string{"gzip", "brotli", "zstd"} {
			for where, position := range itemsByKey(positions) {
				all = append(all, setting{fmt.Sprintf("compressor %s %s: %s", kind, where, name), func(g *gen) {
					g.insert(position(g), compressor(kind, fields))
				}, slices.Contains([]string{"another type", "long", "uncompressible codes"}, name), false})
			}
		}
	}
	for name, config := range itemsByKey(map[string]string{
		"off": `{"@type": "` + filterTypes + `compressor.v3.CompressorPerRoute", "disabled": true}`, "disabled": disabled,
		"overridden": `{"@type": "` + filterTypes + `compressor.v3.CompressorPerRoute", "overrides": {"response_direction_config": {"remove_accept_encoding_header": true}}}`,
	}) {
		all = append(all, setting{name: "compressor of a virtual host: " + name, apply: func(g *gen) {
			g.insert(0, compressor("gzip", ""))
			g.host["typed_per_filter_config"] = parse(`{"z": %s}`, config)
		}})
	}
	for name, fields := range itemsByKey(map[string]string{
		"": "", "off": `, "response_direction_config": {"common_config": ` + off + `}`,
		"trailers": `, "response_direction_config": {"common_config": {"ignore_no_transform_header": true}}`,
		"requests": `, "request_direction_config": {"advertise_accept_encoding": false}, "response_direction_config": {"common_config": ` + off + `}`,
	}) {
		for _, kind := range []string{"gzip", "brotli", "zstd"} {
			for where, position := range itemsByKey(positions) {
				all = append(all, setting{name: fmt.Sprintf("decompressor %s %s: %s", kind, where, name), apply: func(g *gen) {
					g.insert(position(g), parse(`{"name": "z", "typed_config": {"@type": "%sdecompressor.v3.Decompressor", "decompressor_library": %s%s}}`,
						filterTypes, library(kind, "decompressor"), fields))
				}})
			}
		}
	}
	return all
}

// cacheSettings returns settings of Envoy's own caches.
func cacheSettings() (all []setting) {
	for where, position := range itemsByKey(positions) {
		for name, config := range itemsByKey(map[string]string{
			"cache":    `{"@type": "` + filterTypes + `cache.v3.CacheConfig", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.http.cache.simple_http_cache.v3.SimpleHttpCacheConfig"}}`,
			"cache_v2": `{"@type": "` + filterTypes + `cache_v2.v3.CacheV2Config", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.http.cache_v2.simple_http_cache.v3.SimpleHttpCacheV2Config"}}`,
			"no cache": `{"@type": "` + filterTypes + `cache.v3.CacheConfig", "disabled": true}`,
		}) {
			all = append(all, setting{name + " " + where, func(g *gen) {
				g.insert(position(g), parse(`{"name": "cache", "typed_config": %s}`, config))
			}, where == "behind", false}) // check means what it keeps of the upstream
		}
	}
	return all
}

// neighbourSettings returns filters beside Gatehouse's.
func neighbourSettings() (all []setting) {
	percent := `{"numerator": 100, "denominator": "HUNDRED"}`
	runtime := `{"default_value": ` + percent + `, "runtime_key": "none"}`
	for name, config := range itemsByKey(map[string]string{
		"adaptive_concurrency":          `"adaptive_concurrency.v3.AdaptiveConcurrency", "gradient_controller_config": {"concurrency_limit_params": {"concurrency_update_interval": "0.1s"}, "min_rtt_calc_params": {"interval": "60s", "request_count": 50}}`,
		"admission_control":             `"admission_control.v3.AdmissionControl", "success_criteria": {"http_criteria": {"http_success_status": [{"start": 200, "end": 600}]}, "grpc_criteria": {"grpc_success_status": [0]}}`,
		"bandwidth_limit":               `"bandwidth_limit.v3.BandwidthLimit", "stat_prefix": "b", "enable_mode": "REQUEST_AND_RESPONSE", "limit_kbps": 10000`,
		"bandwidth_limit with trailers": `"bandwidth_limit.v3.BandwidthLimit", "stat_prefix": "b", "enable_mode": "REQUEST_AND_RESPONSE", "limit_kbps": 10000, "enable_response_trailers": true`,
		"buffer":                        `"buffer.v3.Buffer", "max_request_bytes": 100`,
		"cdn_loop":                      `"cdn_loop.v3.CdnLoopConfig", "cdn_id": "cdn"`,
		"connect_grpc_bridge":           `"connect_grpc_bridge.v3.FilterConfig"`,
		"cors":                          `"cors.v3.Cors"`,
		"csrf":                          `"csrf.v3.CsrfPolicy", "filter_enabled": ` + runtime,
		"fault: none":                   `"fault.v3.HTTPFault", "abort": {"http_status": 503, "percentage": {"numerator": 0}}`,
		"fault: slow":                   `"fault.v3.HTTPFault", "response_rate_limit": {"fixed_limit": {"limit_kbps": 100000}, "percentage": ` + percent + `}`,
		"file_system_buffer":            `"file_system_buffer.v3.FileSystemBufferFilterConfig", "manager_config": {"thread_pool": {"thread_count": 1}}`,
		"grpc_http1_bridge":             `"grpc_http1_bridge.v3.Config"`,
		"grpc_http1_reverse_bridge":     `"grpc_http1_reverse_bridge.v3.FilterConfig", "content_type": "application/x", "withhold_grpc_frames": true`,
		"grpc_stats":                    `"grpc_stats.v3.FilterConfig", "emit_filter_state": true`,
		"grpc_web":                      `"grpc_web.v3.GrpcWeb"`,
		"health_check":                  `"health_check.v3.HealthCheck", "pass_through_mode": false, "headers": [{"name": ":path", "string_match": {"exact": "/healthz"}}]`,
		"health_check passed on":        `"health_check.v3.HealthCheck", "pass_through_mode": true, "headers": [{"name": ":path", "string_match": {"exact": "/text"}}]`,
		"ip_tagging":                    `"ip_tagging.v3.IPTagging", "request_type": "BOTH", "ip_tags": [{"ip_tag_name": "x", "ip_list": [{"address_prefix": "127.0.0.0", "prefix_len": 8}]}]`,
		"json_to_metadata":              `"json_to_metadata.v3.JsonToMetadata", "response_rules": {"rules": [{"selectors": [{"key": "a"}], "on_present": {"metadata_namespace": "x", "key": "a"}}]}`,
		"local_ratelimit": `"local_ratelimit.v3.LocalRateLimit", "stat_prefix": "l", "token_bucket": {"max_tokens": 100000, "fill_interval": "1s"},
			"filter_enabled": ` + runtime + `, "filter_enforced": ` + runtime + `, "enable_x_ratelimit_headers": "DRAFT_VERSION_03", "response_headers_to_add": [{"header": {"key": "etag", "value": "x"}}]`,
		"on_demand":             `"on_demand.v3.OnDemand"`,
		"rbac":                  `"rbac.v3.RBAC", "rules": {"action": "ALLOW", "policies": {"all": {"permissions": [{"any": true}], "principals": [{"any": true}]}}}`,
		"set_filter_state":      `"set_filter_state.v3.Config", "on_request_headers": [{"object_key": "x", "factory_key": "envoy.string", "format_string": {"text_format_source": {"inline_string": "x"}}}]`,
		"set_metadata":          `"set_metadata.v3.Config", "metadata": [{"metadata_namespace": "x", "value": {"a": "b"}}]`,
		"stateful_session":      `"stateful_session.v3.StatefulSession", "session_state": {"name": "envoy.http.stateful_session.cookie", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState", "cookie": {"name": "s", "path": "/"}}}`,
		"tap":                   `"tap.v3.Tap", "common_config": {"admin_config": {"config_id": "t"}}`,
		"transform of requests": `"transform.v3.TransformConfig", "request_transformation": {"headers_mutations": [{"append": {"header": {"key": "x-a", "value": "b"}}}]}`,
	}) {
		for where, position := range itemsByKey(positions) {
			all = append(all, setting{name: name + " " + where, apply: func(g *gen) {
				kind, fields, _ := strings.Cut(config, `"`+",")
				kind = strings.TrimSuffix(kind, `"`)
				if fields != "" {
					fields = ", " + fields
				}
				g.insert(position(g), parse(`{"name": "n", "typed_config": {"@type": "%s%s"%s}}`, filterTypes, strings.TrimPrefix(kind, `"`), fields))
				if strings.HasPrefix(name, "cors") {
					g.host["typed_per_filter_config"] = parse(`{"n": {"@type": "%scors.v3.CorsPolicy", "allow_origin_string_match": [{"prefix": "h"}], "expose_headers": "etag"}}`, filterTypes)
				}
			}})
		}
	}
	return all
}

// managerFields are fields of the connection manager, the route configuration and routes that act on responses, or
// whose names suggest an effect on responses.
func managerFields() (all []setting) {
	for _, text := range []string{
		`{"server_name": "other"}`, `{"server_header_transformation": "APPEND_IF_ABSENT", "server_name": "other"}`,
		`{"server_header_transformation": "PASS_THROUGH"}`, `{"via": "edge"}`, `{"add_user_agent": true}`,
		`{"proxy_status_config": {"set_recommended_response_code": true}}`, `{"proxy_status_config": {}}`,
		`{"always_set_request_id_in_response": true}`, `{"proxy_100_continue": true}`, `{"strip_trailing_host_dot": true}`,
		`{"strip_any_host_port": true}`, `{"preserve_external_request_id": true}`, `{"skip_xff_append": true}`,
		`{"append_x_forwarded_port": true}`, `{"represent_ipv4_remote_address_as_ipv4_mapped_ipv6": true}`,
		`{"drain_timeout": "1s"}`,
		`{"http_protocol_options": {"header_key_format": {"proper_case_words": {}}}}`,
		`{"http_protocol_options": {"enable_trailers": true}}`,
		`{"http_protocol_options": {"accept_http_10": true, "override_stream_error_on_invalid_http_message": true}}`,
		`{"stream_error_on_invalid_http_message": true}`,
	} {
		all = append(all, setting{name: text, apply: func(g *gen) {
			for name, value := range parse("%s", text) {
				g.hcm[name] = value
			}
		}})
	}
	for _, text := range []string{
		`{"route": {"cluster": %q, "retry_policy": {"retry_on": "5xx,retriable-4xx"}}}`,
		`{"route": {"cluster": %q, "internal_redirect_policy": {"max_internal_redirects": 1, "redirect_response_codes": [301, 308]}}}`,
		`{"route": {"cluster": %q, "hash_policy": [{"cookie": {"name": "h", "ttl": "60s"}}]}}`,
		`{"route": {"cluster": %q, "cluster_not_found_response_code": "NOT_FOUND"}}`,
		`{"route": {"cluster": %q, "append_x_forwarded_host": true, "auto_host_rewrite": true}}`,
	} {
		all = append(all, setting{name: text, apply: func(g *gen) {
			for name, value := range parse(text, g.name("upstream")) {
				g.lastRoute()[name] = value
			}
		}})
	}
	for _, text := range []string{`{"include_request_attempt_count": true, "include_attempt_count_in_response": true}`,
		`{"require_tls": "NONE"}`} {
		all = append(all, setting{name: text, apply: func(g *gen) {
			for name, value := range parse("%s", text) {
				g.host[name] = value
			}
		}})
	}
	return all
}
