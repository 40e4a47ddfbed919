#!/usr/bin/env bash
# install-zig.sh: prints the path of Zig, which compiles C for other machines and older C libraries. Installs the wheel
# that scripts/zig.txt pins into .venv if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-python.sh scripts/zig.txt "it builds the dynamic module for other machines"
.venv/bin/python -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))'
