{{/* The volumes of an edge's pod: of the edge, and of its sidecar, if that is in the pod. */}}
{{- define "gatehouse.volumes" -}}
{{ include "gatehouse.edgeVolumes" . }}
{{- if not (include "gatehouse.onNode" .) }}
{{ include "gatehouse.sidecarVolumes" . }}
{{- else }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gatehouse.edgeVolumes" -}}
{{- if include "gatehouse.onNode" . }}
# The sockets, which the node's agent finds by the volume's name; on disk, because the agent doesn't see a file system
# that is mounted later.
- name: {{ .Values.nodeAgent.volume }}
  emptyDir: {sizeLimit: 1Mi}
{{- end }}
{{- if not (and (include "gatehouse.onNode" .) (ne .Values.edge "nginx")) }}
# The sockets, nginx's memory, and the sidecar's file of known addresses with the one that replaces it: 49 MiB for a
# million devices, a part of the sidecar's memory. A full one keeps nginx from starting again.
- name: gatehouse-run
  {{- $file := ternary (int64 (include "gatehouse.memory" . | fromJson).file) 0 (eq .Values.edge "nginx") }}
  emptyDir: {medium: Memory, sizeLimit: {{ add 64 $file }}Mi}
{{- end }}
{{- if not (include "gatehouse.discovered" .) }}
- name: gatehouse-module
  emptyDir: {sizeLimit: {{ ternary 128 64 (eq .Values.agent "node") }}Mi}
{{- end }}
{{- end }}

{{- define "gatehouse.sidecarVolumes" -}}
- name: gatehouse-sidecar
  configMap: {name: {{ include "gatehouse.fullname" . }}-sidecar}
{{- if .Values.redis.snapshot }}
# What the sidecar starts from, if it comes by S3 or HTTP, until it is applied.
- name: gatehouse-snapshot
  emptyDir: {}
{{- end }}
{{- $mode := include "gatehouse.secretMode" . }}
{{- with .Values.redis }}
{{- if .existingSecret }}
- name: gatehouse-redis
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: {{ $mode }}
    items:
    {{- if .passwordKey }}
    - {key: {{ .passwordKey }}, path: password}
    {{- end }}
    {{- if .sentinelPasswordKey }}
    - {key: {{ .sentinelPasswordKey }}, path: sentinel-password}
    {{- end }}
{{- end }}
{{- if .tls.existingSecret }}
- name: gatehouse-redis-tls
  secret:
    secretName: {{ .tls.existingSecret }}
    defaultMode: {{ $mode }}
    items:
    {{- range $file, $key := dict "ca.crt" .tls.caKey "tls.crt" .tls.certKey "tls.key" .tls.keyKey }}
    {{- if $key }}
    - {key: {{ $key }}, path: {{ $file }}}
    {{- end }}
    {{- end }}
{{- end }}
{{- end }}
{{- range $section, $from := include "gatehouse.secrets" . | fromJson }}
- name: gatehouse-{{ $section }}-secret
  secret:
    secretName: {{ $from.name }}
    defaultMode: {{ $mode }}
    items: {{ $from.items | toJson }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
