{{/* What stands beside an Envoy, in every mode: the module is brought, then the sidecar runs until
     Envoy has ended, because a native sidecar starts before the containers and ends after them. It
     has no startup probe: Envoy must not wait for a sidecar that waits for Envoy. */}}
{{- define "gatehouse.initContainers" -}}
- name: gatehouse-module
  image: {{ include "gatehouse.image" (dict "image" .Values.sidecar.image "tag" .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
  command: [gatehousectl, install-module, /etc/gatehouse/gatehouse.wasm, /module/gatehouse.wasm]
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 64Mi}}
  securityContext:
    {{- include "gatehouse.containerSecurity" . | nindent 4 }}
  volumeMounts:
  - {name: gatehouse-module, mountPath: /module}
- name: gatehouse-sidecar
  restartPolicy: Always
  image: {{ include "gatehouse.image" (dict "image" .Values.sidecar.image "tag" .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
  command: [gatehouse-sidecar, --config, /etc/gatehouse/sidecar.yaml]
  env:
  # GOMEMLIMIT is 95 % of the limit: its mebibytes, each counted as 1,000,000 bytes.
  - name: MEMORY_LIMIT_MIB
    valueFrom:
      resourceFieldRef: {containerName: gatehouse-sidecar, resource: limits.memory, divisor: 1Mi}
  - {name: GOMEMLIMIT, value: $(MEMORY_LIMIT_MIB)000000}
  {{- include "gatehouse.redisEnvironment" . | nindent 2 }}
  # Ready once Envoy has acknowledged everything. The admin address is on loopback.
  readinessProbe:
    exec: {command: [gatehousectl, ready]}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 3
  {{- if eq .Values.mode "gateway" }}
  lifecycle:
    # Runs when the pod's end begins, beside Envoy's own hook.
    preStop:
      exec: {command: [gatehousectl, drain-envoy]}
  {{- else }}
  ports: # Envoy's, for the PodMonitor: a mesh's Envoy doesn't name it
  - {name: gh-telemetry, containerPort: {{ .Values.envoy.telemetryPort }}}
  {{- end }}
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
  securityContext:
    {{- include "gatehouse.containerSecurity" . | nindent 4 }}
  volumeMounts:
  - {name: gatehouse-run, mountPath: /run/gatehouse}
  - {name: gatehouse-sidecar, mountPath: /etc/gatehouse/sidecar.yaml, subPath: sidecar.yaml, readOnly: true}
  {{- if .Values.redis.existingSecret }}
  - {name: gatehouse-redis, mountPath: /etc/gatehouse/redis, readOnly: true}
  {{- end }}
  {{- if .Values.redis.tls.existingSecret }}
  - {name: gatehouse-redis-tls, mountPath: /etc/gatehouse/redis-tls, readOnly: true}
  {{- end }}
  {{- range $section, $_ := include "gatehouse.secrets" . | fromJson }}
  - {name: gatehouse-{{ $section }}-secret, mountPath: /etc/gatehouse/secrets/{{ $section }}, readOnly: true}
  {{- end }}
{{- end }}

{{/* The volumes of both. Envoy mounts gatehouse-run and gatehouse-module. */}}
{{- define "gatehouse.volumes" -}}
- name: gatehouse-run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: gatehouse-module
  emptyDir: {sizeLimit: 64Mi}
- name: gatehouse-sidecar
  configMap: {name: {{ include "gatehouse.fullname" . }}-sidecar}
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
    secretName: {{ $from.existingSecret }}
    defaultMode: {{ $mode }}
    items: [{key: {{ $from.secretKey }}, path: secret}]
{{- end }}
{{- end }}
