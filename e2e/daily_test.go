package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestRenewedCertificate follows docs/install/machine.md: a second listener gets the lines of the page, and the page's
// command renews the certificate. New connections get the new certificate, and an open connection goes on.
func TestRenewedCertificate(t *testing.T) {
	t.Parallel()
	skipOnThisEdge(t)
	leaveToNative(t)
	blocks := indentedBlocks(readSection(t, "../docs/install/machine.md", "## TLS"))
	if len(blocks) != 3 {
		t.Fatalf("docs/install/machine.md: want two files and a command, got %q", blocks)
	}
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "tls"), 0o700))
	for i, block := range blocks {
		blocks[i] = strings.ReplaceAll(block, "/etc/envoy", dir)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.yaml"), []byte(blocks[1]), 0o600))
	renew := func() *http.Client {
		t.Helper()
		pair := makeCertificates(t)
		commands := exec.CommandContext(t.Context(), "bash", "-ec", "mv cert.pem new.crt && mv key.pem new.key\n"+
			blocks[2])
		commands.Dir = pair
		if out, err := commands.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		ca, err := os.ReadFile(filepath.Join(pair, "ca.pem"))
		require.NoError(t, err)
		client := newClient()
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca)
		client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
		return client
	}
	first := renew()
	address, err := freeport.FindAddress()
	require.NoError(t, err)
	r := startReloading(t, stack.Options{ModifyConfig: func(c *stack.Config) error {
		var chain struct {
			Socket map[string]any `yaml:"transport_socket"`
		}
		if err := yaml.Unmarshal([]byte(blocks[0]), &chain); err != nil {
			return err
		}
		listeners := []string{"static_resources", "listeners"}
		return errors.Join(c.Copy("edge", "tls", listeners...), c.SetAddress(address, append(listeners, "tls")...),
			c.Set(chain.Socket, append(listeners, "tls", "filter_chains", "0", "transport_socket")...))
	}})
	dials := 0
	transport := first.Transport.(*http.Transport)
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials++
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	asks := func(client *http.Client) error {
		a, err := sendTo(t.Context(), client, "https://"+address, "", "GET /open")
		if err == nil && a.status != 200 {
			err = fmt.Errorf("got %d", a.status)
		}
		return err
	}
	await(t, "an answer by TLS", patience, func() error { return asks(first) })
	before := dials
	second := renew()
	await(t, "the renewed certificate", patience, func() error { return asks(second) })
	if err := asks(first); err != nil || dials != before {
		t.Errorf("the open connection: got %v and %d new ones", err, dials-before)
	}
	// The filters of both listeners have the same name, so one file is for both.
	r.addRule("{match: {path: /open}, auth: {}}")
	r.mustReload()
	await(t, "the rule by TLS", patience, func() error {
		a, err := sendTo(t.Context(), second, "https://"+address, "", "GET /open")
		if err == nil && a.status != 401 {
			err = fmt.Errorf("got %d", a.status)
		}
		return err
	})
}

// tested has, for each command of docs/operate.md#daily-tasks, the file with its test and the text by which the test
// runs the command.
var tested = map[string][2]string{
	"systemctl reload gatehouse-envoy": {"release/deb-test.sh", "values gatehouse-envoy ExecReload"},
	"systemctl reload nginx":           {"scripts/nginx-install-test.sh", `"reload nginx"`},
	"mv new.key … && mv new.crt …":     {"e2e/daily_test.go", `new.key\n"+`},

	"apt-get install ./gatehouse_NEW.deb":                    {"release/deb-test.sh", "--force-confold /tmp/next.deb"},
	"apt-get install --allow-downgrades ./gatehouse_OLD.deb": {"release/deb-test.sh", "apt install --allow-downgrades"},
	"systemctl restart gatehouse-envoy gatehouse-sidecar":    {"release/deb-test.sh", "stop_both\nstart_both"},
	"apt-get remove gatehouse":                               {"release/deb-test.sh", "apt remove gatehouse"},
	"gatehousectl nginx install /usr/share/gatehouse/nginx":  {"docs/install/nginx.md", "gatehousectl nginx install"},
	"systemctl restart gatehouse-sidecar nginx":              {"scripts/nginx-install-test.sh", `"restart gatehouse-sidecar`},

	"gatehousectl device rotate ID --generate --overlap 24h": {"ctl/cmd/gatehousectl/device_test.go", `"d", "--overlap"`},
	"gatehousectl device revoke ID":                          {"ctl/cmd/gatehousectl/run_test.go", `"device", "revoke", "nobody"`},
	"gatehousectl device revoke --label fleet=eu":            {"ctl/cmd/gatehousectl/run_test.go", `"revoke", "--label", "fleet=eu"`},
	"redis-cli -u URL --rdb gatehouse.rdb":                   {"e2e/backup_test.go", "redis-cli -u URL"},
	"gatehousectl snapshot DESTINATION":                      {"ctl/cmd/gatehousectl/snapshot_test.go", `"snapshot", path`},
	"gatehousectl trim":                                      {"ctl/cmd/gatehousectl/namespace_test.go", `with("trim")`},

	"helm upgrade edge charts/gatehouse -f values.yaml --wait": {"e2e/chart/gateway_test.go", `"upgrade", release, chartDir, "--wait"`},
	"helm rollback edge REVISION --wait":                       {"e2e/chart/gateway_test.go", `"rollback", release, "--wait"`},
	"helm uninstall edge":                                      {"e2e/chart/gateway_test.go", `"uninstall", release, "--wait"`},
	"kubectl apply -f secret.yaml":                             {"e2e/chart/gateway_test.go", `"apply", "--filename", "-"`},
}

// TestDailyTasks compares the commands of docs/operate.md#daily-tasks with the commands of tests.
func TestDailyTasks(t *testing.T) {
	t.Parallel()
	section := readSection(t, "../docs/operate.md", "## Daily tasks")
	documented := map[string]bool{}
	for row := range strings.Lines(section) {
		if !strings.HasPrefix(row, "| ") {
			continue
		}
		for _, command := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
			documented[command[1]] = true
			where, found := tested[command[1]]
			if !found {
				t.Errorf("%s: no test runs it", command[1])
				continue
			}
			if text, err := os.ReadFile(filepath.Join("..", where[0])); err != nil || !strings.Contains(string(text), where[1]) {
				t.Errorf("%s: %s has no %q (%v)", command[1], where[0], where[1], err)
			}
		}
	}
	for command := range tested {
		if !documented[command] {
			t.Errorf("docs/operate.md has no %s", command)
		}
	}
}
