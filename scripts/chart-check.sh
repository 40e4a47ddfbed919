#!/usr/bin/env bash
# Checks the chart without a cluster: lint, unit tests, schemas of all rendered manifests, wrong values, and that the
# programs accept the rendered configurations.
set -euo pipefail
cd "$(dirname "$0")/.."
chart=charts/gatehouse
module=build/gatehouse.wasm
library=build/libgatehouse.so

fail() {
  echo "chart-check: $*" >&2
  exit 1
}

tools=$(scripts/chart-tools.sh)
export PATH=$tools:$PATH
for built in $module $library build/gatehousectl build/gatehouse-sidecar; do
  [[ -e $built ]] || fail "$built is missing; run: make build native"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

stage() {
  local name=$1 begin=$SECONDS
  shift
  "$@" || fail "$name failed"
  echo "chart-check: $name ok ($((SECONDS - begin)) s)"
}

# render VALUES [ARGUMENT...]: prints what helm template renders with the file in ci/.
render() { helm template demo $chart --namespace apps --values "$@"; }

# content KEY: prints the text under this key of the one ConfigMap on standard input.
content() { sed -n "/^  $1: |\$/,/^ \{0,2\}[^ ]/p" | sed -e '/^ \{0,2\}[^ ]/d' -e 's/^    //'; }

lint() {
  local values
  for values in "$chart"/ci/*-values.yaml; do
    helm lint --quiet --strict $chart --values "$values" || return
  done
}

# patched: prints a workload with the patch of mode istio, as a Deployment that the schema covers completely.
patched() {
  printf 'apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: workload}\n'
  render $chart/ci/istio-values.yaml --show-only templates/istio/workload-patch.yaml | content 'patch\.yaml' |
    sed -e '/patch: delete/d' -e 's/^spec:$/&\n  selector: {matchLabels: {app: shop}}/' -e 's/^    spec:$/&\n      containers: [{name: app, image: app}]/'
}

# values: gatehousectl check of values names a command that checks what the chart renders from them.
values() {
  local values command
  for values in "$chart"/ci/{gateway,nginx}*values.yaml; do
    command=$(build/gatehousectl check "$values" 2>&1 | sed -n "s,^  helm,helm,p" | sed "s,CHART,$chart,")
    PATH=$PWD/build:$PATH bash -euo pipefail -c "${command:-false}" >/dev/null || return
  done
}

schemas() {
  local values conform=(kubeconform -strict -kubernetes-version 1.36.3
    -schema-location "$tools/../schemas/{{.ResourceKind}}{{.KindSuffix}}.json")
  for values in "$chart"/ci/*-values.yaml; do
    render "$values" >"$work/rendered.yaml" || return
    "${conform[@]}" "$work/rendered.yaml" || return
  done
  "${conform[@]}" docs/migrate/ingress-nginx/{before,after}.yaml || return
  patched >"$work/patched.yaml" && grep -q 'restartPolicy: Always' "$work/patched.yaml" &&
    "${conform[@]}" "$work/patched.yaml"
}

# docs/runbooks.md has a section for each alert, which the alert links to, and no other ones. promtool accepts the rules,
# and sees each alert fire and be silent.
alerts() {
  local alert names tests=$chart/tests/alerts.yaml
  render $chart/ci/gateway-values.yaml --show-only templates/monitoring/prometheusrule.yaml |
    sed -n '/^spec:/,$ s/^  //p' >"$work/annotated.yaml"
  promtool check rules "$work/annotated.yaml" >"$work/promtool" || { cat "$work/promtool"; return 1; }
  names=$(sed -n 's/^ *- alert: //p' "$work/annotated.yaml")
  diff <(sort <<<"$names") <(sed -n 's/^## //p' docs/runbooks.md | sort) ||
    { echo "alerts of the chart (<) and sections of docs/runbooks.md (>) differ" >&2; return 1; }
  diff <(tr '[:upper:]' '[:lower:]' <<<"$names") <(sed -n 's/^ *runbook_url: .*#//p' "$work/annotated.yaml") ||
    { echo "alerts (<) and the sections that they link to (>) differ" >&2; return 1; }
  for alert in $names; do
    if ! grep -q "{alertname: $alert, .*exp_labels" $tests || ! grep -q "{alertname: $alert, .*exp_alerts: \[\]" $tests; then
      echo "$tests: no test in which $alert fires, or none in which it doesn't" >&2
      return 1
    fi
  done
  diff <(scripts/render-alerts.sh) docs/prometheus/alerts.yaml ||
    { echo "docs/prometheus/alerts.yaml (>) is old; run: make chart-readme" >&2; return 1; }
  sed -E '/^ *(annotations|summary|description|runbook_url):/d' "$work/annotated.yaml" >"$work/rules.yaml"
  cp $tests "$work/alerts.yaml" # it names rules.yaml
  promtool test rules "$work/alerts.yaml" >"$work/promtool" 2>&1 || { cat "$work/promtool"; return 1; }
}

wrong_values() {
  local line arguments want output lines=0
  while read -r line; do
    [[ -n $line && $line != '#'* ]] || continue
    read -ra arguments <<<"${line%% => *}"
    want=${line#* => }
    if output=$(helm template demo $chart --set upstream.host=backend --set redis.url=redis://redis "${arguments[@]}" 2>&1); then
      echo "accepted: ${arguments[*]}, want an error with: $want" >&2
      return 1
    fi
    [[ $output == *"$want"* ]] || { printf '%s\n' "${arguments[*]}: want an error with: $want; got:" "$output" >&2; return 1; }
    lines=$((lines + 1))
  done <$chart/tests/wrong-values.txt
  echo "  $lines wrong values are refused by name"
}

# null removes a value: each top-level one and each group, set to null, is refused by name or is as good as empty.
null_values() {
  local paths
  # shellcheck disable=SC2016 # the backquotes are Markdown's
  paths=$(sed -n '/<!-- values/,$s/^| `\([a-zA-Z.]*\)` |.*/\1/p' "$chart"/README.md | awk -F. '{path = $1; print path; for (i = 2; i < NF; i++) print path = path "." $i}' | sort -u)
  # shellcheck disable=SC2016 # sh expands them
  xargs -P2 -I{} sh -c 'output=$(helm template demo "$1" --set upstream.host=backend --set redis.url=redis://redis --set "$2=null" 2>&1) && exit
    case $output in *": $2: is null: "* | *": $2: is empty: "*) ;; *) printf "%s\n" "$2=null: want an error that begins with its name; got:" "$output" >&2; exit 1 ;; esac' sh $chart {} <<<"$paths" || return
  echo "  null is refused by name, or empty, for $(wc -l <<<"$paths") values"
}

