{{/* A strategic merge patch of a workload's Deployment. What an earlier one has put in is taken out
     first: a merge would keep of it what this one no longer has. */}}
{{- define "gatehouse.workloadPatch" -}}
spec:
  template:
    metadata:
      annotations:
        checksum/gatehouse: {{ include "gatehouse.sidecarConfig" . | sha256sum }}
        sidecar.istio.io/extraStatTags: {{ include "gatehouse.labelsOfCounters" . }} # of the filter's counters
        {{- if ne .Values.istio.context "gateway" }}
        # As a native sidecar istio-proxy would start before the module is there, refuse its listeners for
        # that, and so keep whatever brings the module from ever starting.
        sidecar.istio.io/nativeSidecar: "false"
        sidecar.istio.io/userVolumeMount: '[{"name": "gatehouse-run", "mountPath": "/run/gatehouse"}, {"name": "gatehouse-module", "mountPath": "/etc/gatehouse", "readonly": true}]'
        traffic.sidecar.istio.io/excludeInboundPorts: {{ .Values.envoy.telemetryPort | quote }}
        {{- end }}
    spec:
      {{- if eq .Values.istio.context "gateway" }}
      containers:
        - name: istio-proxy # which the injected one is merged with
          volumeMounts:
            - {name: gatehouse-run, mountPath: /run/gatehouse}
            - {name: gatehouse-module, mountPath: /etc/gatehouse, readOnly: true}
      {{- end }}
      initContainers:
        - {$patch: delete, name: gatehouse-module}
        - {$patch: delete, name: gatehouse-sidecar}
        {{- include "gatehouse.initContainers" . | nindent 8 }}
      volumes:
        {{- range $name := list "redis" "redis-tls" "session-secret" "verdict-secret" }}
        - {$patch: delete, name: gatehouse-{{ $name }}}
        {{- end }}
        {{- range .Values.extraVolumes }}
        - {$patch: delete, name: {{ .name }}}
        {{- end }}
        {{- include "gatehouse.volumes" . | nindent 8 }}
{{- end }}
