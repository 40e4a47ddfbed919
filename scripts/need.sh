#!/usr/bin/env bash
# need.sh TOOL PACKAGE WHY: checks for TOOL, a command or the path of a file. If it is missing, root on a machine with apt
# installs PACKAGE; otherwise this fails and prints what to do.
set -euo pipefail
tool=$1 package=$2 why=$3

found() { command -v "$tool" >/dev/null || [[ -e $tool ]]; }
found && exit

if ! command -v apt-get >/dev/null; then
  echo "$tool is missing: $why; install it with your system's package manager" >&2
  exit 1
fi
if [[ $(id -u) != 0 ]]; then
  echo "$tool is missing: $why; run: sudo apt-get install $package" >&2
  exit 1
fi

echo "installing $package: $why ..." >&2
# Prevents a package's service from starting, which would take its port.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install --yes -qq --no-install-recommends "$package")
# The first attempt fails if the package lists are old or missing.
"${install[@]}" >/dev/null 2>&1 || { apt-get update -qq >/dev/null && "${install[@]}" >/dev/null; } || true
if ! found; then
  echo "$tool is missing: $why; apt-get could not install $package, see above" >&2
  exit 1
fi
