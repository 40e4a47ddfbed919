#!/usr/bin/env bash
# publish.sh OUT REGISTRY: pushes the release in OUT, which make release made, to REGISTRY, such as ghcr.io/gatehouse, and
# signs it: images and chart in the registry, SHA256SUMS and the provenance in files beside them. A version that the
# registry has with other bytes stays as it is, and this fails.
#
# COSIGN_KEY is the file of a private key, whose password is COSIGN_PASSWORD; these signatures are in no public log.
# Without it, cosign signs with the identity of the pipeline that runs it, and records that in Sigstore's log.
#
# PUBLISH_TOOLS is a directory with cosign, crane and helm. Without it, they are compiled, which nothing should be that can
# read a token.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-} registry=${2:-}
[[ -n $registry && -f $out/SHA256SUMS ]] || {
  echo "publish: want the directory of a release and a registry: make publish OUT=build/0.1.0 REGISTRY=ghcr.io/gatehouse" >&2
  exit 2
}
out=$(realpath "$out")
version=$(basename "$out"/gatehouse-module-*.tar .tar)
version=${version#gatehouse-module-}
tools=$(realpath "${PUBLISH_TOOLS:-$(release/go-tools.sh publish-tools)}")
helm=${PUBLISH_TOOLS:-$(scripts/chart-tools.sh)}/helm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sign=(--yes)
if [[ -n ${COSIGN_KEY:-} ]]; then
  # Without services, cosign asks nobody for a certificate, a time or an entry in a log.
  "$tools/cosign" signing-config create --out "$work/no-services.json"
  sign+=(--key "$COSIGN_KEY" --signing-config "$work/no-services.json")
fi
plain=()
[[ ! $registry =~ ^(localhost|127\.[0-9.]+|\[::1\])(:|/) ]] || plain=(--plain-http)

(cd "$out" && sha256sum --quiet --check SHA256SUMS)
while read -r digest name; do
  there=$("$tools/crane" digest "$registry/$name:$version" 2>"$work/error") || grep -q 'MANIFEST_UNKNOWN\|NAME_UNKNOWN' "$work/error" || {
    cat "$work/error" >&2
    exit 1
  }
  [[ -z $there || $there == "$digest" ]] || {
    echo "publish: $registry has another $name:$version, $there; this one is $digest" >&2
    exit 1
  }
done <"$out/digests.txt"

# attest TYPE FILE IMAGE: signs a statement about the image, and pushes it.
attest() { "$tools/cosign" attest "${sign[@]}" --type "$1" --predicate "$2" "$3"; }

python3 -c 'import json, sys; json.dump(json.load(sys.stdin)["predicate"], sys.stdout)' \
  <"$out/gatehouse-$version.provenance.json" >"$work/provenance.json"
while read -r digest name; do
  mkdir "$work/$name"
  tar -xf "$out/$name-$version.tar" -C "$work/$name"
  "$tools/crane" push "$work/$name" "$registry/$name:$version" >"$work/pushed"
  [[ $(<"$work/pushed") == *"@$digest" ]] || {
    echo "publish: pushed $(<"$work/pushed"), want $digest" >&2
    exit 1
  }
  "$tools/cosign" sign "${sign[@]}" "$registry/$name@$digest"
  attest slsaprovenance1 "$work/provenance.json" "$registry/$name@$digest"
done <"$out/digests.txt"
for arch in amd64 arm64; do
  digest=$("$tools/crane" digest --platform "linux/$arch" "$registry/gatehouse-sidecar:$version")
  attest cyclonedx "$out/gatehouse-sidecar-$version-linux-$arch.cdx.json" "$registry/gatehouse-sidecar@$digest"
done
attest cyclonedx "$out/gatehouse-module-$version.cdx.json" "$registry/gatehouse-module@$("$tools/crane" digest "$registry/gatehouse-module:$version")"

"$helm" push "${plain[@]}" "$out/gatehouse-$version.tgz" "oci://$registry/charts" 2>&1 | tee "$work/chart"
"$tools/cosign" sign "${sign[@]}" "$registry/charts/gatehouse@$(sed -n 's/^Digest: //p' "$work/chart")"

for file in SHA256SUMS "gatehouse-$version.provenance.json"; do
  "$tools/cosign" sign-blob "${sign[@]}" --bundle "$out/$file.sigstore.json" "$out/$file" >"$work/signed"
done
