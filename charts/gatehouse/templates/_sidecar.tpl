{{/* Which Redis, as a URL. */}}
{{- define "gatehouse.redisURL" -}}
{{- if .Values.redis.bundled.enabled }}redis://{{ include "gatehouse.fullname" . }}-redis:6379{{ else }}{{ .Values.redis.url }}{{ end }}
{{- end }}

{{/* Ports of Redis and sentinels, as a list in JSON: those of the URL, and redisPorts. */}}
{{- define "gatehouse.redisPorts" -}}
{{- $ports := list }}
{{- range regexFindAll ":[0-9]+([,/?]|$)" .Values.redis.url -1 }}{{ $ports = append $ports (regexFind "[0-9]+" . | int) }}{{ end }}
{{- range .Values.networkPolicy.redisPorts }}{{ $ports = append $ports (int .) }}{{ end }}
{{- $ports | uniq | toJson }}
{{- end }}

{{/* How to reach it, as environment: the sidecar and gatehousectl both read it. */}}
{{- define "gatehouse.redisEnvironment" -}}
{{- $redis := .Values.redis }}
{{- $tls := $redis.tls }}
- {name: GATEHOUSE_REDIS_URL, value: {{ include "gatehouse.redisURL" . | quote }}}
- {name: GATEHOUSE_REDIS_SHARDS, value: {{ $redis.shards | quote }}}
{{- with $redis.username }}
- {name: GATEHOUSE_REDIS_USERNAME, value: {{ . | quote }}}
{{- end }}
{{- if and $redis.existingSecret $redis.passwordKey }}
- {name: GATEHOUSE_REDIS_PASSWORD_FILE, value: /etc/gatehouse/redis/password}
{{- end }}
{{- with $redis.sentinelUsername }}
- {name: GATEHOUSE_REDIS_SENTINEL_USERNAME, value: {{ . | quote }}}
{{- end }}
{{- if $redis.sentinelPasswordKey }}
- {name: GATEHOUSE_REDIS_SENTINEL_PASSWORD_FILE, value: /etc/gatehouse/redis/sentinel-password}
{{- end }}
{{- if and $tls.existingSecret $tls.caKey }}
- {name: GATEHOUSE_REDIS_TLS_CA_FILE, value: /etc/gatehouse/redis-tls/ca.crt}
{{- end }}
{{- if $tls.certKey }}
- {name: GATEHOUSE_REDIS_TLS_CERT_FILE, value: /etc/gatehouse/redis-tls/tls.crt}
- {name: GATEHOUSE_REDIS_TLS_KEY_FILE, value: /etc/gatehouse/redis-tls/tls.key}
{{- end }}
{{- with $tls.serverName }}
- {name: GATEHOUSE_REDIS_TLS_SERVER_NAME, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{/* Secrets that the sidecars have in common, as JSON: the section of the setting secret_file, and
     {existingSecret, secretKey}. */}}
{{- define "gatehouse.secrets" -}}
{{- $secrets := dict }}
{{- if and .Values.sessions.enabled .Values.sessions.existingSecret }}{{ $_ := set $secrets "session" .Values.sessions }}{{ end }}
{{- if .Values.sharedVerdicts.existingSecret }}{{ $_ := set $secrets "verdict" .Values.sharedVerdicts }}{{ end }}
{{- $secrets | toJson }}
{{- end }}

{{/* The sidecar's configuration file. Sockets and admin address are the defaults. */}}
{{- define "gatehouse.sidecarConfig" -}}
{{- $config := deepCopy .Values.sidecar.settings }}
{{- if .Values.sessions.enabled }}
{{- $_ := set $config "session" (pick .Values.sessions "issuer" "ttl" "rotate") }}
{{- end }}
{{- range $section, $_ := include "gatehouse.secrets" . | fromJson }}
{{- $settings := get $config $section | default dict }}
{{- $_ := set $settings "secret_file" (printf "/etc/gatehouse/secrets/%s/secret" $section) }}
{{- $_ := set $config $section $settings }}
{{- end }}
{{- toYaml $config }}
{{- end }}
