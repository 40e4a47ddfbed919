#!/usr/bin/env bash
# chart-e2e.sh chart|mesh|all [FLAG...]: tests the chart in a real Kubernetes cluster of one node that is made for the test,
# mesh: under the control planes of Envoy Gateway and Istio; all: both. See e2e/k8s and e2e/chart; flags go to the test.
# Exit status 77: the machine can't run a cluster, and nothing was tested.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
shift
declare -A tests=([chart]='^Test(Gateway|Native|Nginx|Agent|Mesh)$' [mesh]='^Test(EnvoyGateway|Istio)$')
case $kind in
  chart | mesh) parts=("$kind") ;;
  all) parts=(chart mesh) ;;
  *) echo "chart-e2e.sh: $kind: want chart, mesh or all" >&2; exit 2 ;;
esac

not_run() {
  echo "$kind-e2e: not run: the chart was not tested in a cluster, because of this machine:" >&2
  sed "s/^/$kind-e2e:   /" >&2
  exit 77
}

[[ $(uname -s) == Linux ]] || not_run <<<"no Linux kernel"
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  # The preflight below names what can't be installed.
  scripts/install-packages.sh cluster || true
fi
scripts/install-packages.sh chart-e2e
CGO_ENABLED=0 go build -C e2e -trimpath -o ../build/ ./cmd/gatehouse-cluster ./cmd/gatehouse-pause
missing=$(build/gatehouse-cluster preflight) || not_run <<<"$missing"

begin=$SECONDS
stage() {
  echo "$kind-e2e: $* ($((SECONDS - begin)) s)"
  begin=$SECONDS
}

bin=$(scripts/k8s-build.sh)
tools=$(scripts/chart-tools.sh)
if [[ $kind != chart ]]; then
  MESH=$(scripts/mesh-build.sh)
  export MESH
fi
stage "Kubernetes and the chart's tools are there"
release/images.sh >/dev/null
stage "images built"
go test -C e2e -race -c -o ../build/chart.test ./chart
stage "test built"

export PATH=$tools:$PATH
run=(build/gatehouse-cluster run --bin "$bin")
for image in sidecar envoy nginx; do run+=(--image "build/images/gatehouse-$image.tar"); done
# Each part has its own cluster: the chart's tests leave control planes' resources behind. Go runs a test in its
# package's directory.
for part in "${parts[@]}"; do
  "${run[@]}" env --chdir=e2e/chart "$PWD/build/chart.test" -test.run "${tests[$part]}" -test.v -test.failfast -test.timeout=15m "$@"
  stage "all steps of $part passed"
done
