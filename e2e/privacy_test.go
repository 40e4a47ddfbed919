package e2e

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

// TestMissesArePrivate: what an upstream answers to a device isn't what a shared cache may give to another one.
func TestMissesArePrivate(t *testing.T) {
	says := "" // Cache-Control
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if says != "" {
			w.Header().Set("Cache-Control", says)
		}
		w.Header().Set("Vary", "accept-language")
	}))
	defer origin.Close()
	e := start(t, stack.Options{Rules: `
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- match: {prefix: /v1/telemetry}
  auth: {}
- match: {prefix: /v1/fleet/}
  auth: {}
  cache: {}
- match: {prefix: /v1/me/}
  auth: {}
  cache: {scope: device}
- match: {prefix: /v1/products/}
  cache: {}
`, ModifyConfig: func(c *stack.Config) error {
		return c.SetAddress(strings.TrimPrefix(origin.URL, "http://"), "static_resources", "clusters", "upstream",
			"load_assignment", "endpoints", "0", "lb_endpoints", "0", "endpoint")
	}})
	lines := credential("dev", "s3cret")
	e.awaitDevice("dev", "s3cret", lines...)
	for _, tt := range []struct {
		first, says string
		control     []string
		vary        string
	}{
		{"GET /v1/fleet/a", "", []string{"private"}, "x-device-id, x-device-token"},
		{"HEAD /v1/fleet/a", "", []string{"private"}, "x-device-id, x-device-token"},
		{"GET /v1/telemetry", "", []string{"private"}, "x-device-id, x-device-token"},
		{"GET /v1/fleet/a", "public, max-age=60", []string{"public, max-age=60"}, "x-device-id, x-device-token"},
		{"GET /v1/me/a", "", []string{"private"}, "*"},
		{"GET /v1/me/a", "public, max-age=60", []string{"public, max-age=60"}, "*"},
		{"POST /v1/telemetry", "", nil, ""},
		{"GET /v1/products/a", "", nil, ""},
		{"GET /open", "max-age=60", []string{"max-age=60"}, ""},
	} {
		says = tt.says
		a := e.send(tt.first, lines...)
		want := strings.TrimSuffix("accept-language,"+tt.vary, ",")
		if a.status != 200 || !slices.Equal(a.header.Values("Cache-Control"), tt.control) || strings.Join(a.header.Values("Vary"), ",") != want {
			t.Errorf("%s, upstream says %q: got %d, Cache-Control %q, Vary %q; want %q, %q", tt.first, tt.says, a.status,
				a.header.Values("Cache-Control"), a.header.Values("Vary"), tt.control, want)
		}
	}
}
