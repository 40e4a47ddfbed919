#!/usr/bin/env bash
# deb-test.sh DEB: installs the package as docs/install/machine.md says, runs its programs as its units say up to
# the first 304, also with the dynamic module, reloads rules, upgrades it, removes it and purges it. All of this happens in a copy-on-write view of this machine with a
# network of its own, so nothing is left. Status 77: this needs root, apt and systemd-analyze.
#
# It stands in for systemd, which doesn't run there: commands, user, umask, limits and runtime directory are the units';
# the sandbox (SystemCallFilter and the like) is only verified.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -z ${DEB_TEST_ROOT:-} ]]; then
  deb=${1:?usage: deb-test.sh DEB}
  scripts/need.sh systemd-analyze systemd "it checks the package's units"
  scripts/need.sh redis-server redis-server "the sidecar of the package follows it"
  scripts/need.sh ip iproute2 "the package's programs get a network of their own"
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null || ! unshare --mount --net --pid --fork true; then
    echo "deb-test: NOT RUN: it needs root, apt and the right to make namespaces" >&2
    exit 77
  fi
  envoy=$(scripts/install-envoy.sh)
  export DEB_TEST_ROOT
  DEB_TEST_ROOT=$(mktemp -d)
  trap 'rmdir "$DEB_TEST_ROOT"' EXIT
  # As the first process of its namespace, the script takes all that it started with it.
  unshare --mount --net --pid --fork --kill-child --mount-proc "$0" "$(realpath "$deb")" "$(realpath "$envoy")"
  exit
fi

