#!/usr/bin/env bash
# release.sh VERSION OUT: makes all that a release publishes, into OUT. It needs no network once the Go modules and
# tools are there. A commit gives the same bytes with the same version of Go, which the provenance names.
set -euo pipefail
cd "$(dirname "$0")/.."
VERSION=${1:-} out=${2:-}
[[ $VERSION =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ && -n $out ]] || {
  echo "release: want a version such as 0.1.0 and a directory: make release VERSION=0.1.0 OUT=build/0.1.0" >&2
  exit 2
}
[[ ! -e $out || -z $(ls -A "$out") || -f $out/SHA256SUMS ]] || {
  echo "release: $out has other files than a release's" >&2
  exit 2
}
# The caller's settings of Go would change the programs.
unset GOFLAGS GOEXPERIMENT GOWORK
export GOAMD64=v1 GOARM64=v8.0
REVISION=$(git rev-parse HEAD)
[[ -z $(git status --porcelain) ]] || REVISION+=-dirty
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export VERSION REVISION SOURCE_DATE_EPOCH
tools=$(release/go-tools.sh release-tools)
helm=$(scripts/chart-tools.sh)/helm

umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out" "$work"/module
out=$(realpath "$out")

# pack FILE DIRECTORY NAME: makes DIRECTORY/NAME a tar that depends on contents only.
pack() {
  tar --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u+rw,go+rX,go-w -C "$2" -c "$3" | gzip -9n >"$1"
}

scripts/build-wasm.sh "$work/gatehouse.wasm" -buildvcs=false
scripts/build-wasm.sh "$work/module/plugin.wasm" -buildvcs=false -tags=plugins
chmod 644 "$work/gatehouse.wasm" "$work/module/plugin.wasm"
cp -r release/packaging "$work/packaging"
# The manual page and completions of gatehousectl, by a build for this machine.
mkdir "$work/host" "$work/shell"
ARCH=$(go env GOHOSTARCH) scripts/build-static.sh "$work/host/"
"$work/host/gatehousectl" man | gzip -9n >"$work/shell/gatehousectl.1.gz"
for shell in bash zsh fish; do "$work/host/gatehousectl" completion "$shell" >"$work/shell/gatehousectl.$shell"; done
rm -r "$work/host"
for ARCH in amd64 arm64; do
  export ARCH
  image=$work/$ARCH/sidecar files=$work/files-$ARCH
  mkdir -p "$image/usr/local/bin" "$files"
  scripts/build-static.sh "$image/usr/local/bin/"
  scripts/build-library.sh native "$image/libgatehouse.so" -buildvcs=false
  mkdir -p "$image/usr/local/lib/gatehouse"
  scripts/build-library.sh nginx "$image/usr/local/lib/gatehouse/libgatehouse-nginx.so" -buildvcs=false
  chmod 644 "$image/libgatehouse.so" "$image"/usr/local/lib/gatehouse/*
  cp "$work/gatehouse.wasm" "$image/plugin.wasm"

  cp -r "$image/usr/local/bin" "$files/bin"
  cp -r "$work/shell" "$files/shell"
  cp -r docs/systemd "$files/systemd"
  # systemd looks for a program without a path in /usr/local/bin and /usr/bin.
  sed -i 's,/usr/local/bin/,,' "$files"/systemd/*.service "$files"/systemd/*/*.conf
  cp "$work/gatehouse.wasm" "$image/libgatehouse.so" "$image"/usr/local/lib/gatehouse/* release/packaging/sidecar.yaml envoy/envoy.yaml envoy/envoy-native.yaml envoy/envoy.schema.json \
    LICENSE CHANGELOG.md "$files"
  (cd "$files" && "$tools/nfpm" package --config ../packaging/nfpm.yaml --packager deb --target "$out/" >/dev/null)
  mv "$files" "$work/gatehouse-$VERSION-linux-$ARCH"
  pack "$out/gatehouse-$VERSION-linux-$ARCH.tar.gz" "$work" "gatehouse-$VERSION-linux-$ARCH"
done

go run -C release ./images release "$work" "$out"
scripts/clients-build.sh "$VERSION" "$out" -Prelease >/dev/null

# helm packs with the time of day. The published images in its values have the chart's version and their digests.
digest() { sed -n "s/  $1\$//p" "$out/digests.txt"; }
sidecar=$(digest gatehouse-sidecar) module=$(digest gatehouse-module)
cp -r charts/gatehouse "$work/chart"
sed -i -E "s,(ghcr\.io/gatehouse/gatehouse-[a-z]+):[0-9][0-9A-Za-z.-]*,\1:$VERSION," "$work"/chart/{values,Chart}.yaml
sed -i -e "/^sidecar:/,/^  settings:/s/^    digest: \"\"/    digest: $sidecar/" -e "/^envoyGateway:/,\$s/^    sha256: \"\"/    sha256: \"${module#sha256:}\"/" \
  "$work/chart/values.yaml"
"$helm" package "$work/chart" --version "$VERSION" --app-version "$VERSION" --destination "$work" >/dev/null
mkdir "$work/unpacked"
tar -xmzf "$work/gatehouse-$VERSION.tgz" -C "$work/unpacked"
pack "$out/gatehouse-$VERSION.tgz" "$work/unpacked" gatehouse
touch -d "@$SOURCE_DATE_EPOCH" "$out/gatehouse-$VERSION.tgz" # helm push records this as the time of creation

(cd "$out" && sha256sum -- * >SHA256SUMS)
go run -C release ./images provenance "$out"
