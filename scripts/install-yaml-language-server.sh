#!/usr/bin/env bash
# Installs yaml-language-server, which editors ask about YAML files, by npm into build/yaml-language-server, pinned, and
# prints the path of its program.
set -euo pipefail
cd "$(dirname "$0")/.."
pinned=scripts/yaml-language-server out=build/yaml-language-server

scripts/need.sh node nodejs "yaml-language-server runs in it"
if ! cmp -s $pinned/package-lock.json $out/installed.json; then
  scripts/need.sh npm npm "it installs yaml-language-server"
  echo "installing yaml-language-server into $out ..." >&2
  rm -rf $out
  mkdir -p $out
  cp $pinned/package.json $pinned/package-lock.json $out/
  npm ci --prefix $out --ignore-scripts --no-audit --no-fund --silent
  cp $pinned/package-lock.json $out/installed.json # written last
fi
echo "$PWD/$out/node_modules/yaml-language-server/bin/yaml-language-server"
