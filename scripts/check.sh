#!/usr/bin/env bash
# Checks of the sources that need no run of the programs: format, lint, module files, links.
set -euo pipefail
cd "$(dirname "$0")/.."
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
actionlint=github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
checklocks=gvisor.dev/gvisor/tools/checklocks/cmd/checklocks@v0.0.0-20260905035102-160fafc42237

stage() {
  local name=$1 begin=$SECONDS
  shift
  if ! "$@"; then
    echo "check: $name failed" >&2
    exit 1
  fi
  echo "check: $name ok ($((SECONDS - begin)) s)"
}

formatted() {
  local files
  files=$(gofmt -l .)
  [[ -z $files ]] || { echo "not formatted, run gofmt -w:" >&2; echo "$files" >&2; return 1; }
}

# Lines of Go have at most 120 columns, but for what is in backquotes.
# shellcheck disable=SC2016 # $0 is awk's
narrow() {
  ! git ls-files -z '*.go' | xargs -0 awk 'FNR == 1 { raw = 0 }
    { n = gsub(/`/, "`") }
    length($0) > 120 && !raw && !n { print FILENAME ":" FNR ": " length($0) " columns" }
    n % 2 { raw = !raw }' | grep .
}

# Each line is a directory followed by the others from which its programs may import; tests may import from more.
imports() {
  local dir allowed all wrong
  while read -r dir allowed; do
    # shellcheck disable=SC2016 # $p is the template's
    all=$(go list -C "$dir" -f '{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}' ./...) || return 1
    wrong=$(sed 's,github.com/gatehouse/gatehouse/,./,g; s, \[.*,,' <<<"$all" |
      grep -vE "^\./${dir}[^ ]* ([^.]|\./(${dir}${allowed:+|$allowed})(/|\$))" | grep .) || continue
    printf '%s imports what it may not:\n%s\n' "$dir" "$wrong" >&2
    return 1
  done <<'END'
clients/go
edge/wire clients/go
edge clients/go
native-filter edge|clients/go
wasm-filter edge|clients/go
nginx edge|clients/go
internal clients/go|edge/policy
check clients/go|edge/policy|edge/headermap|nginx|internal
verify clients/go|edge/wire|internal
sidecar clients/go|edge/wire|edge/policy|edge/headermap|internal|verify
ctl clients/go|edge/policy|nginx|internal|check
publisher clients/go|edge/entitytag|internal
testbed clients/go|nginx
e2e clients/go|edge/wire|internal/snapshot|testbed
loadtest clients/go|testbed
END
}

# all COMMAND...: runs it in each module but those of tools.
all() {
  local dir
  for dir in . clients/go e2e release examples/postgres; do (cd "$dir" && "$@") || return; done
}

# A field with the comment +checklocks:mu needs the lock mu, and so does a call of a function with such a comment. The
# tool takes closures to run without locks, counts fields by lines, so wants one name on each, and tests need no locks.
locks() {
  local bin dir packages
  bin=$(mktemp -d)
  GOBIN=$bin go install "$checklocks" || return
  for dir in . e2e; do
    mapfile -t packages < <(git -C "$dir" grep -lF '// +checklocks:' -- '*.go' ':!e2e' | xargs dirname | sort -u)
    go vet -C "$dir" -vettool="$bin/checklocks" -inferred=false -wrappers=false "${packages[@]/#/./}" 2>&1 || true
  done | { ! grep -vE '^#|_test\.go:'; } || return
  rm -rf "$bin"
}

# Provenance names the Go that builds release/images as the one that builds the product.
toolchains() {
  local file
  for file in {e2e,release,examples/postgres}/go.mod go.work; do
    diff <(grep -E '^(go|toolchain) ' go.mod) <(grep -E '^(go|toolchain) ' "$file") ||
      { echo "go.mod (<) and $file (>) have other versions of Go" >&2; return 1; }
  done
}

# What another module of go.work requires does not raise versions of the product.
workspace() {
  diff <(GOWORK=off go mod edit -json | python3 -c 'import json, sys
for r in json.load(sys.stdin)["Require"]: print(r["Path"], r["Version"])' | grep -v gatehouse/clients | sort) \
    <(go list -m -f '{{.Path}} {{.Version}}' all | sort) | grep '^<' || return 0
  echo "go.mod has other versions (above) than what is built by go.work: go list -m all" >&2
  return 1
}

# The filter is built for another platform.
for_wasm() { GOOS=wasip1 GOARCH=wasm "$@"; }

# By systemd's own parser, which warns of unknown keys and fails; it doesn't run units. The programs are not installed
# here, and neither is the nginx.service that the drop-in is for.
units() {
  local dir unit
  dir=$(mktemp -d)
  cp -r docs/systemd/. "$dir"
  printf '[Service]\nType=forking\nExecStart=/bin/true\n' >"$dir/nginx.service"
  sed -i -E 's,^(Exec[A-Za-z]*=-?)/[^ ]+,\1/bin/true,' "$dir"/*.service "$dir"/*/*.conf
  for unit in "$dir"/*.service; do
    SYSTEMD_UNIT_PATH=$dir: systemd-analyze verify --man=no --recursive-errors=no "$unit" || return 1
  done
  rm -rf "$dir"
}

# Planted defects replace text of sources, which other changes move.
plants() {
  local plant status=0
  scripts/drill-build.sh || status=1
  for plant in e2e/testdata/plants/* e2e/chaos/testdata/plants/*; do
    # shellcheck disable=SC1090 # any plant
    (source scripts/overlay.sh && source "$plant") || { echo "$plant does not apply" >&2; status=1; }
  done
  return $status
}

# A tag of an action can be moved to other code; a commit can't.
by_digest() { ! grep -n 'uses:' .github/workflows/*.yml | grep -vE 'uses: [a-z/-]+@[0-9a-f]{40} # v[0-9.]+$'; }

# Git takes a merge with conflicts if somebody adds it.
merged() { ! git grep -nE '^(<{7}|>{7}) '; }

# Names of pages in comments and messages, from the root or beside the file.
mentions() {
  local file name status=0
  while IFS=: read -r file name; do
    [[ $name == github.com/* || -e $name || -e ${file%/*}/$name ]] && continue
    echo "$file: $name does not exist" >&2
    status=1
  done < <(git grep -oE '(\.\./)*[[:alnum:]_][[:alnum:]_./%-]*\.md\b' -- \
    '*.go' '*.sh' '*.yaml' '*.tpl' '*.py' Makefile ':!*_test.go')
  return $status
}

# The packages that each target needs are known.
packages() {
  local targets
  mapfile -t targets < <(make help | sed -n 's/^  make \([a-z0-9-]*\) .*/\1/p')
  scripts/install-packages.sh --list "${targets[@]}" >/dev/null
}

links() {
  local files
  mapfile -t files < <({ git ls-files '*.md' && git grep -lE 'gatehouse/gatehouse/(blob|tree)/'; } | sort -u)
  scripts/links.sh "${files[@]}"
}

# Each term of the glossary is one that another page uses.
glossary() {
  local term terms unused=0
  terms=$(sed -n 's/^- \*\*\(.*\)\*\*: .*/\1/p' docs/glossary.md)
  [[ -n $terms ]] || { echo "docs/glossary.md: no terms" >&2; return 1; }
  LC_ALL=C sort -fc <<<"$terms" || { echo "docs/glossary.md: not sorted" >&2; return 1; }
  while read -r term; do
    git grep -qiwE "$term(s|es)?" -- 'docs/*.md' ':!docs/glossary.md' ':!docs/decisions' ||
      { echo "docs/glossary.md: no other page uses \"$term\"" >&2; unused=1; }
  done <<<"$terms"
  return "$unused"
}

# Cells of tables have at most 30 words, and pages 2,500, unless they are references. A link counts by its text.
# shellcheck disable=SC2016 # $0 is awk's
short_pages() {
  ! git ls-files -z '*.md' ':!CHANGELOG.md' ':!DEVELOPER.md' | xargs -0 awk '
    FNR == 1 { code = total = 0 }
    /^ *```/ { code = !code }
    (total += NF) > 2500 && total - NF <= 2500 && FILENAME !~ /redis-contract|runbooks|charts/ {
      print FILENAME ": more than 2500 words: split the page"
    }
    /^\|/ && !code {
      gsub(/\]\([^)]*\)|^\| | \|$/, "")
      for (i = split($0, cells, / \| /); i; i--)
        if ((n = split(cells[i], words, " ")) > 30) print FILENAME ":" FNR ": a cell of " n " words: " cells[i]
    }' | grep .
}

stage gofmt formatted
stage "120 columns" narrow
stage "no conflicts" merged
stage imports imports
stage "go mod tidy" scripts/tidy.sh -diff
stage "versions of Go" toolchains
stage "versions of modules" workspace
stage "go vet" all go vet ./...
stage "go vet, wasm" for_wasm go vet ./wasm-filter/... ./edge/...
stage "go vet, SDK" for_wasm go vet -tags=sdk ./wasm-filter
stage "go vet, plugins" for_wasm go vet -tags=plugins ./wasm-filter
stage "go vet, native" env CGO_ENABLED=1 go vet -tags=native ./native-filter/...
stage "go vet, nginx" env CGO_ENABLED=1 go vet -tags=nginx ./nginx/host
stage staticcheck all go run "$staticcheck" ./...
stage "staticcheck, native" env CGO_ENABLED=1 go run "$staticcheck" -tags=native ./native-filter/...
stage "staticcheck, nginx" env CGO_ENABLED=1 go run "$staticcheck" -tags=nginx ./nginx/host
stage locks locks
stage stylua scripts/format-lua.sh --check
stage luacheck bash -c 'cd nginx && luacheck -q .'
stage "planted defects" plants
stage "systemd units" units
stage "tested versions" scripts/versions.sh
stage links links
stage wording scripts/wording.py
stage glossary glossary
stage "length of pages" short_pages
stage "names of pages" mentions
stage "packages of targets" packages
stage actionlint go run "$actionlint"
stage "actions by digest" by_digest
stage shellcheck shellcheck -x scripts/*.sh release/*.sh .ci/run
