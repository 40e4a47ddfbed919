#!/usr/bin/env bash
# publish-test.sh RELEASE: publishes the release in the directory RELEASE to a registry on loopback, signed with a key of
# its own, and checks what users get: signatures, statements, the chart, the module. Nothing else may pass as signed.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(release/go-tools.sh publish-tools)
helm=$(scripts/chart-tools.sh)/helm
work=$(mktemp -d)
registry_pid=
finish() {
  [[ -z $registry_pid ]] || { kill "$registry_pid" && wait "$registry_pid"; } 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
export COSIGN_PASSWORD=test HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm
export OTEL_TRACES_EXPORTER=none # or the registry looks for a collector

fail() {
  echo "publish-test: $*" >&2
  tail -n 20 "$work/last.log" >&2
  exit 1
}
must() { "$@" >"$work/last.log" 2>&1 || fail "failed: $*"; }
# mustnt TEXT COMMAND…: the command must fail with this text.
mustnt() {
  local text=$1
  shift
  if "$@" >"$work/last.log" 2>&1; then fail "passed: $*"; fi
  grep -q -- "$text" "$work/last.log" || fail "failed otherwise than with \"$text\": $*"
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
host=127.0.0.1:$port
cat >"$work/registry.yaml" <<YAML
version: 0.1
storage: {filesystem: {rootdirectory: $work/registry}}
http: {addr: "$host"}
log: {level: error, accesslog: {disabled: true}}
YAML
"$tools/registry" serve "$work/registry.yaml" >"$work/registry.log" 2>&1 &
registry_pid=$!
deadline=$((SECONDS + 20))
until "$tools/crane" catalog "$host" >/dev/null 2>&1; do
  ((SECONDS < deadline)) || { cp "$work/registry.log" "$work/last.log" && fail "no registry on $host after 20 s"; }
  sleep 0.1
done

cp -r "${1:?usage: publish-test.sh RELEASE}" "$work/release"
version=$(basename "$work"/release/gatehouse-module-*.tar .tar)
version=${version#gatehouse-module-}
registry=$host/gatehouse
for name in ours other; do must "$tools/cosign" generate-key-pair --output-key-prefix "$work/$name"; done
export COSIGN_KEY=$work/ours.key

# Twice: a pipeline that failed half-way runs again.
must release/publish.sh "$work/release" "$registry"
mkdir "$work/tools"
cp "$tools"/{cosign,crane} "$helm" "$work/tools/"
must env PUBLISH_TOOLS="$work/tools" release/publish.sh "$work/release" "$registry"

verify() { "$tools/cosign" "$1" --key "$work/ours.pub" --insecure-ignore-tlog "${@:2}"; }
for name in gatehouse-sidecar gatehouse-module charts/gatehouse; do
  must verify verify "$registry/$name:$version"
done
for name in gatehouse-sidecar gatehouse-module; do
  must verify verify-attestation --type slsaprovenance1 "$registry/$name:$version"
done
for arch in amd64 arm64; do
  digest=$("$tools/crane" digest --platform "linux/$arch" "$registry/gatehouse-sidecar:$version")
  must verify verify-attestation --type cyclonedx "$registry/gatehouse-sidecar@$digest"
done
must verify verify-attestation --type cyclonedx "$registry/gatehouse-module:$version"
cd "$work/release"
provenance=gatehouse-$version.provenance.json
for file in SHA256SUMS "$provenance"; do must verify verify-blob --bundle "$file.sigstore.json" "$file"; done

mustnt "signatures do not match threshold" "$tools/cosign" verify --key "$work/other.pub" --insecure-ignore-tlog "$registry/gatehouse-module:$version"
mustnt "invalid signature" "$tools/cosign" verify-blob --key "$work/other.pub" --insecure-ignore-tlog --bundle SHA256SUMS.sigstore.json SHA256SUMS
mustnt "none of the attestations matched the predicate type" verify verify-attestation --type cyclonedx "$registry/gatehouse-sidecar:$version"
sed 1s/^./x/ SHA256SUMS >"$work/edited"
mustnt "invalid signature" verify verify-blob --bundle SHA256SUMS.sigstore.json "$work/edited"

# What users pull is what was made.
must "$helm" pull --plain-http "oci://$registry/charts/gatehouse" --version "$version" --destination "$work"
must cmp "$work/gatehouse-$version.tgz" "gatehouse-$version.tgz"
must "$helm" template edge --plain-http "oci://$registry/charts/gatehouse" --version "$version" --set upstream.host=backend --set redis.bundled.enabled=true
digest() { sed -n "s/  $1\$//p" digests.txt; }
grep -q "image: ghcr.io/gatehouse/gatehouse-sidecar@$(digest gatehouse-sidecar)" "$work/last.log" || fail "the chart has another image than $version"
must "$helm" show values "$work/gatehouse-$version.tgz"
module=$(digest gatehouse-module)
grep -q "sha256: \"${module#sha256:}\"" "$work/last.log" || fail "the chart has another module than $version"
"$tools/crane" export "$registry/gatehouse-module:$version" - | tar -tv >"$work/last.log"
grep -q ' plugin\.wasm$' "$work/last.log" || fail "the module's image has no /plugin.wasm"

# A version is never replaced, and a damaged release never pushed.
cd "$OLDPWD"
must "$tools/crane" copy "$registry/gatehouse-sidecar:$version" "$host/taken/gatehouse-module:$version"
mustnt "has another gatehouse-module" release/publish.sh "$work/release" "$host/taken"
mustnt MANIFEST_UNKNOWN "$tools/crane" digest "$host/taken/gatehouse-sidecar:$version"
must "$tools/crane" copy "$registry/gatehouse-sidecar:$version" "$registry/gatehouse-module:$version"
mustnt "no signatures found" verify verify "$registry/gatehouse-module:$version"
echo x >>"$work/release/gatehouse-$version.tgz"
mustnt "FAILED" release/publish.sh "$work/release" "$host/damaged"

echo "publish-test: $version was published to a registry, and its signatures verified"
