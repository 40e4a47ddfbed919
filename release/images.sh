#!/usr/bin/env bash
# images.sh [OUT]: builds the images into OUT (build/images): for each a directory of its files, an OCI archive and a
# bill of materials, and digests.txt. A commit gives the same digests on every machine, except for the images of Envoy
# and nginx, which have files of the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/images}

VERSION=$(git describe --tags --always --dirty)
REVISION=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export VERSION REVISION SOURCE_DATE_EPOCH
envoy=$(scripts/install-envoy.sh)
nginx=/usr/sbin/nginx

rm -rf "$out"
mkdir -p "$out"/{sidecar/usr/local/bin,envoy/usr/local/bin,module}

scripts/build-static.sh "$out/sidecar/usr/local/bin/"
scripts/build-wasm.sh "$out/sidecar/plugin.wasm" -buildvcs=false
ARCH=$(go env GOARCH) scripts/build-library.sh native "$out/sidecar/libgatehouse.so" -buildvcs=false
scripts/build-wasm.sh "$out/module/plugin.wasm" -buildvcs=false -tags=plugins
mkdir -p "$out/sidecar/usr/local/lib/gatehouse"
ARCH=$(go env GOARCH) scripts/build-library.sh nginx "$out/sidecar/usr/local/lib/gatehouse/libgatehouse-nginx.so" -buildvcs=false
chmod 644 "$out"/{sidecar,module}/plugin.wasm "$out/sidecar/libgatehouse.so" "$out"/sidecar/usr/local/lib/gatehouse/*

# put IMAGE FILE...: copies files of this machine to the same paths in an image.
put() {
  local file
  for file in "${@:2}"; do
    mkdir -p "$out/$1$(dirname "$file")"
    cp -L "$file" "$out/$1$file"
  done
}

# libraries FILE...: prints the loader and the libraries that programs need.
libraries() { ldd "$@" | grep -o '/[^ ]* (' | sed 's/ (//' | sort -u; }

cp "$envoy" "$out/envoy/usr/local/bin/envoy"
mapfile -t files < <(libraries "$envoy")
put envoy "${files[@]}"

# Debian's nginx, the modules of the plugin, and the libraries of these and of the plugin's own.
programs=("$nginx" /usr/lib/nginx/modules/{ndk_http_module,ngx_http_lua_module}.so)
mapfile -t files < <(libraries "${programs[@]}" "$out/sidecar/usr/local/lib/gatehouse/libgatehouse-nginx.so")
put nginx "${programs[@]}" "${files[@]}" /usr/share/lua/5.1/{ngx,ngx/ssl,resty,resty/core,resty/lrucache}/*.lua
mkdir -p "$out/nginx/etc/nginx/modules-enabled"
printf 'load_module /usr/lib/nginx/modules/%s.so;\n' ndk_http_module ngx_http_lua_module >"$out/nginx/etc/nginx/modules-enabled/lua.conf"

go run -C release ./images "$(realpath "$out")"
