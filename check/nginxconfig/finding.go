package nginxconfig

import (
	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/topology"
)

// Kinds of findings. 11: files and plugin. 12: unjudged requests. 13: headers to the upstream. 14: answers. 15: push
// listener and operators' listener.
var (
	noInit = findings.ErrorKind("GH1103",
		"call require(\"gatehouse.edge\").init in init_by_lua_block, as nginx/nginx.conf does")
	noStart     = findings.ErrorKind("GH1104", "include http.conf in the http block")
	noDict      = findings.ErrorKind("GH1105", "include http.conf in the http block")
	smallMemory = findings.WarningKind("GH1106",
		"give memory_mib of edge.init and --memory.bytes of the sidecar the same size")
	noCodeCache = findings.ErrorKind("GH1107", "remove lua_code_cache off")
	rulesUnread = findings.WarningKind("GH1108", "give the rules: gatehousectl check --rules rules.yaml nginx.conf")

	satisfyAny  = findings.ErrorKind("GH1202", "set satisfy all")
	returnFirst = findings.WarningKind("GH1204",
		"answer by a file or by content_by_lua_block, which come after the access phase")

	splitHeader = findings.ErrorKind("GH1302", "use $request_uri, which is not decoded, or proxy_pass without a path")
	authRequest = findings.WarningKind("GH1303",
		"set proxy_set_header X-Gatehouse-Device \"\" and proxy_set_header X-Gatehouse-Permissions \"\" in its location")

	reencoded = findings.WarningKind("GH1403", "switch it off there")
)

// Kinds of findings that the other proxy has, too.
var (
	unreadable     = topology.Unreadable[findings.Nginx]
	noPlugin       = topology.NoFilter[findings.Nginx]
	badRules       = topology.BadRules[findings.Nginx]
	openMethod     = topology.OpenMethod[findings.Nginx]
	openPart       = topology.OpenPart[findings.Nginx]
	unknownMethod  = topology.UnknownMethod[findings.Nginx]
	notEnforced    = topology.NotEnforced[findings.Nginx]
	wildcard       = topology.Wildcard[findings.Nginx]
	ownAccess      = topology.SwitchedOff[findings.Nginx]
	unjudged       = topology.Unjudged[findings.Nginx]
	rewriteIn      = topology.OpenRewrite[findings.Nginx]
	unclear        = topology.UnclearRewrite[findings.Nginx]
	toPrivate      = topology.ToPrivate[findings.Nginx]
	clientsChoose  = topology.ClientsChoose[findings.Nginx]
	otherMethod    = topology.Translated[findings.Nginx]
	tunnel         = topology.Tunnel[findings.Nginx]
	weakerHost     = topology.WeakerHost[findings.Nginx]
	forgedIdentity = topology.SetsIdentity[findings.Nginx]
	anySource      = topology.ForgedSource[findings.Nginx]
	sharedCache    = topology.SharedCache[findings.Nginx]
	lostHeaders    = topology.SharedAnswers[findings.Nginx]
	changedBody    = topology.ChangedAnswer[findings.Nginx]
	changedHeader  = topology.ChangedHeader[findings.Nginx]
	noPush         = topology.NoPush[findings.Nginx]
	openPush       = topology.OpenPush[findings.Nginx]
	smallPush      = topology.SmallPush[findings.Nginx]
	openAdmin      = topology.OpenAdmin[findings.Nginx]
	openDir        = topology.OpenSocket[findings.Nginx]
)

// Kinds returns the kinds of findings of this proxy only, by code.
func Kinds() []findings.Kind {
	return []findings.Kind{
		noInit, noStart, noDict, smallMemory, noCodeCache, rulesUnread, satisfyAny, returnFirst, splitHeader,
		authRequest, reencoded,
	}
}
