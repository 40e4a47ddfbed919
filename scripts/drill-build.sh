#!/usr/bin/env bash
# drill-build.sh OUT: builds the dynamic module with panics that a request can ask for, in each callback and goroutine.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/overlay.sh
out=$1 file=wasm-filter/exports_native.go
# at PLACE LINE: panics before LINE
at() { replace "$file" "$2" "drill(\"$1\"); $2"; }
replace "$file" 'return w.result(s, w.vm.requestHeaders(s.ID(), endOfStream))' \
  'drill("headers"); arm(w.proxy); return w.result(s, w.vm.requestHeaders(s.ID(), endOfStream))'
at body 'w.vm.requestBody(s.ID(), s.BodySize(), endOfStream)'
at woken 'w.vm.replied = w.woken'
at destroyed 'delete(w.vm.pushes, s.ID())'
at answer 'w.proxy.body = body'
at dispatch 'return f.config.Callout('
at callout 'if status != "200" {'
at tick 'w.vm.tick()'
at ticks 'for i := range f.workers {
		if w := f.workers[i].Load(); w != nil {
			w.safely('
replace "$file" 'f := &filter{config: c' 'drillStart(); f := &filter{config: c'
add "$PWD/wasm-filter/drill.go" "$PWD/e2e/testdata/drill/drill.go"
scripts/build-native.sh "$out" -overlay "$(write_overlay)"
