{{/* What stands beside an edge, in every mode: the module or plugin is brought, then the sidecar runs
     until the edge has ended, because a native sidecar starts before the containers and ends after
     them. It has no startup probe: the edge must not wait for a sidecar that waits for the edge. */}}
{{- define "gatehouse.initContainers" -}}
{{- if not (include "gatehouse.discovered" .) }}
- name: gatehouse-module
  image: {{ include "gatehouse.sidecarImage" . }}
  imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
  {{- if eq .Values.edge "nginx" }}
  # A mistake in the rules keeps the pod from starting, so that the earlier ones go on.
  command: [gatehousectl, nginx, install, --rules, /etc/gatehouse/rules.yaml, /module]
  {{- else if include "gatehouse.native" . }}
  command: [gatehousectl, install-module, /libgatehouse.so, /module/libgatehouse.so]
  {{- else }}
  command: [gatehousectl, install-module, /plugin.wasm, /module/gatehouse.wasm]
  {{- end }}
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 64Mi}}
  securityContext:
    {{- include "gatehouse.containerSecurity" . | nindent 4 }}
  volumeMounts:
  - {name: gatehouse-module, mountPath: /module}
  {{- if eq .Values.edge "nginx" }}
  - {name: gatehouse-nginx, mountPath: /etc/gatehouse/rules.yaml, subPath: rules.yaml, readOnly: true}
  {{- end }}
{{ end -}}
{{- if include "gatehouse.onNode" . }}
{{- if eq .Values.mode "gateway" }}
# For the edge's hook: there is no sidecar in the pod. A mesh drains its proxies itself.
- name: gatehousectl
  image: {{ include "gatehouse.sidecarImage" . }}
  imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
  command: [gatehousectl, install-module, /usr/local/bin/gatehousectl, /module/gatehousectl]
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 64Mi}}
  securityContext:
    {{- include "gatehouse.containerSecurity" . | nindent 4 }}
  volumeMounts:
  - {name: gatehouse-module, mountPath: /module}
{{- end }}
{{- else }}
- name: gatehouse-sidecar
  restartPolicy: Always
  {{- include "gatehouse.sidecarProgram" . | nindent 2 }}
  # Ready once the edge has acknowledged everything. The admin address is on loopback.
  readinessProbe:
    exec: {command: [gatehousectl, ready]}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 3
  {{- if eq .Values.mode "gateway" }}
  lifecycle:
    # Runs when the pod's end begins, beside the edge's own hook.
    preStop:
      exec: {command: [gatehousectl, drain]}
  {{- else }}
  ports: # Envoy's, for the PodMonitor: a mesh's Envoy doesn't name it
  - {name: gh-telemetry, containerPort: {{ .Values.envoy.telemetryPort }}}
  {{- end }}
  securityContext:
    {{- include "gatehouse.containerSecurity" . | nindent 4 }}
  volumeMounts:
  {{- include "gatehouse.sidecarMounts" . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The sidecar's program, in a pod of an edge or of the agent. */}}
{{- define "gatehouse.sidecarProgram" -}}
image: {{ include "gatehouse.sidecarImage" . }}
imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
command: [gatehouse-sidecar, --config, /etc/gatehouse/sidecar.yaml]
env:
# GOMEMLIMIT is 95 % of the limit: its mebibytes, each counted as 1,000,000 bytes.
- name: MEMORY_LIMIT_MIB
  valueFrom:
    resourceFieldRef: {containerName: gatehouse-sidecar, resource: limits.memory, divisor: 1Mi}
- {name: GOMEMLIMIT, value: $(MEMORY_LIMIT_MIB)000000}
{{- include "gatehouse.redisEnvironment" . | nindent 0 }}
{{- with .Values.sidecar.extraEnv }}
{{ toYaml . }}
{{- end }}
resources:
  {{- toYaml .Values.sidecar.resources | nindent 2 }}
{{- end }}

{{- define "gatehouse.sidecarMounts" -}}
- {name: gatehouse-run, mountPath: /run/gatehouse}
- {name: gatehouse-sidecar, mountPath: /etc/gatehouse/sidecar.yaml, subPath: sidecar.yaml, readOnly: true}
{{- if .Values.redis.snapshot }}
- {name: gatehouse-snapshot, mountPath: /tmp}
{{- end }}
{{- if .Values.redis.existingSecret }}
- {name: gatehouse-redis, mountPath: /etc/gatehouse/redis, readOnly: true}
{{- end }}
{{- if .Values.redis.tls.existingSecret }}
- {name: gatehouse-redis-tls, mountPath: /etc/gatehouse/redis-tls, readOnly: true}
{{- end }}
{{- range $section, $_ := include "gatehouse.secrets" . | fromJson }}
- {name: gatehouse-{{ $section }}-secret, mountPath: /etc/gatehouse/secrets/{{ $section }}, readOnly: true}
{{- end }}
{{- with .Values.sidecar.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Which Redis, as a URL. */}}
{{- define "gatehouse.redisURL" -}}
{{- if .Values.redis.bundled.enabled }}redis://{{ include "gatehouse.fullname" . }}-redis:6379{{ else }}{{ .Values.redis.url }}{{ end }}
{{- end }}

{{/* Ports of Redis and sentinels, as a list in JSON: those of the URL, and redisPorts. */}}
{{- define "gatehouse.redisPorts" -}}
{{- $ports := list }}
{{- range regexFindAll ":[0-9]+([,/?]|$)" .Values.redis.url -1 }}{{ $ports = append $ports (regexFind "[0-9]+" . | int) }}{{ end }}
{{- range .Values.networkPolicy.redisPorts }}{{ $ports = append $ports (int .) }}{{ end }}
{{- $ports | uniq | toJson }}
{{- end }}

{{/* How to reach it, as environment: the sidecar and gatehousectl both read it. */}}
{{- define "gatehouse.redisEnvironment" -}}
{{- $redis := .Values.redis }}
{{- $tls := $redis.tls }}
- {name: GATEHOUSE_REDIS_URL, value: {{ include "gatehouse.redisURL" . | quote }}}
- {name: GATEHOUSE_REDIS_SHARDS, value: {{ $redis.shards | quote }}}
{{- with $redis.namespace }}
- {name: GATEHOUSE_REDIS_NAMESPACE, value: {{ . | quote }}}
{{- end }}
{{- if ne $redis.read "master" }}
- {name: GATEHOUSE_REDIS_READ, value: {{ $redis.read | quote }}}
{{- end }}
{{- with $redis.deviceNamespace }}
- {name: GATEHOUSE_REDIS_DEVICE_NAMESPACE, value: {{ . | quote }}}
{{- end }}
{{- with $redis.snapshot }}
- {name: GATEHOUSE_REDIS_SNAPSHOT, value: {{ . | quote }}}
{{- end }}
- {name: GATEHOUSE_REDIS_ACCEPT_LOSS_AFTER, value: {{ ternary "1s" $redis.acceptLossAfter $redis.bundled.enabled }}}
{{- with $redis.username }}
- {name: GATEHOUSE_REDIS_USERNAME, value: {{ . | quote }}}
{{- end }}
{{- if and $redis.existingSecret $redis.passwordKey }}
- {name: GATEHOUSE_REDIS_PASSWORD_FILE, value: /etc/gatehouse/redis/password}
{{- end }}
{{- with $redis.sentinelUsername }}
- {name: GATEHOUSE_REDIS_SENTINEL_USERNAME, value: {{ . | quote }}}
{{- end }}
{{- if $redis.sentinelPasswordKey }}
- {name: GATEHOUSE_REDIS_SENTINEL_PASSWORD_FILE, value: /etc/gatehouse/redis/sentinel-password}
{{- end }}
{{- if and $tls.existingSecret $tls.caKey }}
- {name: GATEHOUSE_REDIS_TLS_CA_FILE, value: /etc/gatehouse/redis-tls/ca.crt}
{{- end }}
{{- if $tls.certKey }}
- {name: GATEHOUSE_REDIS_TLS_CERT_FILE, value: /etc/gatehouse/redis-tls/tls.crt}
- {name: GATEHOUSE_REDIS_TLS_KEY_FILE, value: /etc/gatehouse/redis-tls/tls.key}
{{- end }}
{{- with $tls.serverName }}
- {name: GATEHOUSE_REDIS_TLS_SERVER_NAME, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{/* Secrets that the sidecars have in common, as JSON: the section of the settings, and {name, setting, items}. */}}
{{- define "gatehouse.secrets" -}}
{{- $secrets := dict }}
{{- $of := dict "session" .Values.sessions "verdict" .Values.sharedVerdicts }}
{{- if not .Values.sessions.enabled }}{{ $_ := unset $of "session" }}{{ end }}
{{- range $section, $from := $of }}
{{- if $from.existingSecret }}
{{- $items := list (dict "key" $from.secretKey "path" "secret") }}
{{- $_ := set $secrets $section (dict "name" $from.existingSecret "setting" "secret_file" "items" $items) }}
{{- end }}
{{- end }}
{{- with .Values.peppers.existingSecret }}
{{- $items := list }}
{{- range $i, $key := $.Values.peppers.secretKeys }}
{{- $items = append $items (dict "key" $key "path" (printf "pepper-%d" $i)) }}
{{- end }}
{{- $_ := set $secrets "credential" (dict "name" . "setting" "pepper_file" "items" $items) }}
{{- end }}
{{- $secrets | toJson }}
{{- end }}

{{/* The sidecar's configuration file. Sockets and admin address are the defaults. */}}
{{- define "gatehouse.sidecarConfig" -}}
{{- $config := deepCopy .Values.sidecar.settings }}
{{- if .Values.sessions.enabled }}
{{- $_ := set $config "session" (pick .Values.sessions "issuer" "ttl" "rotate") }}
{{- end }}
{{- range $section, $from := include "gatehouse.secrets" . | fromJson }}
{{- $settings := get $config $section | default dict }}
{{- $files := list }}
{{- range $from.items }}{{ $files = append $files (printf "/etc/gatehouse/secrets/%s/%s" $section .path) }}{{ end }}
{{- $_ := set $settings $from.setting (join "," $files) }}
{{- $_ := set $config $section $settings }}
{{- end }}
{{- if eq .Values.mode "agent" }}
{{- $_ := set $config "edge" (dict "directories" (printf "/pods/*/volumes/kubernetes.io~empty-dir/%s" .Values.nodeAgent.volume)) }}
{{- $_ := set $config "admin" (merge (dict "metrics" ":9091") (get $config "admin" | default dict)) }}
{{- end }}
{{- with get (dict "istio" 15000 "envoy-gateway" 19000) .Values.mode }}
{{- $_ := set $config "edge" (merge (get $config "edge" | default dict) (dict "admin" (printf "127.0.0.1:%d" .))) }}
{{- end }}
{{- toYaml $config }}
{{- end }}