# Checks a gateway's envoy.yaml, also that of the guide from ingress-nginx, by gatehousectl and Envoy. Envoy validates
# without clusters, so with sessions it logs that it can't fetch the keys.
envoy() {
  local values guide=docs/migrate/ingress-nginx
  for values in "$chart"/ci/gateway*-values.yaml "$guide/values.yaml --values $guide/rules.yaml"; do
    # shellcheck disable=SC2086 # a file and perhaps arguments
    render $values --show-only templates/gateway/edge-config.yaml >"$work/config.yaml"
    content 'envoy\.yaml' <"$work/config.yaml" >"$work/envoy.yaml"
    content 'tls\.yaml' <"$work/config.yaml" >"$work/tls.yaml"
    build/gatehousectl check "$work/envoy.yaml" || return
    sed -i -e "s#/etc/gatehouse/gatehouse.wasm#$PWD/$module#" -e "s#/usr/lib/gatehouse/libgatehouse.so#$PWD/$library#" -e "s#/etc/envoy/tls.yaml#$work/tls.yaml#" "$work/envoy.yaml"
    "$envoy_binary" --mode validate --log-level error --config-path "$work/envoy.yaml" || return
  done
}

# two_teams FIRST SECOND: sets teams to arguments of render for values files of two teams with upstreams of their own.
two_teams() {
  local team
  teams=()
  for team in "$@"; do
    teams+=(--values "$chart/ci/team-$team.yaml" --set "virtualHosts.$team.upstream.host=10.0.0.${#team},virtualHosts.$team.upstream.port=80") # each another
  done
}

# Values files of two teams add up in any order, and gatehousectl finds nothing wrong.
teams() {
  local team teams
  edge() { render $chart/ci/gateway-values.yaml "${teams[@]}" --show-only templates/gateway/edge-config.yaml | content 'envoy\.yaml'; }
  two_teams shop fleet && edge >"$work/shop-first.yaml" || return
  two_teams fleet shop && edge >"$work/fleet-first.yaml" || return
  diff "$work/shop-first.yaml" "$work/fleet-first.yaml" || return
  for team in shop fleet; do
    [[ $(grep -c "^ *- $team\.example\$\|route: {cluster: upstream-$team," "$work/shop-first.yaml") == 2 ]] ||
      { echo "team $team has no rules or no route beside the other" >&2; return 1; }
  done
  build/gatehousectl check "$work/shop-first.yaml"
}

# nginx_accepts [ARGUMENT...]: renders edge nginx; gatehousectl checks it, and nginx with the plugin that it installs.
nginx_accepts() {
  render $chart/ci/nginx-values.yaml --show-only templates/gateway/edge-config.yaml "$@" >"$work/config.yaml"
  content 'rules\.yaml' <"$work/config.yaml" >"$work/rules.yaml"
  build/gatehousectl nginx install --rules "$work/rules.yaml" "$work/plugin" 2>/dev/null || return
  content 'nginx\.conf' <"$work/config.yaml" >"$work/nginx.conf"
  # nginx runs as root here, and then sets the owner of these directories.
  sed -i -e "1i user root;" -e "s#/usr/share/gatehouse/nginx#$work/plugin#" -e "s#/run/gatehouse\(/edge\)\?#$work#" "$work/nginx.conf"
  build/gatehousectl check --rules "$work/rules.yaml" "$work/nginx.conf" || return
  "$nginx_binary" -t -q -e stderr -c "$work/nginx.conf"
}

