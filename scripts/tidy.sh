#!/usr/bin/env bash
# tidy.sh [-diff]: go mod tidy in each module but those of tools. It knows nothing of go.work, so clients/go of this tree
# replaces the published one. With -diff it changes nothing, and fails if something is not tidy.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off
client=github.com/gatehouse/gatehouse/clients/go root=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for dir in clients/go release e2e; do go -C "$dir" mod tidy "$@"; done
for dir in . examples/postgres; do
  cd "$root/$dir"
  cp go.mod go.sum "$work/"
  go mod edit -replace="$client=$root/clients/go" "$work/go.mod"
  go mod tidy -modfile="$work/go.mod" "$@"
  go mod edit -dropreplace="$client" "$work/go.mod"
  (($#)) || cp "$work"/go.{mod,sum} .
done
