#!/usr/bin/env bash
# Installs what the test of the operator's page needs, and prints the path of axe-core: Chromium, and axe-core, which npm
# installs into build/axe, pinned.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/axe

scripts/install-npm.sh scripts/axe $out
echo "$PWD/$out/node_modules/axe-core/axe.min.js"
