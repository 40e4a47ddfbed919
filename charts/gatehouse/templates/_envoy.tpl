{{/* envoy.yaml of mode gateway: what the values say, or all of it as given. */}}
{{- define "gatehouse.envoyConfig" -}}
{{- if .Values.envoy.config }}{{ .Values.envoy.config }}{{ else }}{{ include "gatehouse.envoy" . }}{{ end }}
{{- end }}

{{/* The settings and their reasons are those of envoy/envoy.yaml. */}}
{{- define "gatehouse.envoy" -}}
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
  - {{- include "gatehouse.adminCluster" (dict "name" "gatehouse-admin" "port" 9090) | nindent 4 }}
  - {{- include "gatehouse.adminCluster" (dict "name" "envoy-admin" "port" 9901) | nindent 4 }}
  - name: upstream
    type: STRICT_DNS
    connect_timeout: 1s
    per_connection_buffer_limit_bytes: 32768
    load_assignment:
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint:
            address:
              socket_address: {address: {{ .Values.upstream.host | quote }}, port_value: {{ .Values.upstream.port }}}
    circuit_breakers:
      thresholds:
      - {priority: DEFAULT, max_connections: 4096, max_pending_requests: 4096, max_requests: 4096}
  {{- with .Values.envoy.extraClusters }}
  {{- toYaml . | nindent 2 }}
  {{- end }}

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
  actions:
  - name: envoy.overload_actions.shrink_heap
    triggers:
    - name: envoy.resource_monitors.fixed_heap
      threshold: {value: 0.95}
  - name: envoy.overload_actions.stop_accepting_requests
    triggers:
    - name: envoy.resource_monitors.fixed_heap
      threshold: {value: 0.98}
{{- end }}

{{- define "gatehouse.edgeListener" -}}
name: edge
address:
  socket_address: {address: {{ .Values.envoy.address | quote }}, port_value: {{ .Values.envoy.port }}}
filter_chains:
- filters:
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      http_filters:
      {{- if .Values.sessions.enabled }}
      - {{- include "gatehouse.sessionFilter" . | nindent 8 }}
      {{- end }}
      - {{- include "gatehouse.edgeFilter" . | nindent 8 }}
      - name: envoy.filters.http.router
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
      route_config:
        name: edge
        {{- include "gatehouse.cacheStatus" . | nindent 8 }}
        virtual_hosts:
        - name: upstream
          domains: ["*"]
          routes:
          {{- with .Values.envoy.extraRoutes }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
          - match: {prefix: /}
            route: {cluster: upstream, timeout: {{ .Values.upstream.timeoutSeconds }}s}
      stat_prefix: edge
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
      # More than the route's timeout. It also ends what waits in a VM that traps.
      stream_idle_timeout: {{ add .Values.upstream.timeoutSeconds 5 }}s
      request_timeout: 60s
      request_headers_timeout: 10s
      max_request_headers_kb: 16
      http2_protocol_options:
        max_concurrent_streams: 100
        initial_stream_window_size: 65536
        initial_connection_window_size: 1048576
per_connection_buffer_limit_bytes: 32768
{{- end }}
