#!/usr/bin/env bash
# chaos-build.sh [DIR [PLANT]]: builds the programs that only chaos runs, into build/chaos or DIR: clock.so, which steps
# the clocks of Envoy and Redis; gatehouse-sidecar, whose clock can be stepped, too; and the filter of $EDGE_KIND, which
# traps when a request asks for it: gatehouse.wasm, libgatehouse.so or (without traps) libgatehouse-nginx.so. PLANT is a
# defect to build in, see e2e/chaos/testdata/plants; one of package publish is in gatehouse-chaos, which writes. It is an
# error if a change of it doesn't apply, or is in none of the programs.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/overlay.sh
dir=$(realpath -m "${1:-build/chaos}") plant=${2:-} sources=$PWD/e2e/chaos/testdata go=${GO:-go} kind=${EDGE_KIND:-envoy}
mkdir -p "$dir"
planted=() # entries of the overlay

# begin: begins the overlay of another program, with the plant.
begin() {
  rm -f "$work"/*.go
  overlay=()
  # shellcheck disable=SC1090 # any plant
  [[ -z $plant ]] || source "$plant"
  planted=("${overlay[@]}")
}

# compiles PACKAGE [FLAG...]: prints the sources of a program.
compiles() {
  # shellcheck disable=SC2016 # $dir is the template's
  "$go" list -deps "${@:2}" -f '{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}
{{end}}{{range .CgoFiles}}{{$dir}}/{{.}}
{{end}}' "$1"
}

cc -shared -fPIC -O2 -Wall -Wextra -Werror -o "$dir/clock.so" "$sources/clock/clock.c"

time=$("$go" env GOROOT)/src/time
stepped() {
  replace "$time/time.go" 'sec, nsec, mono := runtimeNow()' 'sec, nsec, mono := steppedNow()'
  add "$time/step.go" "$sources/clock/step.go"
}
trapping() {
  replace edge/vm.go 'func (v *VM) RequestHeaders(id uint32, endOfStream bool) Action {' \
    'func (v *VM) RequestHeaders(id uint32, endOfStream bool) Action { trapIfAsked(v); '
  replace edge/ingest.go 'return h.SetRecord(op.Region, op.Index, op.Record)' \
    'trapInPush(op.Region); return h.SetRecord(op.Region, op.Index, op.Record)'
  add "$PWD/edge/trap.go" "$sources/trap/trap.go"
  add "$PWD/edge/trap_$1.go" "$sources/trap/trap_$1.go"
}

begin
stepped
"$go" build -trimpath -overlay "$(write_overlay)" -o "$dir/gatehouse-sidecar" ./sidecar/cmd/gatehouse-sidecar
compiles ./sidecar/cmd/gatehouse-sidecar >"$work/sidecar"

begin
case $kind in
  nginx)
    stepped
    scripts/build-library.sh nginx "$dir/libgatehouse-nginx.so" -overlay "$(write_overlay)"
    CGO_ENABLED=1 compiles ./nginx/host -tags=nginx >"$work/filter"
    ;;
  native)
    stepped
    trapping native
    scripts/build-library.sh native "$dir/libgatehouse.so" -overlay "$(write_overlay)"
    CGO_ENABLED=1 compiles ./native-filter -tags=native >"$work/filter"
    ;;
  *)
    trapping wasip1
    tags=()
    [[ ${BINDING:-own} == own ]] || tags=("-tags=$BINDING")
    scripts/build-wasm.sh "$dir/gatehouse.wasm" -overlay "$(write_overlay)" "${tags[@]}"
    GOOS=wasip1 GOARCH=wasm compiles ./wasm-filter "${tags[@]}" >"$work/filter"
    ;;
esac

begin
if [[ ${planted[*]} == *\"$PWD/clients/go/publish/* ]]; then
  "$go" build -C e2e -overlay "$(write_overlay)" -o "$dir/gatehouse-chaos" ./cmd/gatehouse-chaos
  compiles github.com/gatehouse/gatehouse/clients/go/publish >"$work/writer"
else
  rm -f "$dir/gatehouse-chaos"
  : >"$work/writer"
fi

for entry in "${planted[@]}"; do
  IFS='"' read -r _ file _ <<<"$entry"
  programs=("$work/filter" "$work/sidecar" "$work/writer")
  [[ $file != "$PWD"/@(edge|*-filter|nginx)/* ]] || programs=("$work/filter") # of which the sidecar has parts, too
  grep -qxF "$file" "${programs[@]}" || {
    echo "chaos-build: $plant changes $file, which is not in the programs of EDGE_KIND=$kind" >&2
    exit 1
  }
done
[[ -z $plant || ${#planted[@]} -gt 0 ]] || { echo "chaos-build: $plant changes nothing" >&2; exit 1; }
