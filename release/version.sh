#!/usr/bin/env bash
# version.sh set VERSION: lets the modules require clients/go in VERSION, which the next release publishes.
# version.sh check VERSION: fails unless they do, and CHANGELOG.md has a section of a release VERSION.
# version.sh notes VERSION: prints that section, with links to the files of VERSION.
# version.sh tag VERSION: tags HEAD with vVERSION and clients/go/vVERSION, and pushes both or none: from the first
# moment on, go install finds the client that the programs require.
set -euo pipefail
cd "$(dirname "$0")/.."
verb=${1:-} version=${2:-} module=github.com/gatehouse/gatehouse
modules=(go.mod e2e/go.mod examples/postgres/go.mod)

fail() {
  echo "version: $*" >&2
  exit 1
}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || fail "want set, check, notes or tag, and a version such as 0.1.0"

# A pre-release has the section of its release.
section() { awk -v version="${version%%-*}" '/^## / {on = $2 == version || $2 == version ","} on' CHANGELOG.md; }

required() {
  local file
  for file in "${modules[@]}"; do
    grep -qE "$module/clients/go v$version\$" "$file" || fail "$file requires another clients/go than v$version; run: release/version.sh set $version"
  done
}

case $verb in
  set) for file in "${modules[@]}"; do GOWORK=off go mod edit -require="$module/clients/go@v$version" "$file"; done ;;
  check)
    required
    heading=$(section | head -n 1)
    [[ -n $heading ]] || fail "CHANGELOG.md has no section of $version"
    [[ $version == *-* || $heading != *"not released"* ]] || fail "CHANGELOG.md: \"$heading\""
    ;;
  notes) section | sed -E "1d; s,\]\(([^:)#]+[^:)]*)\),](https://$module/blob/v$version/\1),g" | sed '/./,$!d' ;;
  tag)
    required
    git tag "v$version"
    git tag "clients/go/v$version"
    git push --atomic origin "v$version" "clients/go/v$version"
    ;;
  *) fail "\"$verb\": want set, check, notes or tag" ;;
esac
