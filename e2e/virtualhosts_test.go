package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/http2conn"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

const hostRules = `
sidecar: {cluster: gatehouse-sidecar, timeout: 1s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- {name: open, match: {prefix: /open}, cache: {}}
- {name: all, match: {prefix: /v1/}, cache: {}}
virtual_hosts:
  a: {domains: [a.example], rules: [{name: all, match: {prefix: /v1/}, cache: {}}]}
  b:
    domains: [b.example, "*.b.example", "[::1]"]
    rules:
    - {name: mine, match: {prefix: /v1/mine/}, auth: {}, cache: {scope: [host, device]}}
    - {name: host, match: {prefix: /v1/host/}, cache: {scope: host}}
    - {match: {prefix: /v1/}, cache: {on_miss: fetch}}
  shut: {domains: [shut.example], credentials: {basic: true}, default: deny, rules: [{match: {prefix: /v1/}, auth: {}}]}
`

// TestVirtualHosts: each host gets the objects of its own virtual host, and the host's rules protect every spelling of
// the host.
func TestVirtualHosts(t *testing.T) {
	t.Parallel()
	// nginx 1.22 has no listener for HTTP/1 and HTTP/2 with prior knowledge.
	e := start(t, stack.Options{Rules: hostRules, ModifyNginx: func(config string) string {
		return regexp.MustCompile(`listen 127\.0\.0\.1(:[0-9]+) reuseport;`).ReplaceAllString(config,
			"$0 listen 127.0.0.2$1 http2 reuseport;")
	}})
	e.putDevice("dev", "secret", 4)
	for key, body := range map[string]string{
		"/v1/x": "top", "//a/v1/x": "a", "//b/v1/x": "b", "//b:c.b.example/v1/host/x": "c.b",
		"//b:b.example/v1/host/x":     "b.b",
		"@dev//b:b.example/v1/mine/x": "dev's", "@dev//b:c.b.example/v1/mine/x": "dev's at c",
	} {
		e.put(key, body)
	}
	e.put("/open/ready", "ready")
	e.awaitAnswer("the objects are at the edge", hasBody("ready"), "GET /open/ready")
	own, basic := credential("dev", "secret"), []string{"authorization: Basic ZGV2OnNlY3JldA=="}
	dotted := "top"
	if onNginx() {
		dotted = "a" // nginx removes a dot at the end
	}
	tests := []struct {
		host, path string
		more       []string
		status     int
		body       string // "": of the upstream, or a refusal
	}{
		{"other.example", "/v1/x", nil, 200, "top"}, {"a.example", "/v1/x", nil, 200, "a"},
		{"b.example", "/v1/x", nil, 200, "b"}, {"A.Example:8080", "/v1/x", nil, 200, "a"},
		{"B.EXAMPLE:1", "/v1/x", nil, 200, "b"}, {"x.B.example", "/v1/x", nil, 200, "b"},
		{"[::1]:80", "/v1/x", nil, 200, "b"}, {"a.example.", "/v1/x", nil, 200, dotted},
		{"A.example.:80", "/v1/x", nil, 200, dotted},
		{"xa.example", "/v1/x", nil, 200, "top"}, {"C.b.example", "/v1/host/x", nil, 200, "c.b"},
		{"b.example:80", "/v1/host/x", nil, 200, "b.b"}, {"d.b.example", "/v1/host/x", nil, 200, ""},
		{"a.example", "/v1/host/x", nil, 200, ""}, {"b.example", "/v1/mine/x", nil, 401, ""},
		{"b.example", "/v1/mine/x", own, 200, "dev's"}, {"C.B.example:80", "/v1/mine/x", own, 200, "dev's at c"},
		{"B.example:80", "/v1/mine/x", basic, 401, ""}, {"other.example", "//b/v1/x", nil, 200, ""},
		{"a.example", "//b/v1/x", nil, 200, ""}, {"shut.example", "/v1/x", nil, 401, ""},
		{"SHUT.example:80", "/v1/x", nil, 401, ""}, {"Shut.Example", "/v1/x", own, 401, ""},
		{"shut.example", "/v1/x", basic, 200, ""}, {"shut.example", "/v2", nil, 403, ""},
		{"a.example", "/v2", nil, 200, ""},
	}
	for _, tt := range tests {
		head := strings.Join(append([]string{"Host: " + tt.host}, tt.more...), "\r\n") + "\r\n\r\n"
		check := func(form string, got answer) {
			t.Helper()
			if got.status != tt.status || tt.body != "" && got.body != tt.body ||
				tt.body == "" && got.status == 200 && !strings.Contains(got.body, `"method"`) {
				t.Errorf("%s%s, %s, %q: got %d %.60s, want %d %s", tt.host, tt.path, form, tt.more, got.status, got.body, tt.status,
					tt.body)
			}
		}
		check("HTTP/1.1", e.sendOctets("GET "+tt.path+" HTTP/1.1\r\n"+head))
		check("absolute", e.sendOctets("GET http://"+tt.host+tt.path+" HTTP/1.1\r\n"+head))
		check("HTTP/2", e.getHTTP2(tt.path, tt.more, [2]string{":authority", tt.host}))
		check("HTTP/2, Host", e.getHTTP2(tt.path, tt.more, [2]string{"host", tt.host}))
	}
	for name, request := range map[string]string{
		"two":      "GET /v1/x HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
		"the same": "GET /v1/x HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
		"a list":   "GET /v1/x HTTP/1.1\r\nHost: a.example,b.example\r\n\r\n",
		"userinfo": "GET /v1/x HTTP/1.1\r\nHost: u@a.example\r\n\r\n",
		"port":     "GET /v1/x HTTP/1.1\r\nHost: a.example:x\r\n\r\n",
		"blank":    "GET /v1/x HTTP/1.1\r\nHost: a.example b\r\n\r\n",
		"ports":    "GET /v1/x HTTP/1.1\r\nHost: a.example.:1:1\r\n\r\n",
		"slash":    "GET /v1/x HTTP/1.1\r\nHost: a.example/b\r\n\r\n",
	} {
		if got := e.sendOctets(request); got.status != 403 && got.status != 400 {
			t.Errorf("%s: got %d %s, want 403, or 400 by the proxy", name, got.status, got.body)
		}
	}
	// Of an absolute target Envoy removes userinfo and takes the authority; nginx has two hosts then.
	if got := e.sendOctets("GET http://u@a.example/v1/x HTTP/1.1\r\nHost: a.example\r\n\r\n"); got.status != 400 &&
		got.body != "a" {
		t.Errorf("userinfo of an absolute target: got %d %s", got.status, got.body)
	}
	got := e.sendOctets("GET http://b.example/v1/x HTTP/1.1\r\nHost: a.example\r\n\r\n")
	if onNginx() && got.status != 403 || !onNginx() && got.body != "b" {
		t.Errorf("an absolute target with another Host: got %d %s", got.status, got.body)
	}
	got = e.getHTTP2("/v1/x", nil, [2]string{":authority", "a.example"}, [2]string{"host", "b.example"})
	if got.status == 200 && got.body != "a" {
		t.Errorf("HTTP/2 with another Host: got %d %s", got.status, got.body)
	}
	for _, labels := range [][3]string{{"auth", "none", "forbidden"}, {"auth", "shut/0", "deny"},
		{"auth", "b/mine", "allow"}, {"cache", "a/all", "hit"}} {
		await(t, fmt.Sprintf("the counter of %s", labels), patience, func() error {
			if e.edgeMetric("gatehouse_"+labels[0]+"_requests_total", `rule="`+labels[1]+`"`, `outcome="`+labels[2]+`"`) == 0 {
				return errors.New("is 0")
			}
			return nil
		})
	}
}

// sendOctets sends the octets of a request over a new connection.
func (e *edge) sendOctets(request string) answer {
	e.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(e.EdgeURL(), "http://"))
	require.NoError(e.t, err)
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte(request)); err != nil {
		e.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		e.t.Fatalf("%q: %v", request, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		e.t.Fatalf("%q: %v", request, err)
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

// getHTTP2 sends a GET by HTTP/2 over a new connection, with header lines; no answer is one of status 0.
func (e *edge) getHTTP2(path string, lines []string, hosts ...[2]string) answer {
	e.t.Helper()
	fields := append([][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", path}}, hosts...)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		fields = append(fields, [2]string{name, value})
	}
	address := strings.TrimPrefix(e.EdgeURL(), "http://")
	if onNginx() {
		address = strings.Replace(address, "127.0.0.1:", "127.0.0.2:", 1)
	}
	c, err := http2conn.Dial(address, patience)
	require.NoError(e.t, err)
	defer func() { _ = c.Close() }()
	require.NoError(e.t, c.SendHeaders(1, true, fields...))
	got, err := c.ReadAnswer(1)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{status: got.Status, body: string(got.Content)}
}
