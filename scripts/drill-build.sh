#!/usr/bin/env bash
# drill-build.sh [OUT]: builds the dynamic module with panics that a request can ask for, in each callback and goroutine.
# Without OUT, it only checks that the sources have the lines before which they panic.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/overlay.sh
out=${1:-} file=native-filter/filter.go
# at PLACE LINE: panics before LINE
at() { replace "$file" "$2" "drill(\"$1\"); $2"; }
replace "$file" 'return w.applyAction(s, w.vm.RequestHeaders(s.ID(), endOfStream))' \
  'drill("headers"); arm(w.proxy); return w.applyAction(s, w.vm.RequestHeaders(s.ID(), endOfStream))'
at body 'w.vm.RequestBody(s.ID(), s.BodySize(), endOfStream)'
at woken 'action := w.applyAction(s, h.goOn())'
at destroyed 'w.vm.EndStream(s.ID())'
at answer 'w.vm.CallResponse(token, body)'
at dispatch 'return f.config.StartCallout('
at callout 'if status != "200" {'
at tick 'w.vm.Tick()'
at ticks 'for i := range f.workers {
		if w := f.workers[i].Load(); w != nil {
			w.runSafely('
replace "$file" 'f := &filter{config: c' 'drillStart(); f := &filter{config: c'
add "$PWD/native-filter/drill.go" "$PWD/e2e/testdata/drill/drill.go"
[[ -n $out ]] || exit 0
scripts/build-library.sh native "$out" -overlay "$(write_overlay)"
