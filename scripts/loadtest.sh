#!/usr/bin/env bash
# Builds loadtest and runs it with the given flags. The programs that it measures must have been built.
set -euo pipefail
cd "$(dirname "$0")/.."

ENVOY=$(scripts/install-envoy.sh)
export ENVOY
CGO_ENABLED=0 go build -trimpath -o build/gatehouse-loadtest ./loadtest
exec build/gatehouse-loadtest "$@"
