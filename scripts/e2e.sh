#!/usr/bin/env bash
# e2e.sh [FLAG...]: runs the end-to-end suite with these flags of go test. It runs failed tests once more, separately,
# because the suite measures times and other load disturbs it. At the end it names tests that pass only then.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
scripts/install-python.sh e2e/testdata/requirements.txt "" || exit
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# As make unit: without the race detector nothing is compiled that make build hasn't.
race=(-race)
case ${RACE:-1} in 0 | no | false) race=() && export CGO_ENABLED=0 ;; esac
suite() { go test -C e2e "${race[@]}" -vet=off -count=1 -timeout=30m -v "$@" . 2>&1 | grep --line-buffered -v '^=== ' | tee "$log"; }

suite "$@" && exit
failed=$(sed -n 's/^--- FAIL: \([A-Za-z0-9_]*\) .*/\1/p' "$log" | sort -u | paste -sd '|')
count=$(tr '|' '\n' <<<"$failed" | grep -c .)
if ((count == 0 || count > 3)); then
  echo "e2e: $count tests failed: too many to be the machine's fault, or none by itself" >&2
  exit 1
fi
echo "e2e: once more: $failed"
suite "$@" -run "^($failed)\$" || exit 1
echo "e2e: failed at first, and passed by themselves: $failed"
