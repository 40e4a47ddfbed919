#!/usr/bin/env bash
# test.sh [all]: builds, and runs the unit tests and the end-to-end suite against a real Envoy and redis-server: in the
# short form, which skips tests that call leaveToLongForm(), or with all in the long form with all other long checks.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} != all ]]; then
  scripts/install-packages.sh test
  GOFLAGS="$(go env GOFLAGS) -trimpath" # as make build: what that compiled is not compiled again
  export GOFLAGS RACE=0
  exec scripts/stages.sh test <<'STAGES'
build  must  scripts/build-demo.sh && make --no-print-directory build
unit   must  make --no-print-directory unit
e2e    must  make --no-print-directory e2e
STAGES
fi
LONG=1 scripts/install-packages.sh test-all
ENVOY=$(scripts/install-envoy.sh)
export ENVOY
exec scripts/stages.sh test-all <<'STAGES'
build     must  make --no-print-directory build
unit      must  make --no-print-directory unit LONG=1
lua       must  make --no-print-directory lua-coverage
e2e       must  make --no-print-directory e2e LONG=1
plugins   must  make --no-print-directory wasm e2e BINDING=plugins
native    must  make --no-print-directory native e2e LONG=1 EDGE_KIND=native
nginx     must  make --no-print-directory e2e LONG=1 EDGE_KIND=nginx
mutation  must  make --no-print-directory mutation
conformance must make --no-print-directory conformance
matrix    must  make --no-print-directory matrix LONG=1
engines   must  make --no-print-directory engines
routers   must  make --no-print-directory routers SPELLINGS=1000000
bypass    must  make --no-print-directory bypass CONFIGS=10000
fuzz      must  make --no-print-directory fuzz
chaos     must  make --no-print-directory chaos CHAOS_SECONDS=600
sentinel  must  make --no-print-directory chaos CHAOS_SECONDS=600 CHAOS_REDIS=sentinel
cluster   must  make --no-print-directory chaos CHAOS_SECONDS=600 CHAOS_REDIS=cluster
edges     must  make --no-print-directory chaos CHAOS_SECONDS=600 CHAOS_AGENT=true && make --no-print-directory e2e LONG=1 RUN='^TestManyEdges$$'
replica   must  make --no-print-directory chaos CHAOS_SECONDS=600 CHAOS_REDIS=replica
lifecycle must  for edge in envoy native nginx; do make --no-print-directory lifecycle EDGE_KIND=$edge LIFECYCLE_STREAMS=100000 || exit; done
bindings  must  for binding in sdk plugins; do make --no-print-directory lifecycle BINDING=$binding LIFECYCLE_STREAMS=100000 || exit; done
proof     must  scripts/chaos-proof.sh
images    must  release/images-again.sh
release   must  release/release-again.sh
deb       can   release/deb-test.sh build/release/gatehouse_0.0.1_$(dpkg --print-architecture).deb
install   can   scripts/nginx-install-test.sh
agent     can   scripts/agent-install-test.sh
publish   must  release/publish-test.sh build/release
targets   must  scripts/targets-test.sh
trixie    can   scripts/fresh-machine.sh trixie scripts/readme-test.sh
ubuntu    can   scripts/fresh-machine.sh resolute scripts/readme-test.sh
STAGES
