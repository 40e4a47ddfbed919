#!/usr/bin/env bash
# observe.sh: runs the demo, a Prometheus that reads it, with the chart's alerts, and a little load, until it is stopped
# or one of the three ends. scripts/demo.sh starts it. The variables are those of make run, and PROMETHEUS.
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

setsid build/gatehouse-demo >"$dir/stack.log" 2>&1 &
children+=($!)
until grep -q '^gatehouse ready' "$dir/stack.log"; do
  kill -0 "${children[0]}" 2>/dev/null || { tail -n 40 "$dir/stack.log" >&2; exit 1; }
  sleep 0.1
done

path=/stats/prometheus
[[ ${EDGE_KIND:-envoy} == nginx ]] && path=/metrics
sed -e "s#127.0.0.1:9090#$SIDECAR_ADMIN#" -e "s#127.0.0.1:9901#$ENVOY_ADMIN#" -e 's/_interval: .*/_interval: 2s/' \
  -e "s#__metrics_path__: [^ }]*}#__metrics_path__: $path}#" docs/prometheus/prometheus.yml >"$dir/prometheus.yml"
cp docs/prometheus/alerts.yaml "$dir/alerts.yaml"
# One processor, at a low priority, with a heap of about 256 MiB and as much on disk.
GOMAXPROCS=1 GOMEMLIMIT=256MiB setsid nice -n 10 prometheus --config.file="$dir/prometheus.yml" \
  --web.listen-address="$PROMETHEUS" --log.level=warn --storage.tsdb.path="$dir/prometheus" \
  --storage.tsdb.retention.time=1d --storage.tsdb.retention.size=256MB >"$dir/prometheus.log" 2>&1 &
children+=($!)
GOMAXPROCS=1 setsid nice -n 10 build/gatehouse-loadtest traffic --url="http://$EDGE" --redis="${REDIS_URL:-redis://$REDIS}" \
  >"$dir/traffic.log" 2>&1 &
children+=($!)

cat "$dir/stack.log"
cat <<END
20 requests a second of every kind are sent, and an object is published each second.

  http://$PROMETHEUS/alerts      the chart's alerts
  http://$PROMETHEUS/graph       queries
  http://$SIDECAR_ADMIN/metrics    the sidecar's metrics
  http://$ENVOY_ADMIN$path    the edge's counters
  charts/gatehouse/files/dashboard.json    the dashboard; DEVELOPER.md says how to see it in Grafana
END
wait -n || true
echo "observe: a part has ended; see $dir/*.log" >&2
exit 1
