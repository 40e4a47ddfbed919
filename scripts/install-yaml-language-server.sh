#!/usr/bin/env bash
# Installs yaml-language-server, which editors ask about YAML files, by npm into build/yaml-language-server, pinned, and
# prints the path of its program.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/yaml-language-server

scripts/install-npm.sh scripts/yaml-language-server $out
echo "$PWD/$out/node_modules/yaml-language-server/bin/yaml-language-server"
