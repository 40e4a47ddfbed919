package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// manyRules are enforced with empty %[1]s and %[2]s, and deny as %[3]s.
const manyRules = `
sidecar: {cluster: gatehouse-sidecar, timeout: 20s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
session: {metadata: gatehouse}
rules:
- {name: session, match: {path: /v1/session, methods: [POST]}, session: issue}
- {name: warm, match: {path: /warm}, auth: {%[2]s}}
- {name: write, match: {prefix: /write}, auth: {permissions: [write]%[1]s}}
- {name: writes, match: {prefix: /writ}, auth: {%[2]s}}
- {name: some, match: {prefix: /some/, methods: [GET, POST]}, auth: {%[2]s}}
- {name: own, match: {prefix: /own/}, auth: {permissions: [read, write]%[1]s}, cache: {scope: device}}
- {name: free, match: {prefix: /free/}}
default: %[3]s
virtual_hosts:
  shop:
    domains: [shop.example, "*.shop.example"]
    default: %[3]s
    rules:
    - {name: cart, match: {prefix: /cart/}, auth: {permissions: [write]%[1]s}}
    - {name: open, match: {prefix: /open/}}
  basic: {domains: [basic.example], credentials: {basic: true}, rules: [{match: {prefix: /in/}, auth: {%[2]s}}]}
`

// judged is the rule that counts a request, and the outcome; empty if nothing counts the request.
type judged struct{ rule, outcome string }

type identity struct {
	lines, basic []string // in headers, and for a host with basic credentials
	permissions  []string // of its device; unless it is bad
	bad          bool
}

// target is a kind of request: host and path, the rule, and the rule's requirements.
type target struct {
	host, path, rule string
	permissions      []string
	methods          []string // that have the rule; nil: all
	open             bool     // the rule asks for nothing
	always           string   // outcome whatever the credential
}

// expected is the oracle: the outcome under enforced rules.
func (t *target) expected(method string, i *identity) judged {
	if t.methods != nil && !slices.Contains(t.methods, method) {
		return judged{"none", "forbidden"}
	}
	switch {
	case t.open:
		return judged{}
	case t.always != "":
		return judged{t.rule, t.always}
	case i.bad:
		return judged{t.rule, "deny"}
	case slices.ContainsFunc(t.permissions, func(p string) bool { return !slices.Contains(i.permissions, p) }):
		return judged{t.rule, "forbidden"}
	}
	return judged{t.rule, "allow"}
}

// askHost sends a request for a host and returns the status of the answer.
func askHost(client *http.Client, url, method, host, path, body string, lines []string) (int, error) {
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		return 0, err
	}
	if body != "" {
		request.Body = io.NopCloser(strings.NewReader(body)) // chunked
	}
	request.URL.Opaque, request.Host = path, host // not an absolute target, which has a host itself
	request.Header.Set("User-Agent", "")
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		request.Header.Add(name, value)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response.StatusCode, err
}

