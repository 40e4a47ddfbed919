#!/usr/bin/env bash
# images.sh [OUT]: builds the images into OUT (build/images): for each a directory of its files, an OCI archive and a
# bill of materials, and digests.txt. A commit gives the same digests on every machine, except for Envoy's image, which
# has the machine's C library.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/images}

VERSION=$(git describe --tags --always --dirty)
REVISION=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export VERSION REVISION SOURCE_DATE_EPOCH
envoy=$(scripts/install-envoy.sh)

rm -rf "$out"
mkdir -p "$out"/{sidecar/{etc/gatehouse,usr/local/bin},envoy/usr/local/bin,module}

static=(go build -trimpath -buildvcs=false -ldflags="-s -w -X main.version=$VERSION")
CGO_ENABLED=0 GOOS=linux "${static[@]}" -o "$out/sidecar/usr/local/bin/" ./sidecar/cmd/...
scripts/build-wasm.sh "$out/module/plugin.wasm" -buildvcs=false
chmod 644 "$out/module/plugin.wasm"
cp "$out/module/plugin.wasm" "$out/sidecar/etc/gatehouse/gatehouse.wasm"

# Envoy needs the system's loader and C library. They are copied to the paths where the loader looks for them.
cp "$envoy" "$out/envoy/usr/local/bin/envoy"
ldd "$envoy" | grep -o '/[^ ]*' | while read -r library; do
  mkdir -p "$out/envoy$(dirname "$library")"
  cp -L "$library" "$out/envoy$library"
done

go run ./images "$out"
