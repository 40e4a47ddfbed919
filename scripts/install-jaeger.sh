#!/usr/bin/env bash
# Prints the path of Jaeger: $JAEGER if it is set, otherwise one that it builds from its Go module once, in about three
# minutes, and keeps in the user's cache. Without arguments, that one receives OTLP on 127.0.0.1:4318 and has its API on
# port 16686. It has no pages, since the module doesn't contain them: run Jaeger's image for those.
set -euo pipefail
version=v1.76.0 # of the module; the program is Jaeger 2.13.0

if [[ -n ${JAEGER:-} ]]; then
  [[ -x $JAEGER && ! -d $JAEGER ]] || { echo "install-jaeger: JAEGER=$JAEGER is not an executable file" >&2; exit 1; }
  echo "$JAEGER"
  exit
fi
dir=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse/jaeger-$version
if [[ ! -x $dir/jaeger ]]; then
  echo "building Jaeger $version ..." >&2
  # Not by go install: Jaeger's go.mod has a replacement, which counts only in the module itself.
  module=$(cd / && go mod download -json "github.com/jaegertracing/jaeger@$version" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
  source=$(mktemp -d)
  trap 'chmod -R u+w "$source" && rm -rf "$source"' EXIT
  cp -R "$module/." "$source"
  chmod -R u+w "$source"
  (cd "$source" && go build -trimpath -o "$dir/jaeger" ./cmd/jaeger) >&2
fi
echo "$dir/jaeger"
