#!/usr/bin/env bash
# build-native.sh OUT [FLAG...]: builds the filter as a dynamic module of Envoy to OUT, as $VERSION; flags go to go build.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
scripts/need.sh cc gcc "the module has parts in C"
CGO_ENABLED=1 exec "${GO:-go}" build -buildmode=c-shared -trimpath -tags=native -ldflags="-s -w -X main.release=${VERSION:-unknown}" -o "$out" "$@" ./wasm-filter
