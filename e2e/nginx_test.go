package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// onNginx reports whether the edge is nginx: EDGE_KIND=nginx.
func onNginx() bool { return os.Getenv("EDGE_KIND") == string(stack.NginxEdge) }

// onNative reports whether the edge is Envoy with the filter as a dynamic module: EDGE_KIND=native.
func onNative() bool { return os.Getenv("EDGE_KIND") == string(stack.NativeEdge) }

// notOnNginx has the tests that can't pass on nginx, with the reasons.
var notOnNginx = map[string]string{
	"TestRenewedCertificate":  "the lines are Envoy's; scripts/nginx-install-test.sh reloads nginx",
	"TestEnvoyReload":         "nginx reloads by a signal; TestReload",
	"TestCheckOfConfigDump":   "a /config_dump is Envoy's",
	"TestTraceOfTrial":        "nginx sends no spans",
	"TestBadRules":            "nginx gets rules that gatehousectl has checked; TestBadRulesAreNotTaken",
	"TestRulesOfListeners":    "all servers of one nginx have the same rules",
	"TestHotRestart":          "nginx has reloads instead; TestReload",
	"TestListenerGoes":        "all servers of one nginx have the same rules",
	"TestCalls":               "it makes calls fail by the configuration of a second listener; TestSidecarAway",
	"TestPage":                "it reads Envoy's access log and texts of the page for Envoy; TestOperator, TestExplain",
	"TestBoundedStaleness":    "it compares two listeners with different rules; TestRevokedWhileCutOff",
	"TestRoutesByIdentity":    "nginx chooses the location by the URI alone",
	"TestMigrateExtAuthz":     "the guide is about Envoy; TestMigrateNginx",
	"TestMigrateKong":         "the guide leads to Envoy; TestMigrateIngressNginx",
	"TestSourceBehindProxies": "its source is in Envoy's filter state; nginx has real_ip_header",
}

// byEdge returns the value for this edge where nginx itself differs from Envoy; nginx/README.md has these cases.
func byEdge[T any](envoy, nginx T) T {
	if onNginx() {
		return nginx
	}
	return envoy
}

// edgeLog returns the log of Envoy or nginx so far.
func (e *edge) edgeLog() string {
	e.t.Helper()
	return e.readLog(byEdge("envoy", "nginx"))
}

// skipOnThisEdge skips a test that can't pass on this edge.
func skipOnThisEdge(t *testing.T) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	if why, found := notOnNginx[name]; found && onNginx() {
		t.Skip("not on nginx: ", why)
	}
}
