#!/usr/bin/env bash
# Shows that the checker of chaos finds faults: builds sidecars with a fault, one at a time, and fails unless a minute of
# chaos has violations. Sources are replaced for the compiler only (go build -overlay).
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ENVOY=$(scripts/install-envoy.sh)
export ENVOY CHAOS_SECONDS=60
overlay=() # NAME FILE of each replaced source

# replace FILE BEFORE AFTER: FILE must contain BEFORE once.
replace() {
  local text rest copy
  copy=$work/${1//\//-}
  [[ -e $copy ]] || { cp "$1" "$copy" && overlay+=("\"$PWD/$1\": \"$copy\""); }
  text=$(<"$copy")
  rest=${text#*"$2"}
  if [[ $rest == "$text" || $rest == *"$2"* ]]; then
    echo "chaos-proof: want \"$2\" once in $1; update scripts/chaos-proof.sh" >&2
    exit 1
  fi
  printf '%s\n' "${text/"$2"/"$3"}" >"$copy"
}

# finds NAME [ARGUMENT...]: fails unless the changed sidecar has violations under chaos with these arguments.
finds() {
  local name=$1 log=$work/log status=0
  shift
  (IFS=, && printf '{"Replace": {%s}}\n' "${overlay[*]}") >"$work/overlay.json"
  go build -overlay "$work/overlay.json" -o "$work/gatehouse-sidecar" ./sidecar/cmd/gatehouse-sidecar
  build/gatehouse-chaos --sidecar "$work/gatehouse-sidecar" --fail-fast "$@" >"$log" 2>&1 || status=$?
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

replace sidecar/internal/mirror/resync.go 's.forget(key)' '_ = key'
replace sidecar/internal/events/read.go 'n, err = s.readUnmet(ctx, master, meanwhile)' 'n, err = 0, nil'
finds "a resync removes nothing" --only 'redis emptied'

replace sidecar/internal/events/position.go \
  'func (s *Subscriber) goesOn(p position, reason string) bool {' 'func (s *Subscriber) goesOn(p position, reason string) bool { return true; '
replace sidecar/internal/events/position.go \
  'func (s *Subscriber) continues(p position) bool {' 'func (s *Subscriber) continues(p position) bool { return true; '
replace sidecar/internal/events/position.go \
  'func (p *position) differs() bool {' 'func (p *position) differs() bool { return false; '
finds "another history is never noticed" --redis sentinel --only 'redis failed over'
