#!/usr/bin/env bash
# build-library.sh native|nginx OUT [FLAG...]: builds the filter as a dynamic module of Envoy, or the edge in nginx, to OUT,
# as $VERSION; flags go to go build. It is for this machine, by its gcc. With ARCH, amd64 or arm64, it is for every Linux
# of that architecture with glibc 2.31 or later, by Zig, and has the same bytes on every machine.
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A packages=([native]=./native-filter [nginx]=./nginx/host)
kind=$1 out=$2
shift 2
glibc=2.31
if [[ -n ${ARCH:-} ]]; then
  declare -A machines=([amd64]=x86_64 [arm64]=aarch64)
  zig=$(scripts/install-zig.sh)
  export GOOS=linux GOARCH=$ARCH CC="$zig cc -target ${machines[$ARCH]}-linux-gnu.$glibc"
  # The machine's settings would change it.
  export CGO_CFLAGS='-O2 -g0' CGO_LDFLAGS=''
fi
CGO_ENABLED=1 "${GO:-go}" build -buildmode=c-shared -trimpath -tags="$kind" \
  -ldflags="-s -w -X github.com/gatehouse/gatehouse/edge.Release=${VERSION:-unknown}" -o "$out" "$@" "${packages[$kind]}"
rm -f "${out%.*}.h" # declares what only the library calls

[[ -n ${ARCH:-} ]] || exit 0
newest=$(readelf --version-info --wide "$out" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
[[ $(printf '%s\n' "$newest" "GLIBC_$glibc" | sort -V | tail -n 1) == "GLIBC_$glibc" ]] || {
  echo "build-library: $out needs $newest, want $glibc or older:" >&2
  readelf --dyn-syms --wide "$out" | grep -F "@$newest" >&2
  exit 1
}
