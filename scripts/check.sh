#!/usr/bin/env bash
# Format, lint, module files, links: everything about the sources that needs no run of the programs.
set -euo pipefail
cd "$(dirname "$0")/.."
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2

stage() {
  local name=$1 begin=$SECONDS
  shift
  if ! "$@"; then
    echo "check: $name failed" >&2
    exit 1
  fi
  echo "check: $name ok ($((SECONDS - begin)) s)"
}

formatted() {
  local files
  files=$(gofmt -l .)
  [[ -z $files ]] || { echo "not formatted, run gofmt -w:" >&2; echo "$files" >&2; return 1; }
}

# The module is a program of another platform.
for_wasm() { GOOS=wasip1 GOARCH=wasm "$@"; }

stage gofmt formatted
stage "go mod tidy" go mod tidy -diff
stage "go vet" go vet ./...
stage "go vet, wasm" for_wasm go vet ./wasm-filter/... ./wire
stage "go vet, SDK" for_wasm go vet -tags=sdk ./wasm-filter
stage staticcheck go run "$staticcheck" ./...
stage links go run ./scripts/links
stage shellcheck bash -c 'scripts/need.sh shellcheck shellcheck "it checks the scripts" && shellcheck -x scripts/*.sh .ci/run'
