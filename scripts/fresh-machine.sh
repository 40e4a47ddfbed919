#!/usr/bin/env bash
# fresh-machine.sh [--go-build-cache] SUITE COMMAND...: runs COMMAND as root in a clone of HEAD on a machine made new: a
# minimal Debian or Ubuntu (SUITE is bookworm, trixie, noble, …) with this machine's kernel, network and Go, what
# README.md says is needed before "make", and nothing else: no cache of Go, pip or apt, and no file of this machine but
# its settings for registries and certificates. Ports are shared, so another make run would be in the way.
# --go-build-cache: what Go compiles is kept for the next such machine. Go names it by the contents of all that it depends
# on, but for C libraries, so each SUITE has its own. Modules are downloaded as without.
# Status 77: this machine can't make one, or its mirror doesn't have SUITE.
#
# All of it is in namespaces of its own, which end with this script however it ends, and in a directory that is deleted
# then, or by the next run.
set -euo pipefail
cd "$(dirname "$0")/.."
build_cache=
if [[ $1 == --go-build-cache ]]; then
  build_cache=1
  shift
fi
suite=$1
shift

not_run() {
  echo "fresh-machine: NOT RUN: $*" >&2
  exit 77
}
[[ $(id -u) == 0 ]] || not_run "it needs root"
command -v apt-get >/dev/null || not_run "it needs apt"
scripts/install-packages.sh fresh-machine
unshare --mount --pid --fork true || not_run "it needs the right to make namespaces"
[[ -z $(git status --porcelain) ]] || echo "fresh-machine: changes that are not committed are not tested" >&2

# What is left of runs that were killed: nobody holds the lock of such a directory.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse
mkdir -p "$cache"
for old in "$cache"/fresh-machine.*; do
  [[ ! -d $old ]] || flock --nonblock "$old" rm -rf "$old" || true
done
work=$(mktemp -d "$cache/fresh-machine.XXXXXX")
root=$work/root over=$work/over pid=
# shellcheck disable=SC2317 # the trap calls it
finish() {
  # Nothing of it runs on, and no mount is left, when the first process of its namespace has ended.
  [[ -z $pid ]] || { kill -KILL "$pid" 2>/dev/null && wait "$pid"; } || true
  until rm -rf "$work" 2>/dev/null; do sleep 0.1; done # its last processes may still write
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
exec 9<"$work"
flock 9

# The system alone is kept, without lists and packages of apt.
before=(git make curl python3 ca-certificates) # of README.md
base=$cache/system-$suite-$(sha256sum <<<"${before[*]}" | cut -c1-8)
if [[ ! -d $base ]]; then
  [[ -e /usr/share/debootstrap/scripts/$suite ]] || not_run "debootstrap doesn't know $suite"
  # This machine's own mirrors, which may have the other distribution beside its own.
  mirror=
  # shellcheck disable=SC2016 # apt expands it
  for name in $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sort -u | sed 'p; s,/debian/*$,/ubuntu,'); do
    ! curl -fsSIL -o "$work/log" "${name%/}/dists/$suite/Release" 2>/dev/null || { mirror=$name && break; }
  done
  [[ -n $mirror ]] || not_run "no mirror of this machine has $suite"
  echo "fresh-machine: making a minimal $suite" >&2
  include=$(IFS=, && echo "${before[*]}")
  debootstrap --force-check-gpg --variant=minbase --include="$include" "$suite" "$work/base" "$mirror" >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; not_run "debootstrap could not make $suite"; }
  rm -rf "$work"/base/var/lib/apt/lists/* "$work"/base/var/cache/apt/*
  mv -T "$work/base" "$base"
fi

# What is laid over the system: the clone, and what this machine says of registries, proxies and certificates.
git clone --quiet . "$over/src"
mkdir -p "$over/etc/apt/apt.conf.d" "$work/layers" "$root"
apt-config dump Acquire | grep -v IndexTargets >"$over/etc/apt/apt.conf.d/99machine"
for file in /etc/resolv.conf /etc/hosts /etc/apt/auth.conf /etc/apt/auth.conf.d /etc/ssl/certs/ca-certificates.crt \
  /usr/local/share/ca-certificates /etc/pip.conf ~/.config/pip/pip.conf ~/.pip/pip.conf ~/.netrc; do
  [[ ! -e $file ]] || { mkdir -p "$over${file%/*}" && cp -rL "$file" "$over${file%/*}/"; }
done
settings=(HOME=/root PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
for name in GOPROXY GOSUMDB GOPRIVATE GONOPROXY GONOSUMDB GOINSECURE; do settings+=("$name=$(go env "$name")"); done
mapfile -t -O "${#settings[@]}" settings < <(env | grep -iE '^((https?|no|all)_proxy|SEED|SSL_CERT_(FILE|DIR)|PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|PROXY|TRUSTED_HOST|DEFAULT_TIMEOUT))=')

[[ -z $build_cache ]] || { build_cache=$cache/go-build-$suite && mkdir -p "$build_cache"; }
GOROOT=$(go env GOROOT)
export base work root over GOROOT build_cache
# shellcheck disable=SC2016 # the inner shell expands it
setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child bash -euc '
  mount -t overlay -o "lowerdir=$base,upperdir=$over,workdir=$work/layers" overlay "$root" 2>/dev/null ||
    { cp -a "$base/." "$root/" && cp -a "$over/." "$root/"; } # where the layers can not be an overlay of another one
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mkdir -p "$root/usr/local/go"
  mount --bind "$GOROOT" "$root/usr/local/go"
  mount -o remount,bind,ro "$root/usr/local/go"
  if [[ -n $build_cache ]]; then
    mkdir -p "$root/root/.cache/go-build"
    mount --bind "$build_cache" "$root/root/.cache/go-build"
  fi
  exec chroot "$root" env --chdir=/src -i "$@"' bash "${settings[@]}" "$@" 9<&- </dev/null &
pid=$!
status=0
wait "$pid" || status=$?
pid=
exit "$status"
