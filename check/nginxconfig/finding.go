package nginxconfig

import "github.com/gatehouse/gatehouse/check/findings"

// Kinds of findings. 11: files and plugin. 12: unjudged requests. 13: headers to the upstream. 14: answers. 15: push
// listener and operators' listener.
var (
	unreadable = findings.ErrorKind("GH1101",
		"correct the file; on another machine than nginx's, check the output of nginx -T")
	noPlugin = findings.ErrorKind("GH1102",
		"add the parts of nginx/nginx.conf, and include server.conf in each server that Gatehouse protects")
	noInit = findings.ErrorKind("GH1103",
		"call require(\"gatehouse.edge\").init in init_by_lua_block, as nginx/nginx.conf does")
	noStart     = findings.ErrorKind("GH1104", "include http.conf in the http block")
	noDict      = findings.ErrorKind("GH1105", "include http.conf in the http block")
	smallMemory = findings.WarningKind("GH1106",
		"give memory_mib of edge.init and --memory.bytes of the sidecar the same size")
	noCodeCache = findings.ErrorKind("GH1107", "remove lua_code_cache off")
	rulesUnread = findings.WarningKind("GH1108", "give the rules: gatehousectl check --rules rules.yaml nginx.conf")
	badRules    = findings.ErrorKind("GH1109",
		"correct the rules, and write the file again with gatehousectl nginx render")
	openMethod = findings.WarningKind("GH1110",
		"put the rule with auth above it; if anybody may read these paths, add methods: [GET] to the rule that only caches")
	openPart      = findings.ErrorKind("GH1111", "put the narrower rule above the broader one")
	unknownMethod = findings.ErrorKind("GH1112", "correct the method: methods: [POST]")
	notEnforced   = findings.WarningKind("GH1113",
		"enforce or serve it once it would do only what you want")
	wildcard = findings.ErrorKind("GH1114", "cut the path before the wildcard and make it a prefix: prefix: /v1/users/")

	ownAccess = findings.ErrorKind("GH1201",
		"remove the access_by_lua, or call require(\"gatehouse.edge\").access() at its end")
	satisfyAny = findings.ErrorKind("GH1202", "set satisfy all")
	unjudged   = findings.ErrorKind("GH1203",
		"include server.conf in the server, or listen on loopback; for paths that need no credential, clear "+
			"X-Gatehouse-Device and X-Gatehouse-Permissions there with proxy_set_header, without underscores_in_headers on and "+
			"ignore_invalid_headers off")
	returnFirst = findings.WarningKind("GH1204",
		"answer by a file or by content_by_lua_block, which come after the access phase")
	rewriteIn     = findings.ErrorKind("GH1205", "give the path that clients send a rule with the same auth")
	toPrivate     = findings.ErrorKind("GH1206", "remove the location, or pass its requests to the service")
	clientsChoose = findings.ErrorKind("GH1207", "name the upstream, or choose it by a map of constants")
	otherMethod   = findings.ErrorKind("GH1208",
		"remove proxy_method or set_method, or give the rule the client's method, too")
	tunnel = findings.WarningKind("GH1209",
		"pass on websocket only: map $http_upgrade $websocket { websocket websocket; } and proxy_set_header Upgrade "+
			"$websocket")

	weakerHost = findings.ErrorKind("GH1210", "give both hosts the same rules there, or the other default: deny, or "+
		"each an upstream")

	forgedIdentity = findings.ErrorKind("GH1301", "remove the line: the plugin sets this header")
	splitHeader    = findings.ErrorKind("GH1302", "use $request_uri, which is not decoded, or proxy_pass without a path")
	authRequest    = findings.WarningKind("GH1303",
		"set proxy_set_header X-Gatehouse-Device \"\" and proxy_set_header X-Gatehouse-Permissions \"\" in its location")
	anySource = findings.WarningKind("GH1304", "name only the addresses of your proxies in set_real_ip_from")

	sharedCache = findings.ErrorKind("GH1401", "set proxy_cache_bypass $gatehouse_private and proxy_no_cache "+
		"$gatehouse_private, or remove the cache")
	lostHeaders   = findings.WarningKind("GH1402", "repeat the add_header lines of server.conf there")
	reencoded     = findings.WarningKind("GH1403", "switch it off there")
	changedBody   = findings.ErrorKind("GH1404", "move it to a location without cached paths")
	changedHeader = findings.WarningKind("GH1405",
		"let publisher and upstream send that header, or move the line to a location without cached paths")

	noPush    = findings.ErrorKind("GH1501", "add the server with push.conf as nginx/nginx.conf has it")
	openPush  = findings.ErrorKind("GH1502", "listen on a unix socket: listen unix:/run/gatehouse/push.sock")
	smallPush = findings.ErrorKind("GH1503", "include push.conf, which sets client_max_body_size 4m")
	openAdmin = findings.WarningKind("GH1504", "listen on loopback: listen 127.0.0.1:9901")
	openDir   = findings.ErrorKind("GH1505", "chmod 700 the directory, and give it to the user of nginx and the sidecar")
)

// Kinds returns all kinds of findings, by code.
func Kinds() []findings.Kind {
	return []findings.Kind{
		unreadable, noPlugin, noInit, noStart, noDict, smallMemory, noCodeCache, rulesUnread, badRules,
		openMethod, openPart, unknownMethod, notEnforced, wildcard,
		ownAccess, satisfyAny, unjudged, returnFirst, rewriteIn, toPrivate, clientsChoose, otherMethod, tunnel,
		weakerHost,
		forgedIdentity, splitHeader, authRequest, anySource,
		sharedCache, lostHeaders, reencoded, changedBody, changedHeader,
		noPush, openPush, smallPush, openAdmin, openDir,
	}
}
