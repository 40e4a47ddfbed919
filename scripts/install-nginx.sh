#!/usr/bin/env bash
# Prints the path of nginx after installing it with the modules of the plugin, from the distribution's packages.
set -euo pipefail
cd "$(dirname "$0")"
for need in /usr/sbin/nginx:nginx-light /usr/lib/nginx/modules/ngx_http_lua_module.so:libnginx-mod-http-lua; do
  ./need.sh "${need%%:*}" "${need#*:}" "the NGINX edge runs in it" >&2
done
echo /usr/sbin/nginx
