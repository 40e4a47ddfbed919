package policy

import (
	"slices"
	"strings"
)

// registeredMethods are the methods of IANA's registry, and further methods that proxies accept.
var registeredMethods = strings.Fields(`ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL
	LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PROPFIND
	PROPPATCH PURGE PUT QUERY REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF
	VERSION-CONTROL M-SEARCH MKCALL NOTIFY SOURCE SUBSCRIBE UNSUBSCRIBE`)

// Methods returns the methods that rules may name without a doubt, in the order of their names.
func Methods() []string { return slices.Sorted(slices.Values(registeredMethods)) }
