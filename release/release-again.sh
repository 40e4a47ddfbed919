#!/usr/bin/env bash
# Makes a release twice, and fails unless both have the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
release/release.sh 0.0.1 build/release
release/release.sh 0.0.1 "$again/release"
diff -r build/release "$again/release"
echo "release: two builds have the same bytes"
