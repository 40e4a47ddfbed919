#!/usr/bin/env bash
# Builds loadtest and runs it with the given flags. The programs that it measures must have been built.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/need.sh redis-server redis-server "the load test runs a real Redis"
scripts/need.sh wrk wrk "it makes the closed loop of the load test"
ENVOY=$(scripts/install-envoy.sh)
export ENVOY
go build -trimpath -o build/gatehouse-loadtest ./loadtest
exec build/gatehouse-loadtest "$@"
