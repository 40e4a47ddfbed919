package e2e

import (
	"os"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// onNginx reports whether the edge is nginx: EDGE_KIND=nginx.
func onNginx() bool { return os.Getenv("EDGE_KIND") == string(stack.NginxEdge) }

// notOnNginx has the tests that can't hold on nginx, and why.
var notOnNginx = map[string]string{
	"TestCheckOfConfigDump": "a /config_dump is Envoy's",
}

// skipOnNginx skips a test that can't hold on nginx. Any other test must not depend on Envoy's configuration.
func skipOnNginx(t *testing.T, opts stack.Options) {
	t.Helper()
	if !onNginx() {
		return
	}
	if why, found := notOnNginx[t.Name()]; found {
		t.Skip("not on nginx: ", why)
	}
	if opts.ModifyConfig != nil && opts.ModifyNginx == nil {
		t.Fatal("changes Envoy's configuration: change nginx.conf, too, or say in notOnNginx why it can't hold there")
	}
}
