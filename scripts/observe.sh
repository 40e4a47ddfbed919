#!/usr/bin/env bash
# observe.sh [PROGRAM...]: runs the demo, or another PROGRAM that prints "gatehouse ready", with a Prometheus that reads
# it, with the chart's alerts, an Alertmanager, a Jaeger, and a little load, until it is stopped or one of them ends.
# scripts/demo.sh starts it. The variables are those of make observe; ALERTS: other alerts.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$PWD/.run/$STACK

# In sessions of their own: Ctrl-C reaches this script only, which then ends them once.
children=()
# shellcheck disable=SC2317 # traps call it
end() {
  trap - INT TERM
  kill "${children[@]}" 2>/dev/null || true
  wait
}
trap 'end; exit 0' INT TERM HUP
trap end EXIT

# limited NAME PROGRAM [ARGUMENT...]: runs PROGRAM on one processor, at a low priority, with a heap of about 256 MiB.
limited() {
  GOMAXPROCS=1 GOMEMLIMIT=256MiB setsid nice -n 10 "${@:2}" >"$dir/$1.log" 2>&1 &
  children+=($!)
}

jaeger=$(scripts/install-jaeger.sh)
export TRACE_ENDPOINT=${TRACE_ENDPOINT:-http://$JAEGER_OTLP}
setsid "${@:-build/gatehouse-demo}" >"$dir/stack.log" 2>&1 &
children+=($!)
until grep -qs '^gatehouse ready' "$dir/stack.log"; do
  kill -0 "${children[0]}" 2>/dev/null || { tail -n 40 "$dir/stack.log" >&2; exit 1; }
  sleep 0.1
done

path=/stats/prometheus
[[ ${EDGE_KIND:-envoy} == nginx ]] && path=/metrics
sed -e "s#127.0.0.1:9090#$SIDECAR_ADMIN#" -e "s#127.0.0.1:9901#$ENVOY_ADMIN#" -e "s#127.0.0.1:9093#$ALERTMANAGER#" \
  -e 's/_interval: .*/_interval: 2s/' -e "s#__metrics_path__: [^ }]*}#__metrics_path__: $path}#" \
  docs/prometheus/prometheus.yml >"$dir/prometheus.yml"
cp "${ALERTS:-docs/prometheus/alerts.yaml}" "$dir/alerts.yaml"
limited prometheus prometheus --config.file="$dir/prometheus.yml" --web.listen-address="$PROMETHEUS" --log.level=warn \
  --storage.tsdb.path="$dir/prometheus" --storage.tsdb.retention.time=1d --storage.tsdb.retention.size=256MB
limited alertmanager prometheus-alertmanager --config.file=docs/prometheus/alertmanager.yml --log.level=warn \
  --web.listen-address="$ALERTMANAGER" --cluster.listen-address= --storage.path="$dir/alertmanager" --data.retention=24h
OTEL_TRACES_SAMPLER=always_off limited jaeger "$jaeger" --config scripts/jaeger.yaml
limited traffic build/gatehouse-loadtest traffic --url="http://$EDGE" --redis="${REDIS_URL:-redis://$REDIS}"

cat "$dir/stack.log"
cat <<END
20 requests a second of every kind are sent, and an object is published each second.

  http://$SIDECAR_ADMIN/    the operator's page
  http://$PROMETHEUS/alerts    the chart's alerts
  http://$ALERTMANAGER/api/v2/alerts    those that fire, as Alertmanager got them
  http://$JAEGER_API/api/traces?service=gatehouse-sidecar    the last traces
  http://$PROMETHEUS/graph    queries
  http://$SIDECAR_ADMIN/metrics    the sidecar's metrics
  http://$ENVOY_ADMIN$path    the edge's counters
  charts/gatehouse/files/dashboard.json    the dashboard; DEVELOPER.md says how to see it in Grafana
END
wait -n || true
echo "observe: a part has ended; see $dir/*.log" >&2
exit 1
