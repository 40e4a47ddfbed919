{{/* envoy.yaml of mode gateway: what the values say, or all of it as given. */}}
{{- define "gatehouse.envoyConfig" -}}
{{- if .Values.envoy.config }}{{ .Values.envoy.config }}{{ else }}{{ include "gatehouse.envoy" . }}{{ end }}
{{- end }}

{{/* The settings and their reasons are those of envoy/envoy.yaml. */}}
{{- define "gatehouse.envoy" -}}
node: {id: {{ include "gatehouse.fullname" . }}, cluster: {{ include "gatehouse.fullname" . }}} # asked for where a certificate comes by a file
static_resources:
  listeners:
  - {{- include "gatehouse.edgeListener" . | nindent 4 }}
  - {{- include "gatehouse.pushListener" . | nindent 4 }}
  - {{- include "gatehouse.telemetryListener" . | nindent 4 }}
  {{- with .Values.envoy.extraListeners }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  clusters:
  - {{- include "gatehouse.sidecarCluster" . | nindent 4 }}
  {{- if not (include "gatehouse.onNode" .) }}
  - {{- include "gatehouse.adminCluster" (dict "name" "gatehouse-admin" "port" 9090) | nindent 4 }}
  {{- end }}
  - {{- include "gatehouse.adminCluster" (dict "name" "envoy-admin" "port" 9901) | nindent 4 }}
  - {{- include "gatehouse.upstreamCluster" (list "upstream" .Values.upstream) | nindent 4 }}
  {{- range $name, $host := .Values.virtualHosts }}
  {{- with $host.upstream }}
  - {{- include "gatehouse.upstreamCluster" (list (printf "upstream-%s" $name) .) | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with .Values.envoy.extraClusters }}
  {{- toYaml . | nindent 2 }}
  {{- end }}

{{- if include "gatehouse.native" . }}

layered_runtime:
  {{- include "gatehouse.statsRuntime" . | nindent 2 }}
  - {name: admin, admin_layer: {}}
{{- end }}

stats_config:
  {{- include "gatehouse.statsTags" . | nindent 2 }}

# Whoever reaches the admin address controls Envoy: it stays on loopback.
admin:
  address:
    socket_address: {address: 127.0.0.1, port_value: 9901}

overload_manager:
  refresh_interval: 0.25s
  resource_monitors:
  - name: envoy.resource_monitors.fixed_heap
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig
      max_heap_size_bytes: {{ int64 .Values.envoy.maxHeapBytes }}
  - name: envoy.resource_monitors.global_downstream_max_connections
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
      max_active_downstream_connections: {{ int64 .Values.envoy.maxConnections }}
  buffer_factory_config: {minimum_account_to_track_power_of_two: 15}
  actions:
  - name: envoy.overload_actions.reduce_timeouts
    triggers:
    - name: envoy.resource_monitors.fixed_heap
      scaled: {scaling_threshold: 0.75, saturation_threshold: 0.95}
    typed_config:
      "@type": type.googleapis.com/envoy.config.overload.v3.ScaleTimersOverloadActionConfig
      timer_scale_factors:
      - {timer: HTTP_DOWNSTREAM_STREAM_FLUSH, min_timeout: 0.5s}
      - {timer: HTTP_DOWNSTREAM_CONNECTION_IDLE, min_timeout: 2s}
  - name: envoy.overload_actions.reset_high_memory_stream
    triggers:
    - name: envoy.resource_monitors.fixed_heap
      scaled: {scaling_threshold: 0.8, saturation_threshold: 0.95}
  - name: envoy.overload_actions.shrink_heap
    triggers:
    - name: envoy.resource_monitors.fixed_heap
      threshold: {value: 0.95}
  - name: envoy.overload_actions.stop_accepting_requests
    triggers:
    - name: envoy.resource_monitors.fixed_heap
      threshold: {value: 0.98}
{{- end }}

{{/* Of (list name upstream). */}}
{{- define "gatehouse.upstreamCluster" -}}
name: {{ index . 0 }}
type: STRICT_DNS
connect_timeout: 1s
per_connection_buffer_limit_bytes: 32768
load_assignment:
  cluster_name: {{ index . 0 }}
  endpoints:
  - lb_endpoints:
    - endpoint:
        address:
          socket_address: {address: {{ (index . 1).host | quote }}, port_value: {{ (index . 1).port }}}
circuit_breakers:
  thresholds:
  - {priority: DEFAULT, max_connections: 4096, max_pending_requests: 4096, max_requests: 4096}
{{- end }}

{{/* A virtual host of Envoy: of (dict "root" $ "name" … "domains" … "upstream" its own). */}}
{{- define "gatehouse.envoyVirtualHost" -}}
name: {{ .name }}
domains: {{ toJson .domains }}
routes:
{{- with ternary list .root.Values.envoy.extraRoutes (not (empty .upstream)) }}
{{ toYaml . }}
{{- end }}
- match: {prefix: /}
  route: {cluster: {{ if .upstream }}upstream-{{ .name }}{{ else }}upstream{{ end }}, timeout: {{ .root.Values.upstream.timeoutSeconds }}s}
{{- end }}

{{/* The certificate of the edge listener, which Envoy reads again when the Secret changes. */}}
{{- define "gatehouse.tls" -}}
resources:
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: edge
  tls_certificate:
    certificate_chain: {filename: /etc/gatehouse-tls/tls.crt}
    private_key: {filename: /etc/gatehouse-tls/tls.key}
    watched_directory: {path: /etc/gatehouse-tls}
{{- end }}

{{/* Where a listener of the pod listens: of (list address port). "::" is for both families. */}}
{{- define "gatehouse.address" -}}
{address: {{ index . 0 | quote }}, port_value: {{ index . 1 }}{{ if eq (index . 0) "::" }}, ipv4_compat: true{{ end }}}
{{- end }}

{{- define "gatehouse.edgeListener" -}}
name: edge
address:
  socket_address: {{ include "gatehouse.address" (list .Values.envoy.address .Values.envoy.port) }}
filter_chains:
- {{- if (.Values.envoy.tls).existingSecret }}
  transport_socket:
    name: envoy.transport_sockets.tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
      common_tls_context:
        alpn_protocols: [h2, http/1.1]
        tls_certificate_sds_secret_configs:
        - name: edge
          sds_config: {resource_api_version: V3, path_config_source: {path: /etc/envoy/tls.yaml}}
  {{- end }}
  filters:
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      http_filters:
      {{- range $filter := include "gatehouse.filters" . | fromJsonArray }}
      - {{- include $filter $ | nindent 8 }}
      {{- end }}
      - name: envoy.filters.http.router
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
      route_config:
        name: edge
        {{- include "gatehouse.notes" . | nindent 8 }}
        virtual_hosts:
        # As the rules have them, so that a request goes where the rules that judge it belong.
        {{- $rest := true }}
        {{- range $name, $host := .Values.virtualHosts }}
        - {{- include "gatehouse.envoyVirtualHost" (dict "root" $ "name" $name "domains" $host.domains "upstream" $host.upstream) | nindent 10 }}
        {{- if has "*" $host.domains }}{{ $rest = false }}{{ end }}
        {{- end }}
        {{- if $rest }}
        - {{- include "gatehouse.envoyVirtualHost" (dict "root" $ "name" "all others" "domains" (list "*")) | nindent 10 }}
        {{- end }}
        ignore_port_in_host_matching: true
      stat_prefix: edge
      {{- if ne .Values.envoy.accessLog "off" }}
      access_log:
      - name: envoy.access_loggers.stdout
        {{- if eq .Values.envoy.accessLog "errors" }}
        filter:
          or_filter:
            filters:
            - status_code_filter: {comparison: {op: GE, value: {default_value: 400, runtime_key: gatehouse.log.status}}}
            - duration_filter: {comparison: {op: GE, value: {default_value: 1000, runtime_key: gatehouse.log.milliseconds}}}
            {{- if include "gatehouse.tries" . }}
            - extension_filter:
                name: envoy.access_loggers.extension_filters.cel
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter
                  expression: "'wasm.gatehouse_reason' in filter_state"
            {{- end }}
        {{- end }}
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
          log_format:
            json_format:
              time: "%START_TIME%"
              request_id: "%REQ(x-request-id)%"
              method: "%REQ(:method)%"
              path: "%PATH(NQ)%" # without the query
              status: "%RESPONSE_CODE%"
              reason: "%RESPONSE_CODE_DETAILS%"
              flags: "%RESPONSE_FLAGS%"
              rule: "%FILTER_STATE(wasm.gatehouse_rule:PLAIN)%" # of what went upstream or was refused
              trial: "%FILTER_STATE(wasm.gatehouse_reason:PLAIN)%" # why it would be refused, or what differs from the cache
              cache: "%RESP(cache-status)%"
              device: "%FILTER_STATE(wasm.gatehouse_device:PLAIN)%" # of a credential that was accepted or refused
              source: "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"
              duration_ms: "%DURATION%"
              bytes: "%BYTES_SENT%"
      {{- end }}
      # Rules match paths, so a request must have one spelling.
      normalize_path: true
      merge_slashes: true
      path_with_escaped_slashes_action: REJECT_REQUEST
      common_http_protocol_options:
        headers_with_underscores_action: REJECT_REQUEST
        max_headers_count: 100
        idle_timeout: 300s
      use_remote_address: true
      xff_num_trusted_hops: {{ .Values.envoy.trustedHops }}
      # More than the route's timeout. It also ends what waits in a Wasm VM that traps.
      stream_idle_timeout: {{ add .Values.upstream.timeoutSeconds 5 }}s
      stream_flush_timeout: 60s
      request_timeout: 60s
      request_headers_timeout: 10s
      max_request_headers_kb: 16
      # HTTP/1.0, nginx's default, would get 426.
      http_protocol_options:
        accept_http_10: true
        default_host_for_http_10: upstream
      http2_protocol_options:
        max_concurrent_streams: 100
        initial_stream_window_size: 65536
        initial_connection_window_size: 1048576
per_connection_buffer_limit_bytes: 32768
{{- end }}
