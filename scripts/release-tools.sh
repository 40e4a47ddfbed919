#!/usr/bin/env bash
# Prints the directory of nfpm, of the version in scripts/release-tools/go.mod. Builds it if it is missing.
set -euo pipefail
cd "$(dirname "$0")/release-tools"

key=$({ go env GOVERSION; cat go.mod go.sum ../release-tools.sh; } | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse
tools=$cache/release-tools-$key
if [[ ! -d $tools ]]; then
  echo "building nfpm, for the packages of a release, into $tools ..." >&2
  mkdir -p "$cache"
  building=$(mktemp -d "$cache/.release-tools-XXXXXX")
  trap 'rm -rf "$building"' EXIT
  go build -trimpath -ldflags="-s -w" -o "$building/" tool
  # Another build may have finished first.
  [[ -d $tools ]] || mv "$building" "$tools"
fi
echo "$tools"
