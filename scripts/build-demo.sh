#!/usr/bin/env bash
# build-demo.sh: builds what make run runs, and no more, and installs Envoy, side by side; prints the seconds of each.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

declare -A names=()
# start NAME COMMAND...: runs COMMAND in the background.
start() {
  {
    local begin=$SECONDS
    "${@:2}"
    echo "$1: $((SECONDS - begin)) s" >&2
  } &
  names[$!]=$1
}

kind=${EDGE_KIND:-envoy}
start "build the filter" make --no-print-directory "${kind/#envoy/wasm}" >&2
start "build the programs" env CGO_ENABLED=0 "${GO:-go}" build -trimpath -o build/ \
  ./sidecar/cmd/gatehouse-sidecar ./ctl/cmd/gatehousectl ./testbed/cmd/gatehouse-demo
[[ $kind == nginx ]] || start "install Envoy" scripts/install-envoy.sh >/dev/null
while ((${#names[@]})); do
  status=0
  wait -n -p pid || status=$?
  ((status == 0)) || { echo "build-demo: ${names[$pid]} failed" >&2; kill "${!names[@]}" 2>/dev/null; exit 1; }
  unset "names[$pid]"
done
