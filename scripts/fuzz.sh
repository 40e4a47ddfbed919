#!/usr/bin/env bash
# fuzz.sh SECONDS [TARGET]: runs each fuzz target for SECONDS, or those whose name begins with TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1 only=${2:-Fuzz}

git grep -n "^func ${only}[A-Za-z0-9]*(f \*testing.F)" -- '*_test.go' | while IFS=: read -r file _ line; do
  target=${line#func }
  target=${target%%(*}
  echo "fuzz: $target of $(dirname "$file")"
  go test -C "$(dirname "$file")" -run "^$target\$" -fuzz "^$target\$" -fuzztime "${seconds}s" </dev/null
done
