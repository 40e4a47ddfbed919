package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// The client would write every failed connection to stderr.
func init() { logging.Disable() }

// documentedUsers creates the users of the document, writer and reader.
func documentedUsers(t *testing.T, admin redis.UniversalClient) {
	t.Helper()
	for _, line := range strings.Split(codeBlock(t, sectionOf(t, "Redis itself"), "text"), "\n") {
		setUser(t, admin, strings.Fields(strings.TrimPrefix(line, "ACL SETUSER "))...)
	}
}

func setUser(t *testing.T, admin redis.UniversalClient, user ...string) {
	t.Helper()
	args := []any{"ACL", "SETUSER"}
	for _, arg := range user {
		args = append(args, arg)
	}
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// makeCertificates makes an authority and a certificate for 127.0.0.1 for servers and clients, and returns the
// directory of ca.pem, cert.pem and key.pem.
func makeCertificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	save := func(name, kind string, der []byte, err error) {
		t.Helper()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
		}
		require.NoError(t, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	save("ca.pem", "CERTIFICATE", der, err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), key)
	save("cert.pem", "CERTIFICATE", der, err)
	der, err = x509.MarshalECPrivateKey(key)
	save("key.pem", "EC PRIVATE KEY", der, err)
	return dir
}

// secureEdge is an edge of a Redis to which gatehousectl connects with these flags.
type secureEdge struct {
	*edge
	flags []string
}

func (s secureEdge) ctl(args ...string) string {
	s.t.Helper()
	out, err := gatehousectl(s.t, append(args, s.flags...)...)
	if err != nil {
		s.t.Fatalf("gatehousectl %v: %v: %s", args, err, out)
	}
	return out
}

// putAndAwait publishes body with gatehousectl, and waits until the edge answers with body.
func (s secureEdge) putAndAwait(body string) {
	s.t.Helper()
	s.ctl("put", "/v1/products/1", "--file", writeFile(s.t, "body.txt", body))
	await(s.t, body, patience, func() error {
		if a := s.send("GET /v1/products/1"); a.body != body {
			return fmt.Errorf("got %d %q", a.status, a.body)
		}
		return nil
	})
	if got := s.ctl("get", "/v1/products/1"); got != body {
		s.t.Errorf("gatehousectl get: %q, want %q", got, body)
	}
}

// TestTLSAndACL reads over TLS as a user with just the documented permissions, whose password is in a file and changes.
func TestTLSAndACL(t *testing.T) {
	t.Parallel()
	certs, address := makeCertificates(t), redistest.FreeAddress(t)
	ca, cert, key := filepath.Join(certs, "ca.pem"), filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem")
	_, port, _ := net.SplitHostPort(address)
	server := redistest.StartServer(t, "--tls-port", port, "--tls-ca-cert-file", ca, "--tls-cert-file", cert,
		"--tls-key-file", key, "--tls-auth-clients", "yes")
	admin := server.Client(t)
	documentedUsers(t, admin)
	password := writeFile(t, "reader", "reader-password\n")
	e := reuse(t, stack.Options{
		RedisURL: "redis://" + server.Address, SidecarRedisURL: "rediss://" + address,
		SidecarArgs: []string{
			"--redis.username=reader", "--redis.password-file=" + password,
			"--redis.tls-ca-file=" + ca, "--redis.tls-cert-file=" + cert, "--redis.tls-key-file=" + key,
		},
	})
	s := secureEdge{e, []string{
		"--redis=rediss://" + address, "--redis-username=writer", "--redis-password-file=" +
			writeFile(t, "writer", "writer-password"),
		"--redis-tls-ca-file=" + ca, "--redis-tls-cert-file=" + cert, "--redis-tls-key-file=" + key,
	}}
	s.putAndAwait("with the first password")
	clients := func() string { return admin.ClientList(t.Context()).Val() }
	if list := clients(); !strings.Contains(list, "name=gatehouse-sidecar") || !strings.Contains(list, "user=reader") {
		t.Errorf("clients:\n%s\nwant the sidecar by its name, as reader", list)
	}
	if strings.Contains(e.readLog("sidecar"), "level=WARN") {
		t.Errorf("the documented permissions are not enough:\n%s", e.readLog("sidecar"))
	}

	// The file changes first, then Redis; Redis keeps existing connections, which the test closes. This user lacks the
	// optional permissions.
	require.NoError(t, os.WriteFile(password, []byte("another-password\n"), 0o600))
	setUser(t, admin, "reader", ">another-password", "<reader-password", "-client|setname", "-info")
	reconnect := func() {
		t.Helper()
		require.NoError(t, admin.Do(t.Context(), "CLIENT", "KILL", "USER", "reader").Err())
	}
	reconnect()
	s.putAndAwait("with the second password")
	if list := clients(); strings.Contains(list, "name=gatehouse-sidecar") {
		t.Errorf("clients:\n%s\nwant none that has set its name without permission", list)
	}
	reconnect()
	s.putAndAwait("and again")
	if n := strings.Count(e.readLog("sidecar"), "no permission to read the role and history of redis"); n != 1 {
		t.Errorf("logged %d times that INFO is not permitted, want once", n)
	}
}
