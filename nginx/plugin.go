package nginx

import "embed"

// Plugin has the files that nginx.conf expects in /usr/share/gatehouse/nginx.
//
//go:embed lua http.conf server.conf push.conf
var Plugin embed.FS
