#!/usr/bin/env bash
# go-tools.sh NAME: prints the directory of the programs that release/NAME/go.mod lists as tools, of the versions there.
# Builds them if they are missing.
set -euo pipefail
name=$1
cd "$(dirname "$0")/$name"
export GOWORK=off # a module that is not in go.work

key=$({ go env GOVERSION; cat go.mod go.sum ../go-tools.sh; } | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse
tools=$cache/$name-$key
if [[ ! -d $tools ]]; then
  echo "building the programs of release/$name/go.mod into $tools ..." >&2
  mkdir -p "$cache"
  building=$(mktemp -d "$cache/.$name-XXXXXX")
  trap 'rm -rf "$building"' EXIT
  go build -trimpath -ldflags="-s -w" -o "$building/" tool
  # Another build may have finished first.
  [[ -d $tools ]] || mv "$building" "$tools"
fi
echo "$tools"
