#!/usr/bin/env bash
# Prints the path of Envoy's rate limit service: $RATELIMIT if it is set, otherwise one that it builds from its Go
# module once, in about a minute, and keeps in the user's cache.
set -euo pipefail
version=v1.4.1-0.20260122083618-3fb702589d36 # it has no releases

if [[ -n ${RATELIMIT:-} ]]; then
  [[ -x $RATELIMIT && ! -d $RATELIMIT ]] || { echo "install-ratelimit: RATELIMIT=$RATELIMIT is not an executable file" >&2; exit 1; }
  echo "$RATELIMIT"
  exit
fi
dir=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse/ratelimit-$version
if [[ ! -x $dir/service_cmd ]]; then
  echo "building Envoy's rate limit service $version ..." >&2
  (cd / && GOBIN=$dir go install -trimpath "github.com/envoyproxy/ratelimit/src/service_cmd@$version") >&2
fi
echo "$dir/service_cmd"
