#!/usr/bin/env bash
# build-wasm.sh OUT [FLAG...]: builds the filter module to OUT, as $VERSION; flags go to go build.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
GOOS=wasip1 GOARCH=wasm exec "${GO:-go}" build -buildmode=c-shared -trimpath -ldflags="-s -w -X github.com/gatehouse/gatehouse/edge.Release=${VERSION:-unknown}" -o "$out" "$@" ./wasm-filter
