#!/usr/bin/env bash
# chaos-proof.sh [PLANT...]: tests that the checker of chaos finds defects: builds sidecar and filter with one at a
# time, those in e2e/chaos/testdata/plants or the named ones, for each kind of edge that the plant names, and fails
# unless a minute of chaos has violations. EDGE_KIND: only on this kind. Sources are replaced for the compiler only.
set -euo pipefail
cd "$(dirname "$0")/.."
ENVOY=$(scripts/install-envoy.sh)
export ENVOY CHAOS_SECONDS=60
plants=e2e/chaos/testdata/plants work=$(mktemp -d) only=${EDGE_KIND:-}
trap 'rm -rf "$work"' EXIT
"${GO:-go}" build -C e2e -trimpath -o "$work/gatehouse-chaos" ./cmd/gatehouse-chaos

# finds PLANT: fails unless the changed programs cause violations under chaos.
finds() {
  local plant=$plants/$1 log=$work/log status=0 arguments=() chaos=$work/gatehouse-chaos
  eval "arguments=($(sed -n 's/^# chaos: //p' "$plant"))"
  scripts/chaos-build.sh "$work/build" "$plant"
  [[ ! -e $work/build/gatehouse-chaos ]] || chaos=$work/build/gatehouse-chaos
  "$chaos" --build "$work/build" --fail-fast "${arguments[@]}" >"$log" 2>&1 || status=$?
  if ((status != 1)) || ! grep -q '^VIOLATION' "$log"; then
    cat "$log" >&2
    echo "chaos-proof: $1 ($EDGE_KIND): status $status, want violations" >&2
    return 1
  fi
  echo "chaos-proof: $1 ($EDGE_KIND): found after $(grep -m 1 -oP '^VIOLATION.* at \K[0-9]+(?=\.[0-9]+ s:)' "$log") s:" \
    "$(grep -m 1 '^VIOLATION' "$log" | cut -c11-140)"
}

# refused TEXT: fails unless a plant of this text is refused.
refused() {
  echo "$1" >"$work/wrong"
  if EDGE_KIND=nginx scripts/chaos-build.sh "$work/build" "$work/wrong" 2>"$work/log"; then
    echo "chaos-proof: chaos-build.sh accepts: $1" >&2
    exit 1
  fi
}
refused "replace edge/policy/etag.go 'what it does not have' 'x'"
refused "replace edge/vm.go 'trapIfAsked(v *VM)' 'x'"
refused "replace wasm-filter/configure.go 'func configure' 'func Configure'" # isn't in nginx
refused '# nothing'

failed=0
all=("$plants"/*)
(($#)) || set -- "${all[@]##*/}"
for name; do
  read -ra kinds < <(sed -n 's/^# edges: //p' "$plants/$name")
  for kind in "${kinds[@]}"; do
    [[ -z $only || $only == "$kind" ]] || continue
    EDGE_KIND=$kind finds "$name" || failed=1
  done
done
exit "$failed"
