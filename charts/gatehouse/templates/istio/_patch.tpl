{{/* A strategic merge patch of a workload's Deployment. */}}
{{- define "gatehouse.workloadPatch" -}}
spec:
  template:
    metadata:
      annotations:
        checksum/gatehouse: {{ include "gatehouse.sidecarConfig" . | sha256sum }}
        sidecar.istio.io/userVolumeMount: '[{"name": "gatehouse-run", "mountPath": "/run/gatehouse"}, {"name": "gatehouse-module", "mountPath": "/etc/gatehouse", "readonly": true}]'
        traffic.sidecar.istio.io/excludeInboundPorts: {{ .Values.envoy.telemetryPort | quote }}
    spec:
      initContainers:
        {{- include "gatehouse.initContainers" . | nindent 8 }}
      volumes:
        {{- include "gatehouse.volumes" . | nindent 8 }}
{{- end }}
