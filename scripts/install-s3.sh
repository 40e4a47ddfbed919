#!/usr/bin/env bash
# Prints the path of versitygw, a server with S3's API: $VERSITYGW if it is set, otherwise one that it builds from its Go
# module once, in about two minutes, and keeps in the user's cache.
set -euo pipefail
version=v1.8.0

if [[ -n ${VERSITYGW:-} ]]; then
  [[ -x $VERSITYGW && ! -d $VERSITYGW ]] || { echo "install-s3: VERSITYGW=$VERSITYGW is not an executable file" >&2; exit 1; }
  echo "$VERSITYGW"
  exit
fi
dir=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse/versitygw-$version
if [[ ! -x $dir/versitygw ]]; then
  echo "building versitygw $version ..." >&2
  (cd / && GOBIN=$dir go install -trimpath "github.com/versity/versitygw/cmd/versitygw@$version") >&2
fi
echo "$dir/versitygw"
