package routers

import (
	"fmt"
	"slices"
	"strings"
)

// An answer is a response, with the request that the router says it served.
type answer struct {
	status    int
	byRouter  bool   // the router answered, not the edge itself
	grpc      bool   // it is a gRPC answer, which has its status elsewhere
	served    string // name of the resource; empty: none
	saw       string // method and path as the router received them
	sawDevice string // the identity that the edge sent to the router
	cached    string // the object that the edge answered from shared memory; empty: none
	body      string // its beginning
}

// judgeAnswer is the oracle: it returns what is wrong with an answer to a request of who, empty if nothing is.
// judgeAnswer does not depend on rules or on the parsing of paths, only on what was served:
//
//   - a protected resource only to a device that has its permission,
//   - by a router only if the edge has checked the request, as the device's name shows,
//   - by the edge only published objects,
//   - and no router ever gets the name of a device whose credential the request doesn't have.
func judgeAnswer(who *identity, a answer) string {
	if a.cached != "" {
		name, owner, _ := strings.Cut(a.cached, ":")
		if owner != "" && owner != who.device {
			return fmt.Sprintf("the object of %s, given to %s", owner, who.name)
		}
		return judgeResource(who, name)
	}
	if !a.byRouter && !a.grpc && a.status < 400 && a.status != 0 {
		return fmt.Sprintf("the edge answered %d by itself with what was never published", a.status)
	}
	if a.sawDevice != "" && a.sawDevice != who.device {
		return fmt.Sprintf("the router was told that %s is device %s", who.name, a.sawDevice)
	}
	if a.served == "" {
		return ""
	}
	if wrong := judgeResource(who, a.served); wrong != "" {
		return wrong
	}
	if r, _ := findResource(a.served); r.permission != "" && a.sawDevice == "" {
		return a.served + " served, and the request was judged under no rule"
	}
	return ""
}

func judgeResource(who *identity, name string) string {
	r, known := findResource(name)
	if !known {
		return fmt.Sprintf("%q served, which is no resource", name)
	}
	if r.permission != "" && !slices.Contains(who.permissions, r.permission) {
		return fmt.Sprintf("%s served to %s, which has no permission %s", name, who.name, r.permission)
	}
	return ""
}
