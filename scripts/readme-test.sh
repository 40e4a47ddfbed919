#!/usr/bin/env bash
# readme-test.sh: runs README.md's first commands, word by word, in this clone, in which nothing was built: make run, its
# curls, which must print what README.md says, and what it publishes, without a warning in a log; then make test,
# and the tutorial.
# scripts/fresh-machine.sh gives it a machine on which nothing else was installed.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
log=$work/run.log
trap 'rm -rf "$work"' EXIT

fail() {
  echo "readme-test: $*" >&2
  tail -n 40 "$log" >&2
  exit 1
}
: >"$log"
[[ ! -e build && ! -e .venv ]] || fail "something was built here; want a new clone"

# The block with the prompts: each "$ COMMAND", and below it what the command prints.
sed -n '/^    \$ make run/,/^$/s/^    //p' README.md >"$work/first"
sed -n '/^## Publish and revoke/,/^## /s/^    //p' README.md >"$work/publish"
test=$(sed -n 's/^    \(make test\)\b.*/\1/p' README.md)
run=$(sed -n '1s/^\$ \(make run\) .*/\1/p' "$work/first")
[[ $(grep -c '^\$ curl' "$work/first") == 3 && -s $work/publish && -n $run && -n $test ]] ||
  fail "README.md's first commands aren't where this looks for them"

# The first line that installs packages has what make run needs, both lines have what make test needs, too.
sed -n '/^    sudo apt-get install /{:more;/\\$/{N;bmore};s/^ *sudo apt-get install //;s/\\\n//g;p}' README.md >"$work/install"
[[ $(wc -l <"$work/install") == 2 ]] || fail "README.md has no two lines with apt-get"
needs() { diff <(tr ' ' '\n' | grep . | grep -vx -e curl -e git -e make | sort) \
  <(scripts/install-packages.sh --list "$@" | grep -vx curl); }
if ! head -1 "$work/install" | needs run || ! needs run test <"$work/install"; then
  fail "README.md's apt-get installs something else (<) than scripts/install-packages.sh (>)"
fi

# Who isn't root is told at once what is missing, by a command that installs it.
for command in "$run" "$test"; do
  begin=${EPOCHREALTIME/./} status=0
  setpriv --reuid nobody --regid nogroup --clear-groups bash -c "$command" >"$log" 2>&1 </dev/null || status=$?
  took=$(((${EPOCHREALTIME/./} - begin) / 1000))
  if ((!status || took > 1500)) || ! grep -q 'sudo apt-get install .*python3-venv' "$log"; then
    fail "$command by nobody: status $status after $took ms, want the command that installs python3-venv at once"
  fi
done

echo "readme-test: $run"
SECONDS=0
setsid bash -c "exec $run" >"$log" 2>&1 </dev/null &
pid=$!
trap 'kill -- -"$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
until grep -q '^gatehouse ready' "$log"; do
  ((SECONDS < 900)) || fail "$run isn't ready after 900 s"
  kill -0 "$pid" 2>/dev/null || fail "$run ended"
  sleep 0.1
done

sed 1d "$work/first" >"$work/want"
sed -n 's/^\$ //p' "$work/want" | while read -r command; do
  printf '$ %s\n' "$command"
  bash -c "$command" </dev/null 2>>"$log" | tr -d '\r'
done >"$work/got" || fail "a command of README.md fails"
diff "$work/want" "$work/got" || fail "README.md's curls (<) print something else (>)"
grep -E '^(install|build) .*: [0-9]+ s$' "$log"
echo "readme-test: the first 304 after $SECONDS s"
bash -euo pipefail "$work/publish" >>"$log" 2>&1 </dev/null || fail "the commands of \"Publish and revoke\" fail"
[[ -s .run/demo/sidecar.log ]] || fail "no log of the sidecar"
if grep -E 'level=(WARN|ERROR)|\[(warning|error|critical)\]' .run/demo/*.log; then fail "a warning, see above"; fi
kill -INT -- -"$pid" # Ctrl-C
wait "$pid" || [[ $? == 130 ]] || fail "$run ended with status $?"
echo "readme-test: $run ended"

SECONDS=0
$test
times >"$work/times"
echo "readme-test: $test took $SECONDS s; CPU of all, user and system: $(sed -n '2s/ /, /p' "$work/times")"

# It needs packages that make test has installed.
SECONDS=0
scripts/tutorial-test.py
echo "readme-test: the tutorial took $SECONDS s"
