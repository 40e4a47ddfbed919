package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/settings"
	"github.com/gatehouse/gatehouse/publisher/internal/config"
	"github.com/gatehouse/gatehouse/publisher/internal/publisher"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

func write(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// certificate writes a certificate for 127.0.0.1 with its key, and returns both files and the certificate's authority.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a"},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return write(t, "tls.crt", text), write(t, "tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY",
		Bytes: secret})), pool
}

func sum(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

func teams(t *testing.T) string {
	t.Helper()
	return write(t, "teams.yaml", fmt.Appendf(nil, "teams: [{name: a, tokens: [%x], prefixes: [/]}]", sum("token")))
}

func TestExitCodes(t *testing.T) {
	good := "--teams.file=" + teams(t)
	for _, test := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"help", []string{"--help"}, settings.ExitOK, "--teams.file", ""},
		{"version", []string{"--version"}, settings.ExitOK, "gatehouse-publisher ", ""},
		{"good", []string{"--check-config", good}, settings.ExitOK, "ok\n", ""},
		{"no teams", []string{"--check-config"}, settings.ExitUsage, "", "teams.file: missing"},
		{"no file of teams", []string{"--teams.file=/no/such"}, settings.ExitUsage, "", "teams.file: open /no/such"},
		{"bad teams", []string{"--teams.file", write(t, "t.yaml", []byte("teams: [{}]"))}, settings.ExitUsage, "", `team 1, "": name`},
		{"all at once", []string{good, "--listen.address=x", "--admin.address=y", "--log.level=z", "--redis.shards=0",
			"--listen.tls-cert-file=/no/such"}, settings.ExitUsage, "", "redis.shards: 0 is out of 1 to 64"},
		{"unknown setting", []string{good, "--config", write(t, "p.yaml", []byte("memory: {bytes: 1MiB}"))},
			settings.ExitUsage, "", "memory.bytes: unknown setting"},
		{"misspelt setting", []string{good, "--config", write(t, "p.yaml", []byte("listen: {adress: x}"))},
			settings.ExitUsage, "", "listen.adress: unknown setting, did you mean listen.address?"},
		{"unknown flag", []string{"--redis.accept-loss-after=1s"}, settings.ExitUsage, "", "unknown flag"},
		{"address in use", []string{good, "--listen.address=192.0.2.1:1"}, settings.ExitRuntime, "", "listen.address"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr logbuffer.Buffer
			if code := run(t.Context(), test.args, &stdout, &stderr); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("said %q and %q, want %q and %q", stdout.String(), stderr.String(), test.stdout, test.stderr)
			}
		})
	}
}

// TestRun: the whole program, with TLS, a Redis with a password that dies, and metrics.
func TestRun(t *testing.T) {
	server := redistest.StartServer(t)
	cert, key, pool := certificate(t)
	address, admin := redistest.FreeAddress(t), redistest.FreeAddress(t)
	file := write(t, "publisher.yaml", fmt.Appendf(nil, `redis: {url: "redis://%s", namespace: shop, shards: 4}
listen: {address: "%s", tls_cert_file: %s, tls_key_file: %s}
teams: {file: %s}
log: {format: json}
`, server.Address, address, cert, key, teams(t)))
	t.Setenv("GATEHOUSE_ADMIN_ADDRESS", admin)
	var stdout, stderr logbuffer.Buffer
	code := make(chan int, 1)
	ctx := t.Context()
	go func() { code <- run(ctx, []string{"--config", file}, &stdout, &stderr) }()
	t.Cleanup(func() {
		if code := <-code; code != settings.ExitOK {
			t.Errorf("exit code %d:\n%s", code, stderr.String())
		}
	})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	do := func(method, url, body string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer token")
		r.Header.Set("Content-Type", "text/plain")
		r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		got, err := client.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer got.Body.Close()
		text, _ := io.ReadAll(got.Body)
		return got.StatusCode, string(text)
	}
	ready := func(want int) func() bool {
		return func() bool { status, _ := do("GET", "http://"+admin+"/readyz", ""); return status == want }
	}
	await.Until(t, "readiness", ready(200))
	events := server.Client(t).PSubscribe(ctx, "*")
	defer events.Close()
	if _, err := events.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	if status, text := do("PUT", "https://"+address+"/v1/objects/a", "x"); status != 201 {
		t.Fatalf("put: %d %s", status, text)
	}
	select {
	case event := <-events.Channel():
		if !strings.Contains(event.Channel, "shop") ||
			!strings.Contains(event.Payload, "0af7651916cd43dd8448eb211c80319c") {
			t.Errorf("event %q on %s, want the trace and namespace", event.Payload, event.Channel)
		}
	case <-time.After(await.Deadline):
		t.Error("no event")
	}
	if _, text := do("GET", "http://"+admin+"/metrics", ""); !strings.Contains(text,
		`gatehouse_publisher_records_total{operation="put",result="ok"} 1`) {
		t.Errorf("metrics:\n%s", text)
	}
	if status, _ := do("GET", "http://"+admin+"/debug/pprof/", ""); status != 404 {
		t.Errorf("profiles: %d", status)
	}
	server.Kill()
	await.Until(t, "no readiness", ready(503))
	if status, _ := do("GET", "http://"+admin+"/healthz", ""); status != 200 {
		t.Errorf("health without Redis: %d", status)
	}
	server.Restart()
	await.Until(t, "readiness again", ready(200))
	if !strings.Contains(stderr.String(), `"msg":"written","team":"a","operation":"put","key":"/a"`) {
		t.Errorf("log:\n%s", stderr.String())
	}
}

// TestPage compares docs/publish-http.md with the program.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/publish-http.md")
	require.NoError(t, err)
	var listed, names, flags []string
	row := regexp.MustCompile("(?m)^\\| `(gatehouse_\\w+)` \\| ([^|]*) \\|")
	for _, row := range row.FindAllStringSubmatch(string(page), -1) {
		labels := regexp.MustCompile("`\\w+`").FindAllString(row[2], -1)
		slices.Sort(labels)
		listed = append(listed, strings.ReplaceAll(strings.Join(append([]string{row[1]}, labels...), " "), "`", ""))
	}
	m := publisher.NewMetrics()
	families, err := m.Registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		name := family.GetName()
		if !strings.HasPrefix(name, "gatehouse_") {
			continue
		}
		for _, label := range family.GetMetric()[0].GetLabel() { // in the order of their names
			name += " " + label.GetName()
		}
		names = append(names, name)
	}
	slices.Sort(listed)
	slices.Sort(names)
	if !slices.Equal(listed, names) {
		t.Errorf("metrics listed:\n%q\nwant:\n%q", listed, names)
	}
	var usage bytes.Buffer
	require.NoError(t, config.Usage(&usage))
	for _, flag := range regexp.MustCompile(`--([a-z]+\.[a-z-]+)\b`).FindAllStringSubmatch(usage.String(), -1) {
		if flags = append(flags, flag[1]); !strings.HasPrefix(flag[1], "redis.") &&
			!strings.Contains(string(page), "`--"+flag[1]+"`") {
			t.Errorf("the page lacks --%s", flag[1])
		}
	}
	if len(flags) < 15 {
		t.Errorf("flags: %q", flags)
	}
}