// TestTrialOfMany sends 10,000 mixed requests to the upstream, to an edge that enforces its rules and to an edge with
// the same rules in a trial. The latter answers each request like the upstream, and counts, by rule and outcome,
// exactly the refusals of the former.
func TestTrialOfMany(t *testing.T) {
	t.Parallel()
	shipped, err := os.ReadFile("../envoy/envoy.yaml")
	require.NoError(t, err)
	opts := stack.Options{ConfigPath: writeFile(t, "envoy.yaml", strings.ReplaceAll(string(shipped), "#session ", "")),
		Rules: fmt.Sprintf(manyRules, "", "", "deny"), SidecarArgs: []string{"--limit.device=0", "--limit.source=0",
			"--session.secret-file=" + writeFile(t, "secret", sessionSecret+"\n")}}
	enforced := start(t, opts)
	opts.RedisURL = enforced.RedisURL()
	opts.Rules = fmt.Sprintf(manyRules, ", enforce: false", "enforce: false", "would_deny")
	trial := start(t, opts)

	identities := manyIdentities(enforced)
	for _, e := range []*edge{enforced, trial} {
		good, gone := identities[len(identities)-2].lines, identities[len(identities)-1].lines
		e.awaitPushed()
		clients := e.workerClients()
		await(t, "the keys of tokens", patience, func() error {
			return e.sendFromAll(clients, func(a answer) bool { return a.status == 200 }, "GET /warm", good...)
		})
		await(t, "the revocation", patience, func() error {
			return e.sendFromAll(clients, func(a answer) bool { return a.status == 401 || e == trial }, "GET /warm", gone...)
		})
	}

	seed := seed.Of(t)
	const senders = 16
	many := pickSize(10_000, 2_000)
	var mu sync.Mutex
	want := map[judged]int{}
	var wg sync.WaitGroup
	for n := range senders {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(n)))
			mine := map[judged]int{}
			client := newClient()
			for range many / senders {
				if err := askAll(client, random, identities, [3]string{enforced.UpstreamURL(), trial.EdgeURL(), enforced.EdgeURL()},
					mine); err != nil {
					t.Error(err)
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for j, count := range mine {
				want[j] += count
			}
		})
	}
	wg.Wait()
	delete(want, judged{})
	if len(want) < 12 {
		t.Errorf("only %d kinds of outcomes: %v", len(want), want)
	}
	await(t, "the counters", patience, func() error {
		refused := enforced.countOutcomes(t, "auth")
		passed := trial.countOutcomes(t, "auth")
		maps.Copy(passed, trial.countOutcomes(t, "would_deny")) // a rule or default on trial refuses nothing itself
		for kind, got := range map[string]map[judged]int{"enforced": refused, "trial": passed} {
			if fmt.Sprint(got) != fmt.Sprint(want) { // maps are printed in the order of their keys
				return fmt.Errorf("%s: got %v, want %v", kind, got, want)
			}
		}
		return nil
	})
}

