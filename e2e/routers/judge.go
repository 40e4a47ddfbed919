package routers

import (
	"fmt"
	"slices"
	"strings"
)

// An answer is what came back, and what the router says of the request that it served.
type answer struct {
	status    int
	byRouter  bool   // it is the router's answer, and not the edge's own
	grpc      bool   // and it is gRPC's, which has its status elsewhere
	served    string // name of the resource; empty: none
	saw       string // method and path as the router has them
	sawDevice string // the identity that the edge told the router
	cached    string // what the edge answered from shared memory; empty: nothing
	body      string // its beginning
}

// judge is the oracle: it says what is wrong with an answer to a request of who, empty if
// nothing is. It knows nothing of rules and of how paths are read. What counts is what was served:
//
//   - a protected resource only to a device that has its permission,
//   - by a router only if the edge has judged the request, which it tells by naming the device,
//   - by the edge only what was published,
//   - and no router is ever told a device that the request has no credential of.
func judge(who *identity, a answer) string {
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
	if r, _ := find(a.served); r.permission != "" && a.sawDevice == "" {
		return a.served + " served, and the request was judged under no rule"
	}
	return ""
}

func judgeResource(who *identity, name string) string {
	r, known := find(name)
	if !known {
		return fmt.Sprintf("%q served, which is no resource", name)
	}
	if r.permission != "" && !slices.Contains(who.permissions, r.permission) {
		return fmt.Sprintf("%s served to %s, which has no permission %s", name, who.name, r.permission)
	}
	return ""
}
