#!/usr/bin/env bash
# readme-test.sh: runs README.md's first commands, word by word, on a clone of HEAD in which nothing was built: make run,
# its curls, which must print what README.md says, and what it publishes, without a warning in a log; then make test.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/clone.sh
log=$work/run.log

fail() {
  echo "readme-test: $*" >&2
  tail -n 40 "$log" >&2
  exit 1
}

# The block with the prompts: each "$ COMMAND", and below it what the command prints.
sed -n '/^    \$ make run/,/^$/s/^    //p' README.md >"$work/first"
sed -n '/^## Publish and revoke/,/^## /s/^    //p' README.md >"$work/publish"
test=$(sed -n 's/^    \(make test\)\b.*/\1/p' README.md)
run=$(sed -n '1s/^\$ \(make run\) .*/\1/p' "$work/first")
[[ $(grep -c '^\$ curl' "$work/first") == 3 && -s $work/publish && -n $run && -n $test ]] ||
  fail "README.md's first commands aren't where this looks for them"

echo "readme-test: $run"
setsid bash -c "exec $run" >"$log" 2>&1 </dev/null &
pid=$!
trap 'kill -- -"$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; remove' EXIT
deadline=$((SECONDS + 300))
until grep -q '^gatehouse ready' "$log"; do
  ((SECONDS < deadline)) || fail "$run isn't ready after 300 s"
  kill -0 "$pid" 2>/dev/null || fail "$run ended"
  sleep 0.1
done
echo "readme-test: ready after $SECONDS s"

sed 1d "$work/first" >"$work/want"
sed -n 's/^\$ //p' "$work/want" | while read -r command; do
  printf '$ %s\n' "$command"
  bash -c "$command" </dev/null 2>>"$log" | tr -d '\r'
done >"$work/got" || fail "a command of README.md fails"
diff "$work/want" "$work/got" || fail "README.md's curls (<) print something else (>)"
bash -euo pipefail "$work/publish" >>"$log" 2>&1 </dev/null || fail "the commands of \"Publish and revoke\" fail"
[[ -s .run/demo/sidecar.log ]] || fail "no log of the sidecar"
if grep -E 'level=(WARN|ERROR)|\[(warning|error|critical)\]' .run/demo/*.log; then fail "a warning, see above"; fi
kill -INT -- -"$pid" # Ctrl-C
wait "$pid" || [[ $? == 130 ]] || fail "$run ended with status $?"
echo "readme-test: $run ended"

$test
