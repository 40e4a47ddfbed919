#!/usr/bin/env bash
# Unit tests, the wasm build, the end-to-end suite against a real Envoy and redis-server, a
# minute of chaos, and the mutation check.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/need.sh gcc gcc "the race detector of go test needs a C compiler"
scripts/need.sh redis-server redis-server "the tests run against a real Redis"
scripts/need.sh wrk wrk "a test of the load test runs it"
ENVOY=$(scripts/install-envoy.sh)
export ENVOY
scripts/install-python.sh e2e/testdata/requirements.txt ""
scripts/install-k6.sh >/dev/null

begin=$SECONDS
make --no-print-directory build
echo "test: build ok ($((SECONDS - begin)) s)"

begin=$SECONDS
mapfile -t packages < <(go list ./... | grep -v -e '/e2e$' -e '/e2e/chart$' -e '/e2e/conformance$') # make chart-e2e, make conformance
go test -race "${packages[@]}"
echo "test: unit tests ok ($((SECONDS - begin)) s)"

begin=$SECONDS
go test -race -count=1 -timeout=15m ./e2e
echo "test: end-to-end suite ok ($((SECONDS - begin)) s)"

begin=$SECONDS
build/gatehouse-chaos
echo "test: chaos ok ($((SECONDS - begin)) s)"

begin=$SECONDS
make --no-print-directory mutation
echo "test: mutation check ok ($((SECONDS - begin)) s)"
