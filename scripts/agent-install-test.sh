#!/usr/bin/env bash
# agent-install-test.sh: pastes "On a machine" of docs/agent.md into a shell in a copy-on-write view of this machine, with
# two edges of two users, an Envoy and an nginx. The sidecar's unit runs with the drop-in. Both edges answer; a process of
# one user can open neither socket of the other; both go on while the agent is away, and the next one fills them. Status
# 77: this needs root and namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -z ${INSTALL_TEST_ROOT:-} ]]; then
  scripts/install-packages.sh nginx-install-test
  if [[ $(id -u) != 0 ]] || ! unshare --mount --net --pid --fork true; then
    echo "agent-install-test: NOT RUN: it needs root and the right to make namespaces" >&2
    exit 77
  fi
  make --no-print-directory build nginx >/dev/null
  INSTALL_TEST_ROOT=$(mktemp -d)
  export INSTALL_TEST_ROOT
  trap 'rmdir "$INSTALL_TEST_ROOT"' EXIT
  unshare --mount --net --pid --fork --kill-child --mount-proc "$0"
  exit
fi

top=$INSTALL_TEST_ROOT root=$INSTALL_TEST_ROOT/root
fail() {
  echo "agent-install-test: $*" >&2
  tail -n 20 "$top"/*.log >&2 || true
  exit 1
}
mount -t tmpfs tmpfs "$top"
mkdir "$top"/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount --rbind "$PWD" "$root/$PWD"
chmod 755 "$top" "$root"
ip link set lo up
in_root() { chroot "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin bash -euo pipefail -c "cd '$PWD' && $1"; }
as() { chroot "$root" setpriv --reuid "$1" --regid "$1" --init-groups --no-new-privs "${@:2}"; }

# The parts of docs/install that come before: programs, users, files.
in_root "install -t /usr/local/bin build/gatehouse-sidecar build/gatehousectl
for user in gatehouse shop fleet; do id -u \$user >/dev/null 2>&1 || useradd --system --shell /usr/sbin/nologin \$user; done
install -D -m 0644 -t /etc/gatehouse build/gatehouse.wasm nginx/rules.yaml
install -m 0640 -g gatehouse -t /etc/gatehouse release/packaging/sidecar.yaml
install -m 0644 -t /etc/systemd/system docs/systemd/gatehouse-sidecar.service
gatehousectl nginx install --library build/libgatehouse-nginx.so /usr/share/gatehouse/nginx" >"$top/install.log" 2>&1 || fail "the programs can't be installed"
cat >"$root/usr/local/bin/systemctl" <<'SYSTEMCTL'
#!/bin/sh
# A stand-in, which runs what the unit and its drop-in say.
set -e
unit=/etc/systemd/system/gatehouse-sidecar.service
value() { sed -n "s/^$1=//p" $unit $unit.d/*.conf | tail -1; }
stop() { if kill "$(cat /run/sidecar.pid)" 2>/dev/null; then while kill -0 "$(cat /run/sidecar.pid)" 2>/dev/null; do sleep 0.1; done; fi; }
case "$*" in
daemon-reload) ;;
"stop gatehouse-sidecar") stop ;;
"restart gatehouse-sidecar")
  stop
  user=$(value User)
  install -d -m "$(value RuntimeDirectoryMode)" -o "$user" -g "$user" "/run/$(value RuntimeDirectory)"
  setsid setpriv --reuid "$user" --regid "$user" --init-groups --no-new-privs -- env "$(value Environment)" sh -c "umask $(value UMask); exec $(value ExecStart)" >/tmp/sidecar.log 2>&1 </dev/null &
  echo $! >/run/sidecar.pid
  ;;
*) echo "systemctl $*: not expected" >&2 && exit 1 ;;
esac
SYSTEMCTL
chmod 755 "$root/usr/local/bin/systemctl"
chroot "$root" redis-server --bind 127.0.0.1 --port 6379 --save '' --maxmemory-policy noeviction >"$top/redis.log" &
echo upstream >"$root/run/index.html"
python3 -m http.server --bind 127.0.0.1 --directory "$root/run" 8081 >"$top/upstream.log" 2>&1 &

sed -n '/^## On a machine/,/^## /s/^    //p' docs/agent.md >"$top/paste"
grep -q systemd-tmpfiles "$top/paste" || fail "docs/agent.md: no commands in On a machine"
in_root "$(<"$top/paste")" >"$top/paste.log" 2>&1 </dev/null || fail "a command of docs/agent.md failed"

# edge NAME: expects 304 of its proxy.
declare -A port=([shop]=8080 [fleet]=8082)
await_hit() {
  local deadline=$((SECONDS + 60))
  until curl -si "http://127.0.0.1:${port[$1]}/v1/products/42" -H 'If-None-Match: *' | head -1 | grep -q ' 304 '; do
    ((SECONDS < deadline)) || fail "$1: no 304 after 60 s"
    sleep 0.1
  done
}
edge=/run/gatehouse/edges
sed -e "s,/run/gatehouse/push.sock\, mode: 384,$edge/shop/push.sock\, mode: 432," -e "s,/run/gatehouse/api.sock,$edge/shop/api.sock," envoy/envoy.yaml >"$root/etc/envoy-shop.yaml"
checked=$(in_root "gatehousectl check /etc/envoy-shop.yaml" 2>&1) || fail "gatehousectl check: $checked"
[[ $checked != *GH* ]] || fail "gatehousectl check finds a mistake: $checked"
as shop "$(realpath "$(scripts/install-envoy.sh)")" --config-path /etc/envoy-shop.yaml --concurrency 1 --log-level warning --disable-hot-restart >"$top/envoy.log" 2>&1 &
sed -e 's/^user gatehouse;/user fleet;/' -e "s,unix:/run/gatehouse/,unix:$edge/fleet/," -e "s,/run/gatehouse/memory,$edge/fleet/memory," \
  -e 's/127.0.0.1:8080/127.0.0.1:8082/' -e 's/127.0.0.1:9901/127.0.0.1:9902/' nginx/nginx.conf >"$root/etc/nginx/nginx.conf"
in_root "gatehousectl nginx render /etc/gatehouse/rules.yaml --output /etc/gatehouse/rules.json && gatehousectl check /etc/nginx/nginx.conf && /usr/sbin/nginx" >"$top/nginx.log" 2>&1 || fail "nginx doesn't start"
in_root "echo '{\"id\":42}' | gatehousectl --redis redis://127.0.0.1:6379 put /v1/products/42 --file -" >"$top/put.log" 2>&1 || fail "nothing can be published"
for name in shop fleet; do await_hit $name; done

# Each user opens its own sockets; another's it can't, although a process listens there. 7: curl can't connect.
expect() { # USER SOCKET STATUS
  local status=0
  as "$1" /usr/bin/curl -s -o /dev/null --max-time 5 --unix-socket "$edge/$2" http://edge/ || status=$?
  [[ $status == "$3" ]] || fail "user $1, $2: curl ended with $status, want $3"
}
for socket in push.sock api.sock; do
  expect shop shop/$socket 0
  expect fleet fleet/$socket 0
  expect shop fleet/$socket 7
  expect fleet shop/$socket 7
  expect daemon shop/$socket 7
done

in_root "systemctl stop gatehouse-sidecar" || fail "the agent doesn't stop"
for name in shop fleet; do await_hit $name; done
in_root "systemctl restart gatehouse-sidecar" || fail "the agent doesn't start again"
in_root "echo '{\"id\":43}' | gatehousectl --redis redis://127.0.0.1:6379 put /v1/products/43 --file -" >"$top/put.log" 2>&1
for name in shop fleet; do
  deadline=$((SECONDS + 20))
  until [[ $(curl -s "http://127.0.0.1:${port[$name]}/v1/products/43") == '{"id":43}' ]]; do
    ((SECONDS < deadline)) || fail "$name: nothing new after the agent's restart"
    sleep 0.1
  done
done
echo "agent-install-test: two edges of two users answer; each opens only its own sockets; both go on without the agent, and are filled by the next one"
