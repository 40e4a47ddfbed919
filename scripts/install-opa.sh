#!/usr/bin/env bash
# Prints the path of OPA with Envoy's external authorization, in the version of scripts/opa/go.mod: $OPA if it is set,
# otherwise one that it builds once, in about a minute, and keeps in the user's cache.
set -euo pipefail
cd "$(dirname "$0")/opa"
export GOWORK=off # a module that is not in go.work

if [[ -n ${OPA:-} ]]; then
  [[ -x $OPA && ! -d $OPA ]] || { echo "install-opa: OPA=$OPA is not an executable file" >&2; exit 1; }
  echo "$OPA"
  exit
fi
dir=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse/opa-$(cat go.mod go.sum | sha256sum | cut -c1-16)
if [[ ! -x $dir/opa-envoy-plugin ]]; then
  echo "building OPA with Envoy's external authorization ..." >&2
  GOBIN=$dir go install -trimpath -ldflags="-s -w" github.com/open-policy-agent/opa-envoy-plugin/cmd/opa-envoy-plugin >&2
fi
echo "$dir/opa-envoy-plugin"
