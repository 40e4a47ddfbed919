#!/bin/sh
# Before the files are unpacked, since one belongs to the group.
set -e
getent passwd gatehouse >/dev/null ||
  useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gatehouse
