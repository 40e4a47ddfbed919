#!/usr/bin/env bash
# clients.sh: builds the clients for Python, Node.js and Java, installs their packages into new projects in build/clients,
# and tests them there against real servers: e2e/clients.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$PWD/build/clients packages=$PWD/build/clients/packages python=$PWD/.venv/bin/python
rm -rf "$packages" "$work"/{python,node,java}
mkdir -p "$work"/{python,node,java}
scripts/clients-build.sh 0.1.0 "$packages"
stage=$work/stage/clients

# Nothing but the package and what it depends on can be imported.
pip=("$python" -m pip)
"${pip[@]}" --version >/dev/null 2>&1 || pip=(python3 -m pip --python "$python")
"${pip[@]}" install --quiet --disable-pip-version-check --no-index --no-deps --target "$work/python" "$packages"/*.whl
cp -r "$stage/python/tests" "$work/python/"
cp "$stage/vectors.json" "$work/"

cat >"$work/node/package.json" <<<'{"type": "module"}'
redis=$(sed -n 's/.*"redis": "\([0-9.]*\)".*/\1/p' clients/node/package.json)
npm install --prefix "$work/node" --prefer-offline --ignore-scripts --no-audit --no-fund --silent \
  "$packages"/gatehouse-client-*.tgz "redis@$redis"
cp -r "$stage/node/test" "$work/node/"

cp -r "$stage/java/target/lib" "$packages"/gatehouse-client-0.1.0.jar "$work/java/"

PYTHONPATH=$work/python:$PWD/.venv/clients "$python" -m mypy --strict --no-incremental --no-error-summary -p gatehouse
exec "${GO:-go}" test -C e2e -race -count=1 -timeout=30m ./clients "$@"
