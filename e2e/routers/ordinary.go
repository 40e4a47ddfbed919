package routers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// A request that must be served, and the expected resource.
type request struct {
	who          string
	method, path string
	want         string // resource; "cached:NAME" from the edge's cache; "401"
}

// fixed are ordinary requests.
var fixed = []request{
	{"nobody", "GET", "/v1/products/42", "products"},
	{"nobody", "GET", "/v1/products/42?lang=de&x=%2F%20", "products"},
	{"nobody", "GET", "/v1/products/blue%20chair", "products"},
	{"nobody", "GET", "/v1/products/published", "cached:products"},
	{"nobody", "GET", "/v1/telemetry", "telemetry-read"},
	{"nobody", "GET", "/v1/telemetry/room", "telemetry-read"},
	{"nobody", "GET", "/v1/admin/health", "health"},
	{"nobody", "GET", "/v1/devices/7", "device-read"},
	{"nobody", "GET", "/files/a", "files"},
	{"nobody", "HEAD", "/files/a%20b.txt", "files"},
	{"nobody", "GET", "/files/%C3%BCber/%E6%97%A5%E6%9C%AC%20%E8%AA%9E.html", "files"},
	{"nobody", "GET", "/files/a+b@c:d,e=f!$&'()*~_-", "files"},
	{"nobody", "GET", "/files/end.", "files"},
	{"nobody", "GET", "/files/100%25", "files"},
	{"nobody", "GET", "/files/who%3F", "files"},
	{"nobody", "GET", "/files/C%23", "files"},
	{"reader", "POST", "/v1/fleet/config", "fleet-config"},
	{"reader", "GET", "/v1/fleet/config", "fleet-config"},
	{"reader", "GET", "/v1/fleet/config?rev=1", "cached:fleet-config"},
	{"reader", "GET", "/v1/me/config", "cached:me-config:reader"},
	{"reader", "PUT", "/v1/me/config", "me-config"},
	{"writer", "POST", "/v1/telemetry", "telemetry"},
	{"writer", "POST", "/v1/telemetry/room%201", "telemetry"},
	{"writer", "POST", "/v1/telemetry/caf%C3%A9", "telemetry"},
	{"root", "GET", "/v1/admin/users", "users"},
	{"root", "POST", "/v1/admin/users/J%C3%BCrgen%20M.", "users"},
	{"root", "PUT", "/v1/devices/7", "device"},
	{"root", "DELETE", "/v1/devices/living%20room", "device"},
}

// drawnNames is the number of random names in addition.
const drawnNames = 40

// ordinaryRequests returns the fixed requests, requests with random names, and the protected paths without a
// credential, which must get a 401: otherwise the suite would test nothing.
func ordinaryRequests(seed uint64) []request {
	r := rand.New(rand.NewPCG(seed, ^uint64(0)))
	requests := slices.Clone(fixed)
	for range drawnNames {
		name := drawName(r)
		requests = append(requests, request{"nobody", "GET", "/files/" + name + "/" + drawName(r), "files"},
			request{"root", "GET", "/v1/admin/users/" + name, "users"},
			request{"writer", "POST", "/v1/telemetry/" + name, "telemetry"})
	}
	for _, p := range protected {
		requests = append(requests, request{"nobody", p.method, p.path, "401"}, request{"wrong", p.method, p.path, "401"})
	}
	return requests
}

// drawName returns a plausible name of a file, escaped as browsers do: letters of several scripts, blanks inside,
// characters that a path may have, but no escape: a name like "a%0A" may be read as two lines.
func drawName(r *rand.Rand) string {
	letters := []rune(
		"abcxyzABCXYZ0189äöüßéñøçşłжшяλωאבبت日本語한글नम😀🚲-_.~+@,=!$'()*&%#? ")
	name := make([]rune, 3+r.IntN(10))
	for i := range name {
		name[i] = letters[r.IntN(len(letters))]
	}
	name[0], name[len(name)-1] = letters[r.IntN(6)], letters[r.IntN(30)] // no dots or blanks there
	if anEscape.MatchString(string(name)) {
		return drawName(r)
	}
	return url.PathEscape(string(name))
}

var anEscape = regexp.MustCompile("%[0-9A-Fa-f]{2}")

// sendOrdinary sends the ordinary requests to all routers, by HTTP/1.1 and HTTP/2, and reports requests that are not
// served as expected.
func (f *fuzzer) sendOrdinary(ctx context.Context) error {
	clients := f.newClients()
	defer clients.close()
	for i, e := range f.edges {
		for n, want := range ordinaryRequests(f.Seed) {
			for j, router := range e.routers {
				s := spelling{protocol: http11, method: want.method, path: want.path, authority: "edge.example",
					who: identityOf(want.who)}
				if (n+j)%2 == 0 {
					s.protocol = http2
				}
				s.showCredential()
				a, err := clients[i].send(s, router)
				f.report.checkOrdinary(e.fallback, router, s, want.want, a, err)
			}
		}
	}
	return f.stopReason(ctx)
}

// checkOrdinary reports an answer other than the expected answer.
func (r *report) checkOrdinary(fallback, router string, s spelling, want string, a answer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := a.served
	switch {
	case a.cached != "":
		got = cachedTag + a.cached
	case !a.byRouter:
		got = fmt.Sprint(a.status)
	}
	if got == want && err == nil && judgeAnswer(s.who, a) == "" && (a.served == "" || sawAlike(s, a.saw)) {
		return
	}
	r.addViolation(fmt.Sprintf("%s: an ordinary request was not served as %s", router, want),
		fmt.Sprintf("  request:  as %s: %s\n  router:   %s, default %s\n  answer:   %s\n", s.who.name,
			s, router, fallback, describeAnswer(a, err)))
}

// sawAlike reports whether a router received the sent method and path, ignoring differences of escaping.
func sawAlike(s spelling, saw string) bool {
	method, path, _ := strings.Cut(saw, " ")
	path, _, _ = strings.Cut(path, "?") // some routers report the query, too
	sent, _, _ := strings.Cut(s.path, "?")
	got, err := url.PathUnescape(path)
	want, _ := url.PathUnescape(sent)
	return err == nil && method == s.method && got == want
}
