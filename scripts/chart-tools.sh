#!/usr/bin/env bash
# Prints the directory of helm, helm-unittest and kubeconform, with the versions in scripts/chart-tools/go.mod. Builds
# them if they are missing, in about 3 minutes on two cores. Relative to it, ../schemas has the schemas of Kubernetes
# and of the custom resources that the chart uses, and ../definitions those resources' definitions.
set -euo pipefail
cd "$(dirname "$0")/chart-tools"
export GOWORK=off # a module that is not in go.work

key=$(cat go.mod go.sum schemas/*.go readme/*.go ../chart-tools.sh | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse
tools=$cache/chart-tools-$key
if [[ ! -d $tools ]]; then
  echo "building the chart's tools into $tools ..." >&2
  mkdir -p "$cache"
  building=$(mktemp -d "$cache/.chart-tools-XXXXXX")
  trap 'rm -rf "$building"' EXIT
  mkdir "$building/bin" "$building/schemas" "$building/definitions"
  # helm's default for the cluster's version when it renders without a cluster; go install leaves it at 1.20.
  kubernetes="-X helm.sh/helm/v3/pkg/PACKAGE.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/PACKAGE.k8sVersionMinor=36"
  go build -trimpath -o "$building/bin/" \
    -ldflags="-s -w ${kubernetes//PACKAGE/chartutil} ${kubernetes//PACKAGE/lint/rules}" \
    helm.sh/helm/v3/cmd/helm github.com/helm-unittest/helm-unittest/cmd/helm-unittest \
    github.com/yannh/kubeconform/cmd/kubeconform ./schemas ./readme
  "$building/bin/schemas" "$building/schemas" "$building/definitions" >&2
  # Another build may have finished first.
  [[ -d $tools ]] || mv "$building" "$tools"
fi
echo "$tools/bin"
