{{/* Envoy of mode gateway. The pod is ready if this container and the sidecar are. */}}
{{- define "gatehouse.envoyContainer" -}}
- name: envoy
  image: {{ include "gatehouse.image" (dict "image" .Values.envoy.image) }}
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
  ports:
    - {name: http, containerPort: {{ .Values.envoy.port }}}
    - {name: telemetry, containerPort: {{ .Values.envoy.telemetryPort }}}
  startupProbe:
    httpGet: {path: /ready, port: telemetry}
    periodSeconds: 1
    failureThreshold: 120
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
    # Envoy goes on while the pod is taken out of the service. The sidecar's hook has told it to
    # close connections with their next answer.
    preStop:
      sleep: {seconds: {{ .Values.envoy.drainSeconds }}}
  resources:
    {{- toYaml .Values.envoy.resources | nindent 4 }}
  securityContext:
    {{- include "gatehouse.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: gatehouse-envoy, mountPath: /etc/envoy, readOnly: true}
    - {name: gatehouse-module, mountPath: /etc/gatehouse, readOnly: true}
    - {name: gatehouse-run, mountPath: /run/gatehouse}
    {{- if (.Values.envoy.tls).existingSecret }}
    - {name: gatehouse-tls, mountPath: /etc/gatehouse-tls, readOnly: true}
    {{- end }}
{{- end }}
