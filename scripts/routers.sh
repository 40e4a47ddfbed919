#!/usr/bin/env bash
# Installs and builds the routers of e2e/routers, pinned, and runs the suite: see that package. Arguments go to
# build/gatehouse-routers.
set -euo pipefail
cd "$(dirname "$0")/.."
apps=e2e/routers/apps out=build/routers

if [[ ${EDGE_KIND:-envoy} != nginx ]]; then
  ENVOY=$(scripts/install-envoy.sh)
  export ENVOY
fi
export PATH=$PATH:/usr/sbin # for nginx, since not every root's path includes it
scripts/install-python.sh $apps/python/requirements.txt ""
mkdir -p $out

fresh() { # STAMP SOURCE...: whether STAMP was made from these sources
  local stamp=$1
  shift
  cmp -s <(cat "$@") "$stamp"
}

scripts/install-npm.sh $apps/express $out/express
cp $apps/express/app.js $out/express/

mapfile -t sources < <(find $apps/spring -type f | LC_ALL=C sort)
if ! fresh $out/spring.stamp "${sources[@]}"; then
  echo "building the Spring application into $out, about half a minute ..." >&2
  rm -rf $out/spring
  cp -r $apps/spring $out/spring
  mvn --file $out/spring/pom.xml --batch-mode --quiet --strict-checksums -Dmaven.test.skip=true package >&2
  mv $out/spring/target/routers-spring.jar $out/spring.jar
  rm -rf $out/spring
  cat "${sources[@]}" >$out/spring.stamp
fi

exec build/gatehouse-routers "$@"
