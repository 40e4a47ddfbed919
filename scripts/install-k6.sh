#!/usr/bin/env bash
# Prints the path of k6: $K6 if it is set, otherwise one that it builds from its Go module once, in about a minute, and
# keeps in the user's cache.
set -euo pipefail
version=v1.8.1

if [[ -n ${K6:-} ]]; then
  [[ -x $K6 && ! -d $K6 ]] || { echo "install-k6: K6=$K6 is not an executable file" >&2; exit 1; }
  echo "$K6"
  exit
fi
dir=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse/k6-$version
if [[ ! -x $dir/k6 ]]; then
  echo "building k6 $version ..." >&2
  GOBIN=$dir go install "go.k6.io/k6@$version" >&2
fi
echo "$dir/k6"
