#!/usr/bin/env bash
# install-packages.sh TARGET...: checks for all that these targets of the Makefile, or scripts, need of the system's
# packages, for this EDGE_KIND, and with LONG=1 for long tests. Root on a machine with apt gets what is missing, in one
# transaction; otherwise this fails at once, and prints the command that installs everything.
# install-packages.sh --list TARGET...: prints the packages, sorted.
set -euo pipefail

# What each target needs: packages of Debian and Ubuntu, and names of this table, which no package has.
declare -A needs=(
  [venv]='python3-venv' [cgo]='gcc libc6-dev' [lua]='nginx-light libnginx-mod-http-lua' [node]='nodejs npm'
  [java]='default-jdk-headless maven'
  [native]=cgo [nginx]=cgo [floor]=cgo
  [stack]=venv [run]=stack
  [unit]='cgo lua redis-server wrk postgresql zsh fish mandoc man-db'
  [e2e]='venv unit curl'
  [test]='run unit e2e' [mutation]=test [engines]=test [matrix]=test
  [test-all]='test clients routers conformance bypass chaos observe-check bench-check check docs install-check chart-check release deb-test
    nginx-install-test fresh-machine chromium'
  [lua-coverage]='cgo lua'
  [observe]='stack prometheus prometheus-alertmanager' [observe-check]='observe cgo redis-server'
  [conformance]='e2e nginx-light' [lifecycle]='stack cgo redis-server' [chaos]='stack cgo redis-server'
  [clients]='venv cgo node java redis-server' [install-check]='clients'
  [routers]='venv node java redis-server nginx-light'
  [bypass]='venv nginx lua libnginx-mod-stream'
  [loadtest]='stack cgo lua redis-server wrk' [bench-check]=loadtest
  [fleet]=redis-server
  [check]='venv cgo node lua-check shellcheck systemd' [docs]='venv node'
  [chart-check]='venv cgo lua prometheus' [chart-readme]=''
  [chart-e2e]='images cgo redis-server' [mesh-e2e]=chart-e2e
  [cluster]='containerd runc iptables iproute2 dnsmasq-base containernetworking-plugins'
  [images]='venv lua binutils' [release]='images clients' [publish]=''
  [deb-test]='venv redis-server iproute2 systemd' [nginx-install-test]='lua redis-server iproute2'
  [fresh-machine]=debootstrap [targets-test]=''
  [build]='' [wasm]='' [fuzz]='' [stop]='' [clean]='' [help]=''
)
case ${EDGE_KIND:-envoy} in
  native) needs[build]=cgo needs[stack]+=' cgo' ;;
  nginx) needs[build]=cgo needs[stack]+=' cgo lua' needs[run]='cgo lua' ;;
esac
case ${LONG:-} in '' | 0 | no | false) ;; *) needs[e2e]+=' chromium node' ;; esac

# The command or file that a package is there for, unless it has the package's name.
declare -A tools=(
  [gcc]=cc [postgresql]=pg_ctlcluster [nginx-light]=nginx [nodejs]=node [man-db]=man [maven]=mvn [default-jdk-headless]=javac
  [lua-check]=luacheck [systemd]=systemd-analyze [iproute2]=ip [dnsmasq-base]=dnsmasq [binutils]=readelf
  [libnginx-mod-http-lua]=/usr/lib/nginx/modules/ngx_http_lua_module.so
  [libnginx-mod-stream]=/usr/lib/nginx/modules/ngx_stream_module.so
  [containernetworking-plugins]=/usr/lib/cni/bridge
)
PATH=$PATH:/usr/sbin:/sbin # for nginx, since not every path includes it

there() {
  case $1 in
    # Debian has ensurepip in a package of its own. The system's pip can install into an environment instead.
    python3-venv) python3 -c 'import ensurepip' || python3 -m pip --version ;;
    libc6-dev) cc -E -include stdlib.h -x c /dev/null ;;
    libnginx-mod-* | containernetworking-plugins) [[ -e ${tools[$1]} ]] ;;
    *) command -v "${tools[$1]:-$1}" ;;
  esac >/dev/null 2>&1
}

declare -A packages=() seen=()
collect() {
  local name
  for name; do
    [[ -z ${seen[$name]:-} ]] || continue
    seen[$name]=1
    # shellcheck disable=SC2086 # words
    if [[ -v needs[$name] ]]; then collect ${needs[$name]}; else packages[$name]=1; fi
  done
}

list=
[[ ${1:-} != --list ]] || { list=1 && shift; }
for target; do
  [[ -v needs[$target] ]] || { echo "install-packages: \"$target\": want one of: ${!needs[*]}" >&2; exit 2; }
done
collect "$@"
mapfile -t names < <(printf '%s\n' "${!packages[@]}" | LC_ALL=C sort)
[[ -z $list ]] || { printf '%s\n' "${names[@]}"; exit; }

find_missing() {
  local name
  missing=()
  for name in "${names[@]}"; do
    [[ -z $name ]] || there "$name" || missing+=("$name")
  done
}
find_missing
((${#missing[@]})) || exit 0

fail() {
  echo "install-packages: $1: ${missing[*]}; $2" >&2
  exit 1
}
command -v apt-get >/dev/null || fail "missing, by their names in Debian" "install them with your system's package manager"
[[ $(id -u) == 0 ]] ||
  fail "missing" "run: sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}"

echo "installing ${missing[*]} ..." >&2
output=$(mktemp)
trap 'rm -f "$output"' EXIT
# Prevents a package's service from starting, which would take its port.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$output" "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
# get ARGUMENT...: apt-get, which waits for the lock of dpkg, and here for the locks of its lists and its cache, too.
get() {
  local deadline=$((SECONDS + 300))
  until apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >"$output" 2>&1; do
    grep -q 'Could not get lock' "$output" && ((SECONDS < deadline)) || return
    sleep 1
  done
}
install=(install --yes --no-install-recommends "${missing[@]}")
# The first attempt fails if the package lists are old or missing.
get "${install[@]}" || { get update && get "${install[@]}"; } || cat "$output" >&2
find_missing
((${#missing[@]} == 0)) || fail "still missing" "apt-get could not install them, see above"
