#!/usr/bin/env bash
# Installs what the test of the operator's page needs, and prints the path of axe-core: Chromium, and axe-core, which npm
# installs into build/axe, pinned.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/axe

scripts/need.sh chromium chromium "it shows the operator's page to its test"
scripts/install-npm.sh scripts/axe $out "it installs axe-core, which checks the operator's page"
echo "$PWD/$out/node_modules/axe-core/axe.min.js"
