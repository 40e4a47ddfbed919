#!/usr/bin/env bash
# Prints the chart's alerts as a rule file of Prometheus, for docs/prometheus/alerts.yaml.
set -euo pipefail
cd "$(dirname "$0")/.."
helm=$(scripts/chart-tools.sh)/helm

echo "# The chart's alerts, for a Prometheus without its operator. Written by make chart-readme; don't edit."
"$helm" template gatehouse charts/gatehouse --namespace gatehouse --set upstream.host=backend --set redis.url=redis://redis \
  --set monitoring.prometheusRule.enabled=true --show-only templates/monitoring/prometheusrule.yaml |
  sed -n '/^spec:/,$ s/^  //p'
