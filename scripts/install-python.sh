#!/usr/bin/env bash
# install-python.sh REQUIREMENTS OTHERWISE [TARGET]: installs the packages that the file pins into .venv, or into the
# directory TARGET in it, unless they are installed already. OTHERWISE is an alternative for the error message.
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=$1 otherwise=$2 target=${3:-}

fail() {
  echo "install-python: $*${otherwise:+; $otherwise}" >&2
  exit 1
}

python=.venv/bin/python
stamp=.venv/${requirements//\//-} # the installed requirements; written last

cmp -s "$requirements" "$stamp" && exit
command -v python3 >/dev/null || fail "python3 is missing: it installs $requirements; install it"
echo "installing $requirements into .venv ..." >&2
if ! "$python" -c '' 2>/dev/null; then
  rm -rf .venv
  if ! python3 -m venv .venv >/dev/null 2>&1; then
    # Debian has ensurepip in a separate package. The system's pip can install into the environment instead.
    python3 -m pip --version >/dev/null 2>&1 ||
      fail "python3 has neither ensurepip nor pip; on Debian and Ubuntu: apt-get install python3-venv"
    rm -rf .venv
    python3 -m venv --without-pip .venv >&2 || fail "python3 -m venv failed"
  fi
fi
pip=("$python" -m pip)
"${pip[@]}" --version >/dev/null 2>&1 || pip=(python3 -m pip --python "$python")
"${pip[@]}" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
  ${target:+--target="$target" --upgrade} \
  --requirement "$requirements" >&2 || fail "pip could not install $requirements, see above; removing .venv begins anew"
cp "$requirements" "$stamp"
