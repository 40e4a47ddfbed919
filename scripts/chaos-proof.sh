#!/usr/bin/env bash
# Tests that the checker of chaos finds faults: builds sidecar and module with a fault, one at a time, and fails unless
# a minute of chaos has violations. Sources are replaced for the compiler only (go build -overlay).
set -euo pipefail
cd "$(dirname "$0")/.."
ENVOY=$(scripts/install-envoy.sh)
export ENVOY CHAOS_SECONDS=60
source scripts/overlay.sh

# finds NAME [ARGUMENT...]: fails unless the changed programs cause violations under chaos with these arguments.
finds() {
  local name=$1 log=$work/log status=0
  shift
  scripts/chaos-build.sh "$work/build" "${overlay[@]}"
  build/gatehouse-chaos --sidecar "$work/build/gatehouse-sidecar" --wasm "$work/build/gatehouse.wasm" \
    --clock "$work/build/clock.so" --fail-fast "$@" >"$log" 2>&1 || status=$?
  if ((status != 1)) || ! grep -q '^VIOLATION' "$log"; then
    cat "$log" >&2
    echo "chaos-proof: $name: status $status, want violations" >&2
    exit 1
  fi
  echo "chaos-proof: $name: $(grep -m 1 '^VIOLATION' "$log" | cut -c1-160)"
  rm -rf "${work:?}"/*
  overlay=()
}

replace sidecar/internal/credential/record.go 'func (v *Verifier) Apply(c contract.Credential) {' \
  'func (v *Verifier) Apply(c contract.Credential) { if c.Disabled { return }; '
finds "revocations are ignored"

replace sidecar/internal/objectcache/resync.go 's.forget(stored)' '_ = stored'
replace sidecar/internal/follow/read.go 'n, err = f.readUnmet(ctx, master, meanwhile)' 'n, err = 0, nil'
finds "a resync removes nothing" --only 'redis emptied'

replace sidecar/internal/follow/position.go \
  'func (f *Follower) goesOn(p position, reason catchUpReason) bool {' 'func (f *Follower) goesOn(p position, reason catchUpReason) bool { return true; '
replace sidecar/internal/follow/position.go \
  'func (f *Follower) continues(p position) bool {' 'func (f *Follower) continues(p position) bool { return true; '
replace sidecar/internal/follow/position.go \
  'func (p *position) differs() bool {' 'func (p *position) differs() bool { return false; '
finds "another history is never noticed" --redis sentinel --only 'redis failed over'

replace wasm-filter/policy/decide.go 'e.distrusted.inStepMS = s.InStepMS' '_ = s'
finds "a clock that is set back is never noticed" --only 'link cut' --only 'edge clock stepped'
