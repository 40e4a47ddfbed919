#!/usr/bin/env bash
# format-lua.sh [--check]: formats the plugin's Lua with StyLua, which npm installs into build/stylua, pinned. --check
# changes no file, and fails if one isn't formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
pinned=scripts/stylua out=build/stylua

scripts/install-npm.sh $pinned $out
files=()
while IFS= read -r file; do files+=("$file"); done < <(find nginx -name '*.lua' | LC_ALL=C sort)
NODE_PATH=$out/node_modules exec node $pinned/format.cjs "$@" "${files[@]}"