// manyIdentities registers devices and returns credentials of all kinds; the last two are a good and a revoked token.
func manyIdentities(e *edge) (all []identity) {
	e.t.Helper()
	basic := func(id, secret string) []string {
		return []string{"authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(id+":"+secret))}
	}
	add := func(id, secret string, bad bool, permissions ...string) {
		all = append(all, identity{credential(id, secret), basic(id, secret), permissions, bad})
	}
	const devices = 8
	for i := range devices {
		rich, poor := fmt.Sprint("rich", i), fmt.Sprint("poor", i)
		e.putDevice(rich, "secret", 4, "read", "write")
		e.putDevice(poor, "secret", 4, "read")
		add(rich, "secret", false, "read", "write")
		add(poor, "secret", false, "read")
		add(rich, fmt.Sprint("wrong", i), true)
		add(fmt.Sprint("unknown", i), "secret", true)
	}
	e.putDevice("gone", "secret", 4, "read", "write")
	e.awaitAnswer("a device", hasStatus(200), "POST /v1/session", credential("gone", "secret")...)
	e.awaitAnswer("a device", hasStatus(200), "POST /v1/session", credential("rich0", "secret")...)
	good := []string{e.handshake("rich0", "secret").headerLine()}
	gone := []string{e.handshake("gone", "secret").headerLine()}
	e.ctl("device", "revoke", "gone")
	add("gone", "secret", true)
	add("", "", true)
	one, other := credential("rich0", "secret"), basic("rich0", "secret")
	for _, bad := range [][2][]string{
		{nil, nil},
		{one[:1], {"authorization: Basic"}},
		{one[1:], {"authorization: Basic cmljaDA="}}, // no colon
		{append(one[:2:2], one...), {"authorization: Basic =" + other[0]}}, // nginx refuses two Authorization lines itself
		{append(good[:1:1], one[0]), {"authorization: Digest x"}},
		{credential("rich 0", "secret"), basic("rich 0", "secret")},
		{credential("rich0", strings.Repeat("x", 300)), basic("rich0", strings.Repeat("x", 300))},
	} {
		all = append(all, identity{bad[0], bad[1], nil, true})
	}
	return append(all, identity{good, good, []string{"read", "write"}, false}, identity{gone, gone, nil, true})
}

// askAll sends one random request to the upstream, the trial and the enforcing edge, and adds the rules' outcome to
// want.
func askAll(client *http.Client, random *rand.Rand, identities []identity, urls [3]string, want map[judged]int) error {
	targets := []target{
		{path: "/write/a", rule: "write", permissions: []string{"write"}},
		{path: "/writes", rule: "write", permissions: []string{"write"}},
		{path: "/writ/b?c=d", rule: "writes"},
		{path: "/writ;e", rule: "none", always: "forbidden"}, // ambiguous
		{path: "/some/x", rule: "some", methods: []string{"GET", "HEAD", "POST"}},
		{path: "/own/thing", rule: "own", permissions: []string{"read", "write"}},
		{path: "/free/x", open: true},
		{path: "/elsewhere", rule: "none", always: "forbidden"},
		{host: "shop.example", path: "/cart/1", rule: "shop/cart", permissions: []string{"write"}},
		{host: "A.Shop.Example:8080", path: "/cart/%32", rule: "shop/cart", permissions: []string{"write"}},
		{host: "shop.example", path: "/open/", open: true},
		{host: "shop.example", path: "/write/a", rule: "none", always: "forbidden"},
		{host: "basic.example", path: "/in/x", rule: "basic/0"},
		{host: "basic.example", path: "/out", rule: "", open: true},
	}
	methods := []string{"GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"}
	unusual := []string{"x-gatehouse-device: forged", "x-http-method-override: GET", "if-none-match: *",
		"range: bytes=0-1",
		"accept-encoding: identity;q=0", "x-long: " + strings.Repeat("long ", 500), "x-forwarded-for: 192.0.2.1, x",
		"content-type: application/grpc-web", "cookie: a=b; c=d", "te: trailers", "x-upstream-status: 204",
		"x-upstream-status: 304", "x-upstream-status: 404", "x-upstream-status: 418", "x-upstream-status: 500",
		"x-upstream-status: 503"}
	at, who := targets[random.IntN(len(targets))], identities[random.IntN(len(identities))]
	method, body := methods[random.IntN(len(methods))], ""
	if method != "GET" && method != "HEAD" && random.IntN(2) == 0 {
		body = "{}"
	}
	lines := who.lines
	if at.host == "basic.example" {
		lines = who.basic
	}
	lines = append(slices.Clone(lines), unusual[random.IntN(len(unusual))])
	random.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	var got [3]int
	for i, url := range urls {
		var err error
		if got[i], err = askHost(client, url, method, at.host, at.path, body, lines); err != nil {
			return err
		}
	}
	j := at.expected(method, &who)
	want[j]++
	refused := map[string]int{"deny": 401, "forbidden": 403}[j.outcome]
	if got[1] != got[0] || refused == 0 && got[2] != got[0] || refused != 0 && got[2] != refused {
		return fmt.Errorf("%s %s%s %.300q: got %d from the upstream, %d on trial, %d enforced; want the first twice, and %v",
			method, at.host, at.path, lines, got[0], got[1], got[2], j)
	}
	return nil
}

// countOutcomes returns the counters of requests of the edge: auth or would_deny, by rule and outcome, without those of
// the test's preparations.
func (e *edge) countOutcomes(t *testing.T, kind string) map[judged]int {
	t.Helper()
	text, err := e.EdgeMetrics(t.Context())
	require.NoError(t, err)
	all := map[judged]int{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "gatehouse_"+kind+"_requests_total{") {
			continue
		}
		label := func(name string) string {
			_, value, _ := strings.Cut(line, name+`="`)
			value, _, _ = strings.Cut(value, `"`)
			return value
		}
		j := judged{label("rule"), label("outcome")}
		if j.rule == "warm" || j.rule == "session" || j == (judged{"none", "unavailable"}) { // no keys of tokens yet
			continue
		}
		var n float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if n != 0 {
			all[j] += int(n)
		}
	}
	return all
}