nginx() {
  local missing teams pem=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -keyout "$work/tls.key" -out "$work/tls.crt")
  openssl req -x509 -nodes -subj /CN=edge "${pem[@]}" 2>/dev/null || return
  two_teams shop fleet
  nginx_accepts "${teams[@]}" && nginx_accepts --set agent=node,sessions.existingSecret= && nginx_accepts || return
  # It has each setting of nginx/nginx.conf. The addresses, sizes and paths are values, and pods need no other socket.
  settings() { sed -e 's/ *#.*//' -e 's/^ *//' -e '/^$/d' | sort -u; }
  missing=$(comm -13 <(content 'nginx\.conf' <"$work/config.yaml" | settings) <(settings <nginx/nginx.conf | grep -v -E \
    -e '^(user|listen|server|error_log|access_log|pid|rules =|memory =|proxy_read_timeout|location = /(metrics|healthcheck/ok)) ?'))
  [[ -z $missing ]] || { printf '%s\n' "templates/_nginx.tpl lacks what nginx/nginx.conf has:" "$missing" >&2; return 1; }
}

# The chart has each setting of envoy/envoy.yaml, which all tests use, with its lines for sessions and without them, and
# of envoy/envoy-native.yaml. The rules, addresses and heap are values.
same_settings() {
  local missing edge file
  settings() {
    sed -e '/# ---- the rules/,/# -----/d' -e 's/ *#.*//' -e '/[-:] \*/d' -e 's/&[a-z_]\+ *//' -e 's/^[ -]*//' -e 's/ *$//' -e 's/"//g' -e '/^$/d' | sort -u
  }
  # lacking VALUES EDGE FILE SCRIPT: compares with the file, changed by sed
  lacking() {
    missing=$(comm -13 <(render "$1" --set edge="$2" --show-only templates/gateway/edge-config.yaml | settings) \
      <(sed "$4" "$3" | settings | grep -v -e '^socket_address: ' -e '^max_heap_size_bytes: '))
    [[ -z $missing ]] || { printf '%s\n' "$1, edge $2: templates/_envoy.tpl or _filter.tpl lack what $3 has:" "$missing" >&2; return 1; }
  }
  for edge in wasm native; do
    file=envoy/envoy.yaml
    [[ $edge == wasm ]] || file=envoy/envoy-native.yaml
    grep -q '#session ' $file || { echo "$file has no lines for sessions" >&2; return 1; }
    lacking $chart/ci/gateway-values.yaml $edge $file '' || return
    lacking $chart/ci/gateway-sessions-values.yaml $edge $file 's/#session //' || return
  done
}

# The sidecar accepts the chart's file and environment, and reads secrets at the pod's paths.
sidecar() {
  local values section
  for section in session verdict; do
    mkdir -p "$work/secrets/$section"
    echo "a secret of $section that is as long as one is" >"$work/secrets/$section/secret"
  done
  for values in "$chart"/ci/*-values.yaml; do
    grep -q '^agent: node' "$values" && continue # the agent's release has it
    render "$values" --show-only templates/sidecar-config.yaml | content 'sidecar\.yaml' |
      sed "s#/etc/gatehouse/secrets/#$work/secrets/#" >"$work/sidecar.yaml"
    build/gatehouse-sidecar --config "$work/sidecar.yaml" --check-config >/dev/null || return
  done
}

# A README lists every metric of the alerts and the dashboard.
metrics() {
  local name documented
  # shellcheck disable=SC2016 # the backquotes are Markdown's
  documented=$(sed -n 's/^| `\(gatehouse[._][a-z_]*\)`.*/\1/p' docs/monitoring.md | tr . _)
  for name in $(render $chart/ci/gateway-values.yaml | grep -o '\bgatehouse_[a-z_]*' | sed 's/_bucket$//' | sort -u); do
    case $name in gatehouse_push | gatehouse_telemetry | gatehouse_redis) continue ;; esac # names of Envoy's statistics
    case $name in gatehouse_cache_status | gatehouse_vary | gatehouse_cache_control | gatehouse_no_store | gatehouse_rule | gatehouse_device | gatehouse_reason) continue ;; esac # properties
    grep -qx "$name" <<<"$documented" || { echo "$name is in no README" >&2; return 1; }
  done
}

envoy_binary=$(scripts/install-envoy.sh)
nginx_binary=/usr/sbin/nginx
stage "helm lint" lint
stage "helm unittest" helm-unittest --strict $chart
stage "README and descriptions" readme -check $chart nginx/rules.schema.json
stage "schemas of Kubernetes and custom resources" schemas
stage "wrong values" wrong_values
stage "null" null_values
stage "sidecar's configuration" sidecar
stage "Envoy's configuration" envoy
stage "nginx's configuration" nginx
stage "values of two teams" teams
stage "check of values" values
stage "settings of envoy/envoy.yaml and envoy-native.yaml" same_settings
stage "metrics" metrics
stage "alerts" alerts
