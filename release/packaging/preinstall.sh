#!/bin/sh
# Before the files are unpacked, since one belongs to the group.
set -e
getent group gatehouse >/dev/null || groupadd --system gatehouse
getent passwd gatehouse >/dev/null ||
  useradd --system --gid gatehouse --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gatehouse
