#!/usr/bin/env bash
# Checks that README, docs and chart name the versions of envoy/versions.txt and clients/go/testbed/redistest/versions.txt as the
# tested ones, and that the modules require clients/go in the version of CHANGELOG.md's first section.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0

tested=$(awk '!/^#/ {printf "%s%s", sep, $1; sep = ", "}' envoy/versions.txt)
oldest=$(cut -d. -f1,2 <<<"${tested##*, }")

# has FILE TEXT [LIST]: FILE has TEXT, however its lines are broken; LIST says so.
has() {
  tr -s '\n ' '  ' <"$1" | grep -qF "$2" || { echo "$1: want: $2 (${3:-envoy/versions.txt})" >&2; status=1; }
}

for file in README.md docs/install/README.md charts/gatehouse/README.md; do
  has "$file" "Envoy $oldest or later (tested with $tested)"
done
has charts/gatehouse/Chart.yaml "gatehouse/tested-envoys: $tested"
has charts/gatehouse/templates/NOTES.txt "must be $oldest or later"
has charts/gatehouse/values.yaml "tag: distroless-v${tested%%,*}"
if git grep -nE 'Envoy( binary,)? 1\.[0-9]+ or later' -- ':!envoy/versions.txt' ':!scripts/versions.sh' | grep -vE "Envoy( binary,)? $oldest or later"; then
  echo "the lines above: want: $oldest or later (envoy/versions.txt)" >&2
  status=1
fi

engines=$(awk '!/^#/ {printf "%s%s %s", sep, $1, $2; sep = ", "}' clients/go/testbed/redistest/versions.txt)
for file in README.md docs/install/README.md docs/redis-contract.md charts/gatehouse/README.md; do
  has "$file" "tested with $engines" clients/go/testbed/redistest/versions.txt
done
redis=$(awk '$1 == "Redis" {print $2}' clients/go/testbed/redistest/versions.txt | sort -V | tail -1)
has charts/gatehouse/values.yaml "tag: $redis-alpine" clients/go/testbed/redistest/versions.txt

next=$(sed -n 's/^## \([0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1)
for file in {.,e2e,examples/postgres}/go.mod; do
  has "$file" "gatehouse/clients/go v$next" "CHANGELOG.md; run: release/version.sh set $next"
done
exit $status
