package conformance

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// olderClients sends requests by programs in wide use that speak HTTP/1.0, or begin with HTTP/1.0.
func olderClients(t *testing.T, s *server) {
	t.Run("curl -0", func(t *testing.T) { runCurl(t, s) })
	t.Run("nginx", func(t *testing.T) { getThroughNginx(t, s) })
}

// runCurl sends requests as `curl -0` does.
func runCurl(t *testing.T, s *server) {
	for target, want := range map[string]string{"/p/plain": "plain 200", "/p/empty": " 200",
		"/trailers": "with trailers 200", "/u": "GET /u  200", "/a/doc": "unauthorized\n 401"} {
		out, err := exec.CommandContext(t.Context(), "curl", "-0", "-sS", "--max-time", "10",
			"-w", " %{http_code}", s.EdgeURL()+target).CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("curl -0 %s: got %q %v, want %q", target, out, err, want)
		}
	}
}

// front is nginx with default settings: without proxy_http_version, nginx sends HTTP/1.0 to upstreams.
const front = `
daemon off; master_process off; pid %[1]s/nginx.pid; error_log %[1]s/nginx.log;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  proxy_cache_path %[1]s/cache keys_zone=cache:1m;
  server { listen %[2]s; location / { %[4]s proxy_pass %[3]s; } }
}
`

// behindNginx runs a real nginx in front of the edge until the test ends, with these settings.
func (s *server) behindNginx(t *testing.T, settings string) *server {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			t.Fatalf("%v: this test puts nginx in front of the edge; see scripts/install-packages.sh", err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	dir := t.TempDir()
	config := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, front, dir, address, s.EdgeURL(), settings), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	process := exec.CommandContext(ctx, program, "-p", dir, "-c", config)
	require.NoError(t, process.Start())
	t.Cleanup(func() { cancel(); _ = process.Wait() })
	behind := &server{Stack: s.Stack, address: address, objects: s.objects}
	behind.await(t, "GET /p/plain", func(r *response) bool { return r.status == http.StatusOK })
	return behind
}

func getThroughNginx(t *testing.T, s *server) {
	behind := s.behindNginx(t, "")
	for _, c := range []testCase{
		{"9110 7.7", "a hit", "GET /p/42", 200, "hit", `etag: "42"`},
		{"9110 7.7", "a 304", "GET /p/42\nif-none-match: \"42\"", 304, "hit", `etag: "42"`},
		{"9110 7.7", "a coding", "GET /p/42\naccept-encoding: gzip", 200, "hit", "content-encoding: gzip"},
		{"9110 7.7", "HEAD", "HEAD /p/plain", 200, "hit", "content-length: 5"},
		{"9110 7.7", "what is empty", "GET /p/empty", 200, "hit", "content: "},
		{"9110 7.7", "a miss", "GET /u", 200, "upstream", "content: GET /u "},
		{"9110 7.7", "content", "POST /u\n\nabc", 200, "upstream", "content: POST /u abc"},
		{"9110 7.7", "a refusal", "GET /a/doc", 401, "edge", "www-authenticate ~ .+"},
		{"9110 7.7", "a credential", "GET /a/doc\nx-device-id: dev\nx-device-token: secret", 200, "hit", `etag: "auth"`},
	} {
		q := parseRequest(c.request)
		r, err := behind.exchange("HTTP/1.1", q.withField(field{"connection", "close"}))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		c.checkAnswer(t, "nginx", q, r)
	}
}

func (q request) withField(f field) request {
	q.fields = append(q.fields[:len(q.fields):len(q.fields)], f)
	return q
}
