{{/* Name of the chart's objects. */}}
{{- define "gatehouse.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels that select pods: they never change. */}}
{{- define "gatehouse.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Which proxy the edge is in, and which of the values are its own: envoy or nginx. */}}
{{- define "gatehouse.edgeKind" -}}
{{- if eq .Values.edge "nginx" }}nginx{{ else }}envoy{{ end }}
{{- end }}

{{/* Whether the filter is a dynamic module of Envoy. */}}
{{- define "gatehouse.native" -}}
{{- if eq .Values.edge "native" }}true{{ end }}
{{- end }}

{{/* Whether the edge's sidecar is the node's agent. */}}
{{- define "gatehouse.onNode" -}}
{{- if eq .Values.agent "node" }}true{{ end }}
{{- end }}

{{/* Where an edge has its sockets: with an agent, nginx has them apart from its memory. */}}
{{- define "gatehouse.sockets" -}}
/run/gatehouse{{ if and (include "gatehouse.onNode" .) (eq .Values.edge "nginx") }}/edge{{ end }}
{{- end }}

{{/* Where an edge has the volume of the module. */}}
{{- define "gatehouse.moduleDirectory" -}}
{{- if eq .Values.edge "nginx" }}/usr/share/gatehouse/nginx{{ else if include "gatehouse.native" . }}/usr/lib/gatehouse{{ else }}/etc/gatehouse{{ end }}
{{- end }}

{{/* What Envoy's heap leaves of the container's limit, for the memory of a dynamic module, in bytes; empty for others,
     and where the limit is not in Mi or Gi. */}}
{{- define "gatehouse.goMemory" -}}
{{- if include "gatehouse.native" . }}
{{- with include "gatehouse.bytes" (dig "limits" "memory" "" .Values.envoy.resources | toString) }}
{{- sub (int64 .) (int64 $.Values.envoy.maxHeapBytes) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "gatehouse.labels" -}}
{{ include "gatehouse.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gatehouse
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The ServiceAccount of a gateway's pods. */}}
{{- define "gatehouse.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "gatehouse.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* A reference to an image: of (dict "root" $ "image" … "tag" default). */}}
{{- define "gatehouse.image" -}}
{{- $repository := include "gatehouse.mirrored" (dict "root" .root "reference" .image.repository) }}
{{- with .image }}
{{- if .digest }}{{ $repository }}@{{ .digest }}{{ else }}{{ $repository }}:{{ default $.tag .tag }}{{ end }}
{{- end }}
{{- end }}

{{/* A reference whose registry is global.imageRegistry, if that is set: of (dict "root" $ "reference" …). */}}
{{- define "gatehouse.mirrored" -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}
{{- ternary (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" .reference "") .reference (not (empty .root.Values.global.imageRegistry)) }}
{{- end }}

{{/* Secrets to pull images with, as a list of YAML: the chart's, and global.imagePullSecrets, names or {name: …}. */}}
{{- define "gatehouse.pullSecrets" -}}
{{- $secrets := list }}
{{- range concat (.Values.imagePullSecrets | default list) (.Values.global.imagePullSecrets | default list) }}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}
{{- end }}
{{- with uniq $secrets }}{{ toYaml . }}{{ end }}
{{- end }}

{{- define "gatehouse.sidecarImage" -}}
{{ include "gatehouse.image" (dict "root" . "image" .Values.sidecar.image "tag" .Chart.AppVersion) }}
{{- end }}

{{/* User and group of the pods: that of the mode's Envoy. */}}
{{- define "gatehouse.user" -}}
{{ .Values.runAsUser | default (ternary 1337 65532 (eq .Values.mode "istio")) | int64 }}
{{- end }}

{{/* What the profile `restricted` asks of a container, and more. */}}
{{- define "gatehouse.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: {{ include "gatehouse.user" . }}
runAsGroup: {{ include "gatehouse.user" . }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* vm_id of every plugin of Gatehouse in the mode's Envoys: it names the shared memory. */}}
{{- define "gatehouse.vmID" -}}
{{- if eq .Values.mode "envoy-gateway" -}}
envoyextensionpolicy/{{ .Release.Namespace }}/{{ include "gatehouse.fullname" . }}/wasm/0
{{- else -}}
gatehouse
{{- end }}
{{- end }}

{{/* What Envoy Gateway names the edge filter of the chart's EnvoyExtensionPolicy. */}}
{{- define "gatehouse.policyFilter" -}}
{{- if include "gatehouse.native" . -}}
envoy.filters.http.dynamic_modules/envoyextensionpolicy/{{ .Release.Namespace }}/{{ include "gatehouse.fullname" . }}/dynamic-module/0
{{- else -}}
envoy.filters.http.wasm/{{ include "gatehouse.vmID" . }}
{{- end }}
{{- end }}

{{/* Labels of the pods that have a sidecar. */}}
{{- define "gatehouse.redisClients" -}}
{{- if eq .Values.mode "istio" -}}
{{ toYaml .Values.istio.workloadSelector }}
{{- else if eq .Values.mode "envoy-gateway" -}}
gateway.envoyproxy.io/owning-gateway-name: {{ .Values.envoyGateway.gateway }}
{{- else -}}
{{ include "gatehouse.selectorLabels" . }}
app.kubernetes.io/component: {{ .Values.mode }}
{{- end }}
{{- end }}

{{/* Mode of the files of Secrets. Those of a mesh's workload have no group of ours. */}}
{{- define "gatehouse.secretMode" -}}
{{- if eq .Values.mode "istio" }}0444{{ else }}0440{{ end }}
{{- end }}

{{/* The job of the monitors' series, as the Prometheus operator names it: after the service, or the PodMonitor. */}}
{{- define "gatehouse.job" -}}
{{- if eq .Values.mode "gateway" }}{{ include "gatehouse.fullname" . }}-telemetry{{ else }}{{ .Release.Namespace }}/{{ include "gatehouse.fullname" . }}{{ end }}
{{- end }}

{{/* The page of runbooks, with a section for each alert. */}}
{{- define "gatehouse.runbooks" -}}
{{ .Values.monitoring.prometheusRule.runbookURL | default (printf "https://github.com/gatehouse/gatehouse/blob/v%s/docs/runbooks.md" .Chart.AppVersion) }}
{{- end }}
