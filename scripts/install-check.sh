#!/usr/bin/env bash
# install-check.sh [FLAG...]: builds what registries have of a release, then runs the commands of the documentation that
# install it, in empty directories against registries on this machine: e2e/install. Flags go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$PWD/build/install
VERSION=$(sed -n 's,.*/clients/go v,,p' go.mod)
export VERSION

rm -rf "$work/packages"
scripts/clients-build.sh "$VERSION" "$work/packages"
scripts/install-npm.sh scripts/verdaccio "$work/verdaccio"

# What the Python package depends on or is built by, as pinned.
pip=("$PWD/.venv/bin/python" -m pip)
"${pip[@]}" --version >/dev/null 2>&1 || pip=(python3 -m pip)
pins=clients/python/requirements.txt
if ! cmp -s $pins "$work/wheels.txt"; then
  "${pip[@]}" download --quiet --disable-pip-version-check --only-binary :all: --require-hashes --dest "$work/wheels" --requirement $pins
  cp $pins "$work/wheels.txt"
fi

HELM=$(scripts/chart-tools.sh)/helm
export HELM PIP="${pip[*]}"
exec "${GO:-go}" test -C e2e -count=1 -timeout=30m ./install "$@"
