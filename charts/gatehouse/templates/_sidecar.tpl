{{/* Which Redis, as a URL. */}}
{{- define "gatehouse.redisURL" -}}
{{- if .Values.redis.bundled.enabled }}redis://{{ include "gatehouse.fullname" . }}-redis:6379{{ else }}{{ .Values.redis.url }}{{ end }}
{{- end }}

{{/* Ports of Redis and sentinels, as a list in JSON: those of the URL, and redisPorts. */}}
{{- define "gatehouse.redisPorts" -}}
{{- $ports := list }}
{{- range regexFindAll ":[0-9]+" .Values.redis.url -1 }}{{ $ports = append $ports (trimPrefix ":" . | int) }}{{ end }}
{{- range .Values.networkPolicy.redisPorts }}{{ $ports = append $ports (int .) }}{{ end }}
{{- $ports | uniq | toJson }}
{{- end }}

{{/* How to reach it, as environment: the sidecar and gatehousectl both read it. */}}
{{- define "gatehouse.redisEnvironment" -}}
{{- $redis := .Values.redis }}
{{- $tls := $redis.tls }}
- {name: GATEHOUSE_REDIS, value: {{ include "gatehouse.redisURL" . | quote }}} # gatehousectl's
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

{{/* The sidecar's configuration file: its settings, with the files of Secrets. Sockets and admin
     address are the defaults. */}}
{{- define "gatehouse.sidecarConfig" -}}
{{- $config := deepCopy .Values.sidecar.settings }}
{{- range $i, $file := .Values.sidecar.secretFiles }}
{{- $parts := splitList "." $file.setting }}
{{- $section := get $config (first $parts) | default dict }}
{{- $_ := set $section (last $parts) (printf "/etc/gatehouse/secrets/%d/%s" $i $file.key) }}
{{- $_ := set $config (first $parts) $section }}
{{- end }}
{{- toYaml $config }}
{{- end }}
