#!/usr/bin/env bash
# engines.sh: runs the tests of writers and followers, end-to-end tests of what rests on Redis, and 30 s of chaos with each
# other server of clients/go/testbed/redistest/versions.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
tests='^Test(Cache|Auth|Revocation|TwoSidecars|RedisLosesItsData|Sentinel|Cluster|TLSAndACL|TrimOfACluster|TrimPermissions|FleetSharesVerdicts|FleetPermissions)$'

ENVOY=$(scripts/install-envoy.sh)
export ENVOY
path=$PATH
mapfile -t versions < <(awk '$3 == "smoke" {print $2, $4}' clients/go/testbed/redistest/versions.txt)
for line in "${versions[@]}"; do
  read -r version kind <<<"$line"
  run=$tests
  [[ $kind != pypi ]] || run=${tests/TLSAndACL|/} # that program is built without TLS
  dir=$(scripts/install-engine.sh "$version")
  export PATH=$dir:$path
  begin=$SECONDS
  go test -C clients/go -count=1 ./publish ./testbed/redistest
  go test -count=1 ./sidecar/internal/follow
  scripts/e2e.sh -short -run "$run"
  CHAOS_SECONDS=30 build/gatehouse-chaos
  echo "engines: $version ok ($((SECONDS - begin)) s)"
done
