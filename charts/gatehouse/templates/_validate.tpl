{{/* What the schema can't say: values that don't go together. */}}
{{- define "gatehouse.validate" -}}
{{- range $path := include "gatehouse.required" . | splitList "\n" }}
{{- $value := $.Values }}
{{- range $key := splitList "." $path }}
{{- $value = index $value $key }}
{{- if kindIs "invalid" $value }}
{{- fail (printf "%s: is null: leave it out for its default" $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- include "gatehouse.validateMode" . }}
{{- include "gatehouse.validateRules" .Values }}
{{- if and .Values.sessions.enabled (eq .Values.mode "envoy-gateway") }}
{{- fail "sessions.enabled: is for the modes gateway and istio: the chart has no jwt_authn before an Envoy Gateway's filter" }}
{{- end }}
{{- if and .Values.sessions.enabled (not (include "gatehouse.onNode" .)) }}
{{- include "gatehouse.validateSessions" .Values }}
{{- end }}
{{- include "gatehouse.validateRedis" .Values.redis }}
{{- if and (not .Values.redis.url) (not .Values.redis.bundled.enabled) (or .Values.publisher.enabled (not (include "gatehouse.onNode" .))) }}
{{- fail "redis.url: is empty: give the URL of your Redis, or set redis.bundled.enabled for a trial" }}
{{- end }}
{{- if and .Values.publisher.enabled (not .Values.publisher.teams.existingSecret) }}
{{- fail "publisher.teams.existingSecret: is empty: give the Secret with the file of teams" }}
{{- end }}
{{- if ne .Values.mode "agent" }}
{{- include "gatehouse.validateAuth" .Values }}
{{- end }}
{{- include "gatehouse.validateAgent" .Values }}
{{- end }}

{{- define "gatehouse.validateAgent" -}}
{{- if eq .mode "agent" }}
{{- if not .nodeAgent.namespaces }}
{{- fail "nodeAgent.namespaces: is empty: name those of the edges' pods, or set [\"*\"] for all" }}
{{- end }}
{{- if eq .agent "node" }}
{{- fail "agent: node is for the releases of edges: remove it from the one in mode agent" }}
{{- end }}
{{- else if eq .agent "node" }}
{{- if and (eq .mode "istio") (ne .istio.module "registry") }}
{{- fail "agent: node is for istio.module: registry, with Istio's injection template: a patch can't tell when an edge is filled" }}
{{- end }}
{{- range $path, $set := dict "redis.bundled.enabled" .redis.bundled.enabled "sessions.existingSecret" .sessions.existingSecret "sharedVerdicts.existingSecret" .sharedVerdicts.existingSecret "peppers.existingSecret" .peppers.existingSecret }}
{{- if $set }}
{{- fail (printf "%s: is for the sidecar, and agent is node: give it in the release in mode agent" $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gatehouse.validateMode" -}}
{{- $v := .Values }}
{{- if eq $v.mode "gateway" }}
{{- $kind := include "gatehouse.edgeKind" . }}
{{- $edge := index $v $kind }}
{{- if and (not $v.upstream.host) (not $edge.config) }}
{{- fail "upstream.host: is empty: give the service that answers what Gatehouse doesn't" }}
{{- end }}
{{- if le (int $edge.drainSeconds) (int $v.upstream.timeoutSeconds) }}
{{- fail (printf "%s.drainSeconds: %d is not more than upstream.timeoutSeconds, %d: an upgrade would cut requests" $kind (int $edge.drainSeconds) (int $v.upstream.timeoutSeconds)) }}
{{- end }}
{{- if eq (int $edge.port) (int $edge.telemetryPort) }}
{{- fail (printf "%s.telemetryPort: %d is %s.port, too" $kind (int $edge.port) $kind) }}
{{- end }}
{{- if eq $kind "nginx" }}
{{- include "gatehouse.validateNginx" . }}
{{- else }}
{{- include "gatehouse.validateHeap" $v.envoy }}
{{- if not $v.envoy.config }}
{{- include "gatehouse.validateCache" . }}
{{- end }}
{{- if and $v.envoy.config ($v.envoy.tls).existingSecret (not (contains "/etc/gatehouse-tls" $v.envoy.config)) (not (contains "/etc/envoy/tls.yaml" $v.envoy.config)) }}
{{- fail "envoy.tls.existingSecret: envoy.config is set, too, and doesn't use it: have it read /etc/envoy/tls.yaml or /etc/gatehouse-tls/, or remove one" }}
{{- end }}
{{- end }}
{{- include "gatehouse.validateService" $v.service }}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: is empty: name the Gateway" }}
{{- end }}
{{- if and $v.autoscaling.enabled (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) }}
{{- fail (printf "autoscaling.maxReplicas: %d is less than minReplicas, %d" (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) }}
{{- end }}
{{- else if eq $v.mode "agent" }}
{{- else if eq $v.edge "nginx" }}
{{- fail (printf "edge: nginx is for mode gateway: mode %s is in the Envoys of a mesh" $v.mode) }}
{{- else if eq $v.mode "istio" }}
{{- if include "gatehouse.native" . }}
{{- fail "edge: native is for the modes gateway and envoy-gateway: Istio's agent brings Wasm modules only" }}
{{- end }}
{{- if not $v.istio.workloadSelector }}
{{- fail "istio.workloadSelector: is empty: give the labels of the workload's pods, or the whole namespace would get the filter" }}
{{- end }}
{{- else if hasKey (ternary $v.source dict (kindIs "map" $v.source)) "filter_state" }}
{{- fail "source.filter_state: nothing lays it down in mode envoy-gateway: leave source empty, and say by a ClientTrafficPolicy where the address is" }}
{{- else if not $v.envoyGateway.gateway }}
{{- fail "envoyGateway.gateway: is empty: give the name of the Gateway" }}
{{- else if not $v.envoyGateway.xdsListeners }}
{{- fail "envoyGateway.xdsListeners: is empty: name the Gateway's listeners, NAMESPACE/GATEWAY/LISTENER, or none of them gets what an EnvoyExtensionPolicy can't set" }}
{{- end }}
{{- end }}

{{- define "gatehouse.validateService" -}}
{{- range $field := list "externalTrafficPolicy" "nodePort" }}
{{- if and (get $ $field) (eq $.type "ClusterIP") }}
{{- fail (printf "service.%s: service.type is ClusterIP: it is for NodePort and LoadBalancer" $field) }}
{{- end }}
{{- end }}
{{- range $field := list "loadBalancerClass" "loadBalancerSourceRanges" }}
{{- if and (get $ $field) (ne $.type "LoadBalancer") }}
{{- fail (printf "service.%s: service.type is %s: it is for LoadBalancer" $field $.type) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gatehouse.validateNginx" -}}
{{- $v := .Values }}
{{- if hasKey (ternary $v.source dict (kindIs "map" $v.source)) "filter_state" }}
{{- fail "source.filter_state: is Envoy's: leave source empty, and name the proxies before nginx in nginx.trustedProxies" }}
{{- end }}
{{- if and $v.sessions.enabled (ne $v.sessions.header "authorization") }}
{{- fail (printf "sessions.header: %s: nginx's plugin reads tokens from authorization" $v.sessions.header) }}
{{- end }}
{{- if and $v.nginx.config $v.nginx.tls.existingSecret (not (contains "/etc/gatehouse-tls" $v.nginx.config)) }}
{{- fail "nginx.tls.existingSecret: nginx.config is set, too, and doesn't use it: have it read /etc/gatehouse-tls/, or remove one" }}
{{- end }}
{{- if not $v.nginx.config }}
{{- $want := add 128 (int64 (include "gatehouse.memory" . | fromJson).file) }}
{{- $limit := dig "limits" "memory" "" $v.nginx.resources | toString }}
{{- with include "gatehouse.bytes" $limit }}
{{- if lt (int64 .) (mul $want 1048576) }}
{{- fail (printf "nginx.resources.limits.memory: %s is less than %dMi, which the memory for sidecar.settings.memory and the workers can take" $limit $want) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gatehouse.validateRules" -}}
{{- $v := . }}
{{- include "gatehouse.validateRulesOf" (list "rules" .rules .credentials .sessions) }}
{{- if kindIs "invalid" .virtualHosts }}
{{- fail "virtualHosts: is null: leave it out, or what other files of values have there is removed" }}
{{- end }}
{{- $hosts := dict }}
{{- range $name, $host := .virtualHosts }}
{{- include "gatehouse.validateRulesOf" (list (printf "virtualHosts.%s.rules" $name) $host.rules ($host.credentials | default $v.credentials) $v.sessions) }}
{{- if and (kindIs "map" $host.source) (hasKey ($host.source | default dict) "filter_state") (or (eq $v.mode "envoy-gateway") (eq $v.edge "nginx")) }}
{{- fail (printf "virtualHosts.%s.source.filter_state: needs an Envoy in mode gateway or istio: remove source" $name) }}
{{- end }}
{{- if and $host.upstream (ne $v.mode "gateway") }}
{{- fail (printf "virtualHosts.%s.upstream: is for mode gateway: in mode %s routes lead to upstreams; remove it" $name $v.mode) }}
{{- end }}
{{- if and $host.upstream (eq $v.edge "nginx") (has "*" $host.domains) }}
{{- fail (printf "virtualHosts.%s.upstream: nginx sends the hosts of the domain * to upstream itself: set that instead" $name) }}
{{- end }}
{{- range $host.domains }}
{{- if hasKey $hosts . }}
{{- fail (printf "virtualHosts.%s.domains: %s is also a domain of virtualHosts.%s" $name . (get $hosts .)) }}
{{- end }}
{{- $_ := set $hosts . $name }}
{{- end }}
{{- end }}
{{- if and .rules (hasKey $hosts "*") }}
{{- fail (printf "rules: are never reached: virtualHosts.%s has the domain *, which is for all other hosts" (get $hosts "*")) }}
{{- end }}
{{- end }}

{{/* Of (list path rules credentials sessions). */}}
{{- define "gatehouse.validateRulesOf" -}}
{{- $at := index . 0 }}
{{- $credentials := index . 2 }}
{{- $sessions := index . 3 }}
{{- $names := dict }}
{{- range $i, $rule := index . 1 }}
{{- $name := $rule.name | default (toString $i) }}
{{- with get $names $name }}
{{- fail (printf "%s[%d].name: %s is also the name of %[1]s[%[4]s]; a rule without a name has its index as its name" $at $i $name .) }}
{{- end }}
{{- $_ := set $names $name (toString $i) }}
{{- range $field := list "auth" "session" }}
{{- if and (hasKey $rule $field) (not $credentials) }}
{{- fail (printf "%s[%d].%s: credentials is empty: say where a request carries its credential" $at $i $field) }}
{{- end }}
{{- end }}
{{- if hasKey $rule "session" }}
{{- if not $sessions.enabled }}
{{- fail (printf "%s[%d].session: sessions.enabled is false, so nothing would validate its tokens: set it" $at $i) }}
{{- end }}
{{- if or (hasKey $rule "auth") (hasKey $rule "cache") }}
{{- fail (printf "%s[%d].session: stands alone: remove auth and cache" $at $i) }}
{{- end }}
{{- if ne (toJson $rule.match.methods) "[\"POST\"]" }}
{{- fail (printf "%s[%d].session: needs methods: [POST] in its match" $at $i) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" if these rules ask for a credential: of an object with rules and default. */}}
{{- define "gatehouse.asks" -}}
{{- $asks := eq (.default | default "pass") "deny" }}
{{- range .rules }}{{ if hasKey . "auth" }}{{ $asks = true }}{{ end }}{{ end }}
{{- if $asks }}true{{ end }}
{{- end }}

{{/* Credentials that nothing asks for: a list of rules was replaced by another one, most likely. */}}
{{- define "gatehouse.validateAuth" -}}
{{- $used := include "gatehouse.asks" . }}{{/* by the rules that credentials is for */}}
{{- $asked := $used }}
{{- range $name, $host := .virtualHosts }}
{{- $asks := include "gatehouse.asks" $host }}
{{- $asked = or $asked $asks }}
{{- if not $host.credentials }}
{{- $used = or $used $asks }}
{{- else if not $asks }}
{{- include "gatehouse.unasked" (list (printf "virtualHosts.%s.rules" $name) (printf "virtualHosts.%s.credentials" $name)) }}
{{- end }}
{{- end }}
{{- if and .credentials (not $used) }}
{{- include "gatehouse.unasked" (list "rules" "credentials") }}
{{- end }}
{{- if and .sessions.enabled (not $asked) }}
{{- include "gatehouse.unasked" (list "rules" "sessions.enabled") }}
{{- end }}
{{- end }}

{{/* Fails: of (list rules setting). */}}
{{- define "gatehouse.unasked" -}}
{{- fail (printf "%s: no rule has auth, but %s is set, so every request would be let through: a later file of values, or --set, replaces the whole list; give all rules in one, or remove %[2]s" (index . 0) (index . 1)) }}
{{- end }}

{{/* Whose requests need no credential although others do, one a line. */}}
{{- define "gatehouse.open" -}}
{{- $open := list }}
{{- $asked := include "gatehouse.asks" . }}
{{- $others := not $asked }}
{{- range $name, $host := .virtualHosts }}
{{- if include "gatehouse.asks" $host }}
{{- $asked = "true" }}
{{- else }}
{{- $open = append $open (printf "virtualHosts.%s: %s" $name (join ", " $host.domains)) }}
{{- end }}
{{- if has "*" $host.domains }}{{ $others = false }}{{ end }}
{{- end }}
{{- if $others }}{{ $open = append $open "rules: all other hosts" }}{{ end }}
{{- if $asked }}{{ join "\n" $open }}{{ end }}
{{- end }}

{{/* Where there may be two pods, what one signs the other must know. */}}
{{- define "gatehouse.validateSessions" -}}
{{- if not .sessions.existingSecret }}
{{- if eq .mode "agent" }}
{{- fail "sessions.existingSecret: is empty: nodes would refuse each other's tokens; give a Secret with openssl rand -hex 32" }}
{{- end }}
{{- if eq .mode "istio" }}
{{- fail "sessions.existingSecret: is empty: the pods of a workload would refuse each other's tokens; give a Secret with openssl rand -hex 32" }}
{{- end }}
{{- $name := ternary "autoscaling.maxReplicas" "replicaCount" .autoscaling.enabled }}
{{- $pods := ternary .autoscaling.maxReplicas .replicaCount .autoscaling.enabled }}
{{- if gt (int $pods) 1 }}
{{- fail (printf "sessions.existingSecret: is empty, and %s is %d: pods would refuse each other's tokens; give a Secret with openssl rand -hex 32" $name (int $pods)) }}
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

{{/* The bytes of a size in Mi or Gi, empty for any other. */}}
{{- define "gatehouse.bytes" -}}
{{- if regexMatch "^[0-9]+[GM]i$" . }}{{ mul (regexFind "^[0-9]+" .) (ternary 1073741824 1048576 (hasSuffix "Gi" .)) }}{{ end }}
{{- end }}

{{/* What is cached must fit into the heap, where it is in MiB or GiB; twice, with Go's collector, into the memory of a
     dynamic module. */}}
{{- define "gatehouse.validateCache" -}}
{{- $bytes := dig "memory" "bytes" "" .Values.sidecar.settings | toString }}
{{- with include "gatehouse.bytes" (trimSuffix "B" $bytes) }}
{{- if include "gatehouse.native" $ }}
{{- $room := include "gatehouse.goMemory" $ }}
{{- if and $room (gt (mul . 2) (int64 $room)) }}
{{- fail (printf "sidecar.settings.memory.bytes: %s is more than half of what envoy.maxHeapBytes, %d, leaves of envoy.resources.limits.memory, %s, for the dynamic module" $bytes (int64 $.Values.envoy.maxHeapBytes) $.Values.envoy.resources.limits.memory) }}
{{- end }}
{{- else if gt (mul . 4) (mul 3 (int64 $.Values.envoy.maxHeapBytes)) }}
{{- fail (printf "sidecar.settings.memory.bytes: %s is more than three quarters of envoy.maxHeapBytes, %d: raise that, and envoy.resources.limits.memory" $bytes (int64 $.Values.envoy.maxHeapBytes)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The heap must be less than the limit, where that is in Mi or Gi. */}}
{{- define "gatehouse.validateHeap" -}}
{{- $limit := dig "limits" "memory" "" .resources | toString }}
{{- with include "gatehouse.bytes" $limit }}
{{- if ge (int64 $.maxHeapBytes) (int64 .) }}
{{- fail (printf "envoy.maxHeapBytes: %d is not less than envoy.resources.limits.memory, %s" (int64 $.maxHeapBytes) $limit) }}
{{- end }}
{{- end }}
{{- end }}
