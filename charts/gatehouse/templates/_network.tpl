{{/* What a sidecar must reach, as egress rules: names and Redis. */}}
{{- define "gatehouse.redisEgress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- if .Values.redis.bundled.enabled }}
- ports: [{port: 6379, protocol: TCP}]
  to:
    - podSelector:
        matchLabels:
          {{- include "gatehouse.selectorLabels" . | nindent 10 }}
          app.kubernetes.io/component: redis
{{- else }}
- ports:
    {{- range include "gatehouse.redisPorts" . | fromJsonArray }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.redisTo }}
  to:
    {{- toYaml . | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}
