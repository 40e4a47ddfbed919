#!/usr/bin/env bash
# format-lua.sh [--check]: formats the plugin's Lua with StyLua, which npm installs into build/stylua, pinned. --check
# changes no file, and fails if one isn't formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
pinned=scripts/stylua out=build/stylua

scripts/need.sh node nodejs "StyLua, which formats the NGINX plugin, runs in it"
if ! cmp -s $pinned/package-lock.json $out/installed.json; then
  scripts/need.sh npm npm "it installs StyLua, which formats the NGINX plugin"
  echo "installing StyLua into $out ..." >&2
  rm -rf $out
  mkdir -p $out
  cp $pinned/package.json $pinned/package-lock.json $out/
  npm ci --prefix $out --ignore-scripts --no-audit --no-fund --silent
  cp $pinned/package-lock.json $out/installed.json # written last
fi
files=()
while IFS= read -r file; do files+=("$file"); done < <(find nginx -name '*.lua' | LC_ALL=C sort)
NODE_PATH=$out/node_modules exec node $pinned/format.cjs "$@" "${files[@]}"
