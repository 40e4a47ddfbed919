#!/usr/bin/env bash
# build-static.sh DIR/: builds the programs for Linux and $ARCH, by default this machine's, as $VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."
CGO_ENABLED=0 GOOS=linux GOARCH=${ARCH:-$(go env GOARCH)} exec go build -trimpath -buildvcs=false \
  -ldflags="-s -w -X github.com/gatehouse/gatehouse/internal/version.release=$VERSION" \
  -o "$1" ./sidecar/cmd/... ./ctl/cmd/... ./publisher/cmd/...
