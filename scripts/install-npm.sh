#!/usr/bin/env bash
# install-npm.sh PINNED OUT: installs the packages of PINNED/package.json by npm into OUT, as PINNED/package-lock.json pins
# them, unless they are there.
set -euo pipefail
pinned=$1 out=$2

if ! cmp -s "$pinned/package-lock.json" "$out/installed.json"; then
  echo "installing $pinned into $out ..." >&2
  rm -rf "$out"
  mkdir -p "$out"
  cp "$pinned/package.json" "$pinned/package-lock.json" "$out/"
  npm ci --prefix "$out" --ignore-scripts --no-audit --no-fund --silent
  cp "$pinned/package-lock.json" "$out/installed.json" # written last
fi
