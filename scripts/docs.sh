#!/usr/bin/env bash
# docs.sh: builds the documentation as a site in build/docs, and checks its links.
set -euo pipefail
cd "$(dirname "$0")/.."
site=build/docs pages=build/docs-pages npm=build/docs-npm pinned=scripts/docs

scripts/install-python.sh $pinned/requirements.txt "" .venv/docs
scripts/install-npm.sh $pinned $npm

rm -rf $pages
mkdir -p $pages/assets
git ls-files -z '*.md' 'docs/*.svg' 'docs/*.png' | xargs -0 cp --parents -t $pages
# The version of mermaid whose colours the theme knows, in light and dark.
cp $npm/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js $pages/assets/mermaid.js
cp $npm/node_modules/iframe-worker/shim/index.js $pages/assets/iframe-worker.js
NO_MKDOCS_2_WARNING=1 PYTHONPATH=.venv/docs .venv/bin/python -m mkdocs build --config-file $pinned/mkdocs.yml
scripts/links.sh --root-dir "$PWD/$site" "$site/**/*.html"
echo "docs: open $site/index.html"
