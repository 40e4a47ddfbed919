{{/* Annotations that Istio reads when it injects its proxy: a workload must have them itself. */}}
{{- define "gatehouse.workloadAnnotations" -}}
sidecar.istio.io/extraStatTags: {{ include "gatehouse.labelsOfCounters" . }} # of the filter's counters
{{- if ne .Values.istio.context "gateway" }}
traffic.sidecar.istio.io/excludeInboundPorts: {{ .Values.envoy.telemetryPort | quote }}
{{- end }}
{{- end }}

{{/* What istio-proxy mounts, as a list. */}}
{{- define "gatehouse.proxyMounts" -}}
{{- include "gatehouse.runMounts" . | trim }}
{{- if not (include "gatehouse.discovered" .) }}
- {name: gatehouse-module, mountPath: /etc/gatehouse, readOnly: true}
{{- end }}
{{- end }}

{{/* A strategic merge patch of a workload's Deployment. What an earlier one has put in is taken out
     first: a merge would keep of it what this one no longer has. */}}
{{- define "gatehouse.workloadPatch" -}}
spec:
  template:
    metadata:
      labels: {gatehouse: enabled} # for a workloadSelector that finds only pods with the sidecar
      annotations:
        checksum/gatehouse: {{ include "gatehouse.sidecarConfig" . | sha256sum }}
        {{- include "gatehouse.workloadAnnotations" . | nindent 8 }}
        {{- if ne .Values.istio.context "gateway" }}
        {{- if not (include "gatehouse.discovered" .) }}
        # As a native sidecar istio-proxy would start before the module is there, refuse its listeners for
        # that, and so keep whatever brings the module from ever starting.
        sidecar.istio.io/nativeSidecar: "false"
        {{- end }}
        sidecar.istio.io/userVolumeMount: {{ include "gatehouse.proxyMounts" . | fromYamlArray | toJson | squote }}
        {{- end }}
    spec:
      {{- if eq .Values.istio.context "gateway" }}
      containers:
        - name: istio-proxy # which the injected one is merged with
          volumeMounts:
            - {$patch: delete, mountPath: /etc/gatehouse}
            {{- include "gatehouse.proxyMounts" . | nindent 12 }}
      {{- end }}
      initContainers:
        {{- include "gatehouse.noInitContainers" . | nindent 8 }}
        {{- include "gatehouse.initContainers" . | nindent 8 }}
      volumes:
        {{- include "gatehouse.noVolumes" . | nindent 8 }}
        {{- include "gatehouse.volumes" . | nindent 8 }}
{{- end }}

{{- define "gatehouse.noInitContainers" -}}
- {$patch: delete, name: gatehouse-module}
- {$patch: delete, name: gatehouse-sidecar}
{{- end }}

{{- define "gatehouse.noVolumes" -}}
{{- range $name := list "module" "snapshot" "redis" "redis-tls" "session-secret" "verdict-secret" "credential-secret" }}
- {$patch: delete, name: gatehouse-{{ $name }}}
{{- end }}
{{- range .Values.extraVolumes }}
- {$patch: delete, name: {{ .name }}}
{{- end }}
{{- end }}

{{/* A patch that takes all of that out again. */}}
{{- define "gatehouse.workloadUnpatch" -}}
spec:
  template:
    metadata:
      labels: {gatehouse: null}
      annotations:
        checksum/gatehouse: null
        sidecar.istio.io/extraStatTags: null
        {{- if ne .Values.istio.context "gateway" }}
        traffic.sidecar.istio.io/excludeInboundPorts: null
        sidecar.istio.io/nativeSidecar: null
        sidecar.istio.io/userVolumeMount: null
        {{- end }}
    spec:
      {{- if eq .Values.istio.context "gateway" }}
      containers:
        - name: istio-proxy
          volumeMounts:
            - {$patch: delete, mountPath: /run/gatehouse}
            - {$patch: delete, mountPath: /etc/gatehouse}
      {{- end }}
      initContainers:
        {{- include "gatehouse.noInitContainers" . | nindent 8 }}
      volumes:
        - {$patch: delete, name: gatehouse-run}
        - {$patch: delete, name: gatehouse-sidecar}
        {{- include "gatehouse.noVolumes" . | nindent 8 }}
{{- end }}

{{/* When istio-proxy has started: where the node's agent fills it, once that has happened. */}}
{{- define "gatehouse.proxyProbe" -}}
{{- if include "gatehouse.onNode" . -}}
startupProbe:
  {{- include "gatehouse.filledProbe" .Values.envoy.telemetryPort | nindent 2 }}
{{- end }}
{{- end }}

{{/* Values of istiod's chart with an injection template, which adds the same to each new pod that names it. Istio runs
     it with variables of its own. A proxy that is a native sidecar is one of the init containers. */}}
{{- define "gatehouse.injection" -}}
{{- $proxy := printf "- name: istio-proxy\n%s\n  volumeMounts:\n%s" (include "gatehouse.proxyProbe" . | indent 2) (include "gatehouse.proxyMounts" . | indent 2) -}}
sidecarInjectorWebhook:
  templates:
    {{ include "gatehouse.fullname" . }}: |
      metadata:
        annotations:
          checksum/gatehouse: {{ include (ternary "gatehouse.volumes" "gatehouse.sidecarConfig" (eq .Values.agent "node")) . | sha256sum }}
      spec:
        {{- with include "gatehouse.initContainers" . | trim }} {{- /* an empty list would delete those of others */}}
        initContainers:
        {{- . | nindent 8 }}
        {{- end }}
        {{- if ne .Values.istio.context "gateway" }}
        {{ `{{- if ne (index .ObjectMeta.Annotations "sidecar.istio.io/nativeSidecar" | default (printf "%t" .NativeSidecars)) "false" }}` }}
        {{- if include "gatehouse.onNode" . }}
        initContainers:
        {{- end }}
        {{- $proxy | nindent 8 }}
        {{ `{{- else }}` }}
        {{- end }}
        containers:
        {{- $proxy | nindent 8 }}
        {{- if ne .Values.istio.context "gateway" }}
        {{ `{{- end }}` }}
        {{- end }}
        volumes:
        {{- include "gatehouse.volumes" . | trim | nindent 8 }}
{{- end }}
