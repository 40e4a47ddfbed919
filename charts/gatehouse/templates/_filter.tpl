{{/* Configuration of the edge filter, as in docs/rules.md. */}}
{{- define "gatehouse.filter" -}}
sidecar: {cluster: gatehouse-sidecar, timeout: {{ .Values.sidecarTimeout }}}
{{- with .Values.credentials }}
credentials: {{ toJson . }}
{{- end }}
source: {{ include "gatehouse.source" . }}
{{- if .Values.sessions.enabled }}
session: {metadata: gatehouse}
{{- end }}
verdict_grace: {{ .Values.verdictGrace }}
max_staleness: {{ .Values.maxStaleness }}
max_auth_staleness: {{ .Values.maxAuthStaleness }}
stale: {{ .Values.stale }}
{{- with .Values.rules }}
rules:
{{ toYaml . }}
{{- end }}
default: {{ .Values.default }}
{{- with .Values.virtualHosts }}
virtual_hosts:
{{- range $name, $host := . }}
  {{ $name }}:
    {{- omit $host "upstream" | toYaml | nindent 4 }}
{{- end }}
{{- end }}
strip_override_headers: {{ .Values.stripOverrideHeaders }}
{{- if and (eq .Values.mode "gateway") (eq (ternary .Values.nginx.accessLog .Values.envoy.accessLog (eq .Values.edge "nginx")) "all") }}
log_hits: true
{{- end }}
{{- end }}

{{/* "true" if some rule or default isn't enforced or served. */}}
{{- define "gatehouse.tries" -}}
{{- $all := toJson (list .Values.rules .Values.default .Values.virtualHosts) }}
{{- if or (contains "\"enforce\":false" $all) (contains "\"serve\":false" $all) (contains "\"would_deny\"" $all) }}true{{ end }}
{{- end }}

{{/* Where the address of a client is, as JSON. Istio's inbound listeners believe x-forwarded-for, which clients write. */}}
{{- define "gatehouse.source" -}}
{{- if .Values.source }}{{ toJson .Values.source }}
{{- else if and (eq .Values.mode "istio") (eq .Values.istio.context "sidecar") }}{{ toJson (dict "filter_state" "gatehouse.source") }}
{{- else }}envoy
{{- end }}
{{- end }}

{{/* Stores the address of the connection in filter state, for source: {filter_state: gatehouse.source}: see envoy/envoy.yaml. */}}
{{- define "gatehouse.sourceFilter" -}}
name: envoy.filters.http.set_filter_state
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
  on_request_headers:
  - object_key: gatehouse.source
    factory_key: envoy.string
    format_string: {text_format_source: {inline_string: "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"}}
{{- end }}

{{/* The filters of a connection manager, in their order, as a JSON list of names of templates. */}}
{{- define "gatehouse.filters" -}}
{{- $filters := list }}
{{- if .Values.sessions.enabled }}{{ $filters = append $filters "gatehouse.sessionFilter" }}{{ end }}
{{- if and .Values.sessions.enabled (include "gatehouse.native" .) }}{{ $filters = append $filters "gatehouse.claimsFilter" }}{{ end }}
{{- $sources := list (include "gatehouse.source" .) }}
{{- range .Values.virtualHosts }}{{ $sources = append $sources (toJson .source) }}{{ end }}
{{- if has (toJson (dict "filter_state" "gatehouse.source")) $sources }}{{ $filters = append $filters "gatehouse.sourceFilter" }}{{ end }}
{{- toJson (append $filters "gatehouse.edgeFilter") }}
{{- end }}

{{/* Rules match paths, so a request must have one spelling: for a connection manager that others make. */}}
{{- define "gatehouse.normalisation" -}}
normalize_path: true
merge_slashes: true
path_with_escaped_slashes_action: REJECT_REQUEST
{{- end }}

{{/* The VM of every plugin: the same everywhere but for its configuration, or the plugins
     share nothing. Of (list context configuration). */}}
{{- define "gatehouse.vm" -}}
vm_config:
  vm_id: {{ include "gatehouse.vmID" (index . 0) }}
  runtime: envoy.wasm.runtime.v8
  code: {{ include "gatehouse.moduleCode" (index . 0) }}
  configuration:
    "@type": type.googleapis.com/google.protobuf.Struct
    value:
      {{- index . 1 | nindent 6 }}
