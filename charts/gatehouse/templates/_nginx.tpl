{{/* nginx.conf of edge nginx: what the values say, or all of it as given. */}}
{{- define "gatehouse.nginxConfig" -}}
{{- if .Values.nginx.config }}{{ .Values.nginx.config }}{{ else }}{{ include "gatehouse.nginx" . }}{{ end }}
{{- end }}

{{/* The settings and their reasons are those of nginx/nginx.conf. */}}
{{- define "gatehouse.nginx" -}}
{{- $nginx := .Values.nginx -}}
include /etc/nginx/modules-enabled/*.conf;

worker_processes {{ $nginx.workers }};
worker_rlimit_nofile 65536;
worker_shutdown_timeout 15s; # less than what the pod has to end after its drain
error_log stderr {{ $nginx.logLevel }};
pid /run/gatehouse/nginx.pid;

events {
  worker_connections {{ int64 $nginx.connections }};
}

http {
  {{- if eq $nginx.accessLog "off" }}
  access_log off;
  {{- end }}
  # Nothing is written there: requests and answers are not buffered in files.
  {{- range list "client_body" "proxy" "fastcgi" "uwsgi" "scgi" }}
  {{ . }}_temp_path /run/gatehouse/{{ . }};
  {{- end }}
  proxy_max_temp_file_size 0;

  lua_package_path "/usr/share/gatehouse/nginx/lua/?.lua;;";
  init_by_lua_block {
    require("gatehouse.edge").init{
      rules = "/usr/share/gatehouse/nginx/rules.json",
      socket = "unix:{{ include "gatehouse.sockets" . }}/api.sock",
      push = "unix:{{ include "gatehouse.sockets" . }}/push.sock",
      {{- $memory := include "gatehouse.memory" . | fromJson }}
      memory = "/run/gatehouse/memory", memory_mib = {{ int64 $memory.mib }}, objects = {{ int64 $memory.objects }}, verdicts = {{ int64 $memory.verdicts }},
      {{- if .Values.sessions.enabled }}
      issuer = {{ .Values.sessions.issuer | quote }},
      {{- end }}
    }
  }
  include /usr/share/gatehouse/nginx/http.conf;
  {{- if ne $nginx.accessLog "off" }}
  access_log /dev/stdout gatehouse{{ if eq $nginx.accessLog "errors" }} if=$gatehouse_log_errors{{ end }};
  {{- end }}

  {{- if $nginx.tls.existingSecret }}
  # A name with a variable is read at each handshake, so a renewed certificate needs no reload.
  map "" $gatehouse_tls { default /etc/gatehouse-tls/tls; }
  {{- end }}
  {{- with $nginx.trustedProxies }}
  {{- range . }}
  set_real_ip_from {{ . }};
  {{- end }}
  real_ip_header X-Forwarded-For;
  real_ip_recursive on;
  {{- end }}
  {{- with $nginx.extraHTTP }}
  {{- trim . | nindent 2 }}
  {{- end }}

  {{- $shared := list }}{{/* domains of virtual hosts without an upstream of their own */}}
  {{- $own := dict }}
  {{- range $name, $host := .Values.virtualHosts }}
  {{- if $host.upstream }}{{ $_ := set $own $name $host }}{{ else }}{{ $shared = concat $shared (without $host.domains "*") }}{{ end }}
  {{- end }}
  {{- if $own }}
  server_names_hash_max_size 32768;
  server_names_hash_bucket_size 512;
  {{- end }}
  {{- include "gatehouse.nginxUpstream" (list "service" .Values.upstream) | nindent 2 }}
  {{- range $name, $host := $own }}
  {{- include "gatehouse.nginxUpstream" (list (printf "service-%s" $name) $host.upstream) | nindent 2 }}
  {{- end }}

  {{- include "gatehouse.nginxServer" (dict "root" $ "upstream" "service" "names" (ternary $shared list (not (empty $own))) "first" true) | nindent 2 }}
  {{- range $name, $host := $own }}
  {{- include "gatehouse.nginxServer" (dict "root" $ "upstream" (printf "service-%s" $name) "names" $host.domains) | nindent 2 }}
  {{- end }}

  server {
    listen unix:{{ include "gatehouse.sockets" . }}/push.sock;
    include /usr/share/gatehouse/nginx/push.conf;
  }

  # Probes and metrics, a few at a time.
  limit_conn_zone $server_port zone=gatehouse_telemetry:64k;
  server {
    {{- range include "gatehouse.nginxAddresses" . | fromJsonArray }}
    listen {{ . }}:{{ $nginx.telemetryPort }};
    {{- end }}
    access_log off;
    limit_conn gatehouse_telemetry 256;
    location = /live { return 200 "live\n"; }
    location = /ready { content_by_lua_block { require("gatehouse.edge").ready() } }
    {{- if include "gatehouse.onNode" . }}
    # For the startup probe: whether the agent has filled this edge.
    location = /readyz { proxy_pass http://unix:{{ include "gatehouse.sockets" . }}/api.sock:/readyz; proxy_read_timeout 1s; }
    {{- else }}
    location = /metrics { proxy_pass http://127.0.0.1:9090; proxy_read_timeout 10s; }
    {{- end }}
    location = /metrics/edge { content_by_lua_block { require("gatehouse.counters").print() } }
    location / { return 404; }
  }

  # For the sidecar and gatehousectl drain. Whoever reaches it can drain the pod: it stays on loopback.
  server {
    listen 127.0.0.1:9901;
    access_log off;
    location = /metrics { content_by_lua_block { require("gatehouse.counters").print() } }
    location = /healthcheck/fail { content_by_lua_block { require("gatehouse.edge").drain(true) } }
    location / { return 404; }
  }
}
{{- end }}

{{/* Of (list name upstream). */}}
{{- define "gatehouse.nginxUpstream" }}
upstream {{ index . 0 }} {
  server {{ (index . 1).host }}:{{ (index . 1).port }};
  keepalive 64;
}
{{- end }}

{{/* A server for some hosts; the first one is also for all that no other names: of (dict "root" $ "upstream" … "names" … "first" …). */}}
{{- define "gatehouse.nginxServer" }}
{{- $nginx := .root.Values.nginx }}
server {
  {{- range include "gatehouse.nginxAddresses" .root | fromJsonArray }}
  listen {{ . }}:{{ $nginx.port }}{{ if $nginx.tls.existingSecret }} ssl http2{{ end }}{{ if $.first }} reuseport{{ end }};
  {{- end }}
  {{- with .names }}
  server_name {{ join " " . }};
  {{- end }}
  {{- if $nginx.tls.existingSecret }}
  ssl_certificate $gatehouse_tls.crt;
  ssl_certificate_key $gatehouse_tls.key;
  {{- end }}
  client_header_timeout 10s;
  client_max_body_size 0;
  include /usr/share/gatehouse/nginx/server.conf;
  {{- with ternary $nginx.extraServer "" (not (empty .first)) }}
  {{- trim . | nindent 2 }}
  {{- end }}

  location / {
    proxy_pass http://{{ .upstream }};
    proxy_http_version 1.1;
    proxy_set_header Connection $gatehouse_connection;
    proxy_set_header Host $gatehouse_host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_request_buffering off;
    proxy_connect_timeout 1s;
    proxy_read_timeout {{ .root.Values.upstream.timeoutSeconds }}s;
  }
}
{{- end }}

{{/* Where its servers listen, as a JSON list. "::" is for both families, each by a socket of its own, so that a client of
     IPv4 has an address of IPv4: limits take a /64 of IPv6 for one source. */}}
{{- define "gatehouse.nginxAddresses" -}}
{{- $address := .Values.nginx.address }}
{{- if eq $address "::" }}{{ list "0.0.0.0" "[::]" | toJson }}
{{- else if contains ":" $address }}{{ list (printf "[%s]" $address) | toJson }}
{{- else }}{{ list $address | toJson }}
{{- end }}
{{- end }}

{{/* The sidecar's settings of the memory, as JSON, and the size of nginx's file for them, MiB, as memfile.Size says. */}}
{{- define "gatehouse.memory" -}}
{{- $memory := dig "memory" dict .Values.sidecar.settings }}
{{- $text := $memory.bytes | default "256MiB" | toString }}
{{- $bytes := include "gatehouse.bytes" (trimSuffix "B" $text) }}
{{- if not $bytes }}
{{- fail (printf "sidecar.settings.memory.bytes: %s: give it in MiB or GiB, by which the chart sizes nginx's memory" $text) }}
{{- end }}
{{- $objects := int64 ($memory.objects | default 100000) }}
{{- $verdicts := int64 ($memory.verdicts | default 100000) }}
{{- $bodies := min (mul 4 $objects) (div (int64 $bytes) 140) }}
{{- $size := add (int64 $bytes) (mul 180 $bodies) (mul 68 $objects) (mul 317 $verdicts) (mul 7 1048576) }}
{{- dict "mib" (div (int64 $bytes) 1048576) "objects" $objects "verdicts" $verdicts "file" (add 2 (div (mul $size 1042) 1073741824)) | toJson }}
{{- end }}
