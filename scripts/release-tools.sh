#!/usr/bin/env bash
# Prints the directory of nfpm, cosign and crane, with the versions in scripts/release-tools/go.mod. Builds them if they
# are missing, in about 5 minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/release-tools"

key=$(cat go.mod go.sum ../release-tools.sh | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse
tools=$cache/release-tools-$key
if [[ ! -d $tools ]]; then
  echo "building the tools of a release into $tools ..." >&2
  mkdir -p "$cache"
  building=$(mktemp -d "$cache/.release-tools-XXXXXX")
  trap 'rm -rf "$building"' EXIT
  go build -trimpath -ldflags="-s -w" -o "$building/" tool
  # Another build may have finished first.
  [[ -d $tools ]] || mv "$building" "$tools"
fi
echo "$tools"