deb=$1 envoy=$2 top=$DEB_TEST_ROOT root=$DEB_TEST_ROOT/root
fail() {
  echo "deb-test: $*" >&2
  tail -n 30 "$top"/*.log >&2 || true
  exit 1
}
in_root() { chroot "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
apt() { in_root apt-get --yes -qq --no-install-recommends -o APT::Sandbox::User=root "$@" >>"$top/apt.log" 2>&1 || fail "apt-get $* failed"; }

# until_ok COMMAND…: repeats it for 20 s.
until_ok() {
  local deadline=$((SECONDS + 150))
  until "$@" >"$top/last.log" 2>&1; do
    ((SECONDS < deadline)) || fail "20 s of: $*"
    sleep 0.1
  done
}

# values UNIT KEY: the values of the key in the order of the file.
values() { sed -n "s/^$2=//p" "$root/usr/lib/systemd/system/$1.service"; }

# as UNIT: sets run to what runs a command as the unit's user, with its umask, environment, and limits as far as this
# machine's allow.
as() {
  local files environment
  files=$(values "$1" LimitNOFILE)
  [[ $(ulimit -Hn) == unlimited || $(ulimit -Hn) -ge $files ]] || files=$(ulimit -Hn)
  mapfile -t environment < <(values "$1" Environment)
  run=(chroot "$root" env -i PATH=/usr/local/bin:/usr/bin "${environment[@]}" prlimit --nofile="$files" --core=0
    setpriv --reuid "$(values "$1" User)" --regid "$(values "$1" Group)" --init-groups --no-new-privs --bounding-set=-all --inh-caps=-all
    sh -c "umask $(values "$1" UMask); exec \"\$@\"" sh)
}

# start UNIT: runs ExecStartPre and then ExecStart, whose number is in pid.
start() {
  local command user
  user=$(values "$1" User)
  install -d -m "$(values "$1" RuntimeDirectoryMode)" "$root/run/$(values "$1" RuntimeDirectory)"
  chroot "$root" chown "$user:" "/run/$(values "$1" RuntimeDirectory)"
  as "$1"
  while read -ra command; do
    "${run[@]}" "${command[@]}" >>"$top/$1.log" 2>&1 || fail "$1: ${command[*]}: status $?"
  done < <(values "$1" ExecStartPre)
  read -ra command < <(values "$1" ExecStart)
  "${run[@]}" "${command[@]}" >>"$top/$1.log" 2>&1 &
  pid=$!
}

start_both() {
  start gatehouse-sidecar && sidecar_pid=$pid
  start gatehouse-envoy && envoy_pid=$pid
  until_ok in_root gatehousectl ready
}

# end PID: as systemd ends a unit.
end() {
  kill "$1"
  wait "$1" || fail "process $1 ended with status $?"
}

stop_both() {
  as gatehouse-envoy
  "${run[@]}" gatehousectl drain >>"$top/gatehouse-envoy.log" 2>&1 || fail "ExecStop of gatehouse-envoy failed"
  end "$envoy_pid"
  end "$sidecar_pid"
}

# status WANT ARGUMENT…: what curl gets from the edge.
status() { [[ $(curl -s -o /dev/null -w '%{http_code}' "${@:2}") == "$1" ]]; }

edge=http://127.0.0.1:8080
answers() {
  until_ok status 304 "$edge/v1/products/42" -H 'If-None-Match: *'
  status 200 "$edge/v1/products/42" || fail "want 200"
  status 401 "$edge/v1/telemetry" -d '{}' || fail "want 401"
}

# configure EXAMPLE: makes an example of the package Envoy's configuration.
configure() { install -D -m 0644 "$root/usr/share/doc/gatehouse/examples/$1" "$root/etc/envoy/envoy.yaml"; }

# loaded: whether the dynamic module is in Envoy.
loaded() { grep -q '/usr/lib/gatehouse/libgatehouse.so' "/proc/$envoy_pid/maps"; }

mount -t tmpfs tmpfs "$top"
mkdir "$top"/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
ip link set lo up
touch "$top/last.log"
if in_root dpkg --status gatehouse >/dev/null 2>&1; then fail "this machine has the package gatehouse"; fi
rm -rf "$root"/etc/{gatehouse,envoy} "$root"/usr/local/bin/{gatehouse-sidecar,gatehousectl}

echo "deb-test: install"
cp "$deb" "$root/tmp/gatehouse.deb"
apt install /tmp/gatehouse.deb
version=$(dpkg-deb --field "$deb" Version)
for program in gatehouse-sidecar gatehousectl; do
  [[ $(in_root "$program" --version) == *"$version"* ]] || fail "$program --version: want $version"
done
# shellcheck disable=SC2016 # the inner bash expands it
[[ $(in_root bash -c 'source /usr/share/bash-completion/completions/gatehousectl
  COMP_WORDS=(gatehousectl device rev) COMP_CWORD=2
  _gatehousectl gatehousectl rev device && echo "${COMPREPLY[@]}"') == revoke ]] || fail "bash doesn't complete gatehousectl"
for file in man/man1/gatehousectl.1.gz zsh/vendor-completions/_gatehousectl fish/vendor_completions.d/gatehousectl.fish; do
  [[ -s $root/usr/share/$file ]] || fail "the package has no /usr/share/$file"
done
install -m 0755 "$envoy" "$root/usr/local/bin/envoy"
configure envoy.yaml
in_root systemd-analyze verify --man=no --recursive-errors=no gatehouse-sidecar.service gatehouse-envoy.service \
  >"$top/verify.log" 2>&1 || fail "systemd-analyze verify failed"
[[ ! -s $top/verify.log ]] || fail "systemd-analyze verify warned"
as gatehouse-sidecar
"${run[@]}" gatehouse-sidecar --config /etc/gatehouse/sidecar.yaml --check-config >"$top/check.log" 2>&1 ||
  fail "the package's sidecar.yaml is refused"

echo "deb-test: run"
in_root redis-server --bind 127.0.0.1 --port 6379 --save '' --maxmemory-policy noeviction >"$top/redis.log" &
python3 -m http.server --bind 127.0.0.1 --directory "$root/run" 8081 >"$top/upstream.log" 2>&1 &
until_ok in_root redis-cli ping
echo '{"id":42}' >"$root/tmp/42.json"
in_root gatehousectl put /v1/products/42 --file /tmp/42.json >>"$top/last.log" 2>&1 || fail "gatehousectl put failed"
start_both
answers
if loaded; then fail "the dynamic module is in the Envoy of envoy.yaml"; fi

echo "deb-test: run the dynamic module, and go back"
stop_both
configure envoy-native.yaml
start_both
loaded || fail "the dynamic module is not in the Envoy of envoy-native.yaml"
answers
stop_both
configure envoy.yaml
start_both
answers

echo "deb-test: reload"
edit() { sed -i "$1" "$root/etc/envoy/envoy.yaml"; }
reload() {
  local command
  as gatehouse-envoy
  while read -ra command; do
    "${run[@]}" "${command[@]}" >>"$top/reload.log" 2>&1 || return
  done < <(values gatehouse-envoy ExecReload)
}
edit 's,prefix: /v1/telemetry,prefix: /v1/other,'
reload || fail "reload of changed rules failed"
until_ok status 401 "$edge/v1/other" -d '{}'
edit 's,prefix: /v1/other,prefixx: /v1/telemetry,'
if reload; then fail "reload took rules with an unknown field"; fi
status 401 "$edge/v1/other" -d '{}' || fail "the rules are gone after a reload that failed"
edit 's,prefixx: ,prefix: ,'
reload || fail "reload of the earlier rules failed"
answers

echo "deb-test: upgrade"
echo '# mine' >>"$root/etc/gatehouse/sidecar.yaml"
dpkg-deb --raw-extract "$deb" "$top/next"
sed -i 's/^Version: .*/&+next/' "$top/next/DEBIAN/control"
echo '# the next version has other comments' >>"$top/next/etc/gatehouse/sidecar.yaml"
dpkg-deb --build "$top/next" "$root/tmp/next.deb" >/dev/null
apt install -o Dpkg::Options::=--force-confold /tmp/next.deb
grep -q '^# mine' "$root/etc/gatehouse/sidecar.yaml" || fail "the upgrade replaced the administrator's sidecar.yaml"
status 200 "$edge/v1/products/42" || fail "the upgrade stopped the running edge"
stop_both
start_both
until_ok status 304 "$edge/v1/products/42" -H 'If-None-Match: *'

echo "deb-test: roll back"
apt install --allow-downgrades -o Dpkg::Options::=--force-confold /tmp/gatehouse.deb
stop_both
start_both
until_ok status 304 "$edge/v1/products/42" -H 'If-None-Match: *'
stop_both

echo "deb-test: remove, purge"
apt remove gatehouse
[[ -f $root/etc/gatehouse/sidecar.yaml ]] || fail "remove deleted sidecar.yaml"
apt purge gatehouse
shopt -s nullglob
left=$(cd "$root" && echo etc/gatehouse/* usr/bin/gatehouse* usr/lib/gatehouse/* usr/lib/systemd/system/gatehouse* \
  usr/share/doc/gatehouse/* usr/share/{man/man1,bash-completion/completions,fish/vendor_completions.d}/gatehousectl* \
  usr/share/zsh/vendor-completions/_gatehousectl* run/gatehouse/*)
[[ -z $left ]] || fail "purge left: $left"
in_root getent passwd gatehouse >/dev/null || fail "purge deleted the user, so another one could get its number"
echo "deb-test: $(basename "$deb"): installed, 304 from both modules, upgraded, rolled back, removed"
