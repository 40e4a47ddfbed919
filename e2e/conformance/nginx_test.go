package conformance

import (
	"os"
	"regexp"
	"strings"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// onNginx reports whether the edge is nginx: EDGE_KIND=nginx.
func onNginx() bool { return os.Getenv("EDGE_KIND") == string(stack.NginxEdge) }

// alsoHTTP2 has nginx listen for HTTP/2 on another address with the same port: version 1.22 has no listener for HTTP/1
// and HTTP/2 with prior knowledge.
func alsoHTTP2(config string) string {
	return regexp.MustCompile(`listen 127\.0\.0\.1(:[0-9]+) reuseport;`).ReplaceAllString(config,
		"$0 listen 127.0.0.2$1 http2 reuseport;")
}

// addressOfHTTP2 returns an edge's address for HTTP/2; address is the edge's first address.
func addressOfHTTP2(address string) string {
	if onNginx() {
		return strings.Replace(address, "127.0.0.1:", "127.0.0.2:", 1)
	}
	return address
}

// The tables below have the cases in which nginx itself, not the plugin, differs from Envoy. TestCases fails for a case
// that no table has, or whose answer is the same. nginx/README.md lists the differences that matter to operators.

const (
	twoLines  = "nginx refuses a second line of these fields"
	rawTarget = "nginx and plugin take the target as it was sent: the upstream gets just that"
	ignored   = "nginx ignores such a field; no upstream gets it"
	reads     = "nginx reads the content to its end and drops it, so the connection stays"
)

// nginxAnswers are nginx's answers to a testCase, by name; without a status, nginx gets no request.
var nginxAnswers = map[string]struct {
	why          string
	status       int
	from, fields string
}{
	"two credentials":                 {twoLines, 400, "edge", ""},
	"two lines, the second has it":    {twoLines, 400, "edge", ""},
	"two lines, the first has it":     {twoLines, 400, "edge", ""},
	"three lines, none has it":        {twoLines, 400, "edge", ""},
	"two dates":                       {twoLines, 400, "edge", ""},
	"since its date, twice":           {twoLines, 400, "edge", ""},
	"dot segments":                    {rawTarget, 200, "fwd=uri-miss", ""},
	"slashes are merged":              {rawTarget, 200, "fwd=uri-miss", ""},
	"two dots":                        {rawTarget + "; the rules refuse two dots", 403, "edge", ""},
	"two dots from elsewhere":         {rawTarget + "; the rules refuse two dots", 403, "edge", ""},
	"dot segments don't get by":       {rawTarget + "; the rules refuse two dots", 403, "edge", ""},
	"an escaped slash is refused":     {"Envoy refuses it, here the rules do", 403, "edge", ""},
	"an escaped backslash is refused": {"Envoy refuses it, here the rules do", 403, "edge", ""},
	"nothing has no type":             {"only Envoy removes it", 200, "hit", "content: \ncontent-type: text/plain"},
	"an early hint of the upstream": {"nginx before 1.29 takes a 103 for the answer, and the client gets none until " +
		"proxy_read_timeout", 0, "", ""},
}

// nginxStatuses are the statuses for a message or message2, by name.
var nginxStatuses = map[string]struct {
	why      string
	statuses []int
}{
	"chunked with a tab": {"nginx takes the tab for a part of the coding's name",
		[]int{501}},
	"a field that is too long":                             {"nginx has no 431", []int{400}},
	"fields that are too many":                             {"nginx bounds their octets, not their number", []int{200}},
	"a name with an underscore":                            {ignored, []int{200}},
	"a name with an underscore: upstreams take it for '-'": {ignored, []int{200}},
	"a name that is no token":                              {ignored, []int{200}},
	"a field without a colon":                              {"for nginx, its value is empty", []int{200}},
	"a fragment":                                           {rawTarget, []int{200}},
	"a :path with a fragment":                              {rawTarget, []int{200}},
	"no version: HTTP/0.9":                                 {"nginx answers in HTTP/0.9: without a status", []int{0}},
	"a version of two digits":                              {"for nginx, it is a higher minor version", []int{200}},
	"a precondition on two lines":                          {twoLines, []int{400}},
	"Connection":                                           {"nginx ignores it in HTTP/2", []int{200}},
	"Transfer-Encoding":                                    {"nginx ignores it in HTTP/2", []int{200}},
	"a pseudo-header field after others":                   {"nginx 1.22 accepts any order", []int{200}},
}

// nginxDialogues are the dialogues that differ on nginx, by name.
var nginxDialogues = map[string]struct {
	why      string
	sends    []string
	statuses []int
	stays    bool
}{
	"content of a hit is not the next request":     {reads, []string{contentOfHit}, []int{200}, true},
	"chunks of a hit are not the next request":     {reads, []string{chunksOfHit}, []int{200}, true},
	"content of a refusal is not the next request": {reads, []string{contentOfRefusal}, []int{401}, true},
	"a refusal after 100 Continue": {reads,
		[]string{post + "content-length: 3\r\nexpect: 100-continue\r\n\r\n", "abc"}, []int{100, 401}, true},
	"100 Continue of HTTP/1.0": {
		"nginx sends none, as the section says",
		[]string{"POST /w HTTP/1.0\r\n" + good + "content-length: 3\r\nexpect: 100-continue\r\n\r\nabc"}, []int{200}, false,
	},
}
