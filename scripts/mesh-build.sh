#!/usr/bin/env bash
# Prints the directory of the control planes that the chart is tested with: Envoy Gateway's and Istio's programs in bin,
# their own charts in charts, and the bootstrap of Istio's proxy. They are built from the versions in e2e/mesh/tools:
# about ten minutes on two cores the first time, then kept in the user's cache (350 MB) until those or Go change.
set -euo pipefail
cd "$(dirname "$0")/../e2e/mesh/tools"
export GOWORK=off # a module that is not in go.work

kept=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse
hash=$({ go env GOVERSION; cat ./*/go.mod ./*/go.sum ../../../scripts/mesh-build.sh; } | sha256sum | cut -c1-16)
out=$kept/mesh-$hash

# build MODULE FLAG...: builds the tools of a module's directory.
build() { (cd "$1" && CGO_ENABLED=0 nice -n 10 go build -trimpath "${@:2}" >&2); }

# source_of MODULE PATH: prints the directory of the sources of a path's module.
source_of() { (cd "$1" && go mod download "$2" && go list -m -f '{{.Dir}}' "$2"); }

if [[ ! -d $out ]]; then
  echo "building Envoy Gateway and Istio into $out, about ten minutes ..." >&2
  mkdir -p "$kept"
  work=$(mktemp -d "$kept/.mesh-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/bin" "$work/charts"

  build envoy-gateway -ldflags="-s -w" -o "$work/bin/" tool
  from=$(source_of envoy-gateway github.com/envoyproxy/gateway)
  cp -r --no-preserve=mode "$from/charts/gateway-helm" "$work/charts/"
  # As its release does.
  chart=$work/charts/gateway-helm
  sed 's|[$]{GatewayImage}|docker.io/envoyproxy/gateway|; s|[$]{GatewayImagePullPolicy}|IfNotPresent|' "$chart/values.tmpl.yaml" >"$chart/values.yaml"

  # Istio's proxies compare this version with their own.
  flags="-s -w -X istio.io/istio/pkg/version.buildVersion=1.31.0 -X istio.io/istio/pkg/version.buildStatus=Clean"
  # The tags of Istio's own build.
  build istio -ldflags="$flags" -tags=vtprotobuf,disable_pgv,grpcnotrace,retrynotrace -o "$work/bin/" istio.io/istio/pilot/cmd/pilot-discovery
  build istio -ldflags="$flags" -tags=agent,disable_pgv,grpcnotrace,retrynotrace -o "$work/bin/" istio.io/istio/pilot/cmd/pilot-agent
  from=$(source_of istio istio.io/istio)
  cp -r --no-preserve=mode "$from"/manifests/charts/{base,gateway,istio-control/istio-discovery} "$work/charts/"
  cp --no-preserve=mode "$from/tools/packaging/common/envoy_bootstrap.json" "$work/"

  chmod 755 "$work"
  mv -T "$work" "$out"
fi
echo "$out"