# After a trap the worker gets a new VM and shared memory survives; until then 503. Never
# FAIL_OPEN: it would let every request through unauthenticated.
failure_policy: FAIL_RELOAD
reload_config:
  backoff: {base_interval: 0.25s, max_interval: 2s}
{{- end }}

{{/* Where the proxy reads the module. Istio's agent fetches a remote one and makes it a file: it takes "nil" for no
     checksum, and needs no cluster. */}}
{{- define "gatehouse.moduleCode" -}}
{{- if include "gatehouse.discovered" . -}}
{remote: {http_uri: {uri: "oci://{{ include "gatehouse.sidecarImage" . }}", cluster: none, timeout: 30s}, sha256: nil}}
{{- else -}}
{local: {filename: /etc/gatehouse/gatehouse.wasm}}
{{- end }}
{{- end }}

{{/* Whether our filters come by discovery (ECDS): Istio's agent brings the module to no others. */}}
{{- define "gatehouse.discovered" -}}
{{- if and (eq .Values.mode "istio") (eq .Values.istio.module "registry") }}true{{ end }}
{{- end }}

{{/* The edge filter, for an HTTP connection manager. */}}
{{- define "gatehouse.edgeFilter" -}}
name: gatehouse
{{ include "gatehouse.filterConfig" (list . "gatehouse.edgeConfig") }}
{{- end }}

