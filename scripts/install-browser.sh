#!/usr/bin/env bash
# Installs what the test of the operator's page needs, and prints the path of axe-core: Chromium, and axe-core, which npm
# installs into build/axe, pinned.
set -euo pipefail
cd "$(dirname "$0")/.."
pinned=scripts/axe out=build/axe

scripts/need.sh chromium chromium "it shows the operator's page to its test"
if ! cmp -s $pinned/package-lock.json $out/installed.json; then
  scripts/need.sh node nodejs "npm runs in it"
  scripts/need.sh npm npm "it installs axe-core, which checks the operator's page"
  echo "installing axe-core into $out ..." >&2
  rm -rf $out
  mkdir -p $out
  cp $pinned/package.json $pinned/package-lock.json $out/
  npm ci --prefix $out --ignore-scripts --no-audit --no-fund --silent
  cp $pinned/package-lock.json $out/installed.json # written last
fi
echo "$PWD/$out/node_modules/axe-core/axe.min.js"
