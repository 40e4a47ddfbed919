#!/usr/bin/env bash
# clients-build.sh VERSION OUT [MAVEN-ARGUMENT...]: builds the packages of the clients for Python, Node.js and Java into
# OUT, in build/clients, where it leaves what their tests need. The arguments are for Maven.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 work=$PWD/build/clients
mkdir -p "$2" "$work"
out=$(realpath "$2")
shift 2

scripts/install-packages.sh clients
scripts/install-python.sh clients/python/requirements.txt "" .venv/clients
scripts/install-npm.sh clients/node "$work/npm"

# The sources with this version, and what they share, as in the repository.
rm -rf "$work/stage"
mkdir -p "$work/stage"
git ls-files -z LICENSE clients/vectors.json clients/go/publish/write.lua clients/python clients/node clients/java |
  xargs -0 cp --parents -t "$work/stage"
stage=$work/stage/clients
sed -i "s/^version = .*/version = \"$version\"/" "$stage/python/pyproject.toml"
sed -i "s/^  \"version\": .*/  \"version\": \"$version\",/" "$stage/node/package.json"
sed -i "s,^  <version>.*,  <version>$version</version>," "$stage/java/pom.xml"
(cd "$stage/java" && sed -i "s,<version>0\.1\.0</version>,<version>$version</version>," README.md)

(cd "$stage/python" && PYTHONPATH=$PWD/../../../../../.venv/clients ../../../../../.venv/bin/python -m hatchling build -d "$out" >/dev/null)
ln -s "$work/npm/node_modules" "$stage/node/node_modules"
(cd "$stage/node" && npm pack --silent --pack-destination "$out" >/dev/null)
mvn --file "$stage/java/pom.xml" --batch-mode --quiet --strict-checksums -DskipTests \
  -Dproject.build.outputTimestamp="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}" package "$@" >&2
cp "$stage"/java/target/gatehouse-client-*.jar "$out/"
cp "$stage/java/pom.xml" "$out/gatehouse-client-$version.pom"
