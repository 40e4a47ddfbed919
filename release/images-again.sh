#!/usr/bin/env bash
# Builds the images twice, and fails unless both builds have the same digests.
set -euo pipefail
cd "$(dirname "$0")/.."
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
release/images.sh
release/images.sh "$again"
diff -u build/images/digests.txt "$again/digests.txt"
echo "images: two builds have the same digests"
