{{/* The configuration of the edge, by names of files. */}}
{{- define "gatehouse.edgeFiles" -}}
{{- if eq .Values.edge "nginx" -}}
nginx.conf: |
  {{- include "gatehouse.nginxConfig" . | nindent 2 }}
rules.yaml: |
  {{- include "gatehouse.filter" . | nindent 2 }}
{{- else -}}
envoy.yaml: |
  {{- include "gatehouse.envoyConfig" . | nindent 2 }}
{{- if (.Values.envoy.tls).existingSecret }}
tls.yaml: |
  {{- include "gatehouse.tls" . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The startup probe of an edge that the node's agent fills, at a port: until it passes, the pod isn't ready. Later the
     edge goes on without the agent. */}}
{{- define "gatehouse.filledProbe" -}}
httpGet: {path: /readyz, port: {{ . }}}
periodSeconds: 1
timeoutSeconds: 2
failureThreshold: 86400 # as long as there is no agent or no Redis, a restart would not help
{{- end }}

{{/* What an edge mounts for its sockets, and nginx for its memory. */}}
{{- define "gatehouse.runMounts" -}}
{{- $node := include "gatehouse.onNode" . }}
{{- if not (and $node (ne .Values.edge "nginx")) }}
- {name: gatehouse-run, mountPath: /run/gatehouse}
{{- end }}
{{- if $node }}
- {name: {{ .Values.nodeAgent.volume }}, mountPath: {{ include "gatehouse.sockets" . }}}
{{- end }}
{{- end }}

{{/* Envoy of mode gateway. The pod is ready if this container and the sidecar are. */}}
{{- define "gatehouse.envoyContainer" -}}
- name: envoy
  image: {{ include "gatehouse.image" (dict "root" $ "image" .Values.envoy.image) }}
  imagePullPolicy: {{ .Values.envoy.image.pullPolicy }}
  command:
    {{- toYaml .Values.envoy.command | nindent 4 }}
  args:
    - --config-path
    - /etc/envoy/envoy.yaml
    - --concurrency
    - {{ .Values.envoy.concurrency | quote }}
    - --log-level
    - {{ .Values.envoy.logLevel }}
    - --disable-hot-restart
  {{- include "gatehouse.edgeContainer" (list . .Values.envoy) | nindent 2 }}
  volumeMounts:
    - {name: gatehouse-envoy, mountPath: /etc/envoy, readOnly: true}
    - {name: gatehouse-module, mountPath: {{ include "gatehouse.moduleDirectory" . }}, readOnly: true}
    {{- include "gatehouse.runMounts" . | nindent 4 }}
    {{- if (.Values.envoy.tls).existingSecret }}
    - {name: gatehouse-tls, mountPath: /etc/gatehouse-tls, readOnly: true}
    {{- end }}
    {{- with .Values.envoy.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* nginx of mode gateway. The pod is ready if this container and the sidecar are. */}}
{{- define "gatehouse.nginxContainer" -}}
- name: nginx
  image: {{ include "gatehouse.image" (dict "root" $ "image" .Values.nginx.image "tag" .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.nginx.image.pullPolicy }}
  command:
    {{- toYaml .Values.nginx.command | nindent 4 }}
  args: [-c, /etc/gatehouse/nginx.conf, -e, stderr, -g, "daemon off;"]
  {{- include "gatehouse.edgeContainer" (list . .Values.nginx) | nindent 2 }}
  volumeMounts:
    - {name: gatehouse-nginx, mountPath: /etc/gatehouse, readOnly: true}
    - {name: gatehouse-module, mountPath: {{ include "gatehouse.moduleDirectory" . }}, readOnly: true}
    {{- include "gatehouse.runMounts" . | nindent 4 }}
    {{- if .Values.nginx.tls.existingSecret }}
    - {name: gatehouse-tls, mountPath: /etc/gatehouse-tls, readOnly: true}
    {{- end }}
    {{- with .Values.nginx.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* What both have in common: of (list context values of the edge). */}}
{{- define "gatehouse.edgeContainer" -}}
{{- $edge := index . 1 -}}
{{- $limit := include "gatehouse.goMemory" (index . 0) -}}
{{- if or $edge.extraEnv $limit -}}
env:
  {{- with $limit }}
  # For the dynamic module, whose memory is Go's: what Envoy's heap leaves of the limit.
  - {name: GOMEMLIMIT, value: {{ . | quote }}}
  {{- end }}
  {{- with $edge.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{ end -}}
ports:
  - {name: http, containerPort: {{ $edge.port }}}
  - {name: telemetry, containerPort: {{ $edge.telemetryPort }}}
startupProbe:
  {{- if include "gatehouse.onNode" (index . 0) }}
  {{- include "gatehouse.filledProbe" "telemetry" | nindent 2 }}
  {{- else }}
  httpGet: {path: /ready, port: telemetry}
  periodSeconds: 1
  failureThreshold: 120
  {{- end }}
readinessProbe:
  httpGet: {path: /ready, port: telemetry}
  periodSeconds: 5
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /live, port: telemetry}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
lifecycle:
  {{- if include "gatehouse.onNode" (index . 0) }}
  # The edge closes connections with their next answer, and goes on while the pod is taken out of the service.
  preStop:
    exec: {command: [{{ include "gatehouse.moduleDirectory" (index . 0) }}/gatehousectl, drain, --for, {{ $edge.drainSeconds }}s]}
  {{- else }}
  # The edge goes on while the pod is taken out of the service. The sidecar's hook has told it to
  # close connections with their next answer.
  preStop:
    sleep: {seconds: {{ $edge.drainSeconds }}}
  {{- end }}
resources:
  {{- toYaml $edge.resources | nindent 2 }}
securityContext:
  {{- include "gatehouse.containerSecurity" (index . 0) | nindent 2 }}
{{- end }}
