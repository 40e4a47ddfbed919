{{/* What the schema can't say: values that don't go together. */}}
{{- define "gatehouse.validate" -}}
{{- include "gatehouse.validateMode" . }}
{{- include "gatehouse.validateRedis" .Values.redis }}
{{- if and (not .Values.redis.url) (not .Values.redis.bundled.enabled) }}
{{- fail "redis.url: is empty: give the URL of your Redis, or set redis.bundled.enabled for a trial" }}
{{- end }}
{{- end }}

{{- define "gatehouse.validateMode" -}}
{{- $v := .Values }}
{{- if eq $v.mode "gateway" }}
{{- if and (not $v.upstream.host) (not $v.envoy.config) }}
{{- fail "upstream.host: is empty: give the service that answers what Gatehouse doesn't" }}
{{- end }}
{{- if le (int $v.envoy.drainSeconds) (int $v.upstream.timeoutSeconds) }}
{{- fail (printf "envoy.drainSeconds: %d is not more than upstream.timeoutSeconds, %d: an upgrade would cut requests" (int $v.envoy.drainSeconds) (int $v.upstream.timeoutSeconds)) }}
{{- end }}
{{- if eq (int $v.envoy.port) (int $v.envoy.telemetryPort) }}
{{- fail (printf "envoy.telemetryPort: %d is envoy.port, too" (int $v.envoy.port)) }}
{{- end }}
{{- include "gatehouse.validateHeap" $v.envoy }}
{{- if and $v.autoscaling.enabled (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) }}
{{- fail (printf "autoscaling.maxReplicas: %d is less than minReplicas, %d" (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) }}
{{- end }}
{{- else if eq $v.mode "istio" }}
{{- if not $v.istio.workloadSelector }}
{{- fail "istio.workloadSelector: is empty: give the labels of the workload's pods, or the whole namespace would get the filter" }}
{{- end }}
{{- else if not $v.envoyGateway.gateway }}
{{- fail "envoyGateway.gateway: is empty: give the name of the Gateway" }}
{{- end }}
{{- range $i, $rule := $v.rules }}
{{- if not (or (hasKey $rule.match "path") (hasKey $rule.match "prefix")) }}
{{- fail (printf "rules[%d].match: has neither path nor prefix: give one of them" $i) }}
{{- end }}
{{- if and (hasKey $rule.match "path") (hasKey $rule.match "prefix") }}
{{- fail (printf "rules[%d].match: has path and prefix: give one of them" $i) }}
{{- end }}
{{- if and (hasKey $rule "auth") (not $v.credentials) }}
{{- fail (printf "rules[%d].auth: credentials is empty: say where a request carries its credential" $i) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gatehouse.validateRedis" -}}
{{- if and .url .bundled.enabled }}
{{- fail "redis.url: redis.bundled.enabled is set, too: choose one" }}
{{- end }}
{{- if contains "@" .url }}
{{- fail "redis.url: has a user or password: give redis.username, and the password by redis.existingSecret" }}
{{- end }}
{{- if and .username (not (and .existingSecret .passwordKey)) }}
{{- fail (printf "redis.username: %q has no password: give redis.existingSecret and redis.passwordKey" .username) }}
{{- end }}
{{- if and .sentinelPasswordKey (not .existingSecret) }}
{{- fail "redis.sentinelPasswordKey: redis.existingSecret is empty: give the Secret that has this key" }}
{{- end }}
{{- if and (or .sentinelUsername .sentinelPasswordKey) (not (contains "+sentinel://" .url)) }}
{{- fail "redis.sentinelUsername, redis.sentinelPasswordKey: redis.url names no sentinels" }}
{{- end }}
{{- if and (or .tls.existingSecret .tls.serverName) (not (hasPrefix "rediss" .url)) }}
{{- fail "redis.tls: redis.url is not of TLS: want rediss://, rediss+sentinel:// or rediss+cluster://" }}
{{- end }}
{{- if ne (empty .tls.certKey) (empty .tls.keyKey) }}
{{- fail "redis.tls.certKey, redis.tls.keyKey: a certificate and its key come together" }}
{{- end }}
{{- if and .tls.certKey (not .tls.existingSecret) }}
{{- fail "redis.tls.certKey: redis.tls.existingSecret is empty: give the Secret that has this key" }}
{{- end }}
{{- end }}

{{/* The heap must be less than the limit, where that is in Mi or Gi. */}}
{{- define "gatehouse.validateHeap" -}}
{{- $limit := dig "limits" "memory" "" .resources | toString }}
{{- $unit := ternary 1073741824 1048576 (hasSuffix "Gi" $limit) }}
{{- if regexMatch "^[0-9]+[GM]i$" $limit }}
{{- if ge (int64 .maxHeapBytes) (mul (regexFind "^[0-9]+" $limit) $unit) }}
{{- fail (printf "envoy.maxHeapBytes: %d is not less than envoy.resources.limits.memory, %s" (int64 .maxHeapBytes) $limit) }}
{{- end }}
{{- end }}
{{- end }}
