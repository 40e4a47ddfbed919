#!/usr/bin/env bash
# targets-test.sh [TARGET...]: runs every target of make help, or these, each alone on a clone of HEAD in which nothing was
# built, in a form that ends within minutes: none may lean on what another one leaves.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/clone.sh

# Each line is a run: TARGET ARGUMENTS; "TARGET !TEXT ARGUMENTS" must fail with this text. A "then" runs in the same clone.
table='
help
run            DETACH=1 then stop
run            EDGE_KIND=native DETACH=1 then stop
run            EDGE_KIND=nginx DETACH=1 then stop
observe        DETACH=1 then stop
observe-check
stop
build
wasm
wasm           BINDING=sdk
wasm           BINDING=plugins
native
nginx
floor
test           -n
test-all       -n
unit
install-check
e2e            RUN=^TestCache$
e2e            RUN=^TestCache$ BINDING=plugins
e2e            RUN=^TestCache$ EDGE_KIND=native
e2e            RUN=^TestCache$ EDGE_KIND=nginx
e2e            RUN=^TestPage$ LONG=1
fuzz           FUZZ_SECONDS=1 FUZZ=FuzzParseBatch
conformance
matrix
engines
chaos          CHAOS_SECONDS=10
chaos          CHAOS_SECONDS=10 EDGE_KIND=native
chaos          CHAOS_SECONDS=10 EDGE_KIND=nginx
lifecycle      LIFECYCLE_STREAMS=500
lifecycle      LIFECYCLE_STREAMS=500 EDGE_KIND=native
lifecycle      LIFECYCLE_STREAMS=500 EDGE_KIND=nginx
routers        SPELLINGS=200
bypass         CONFIGS=12
mutation       MUTANT=TestHole
lua-coverage
loadtest       SCENARIO=304 SECONDS=1
loadtest       SCENARIO=304 SECONDS=1 PEERS=1
bench-check    -n
fleet          FOLLOWERS=1
check
docs
images
release        VERSION=0.0.1 OUT=build/0.0.1
publish        !want_the_directory_of_a_release OUT=build/0.0.1 REGISTRY=127.0.0.1:1
chart-e2e      -n
mesh-e2e       -n
chart-check
chart-readme
clean
'

missing=$(comm -3 <(make help | sed -n 's/^  make \([a-z0-9-]*\) .*/\1/p' | sort) <(awk 'NF {print $1}' <<<"$table" | sort -u))
[[ -z $missing ]] || { printf '%s\n' "targets-test: targets that only make help (left) or only this table (right) has:" "$missing" >&2; exit 1; }

run_make() {
  local target=$1 text='' status=0
  shift
  if [[ ${1:-} == '!'* ]]; then text=${1#!} && shift; fi
  timeout 1200 make --no-print-directory "$target" "$@" >"$work/log" 2>&1 </dev/null || status=$?
  if [[ -n $text ]]; then
    ((status)) && grep -q "${text//_/ }" "$work/log" && return
  elif ((!status)); then
    return
  fi
  tail -n 40 "$work/log" >&2
  echo "targets-test: make $target $* ended with status $status${text:+, want a failure with: ${text//_/ }}" >&2
  exit 1
}

while read -r line; do
  read -ra words <<<"$line"
  [[ ${#words[@]} -gt 0 && ($# == 0 || " $* " == *" ${words[0]} "*) ]] || continue
  begin=$SECONDS
  cd "$work" && chmod -R u+w clone && rm -rf clone
  git clone --quiet "$source" clone
  cd clone
  arguments=${line%% then *}
  read -ra words <<<"$arguments"
  run_make "${words[@]}"
  [[ $line != *' then '* ]] || run_make "${line##* then }"
  [[ -z $(git status --porcelain) ]] || { git status --short >&2; echo "targets-test: make ${words[*]} changed files of the repository" >&2; exit 1; }
  echo "targets-test: make ${words[*]} ok ($((SECONDS - begin)) s)"
done <<<"$table"
