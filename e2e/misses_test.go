package e2e

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestMisses checks answers of an upstream that is a cache, too.
func TestMisses(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("x-says") != "" {
			w.Header().Set("Cache-Control", r.Header.Get("x-says"))
		}
		if r.URL.Query().Has("cached") {
			w.Header().Set("Cache-Status", "origin; hit")
		}
		w.Header().Set("Vary", "accept-language")
	}))
	t.Cleanup(origin.Close)
	e := start(t, stack.Options{Rules: `
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- {match: {prefix: /v1/telemetry}, auth: {}}
- {match: {prefix: /v1/fleet/}, auth: {}, cache: {}}
- {match: {prefix: /v1/me/}, auth: {}, cache: {scope: device}}
- {match: {prefix: /v1/fetched/}, cache: {on_miss: fetch}}
- {match: {prefix: /v1/products/}, cache: {query: []}}
`, ModifyConfig: func(c *stack.Config) error {
		return c.SetAddress(strings.TrimPrefix(origin.URL, "http://"), "static_resources", "clusters", "upstream",
			"load_assignment", "endpoints", "0", "lb_endpoints", "0", "endpoint")
	}, ModifyNginx: func(config string) string {
		return regexp.MustCompile(`server 127[.0-9:]*;`).ReplaceAllString(config,
			"server "+strings.TrimPrefix(origin.URL, "http://")+";")
	}})
	e.putDevice("dev", "s3cret", 4, "telemetry.write")
	e.put("/v1/products/there", "there")
	e.awaitAnswer("device", let, "POST /v1/telemetry", credential("dev", "s3cret")...)
	e.awaitAnswer("published", hasBody("there"), "GET /v1/products/there")
	t.Run("private", func(t *testing.T) { missesArePrivate(t, e) })
	t.Run("Cache-Status", func(t *testing.T) { cacheStatus(t, e) })
}

// missesArePrivate: a shared cache may not give a device an upstream's answer to another device.
func missesArePrivate(t *testing.T, e *edge) {
	for _, tt := range []struct {
		first, says string
		control     []string
		vary        string
	}{
		{"GET /v1/fleet/a", "", []string{"private"}, "x-device-id, x-device-token"},
		{"HEAD /v1/fleet/a", "", []string{"private"}, "x-device-id, x-device-token"},
		{"GET /v1/telemetry", "", []string{"private"}, "x-device-id, x-device-token"},
		{"GET /v1/fleet/a", "public, max-age=60", []string{"public, max-age=60"}, "x-device-id, x-device-token"},
		{"GET /v1/me/a", "", []string{"no-store,private"}, "*"},
		{"GET /v1/me/a", "public, max-age=60", []string{"no-store"}, "*"},
		{"POST /v1/telemetry", "", nil, ""},
		{"GET /v1/products/a", "", nil, ""},
		{"GET /open", "max-age=60", []string{"max-age=60"}, ""},
	} {
		a := e.send(tt.first, append(credential("dev", "s3cret"), "x-says: "+tt.says)...)
		want := strings.TrimSuffix("accept-language,"+tt.vary, ",")
		if e.EdgeKind() == stack.NginxEdge && tt.vary != "" { // which only adds lines
			switch {
			case tt.vary != "*":
				want += ", accept-language" // all names in one line
			case tt.says == "":
				tt.control = []string{"no-store"}
			default:
				tt.control = []string{tt.says, "no-store"}
			}
		}
		if a.status != 200 || !slices.Equal(a.header.Values("Cache-Control"), tt.control) ||
			strings.Join(a.header.Values("Vary"), ",") != want {
			t.Errorf("%s, upstream says %q: got %d, Cache-Control %q, Vary %q; want %q, %q", tt.first, tt.says, a.status,
				a.header.Values("Cache-Control"), a.header.Values("Vary"), tt.control, want)
		}
	}
}

// cacheStatus checks all members of Cache-Status: the upstream's members come first and stay, Gatehouse's is present
// once, and no member replaces a missing one. The sidecar is killed.
func cacheStatus(t *testing.T, e *edge) {
	for request, want := range map[string][]string{
		"GET /v1/products/there":         {"gatehouse; hit"},
		"GET /v1/products/none":          {"gatehouse; fwd=uri-miss"},
		"GET /v1/products/none?cached":   {"origin; hit", "gatehouse; fwd=uri-miss"},
		"POST /v1/products/there?cached": {"origin; hit", "gatehouse; fwd=method"},
		"GET /v1/fetched/none":           {"gatehouse; fwd=uri-miss"},
		"GET /v1/fleet/mine":             nil, // 401
		"GET /elsewhere":                 nil,
		"GET /elsewhere?cached":          {"origin; hit"},
	} {
		if got := e.send(request).header.Values("Cache-Status"); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
	if err := e.KillSidecar(); err != nil {
		t.Fatal(err)
	}
	if got := e.send("GET /v1/fetched/none").header.Get("Cache-Status"); got != "gatehouse; fwd=uri-miss; "+
		"detail=fetch-failed" {
		t.Errorf("without a sidecar: got %q, want that the fetch failed", got)
	}
}
