#!/usr/bin/env bash
# chaos-build.sh [DIR [ENTRY...]]: builds the programs that only chaos runs, into build/chaos or DIR: clock.so, which
# steps the clocks of Envoy and Redis; gatehouse-sidecar, whose clock can be stepped, too; gatehouse.wasm, which traps
# when a request asks for it, and with EDGE_KIND=native libgatehouse.so, which has both. Each ENTRY, '"FILE": "COPY"', replaces another source of the last two.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/overlay.sh
dir=$(realpath -m "${1:-build/chaos}") sources=$PWD/e2e/chaos/testdata go=${GO:-go}
mkdir -p "$dir"

scripts/need.sh cc gcc "chaos steps clocks by a library in C"
cc -shared -fPIC -O2 -Wall -Wextra -Werror -o "$dir/clock.so" "$sources/clock/clock.c"

time=$("$go" env GOROOT)/src/time
stepped() {
  replace "$time/time.go" 'sec, nsec, mono := runtimeNow()' 'sec, nsec, mono := steppedNow()'
  add "$time/step.go" "$sources/clock/step.go"
}
trapping() {
  replace wasm-filter/vm.go 'func (v *vm) requestHeaders(id uint32, endOfStream bool) action {' \
    'func (v *vm) requestHeaders(id uint32, endOfStream bool) action { trapIfAsked(v); '
  replace wasm-filter/ingest.go 'return h.setRecord(op.Region, op.Index, op.Record)' \
    'trapInPush(op.Region); return h.setRecord(op.Region, op.Index, op.Record)'
  add "$PWD/wasm-filter/trap.go" "$sources/trap/trap.go"
  add "$PWD/wasm-filter/trap_$1.go" "$sources/trap/trap_$1.go"
}

stepped
overlay+=("${@:2}")
"$go" build -trimpath -overlay "$(write_overlay)" -o "$dir/gatehouse-sidecar" ./sidecar/cmd/gatehouse-sidecar

overlay=("${@:2}")
trapping wasip1
tags=()
[[ ${BINDING:-own} == own ]] || tags=("-tags=$BINDING")
scripts/build-wasm.sh "$dir/gatehouse.wasm" -overlay "$(write_overlay)" "${tags[@]}"

if [[ ${EDGE_KIND:-} == native ]]; then
  rm -f "$work"/*.go
  overlay=("${@:2}")
  stepped
  trapping native
  scripts/build-native.sh "$dir/libgatehouse.so" -overlay "$(write_overlay)"
fi
