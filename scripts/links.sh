#!/usr/bin/env bash
# links.sh [OPTION] FILE...: checks that links in these files to files of this repository, also on GitHub, lead to a
# file, and to a heading if they name one. It needs no network. The options are those of lychee.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-python.sh scripts/lychee.txt "" .venv/lychee
exec .venv/lychee/bin/lychee --offline --include-fragments --no-progress -qq \
  --remap "https://github.com/gatehouse/gatehouse/(?:blob|tree)/[^/]+/(.*) file://$PWD/\$1" "$@"