{{/* What a filter does, or that it is to be discovered under the filter's name: of (list context template). */}}
{{- define "gatehouse.filterConfig" -}}
{{- if include "gatehouse.discovered" (index . 0) -}}
config_discovery:
  # Without an end: until the configuration is there, its listener serves nobody.
  config_source: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
  # If Istio's agent can't fetch the module, it sends a filter of type RBAC, which denies every request. Envoy refuses
  # that, and goes on with the configuration that it has; without one, the pod doesn't become ready.
  type_urls: [type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm]
{{- else -}}
typed_config:
  {{- include (index . 1) (index . 0) | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gatehouse.edgeConfig" -}}
{{- if include "gatehouse.native" . -}}
{{ include "gatehouse.dynamicModule" (include "gatehouse.filter" .) }}
{{- else -}}
"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
config:
  name: gatehouse
  {{- include "gatehouse.vm" (list . (include "gatehouse.filter" .)) | nindent 2 }}
{{- end }}
{{- end }}

{{/* The filter as a dynamic module, with this configuration. */}}
{{- define "gatehouse.dynamicModule" -}}
"@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
dynamic_module_config: {module: {local: {filename: /usr/lib/gatehouse/libgatehouse.so}}, do_not_close: true}
filter_name: gatehouse
filter_config:
  "@type": type.googleapis.com/google.protobuf.Struct
  value:
    {{- . | nindent 4 }}
{{- end }}

{{- define "gatehouse.pushConfig" -}}
{{- if include "gatehouse.native" . -}}
{{ include "gatehouse.dynamicModule" "push_listener: true" }}
{{- else -}}
"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
config:
  name: gatehouse-push
  {{- include "gatehouse.vm" (list . "push_listener: true") | nindent 2 }}
  # Lets the plugin receive a batch's body before it answers. Only here.
  allow_on_headers_stop_iteration: true
{{- end }}
{{- end }}

{{/* What the edge filter says of a request that it has passed on, for a route configuration. */}}
{{- define "gatehouse.notes" -}}
response_headers_to_add:
- header: {key: cache-status, value: "%FILTER_STATE(wasm.gatehouse_cache_status:PLAIN)%"}
  append_action: APPEND_IF_EXISTS_OR_ADD
- header: {key: vary, value: "%FILTER_STATE(wasm.gatehouse_vary:PLAIN)%"}
  append_action: APPEND_IF_EXISTS_OR_ADD
- header: {key: cache-control, value: "%FILTER_STATE(wasm.gatehouse_cache_control:PLAIN)%"}
  append_action: ADD_IF_ABSENT
- header: {key: cache-control, value: "%FILTER_STATE(wasm.gatehouse_no_store:PLAIN)%"}
  append_action: OVERWRITE_IF_EXISTS_OR_ADD
{{- if and .Values.sessions.enabled (ne (lower .Values.sessions.header) "authorization") }}
- header: {key: vary, value: {{ .Values.sessions.header }}} # of the filter's own answers, too
  append_action: APPEND_IF_EXISTS_OR_ADD
{{- end }}
{{- end }}

{{/* The labels of the edge filter's counters, separated by commas. */}}
{{- define "gatehouse.labelsOfCounters" -}}
rule,outcome,call,result
{{- end }}

{{/* They are parts of the counters' names, in Istio's form, and Envoy extracts them: see docs/monitoring.md. */}}
{{- define "gatehouse.statsTags" -}}
stats_tags:
{{- range include "gatehouse.labelsOfCounters" . | splitList "," }}
- {tag_name: {{ . }}, regex: '({{ . }}=\.=(.*?);\.;)'}
{{- end }}
{{- end }}

{{/* A dynamic module's counters without the prefix envoy_dynamicmodulescustom_, as those of the Wasm module. */}}
{{- define "gatehouse.statsRuntime" -}}
layers:
- name: gatehouse
  static_layer: {envoy.reloadable_features.dynamic_modules_strip_custom_stat_prefix: true}
{{- end }}

{{/* Envoy's own filter for tokens, which goes before the edge filter: see envoy/envoy.yaml. */}}
{{- define "gatehouse.sessionFilter" -}}
name: envoy.filters.http.jwt_authn
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
  providers:
    gatehouse:
      issuer: {{ .Values.sessions.issuer | quote }}
      audiences: [gatehouse-edge]
      from_headers:
      - {name: {{ .Values.sessions.header }}, value_prefix: "Bearer "}
      forward: false
      payload_in_metadata: gatehouse
      require_expiration: true
      clock_skew_seconds: 10
      jwt_cache_config: {jwt_cache_size: 4096}
      remote_jwks:
        http_uri: {uri: "http://gatehouse/v1/session/jwks", cluster: gatehouse-sidecar, timeout: 2s}
        cache_duration: 60s
        async_fetch: {fast_listener: true, failed_refetch_duration: 1s}
  rules:
  - match:
      prefix: /
      headers: [{name: {{ .Values.sessions.header }}, string_match: {safe_regex: {regex: "(?i)bearer +gh_[!-+\\--~]*"}}}]
  - match: {prefix: /}
    requires:
      requires_any:
        requirements:
        - {provider_name: gatehouse}
        - {allow_missing: {}}
{{- end }}

{{/* Copies the token's claims to where a dynamic module can read them: see envoy/envoy-native.yaml. */}}
{{- define "gatehouse.claimsFilter" -}}
name: gatehouse-claims
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
  on_request_headers:
  {{- range list "sub" "ver" }}
  - object_key: gatehouse.claims.gatehouse.{{ . }}
    factory_key: envoy.string
    format_string:
      text_format_source: {inline_string: "%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:gatehouse:{{ . }})%"}
      omit_empty_values: true
    skip_if_empty: true
  {{- end }}
{{- end }}

{{/* The listener that the sidecar pushes to. */}}
{{- define "gatehouse.pushListener" -}}
name: gatehouse-push
address:
  pipe: {path: {{ include "gatehouse.sockets" . }}/push.sock, mode: {{ ternary "432} # 0660: the agent has the group" "384} # 0600" (eq .Values.agent "node") }}
filter_chains:
- filters:
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      http_filters:
      - name: gatehouse-push
        {{- include "gatehouse.filterConfig" (list . "gatehouse.pushConfig") | nindent 8 }}
      - name: envoy.filters.http.router
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
      route_config:
        name: gatehouse-push
        virtual_hosts:
        - name: none
          domains: ["*"]
          routes: # the plugin answers everything itself
          - match: {prefix: /}
            direct_response: {status: 404}
      stat_prefix: gatehouse_push
      # The sidecar keeps its connection between heartbeats.
      common_http_protocol_options: {idle_timeout: 3600s}
      stream_idle_timeout: 10s
      request_timeout: 10s
# Envoy buffers a whole batch: this must exceed the largest one (a body of 1 MiB and its record).
per_connection_buffer_limit_bytes: 4194304
# A flood at the edge must not lock the sidecar out: it brings revocations.
ignore_global_conn_limit: true
bypass_overload_manager: true
{{- end }}

{{/* The listener of probes and metrics: these paths only, and few at a time, so that who reads
     them neither reaches the admin nor takes from the requests. */}}
{{- define "gatehouse.telemetryListener" -}}
name: gatehouse-telemetry
address:
  socket_address: {{ include "gatehouse.address" (list .Values.envoy.address .Values.envoy.telemetryPort) }}
filter_chains:
- filters:
  # Instead of the limits below, which it is exempt from. Probes and Prometheus have a few connections.
  - name: envoy.filters.network.connection_limit
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit
      stat_prefix: gatehouse_telemetry
      max_connections: 256
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      http_filters:
      # 503 as soon as the pod drains.
      - name: envoy.filters.http.health_check
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck
          pass_through_mode: false
          headers: [{name: ":path", string_match: {exact: /ready}}]
      - name: envoy.filters.http.router
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
      route_config:
        name: gatehouse-telemetry
        virtual_hosts:
        - name: telemetry
          domains: ["*"]
          routes:
          - match: {path: /live}
            direct_response: {status: 200}
          {{- if or (include "gatehouse.onNode" .) (eq .Values.mode "istio") }}
          # For the startup probe: whether the agent has filled this edge. In Istio also of pods that are to be replaced.
          - match: {path: /readyz, headers: [{name: ":method", string_match: {exact: GET}}]}
            route: {cluster: gatehouse-sidecar, timeout: 1s}
          {{- end }}
          {{- if not (include "gatehouse.onNode" .) }}
          - match: {path: /metrics, headers: [{name: ":method", string_match: {exact: GET}}]}
            route: {cluster: gatehouse-admin, timeout: 10s}
          {{- end }}
          {{- if eq .Values.mode "gateway" }}
          - match: {path: /stats/prometheus, headers: [{name: ":method", string_match: {exact: GET}}]}
            route: {cluster: envoy-admin, timeout: 10s}
          {{- end }}
      stat_prefix: gatehouse_telemetry
      common_http_protocol_options:
        idle_timeout: 60s
        max_connection_duration: 600s
        max_headers_count: 50
      max_request_headers_kb: 8
      stream_idle_timeout: 15s
      stream_flush_timeout: 15s
      request_timeout: 10s
      request_headers_timeout: 5s
      http2_protocol_options:
        max_concurrent_streams: 10
        initial_stream_window_size: 65536
        initial_connection_window_size: 65536
per_connection_buffer_limit_bytes: 32768
# Or a flood at the edge would have the pod restarted.
ignore_global_conn_limit: true
bypass_overload_manager: true
{{- end }}

{{/* The cluster of the sidecar's API: see envoy/envoy.yaml for the sizes. */}}
{{- define "gatehouse.sidecarCluster" -}}
name: gatehouse-sidecar
type: STATIC
connect_timeout: 0.25s
load_assignment:
  cluster_name: gatehouse-sidecar
  endpoints:
  - lb_endpoints:
    - endpoint:
        address: {pipe: {path: {{ include "gatehouse.sockets" . }}/api.sock}}
circuit_breakers:
  thresholds:
  - {priority: DEFAULT, max_connections: 2048, max_pending_requests: 4096, max_requests: 4096}
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    # Shorter than the sidecar's own idle timeout, so that no call meets a connection being closed.
    common_http_protocol_options: {idle_timeout: 30s}
    explicit_http_config: {http_protocol_options: {}}
{{- end }}

{{/* An admin address of the pod, for the telemetry listener: of (dict "name" … "port" …). */}}
{{- define "gatehouse.adminCluster" -}}
name: {{ .name }}
type: STATIC
connect_timeout: 1s
load_assignment:
  cluster_name: {{ .name }}
  endpoints:
  - lb_endpoints:
    - endpoint:
        address:
          socket_address: {address: 127.0.0.1, port_value: {{ .port }}}
circuit_breakers:
  thresholds:
  - {priority: DEFAULT, max_connections: 2, max_pending_requests: 2, max_requests: 2}
{{- end }}
