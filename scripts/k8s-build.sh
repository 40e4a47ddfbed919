#!/usr/bin/env bash
# Prints the directory of etcd, kubectl and the programs of a Kubernetes node, built from the versions in
# e2e/k8s/tools/go.mod: about five minutes on two cores the first time, then kept in the user's cache (1 GB) until that
# file or Go changes. `make clean` does not remove it.
set -euo pipefail
cd "$(dirname "$0")/../e2e/k8s/tools"
export GOWORK=off # a module that is not in go.work

kept=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse
hash=$({ go env GOVERSION; cat go.mod go.sum; } | sha256sum | cut -c1-16)
bin=$kept/k8s-$hash

if [[ ! -d $bin ]]; then
  version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
  echo "building Kubernetes $version into $bin, about five minutes ..." >&2
  mkdir -p "$kept"
  work=$(mktemp -d "$kept/.k8s-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # Programs without a version refuse to work together.
  stamp=""
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    stamp+=" -X $package.gitVersion=$version"
  done
  nice -n 10 go build -trimpath -ldflags="-s -w$stamp" -o "$work/" tool >&2
  mv "$work/server" "$work/etcd"
  chmod 755 "$work"
  mv -T "$work" "$bin"
fi
echo "$bin"
