#!/usr/bin/env bash
# nginx-install-test.sh: pastes "Install" of docs/install/nginx.md, word by word, into a shell in a copy-on-write view of this
# machine with a network of its own, and expects answers of the edge, also after "Upgrade". After "Remove" nginx runs as before, and nothing of
# Gatehouse is left but what the page names. Then "Without a package" of docs/install/machine.md, and its removal. Status 77:
# this needs root, apt and namespaces.
#
# A stand-in for systemd runs what the units say, with their user and runtime directory.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -z ${INSTALL_TEST_ROOT:-} ]]; then
  scripts/install-packages.sh nginx-install-test # a network of its own has no mirrors
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null || ! unshare --mount --net --pid --fork true; then
    echo "nginx-install-test: NOT RUN: it needs root, apt and the right to make namespaces" >&2
    exit 77
  fi
  make --no-print-directory build nginx >/dev/null # likewise: it may download modules
  INSTALL_TEST_ROOT=$(mktemp -d)
  export INSTALL_TEST_ROOT
  trap 'rmdir "$INSTALL_TEST_ROOT"' EXIT
  unshare --mount --net --pid --fork --kill-child --mount-proc "$0"
  exit
fi

top=$INSTALL_TEST_ROOT root=$INSTALL_TEST_ROOT/root
fail() {
  echo "nginx-install-test: $*" >&2
  tail -n 30 "$top"/*.log "$root"/var/log/nginx/error.log >&2 || true
  exit 1
}
mount -t tmpfs tmpfs "$top"
mkdir "$top"/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount --rbind "$PWD" "$root/$PWD" # which may be below a mount of its own
ip link set lo up
rm -rf "$root/etc/gatehouse" "$root"/usr/local/bin/{gatehouse-sidecar,gatehousectl}
chroot "$root" userdel gatehouse 2>/dev/null || true
echo 'APT::Get::Assume-Yes "true";' >"$root/etc/apt/apt.conf.d/99yes"

cat >"$root/usr/local/bin/systemctl" <<'SYSTEMCTL'
#!/bin/sh
set -e
sidecar=/etc/systemd/system/gatehouse-sidecar.service drop_in=/etc/systemd/system/nginx.service.d/gatehouse.conf
value() { sed -n "s/^$1=-\{0,1\}\(.\)/\1/p" "$2"; }
case "$*" in
daemon-reload) ;;
"enable --now gatehouse-sidecar")
  user=$(value User $sidecar)
  install -d -m "$(value RuntimeDirectoryMode $sidecar)" -o "$user" "/run/$(value RuntimeDirectory $sidecar)"
  setsid setpriv --reuid "$user" --regid "$user" --init-groups -- $(value ExecStart $sidecar) >/tmp/sidecar.log 2>&1 </dev/null &
  echo $! >/run/sidecar.pid
  ;;
"disable --now gatehouse-sidecar")
  kill "$(cat /run/sidecar.pid)"
  while kill -0 "$(cat /run/sidecar.pid)" 2>/dev/null; do sleep 0.1; done
  ;;
"disable --now gatehouse-envoy gatehouse-sidecar") ;; # neither runs
"restart nginx")
  if test -f $drop_in; then value ExecStartPre $drop_in | while read -r command; do $command; done; fi
  if test -s /run/nginx.pid; then
    pid=$(cat /run/nginx.pid)
    kill -QUIT "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  fi
  /usr/sbin/nginx
  ;;
"restart gatehouse-sidecar nginx")
  systemctl disable --now gatehouse-sidecar
  systemctl enable --now gatehouse-sidecar
  systemctl restart nginx
  ;;
"reload nginx")
  value ExecReload $drop_in | while read -r command; do $command || exit; done
  ;;
*) echo "systemctl $*: not expected" >&2 && exit 1 ;;
esac
SYSTEMCTL
chmod 755 "$root/usr/local/bin/systemctl"

chroot "$root" redis-server --bind 127.0.0.1 --port 6379 --save '' --maxmemory-policy noeviction >"$top/redis.log" &
python3 -m http.server --bind 127.0.0.1 --directory "$root/run" 8081 >"$top/upstream.log" 2>&1 &
for section in Install Upgrade Remove; do
  sed -n "/^## $section/,/^## /s/^    //p" docs/install/nginx.md >"$top/$section"
  grep -q 'systemctl' "$top/$section" || fail "docs/install/nginx.md: no commands in $section"
done
path=$(dirname "$(command -v go)"):/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
in_root() { timeout 300 chroot "$root" env -i PATH="$path" HOME="$HOME" GOFLAGS="${GOFLAGS:-}" DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "cd '$PWD' && $1"; }
paste() { in_root "$(<"$top/$1")" >"$top/$1.log" 2>&1 </dev/null || fail "a command of $top/$1 failed"; }
await_304() {
  deadline=$((SECONDS + 20))
  until [[ $(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/v1/products/42 -H 'If-None-Match: *') == 304 ]]; do
    ((SECONDS < deadline)) || fail "no 304 after 20 s"
    sleep 0.1
  done
}
paste Install
await_304
[[ $(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/v1/telemetry -d '{}') == 401 ]] || fail "want 401"
sed -i 's,prefix: /v1/telemetry,prefix: /v1/other,' "$root/etc/gatehouse/rules.yaml"
in_root "systemctl reload nginx" >"$top/reload.log" 2>&1 </dev/null || fail "the reload after a changed rule failed"
until [[ $(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/v1/other -d '{}') == 401 ]]; do
  ((SECONDS < deadline)) || fail "the changed rule is not applied"
  sleep 0.1
done
paste Upgrade
await_304
sed -i 's,prefix: /v1/other,prefixx: /v1/other,' "$root/etc/gatehouse/rules.yaml"
if in_root "systemctl reload nginx" >>"$top/reload.log" 2>&1 </dev/null; then fail "a reload took an unknown field"; fi
paste Remove
cmp -s "$root/etc/nginx/nginx.conf" /etc/nginx/nginx.conf || fail "the machine's nginx.conf was lost"
curl -s -o /dev/null http://127.0.0.1/ || fail "the machine's nginx doesn't answer"
if grep -q gatehouse /proc/[0-9]*/maps; then fail "a process has Gatehouse's files open"; fi
left() { (cd "$root" && find etc/{nginx,systemd} usr/local usr/share -newer "$top/Install" -path '*gatehouse*' ! -path '*/go/*'); }
[[ -z $(left) ]] || fail "Remove left: $(left)"

chroot "$root" userdel gatehouse
sed -n '/^Without a package/,/^The package/{/^To undo/q;s/^    //p}' docs/install/machine.md >"$top/Install"
sed -n '/^To undo/,/^The package/s/^    //p' docs/install/machine.md >"$top/Remove"
paste Install
in_root "gatehousectl check /etc/envoy/envoy.yaml && gatehouse-sidecar --config /etc/gatehouse/sidecar.yaml --check-config" >"$top/check.log" 2>&1 ||
  fail "the files of docs/install/machine.md are refused"
[[ -n $(left) ]] || fail "Install of docs/install/machine.md installed nothing"
paste Remove
[[ -z $(left) ]] || fail "the undoing of docs/install/machine.md left: $(left)"
echo "nginx-install-test: nginx: pasted, 304 and 401, reloaded, upgraded, removed; machine: pasted, checked, removed"
