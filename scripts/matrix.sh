#!/usr/bin/env bash
# matrix.sh [all]: runs end-to-end tests with each older version of envoy/versions.txt: a hit, a 304, verification, 401 and
# 403, pushes to every worker, revocation, tokens, rules of two listeners, spellings of paths, and streams that end while
# they wait, changed rules; or with all the whole suite in its short form.
set -euo pipefail
cd "$(dirname "$0")/.."
smoke='^Test(Cache|Auth|UpdateReachesEveryWorker|Revocation|Session|RulesOfListeners|PathTricks|Calls|EnvoyReload)$'

mapfile -t versions < <(awk '$2 == "smoke" {print $1}' envoy/versions.txt)
for version in "${versions[@]}"; do
  ENVOY=$(scripts/install-envoy.sh "$version")
  export ENVOY
  found=$("$ENVOY" --version)
  [[ $found == *"/$version/"* ]] || { echo "matrix: $ENVOY is not $version: $found" >&2; exit 1; }
  begin=$SECONDS
  if [[ ${1:-} == all ]]; then scripts/e2e.sh -short; else scripts/e2e.sh -short -run "$smoke"; fi
  echo "matrix: Envoy $version ok ($((SECONDS - begin)) s)"
done
