#!/bin/sh
# dpkg passes "remove" or "upgrade".
set -e
case "$1" in
remove)
  if [ -d /run/systemd/system ]; then
    systemctl disable --now gatehouse-envoy.service gatehouse-sidecar.service
  else
    rm -f /etc/systemd/system/multi-user.target.wants/gatehouse-envoy.service \
      /etc/systemd/system/multi-user.target.wants/gatehouse-sidecar.service
  fi
  ;;
esac
