package inspect

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/verify/credential"
)

func newVerifier() (*edgemem.Memory, *credential.Verifier) {
	memory := edgemem.New(edgemem.Config{Objects: 1, Verdicts: 1})
	return memory, credential.New(credential.Config{
		Workers: 1, Queue: 1, Wait: time.Minute, MaxCost: 4, AllowTTL: time.Minute, PinTTL: time.Minute, Shards: 1,
	}, memory, metrics.New(), slog.New(slog.DiscardHandler))
}

// TestSecretIsNotTold: a right and a wrong secret have the same explanation, although the edge has a verdict.
func TestSecretIsNotTold(t *testing.T) {
	memory, v := newVerifier()
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	require.NoError(t, err)
	v.Apply(contract.Credential{ID: "d", Version: 1, Hashes: []string{string(hash)}})
	v.Shard(0).EndResync()
	edge := memory.AddEdge()
	edge.Reset(nil)
	memory.SetInStep(time.Now())
	if r := v.Verify(t.Context(), "d", "right", ""); r.Refused() {
		t.Fatalf("got %+v", r)
	}
	for more := true; more; edge.MarkAcked() {
		_, taken := edge.TakeBatch(nil)
		more = taken.More
	}
	i := New(Parts{Memory: memory, Verifier: v})
	explain := func(device, secret string) (e operatorapi.Explanation) {
		q := operatorapi.Question{
			Rules: []byte(`{"sidecar": {"cluster": "c"}, "credentials": {"id_header": "i", "secret_header": "s"},
				"rules": [{"match": {"prefix": "/"}, "auth": {}}]}`),
			Headers: [][2]string{{"i", device}, {"s", secret}},
		}
		require.NoError(t, i.explainRequest(&e, &q, "", "/a"))
		return e
	}
	right, wrong := explain("d", "right"), explain("d", "wrong")
	if !reflect.DeepEqual(right, wrong) || right.Answer.Action != "verify" || right.IfRight == nil ||
		right.IfRight.Action != "pass" {
		t.Errorf("got %+v and %+v", right, wrong)
	}
	if unknown := explain("other", "x"); unknown.Answer.Status != http.StatusUnauthorized {
		t.Errorf("an unknown device: got %+v", unknown)
	}
}

// TestExplainPassing: a request that certainly passes is explained so, though its method is one that the engine doesn't
// read.
func TestExplainPassing(t *testing.T) {
	memory, v := newVerifier()
	i := New(Parts{Memory: memory, Verifier: v})
	q := operatorapi.Question{Method: strings.Repeat("a-", 40),
		Rules: []byte(`{"sidecar": {"cluster": "c"}, "rules": [{"match": {"prefix": "/a"}, "cache": {}}]}`)}
	var e operatorapi.Explanation
	require.NoError(t, i.explainRequest(&e, &q, "", "/b"))
	if e.Answer.Action != "pass" {
		t.Errorf("got %+v", e.Answer)
	}
}

// TestExplainUnmatched: an explanation names the rules among which none covers the request, and the nearest rule.
func TestExplainUnmatched(t *testing.T) {
	memory, v := newVerifier()
	i := New(Parts{Memory: memory, Verifier: v})
	const top = `"rules": [{"name": "short", "match": {"prefix": "/v1/"}}, {"name": "products",
		"match": {"prefix": "/v2/products/", "methods": ["GET"]}, "cache": {}}]`
	const hosts = `{"virtual_hosts": {"shop": {"domains": ["shop.example"], "rules": [{"name": "me",
		"match": {"path": "/me"}}]}}, ` + top + `}`
	const passes = "The request goes upstream without a check, and nothing answers it from memory. "
	for _, tt := range []struct{ rules, host, method, target, want string }{
		{"{" + top + "}", "", "GET", "/v2/product/1?lang=de", passes + "No rule covers it: the nearest rule is products: " +
			"prefix /v2/products/, methods GET."},
		{"{" + top + "}", "", "POST", "/v2/products/1?lang=de", passes + "No rule covers it: the rule products has its " +
			"path, but not its method: prefix /v2/products/, methods GET."},
		{"{" + top + "}", "", "GET", "/other", passes + "No rule covers it."},
		{hosts, "shop.example", "GET", "/v2/products/1", passes + "No rule of the virtual host shop covers it."},
		{hosts, "shop.example", "GET", "/men", passes + "No rule of the virtual host shop covers it: the nearest rule is " +
			"shop/me: path /me."},
		{hosts, "other.example", "GET", "/men", passes + "No virtual host has its host, and no rule at the top level " +
			"covers it."},
		{`{"default": "deny", ` + top + "}", "", "GET", "/v", "No rule governs the request, and the default is deny. No " +
			"rule covers it: the nearest rule is short: prefix /v1/."},
	} {
		var e operatorapi.Explanation
		q := operatorapi.Question{Method: tt.method, Rules: []byte(tt.rules)}
		require.NoError(t, i.explainRequest(&e, &q, tt.host, tt.target))
		if e.Answer.Text != tt.want || e.Rule != nil {
			t.Errorf("%s %s%s: got %q, want %q", tt.method, tt.host, tt.target, e.Answer.Text, tt.want)
		}
	}
}

// TestLogLevel: an operator can't silence errors, nor the line that tells of the change.
func TestLogLevel(t *testing.T) {
	for _, tt := range []struct {
		level  string
		status int
		after  slog.Level
	}{
		{"DEBUG", 200, slog.LevelDebug}, {"warn", 200, slog.LevelWarn}, {"ERROR", 200, slog.LevelError},
		{"ERROR+100", 400, slog.LevelError}, {"DEBUG-100", 400, slog.LevelError}, {"", 400, slog.LevelError},
	} {
		level, log := new(slog.LevelVar), new(strings.Builder)
		level.Set(slog.LevelError)
		handler := NewServer(New(Parts{}), false, level,
			slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level}))).Handler()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/log-level",
			strings.NewReader(`{"level": "`+tt.level+`"}`)))
		if w.Code != tt.status || level.Level() != tt.after ||
			strings.Contains(log.String(), "from=ERROR") != (tt.status == 200) {
			t.Errorf("%q: got %d, level %v, log %q", tt.level, w.Code, level.Level(), log)
		}
	}
}

// TestVirtualHostIsExplained: the URL's host decides, or a Host header, and the credential is the virtual host's.
func TestVirtualHostIsExplained(t *testing.T) {
	memory := edgemem.New(edgemem.Config{Objects: 1, Verdicts: 1})
	v := credential.New(credential.Config{
		Workers: 1, Queue: 1, Wait: time.Minute, MaxCost: 4, AllowTTL: time.Minute, PinTTL: time.Minute, Shards: 1,
	}, memory, metrics.New(), slog.New(slog.DiscardHandler))
	i := New(Parts{Memory: memory, Verifier: v})
	const rules = `{"rules": [{"name": "top", "match": {"prefix": "/"}, "cache": {"scope": "host", "languages": ["de"]}}],
		"virtual_hosts": {"shop": {"domains": ["shop.example", "*.shop.example"], "credentials": {"basic": true},
			"rules": [{"name": "all", "match": {"prefix": "/"}, "auth": {}, "cache": {"scope": ["host", "device"]}}]},
		"key": {"domains": ["key"], "credentials": {"api_key_header": "x-api-key"},
			"rules": [{"name": "all", "match": {"prefix": "/"}, "auth": {}, "cache": {"scope": "device"}}]},
		"bearer": {"domains": ["bearer"], "credentials": {"bearer": true},
			"rules": [{"name": "all", "match": {"prefix": "/"}, "auth": {}, "cache": {"scope": "device"}}]}}}`
	tests := []struct {
		host   string
		header [][2]string
		want   operatorapi.Explanation
	}{
		{"other", nil, operatorapi.Explanation{Key: "//:other/a", Rule: &operatorapi.Rule{Name: "top"}}},
		{"other", [][2]string{{"Accept-Language", "de-AT"}}, operatorapi.Explanation{Key: "//:other/a#de",
			Rule: &operatorapi.Rule{Name: "top"}}},
		{"", nil, operatorapi.Explanation{Rule: &operatorapi.Rule{Name: "top"}}},
		{"A.shop.example:80", nil, operatorapi.Explanation{VirtualHost: "shop", Domain: "*.shop.example",
			Rule: &operatorapi.Rule{Name: "shop/all"}, Key: "@d//shop:a.shop.example/a"}},
		{"other", [][2]string{{"Host", "shop.example"}}, operatorapi.Explanation{VirtualHost: "shop", Domain: "shop.example",
			Rule: &operatorapi.Rule{Name: "shop/all"}, Key: "@d//shop:shop.example/a"}},
		{"key", [][2]string{{"X-API-Key", "another's"}}, operatorapi.Explanation{VirtualHost: "key", Domain: "key",
			Rule: &operatorapi.Rule{Name: "key/all"}, Key: "@d//key/a"}},
		{"bearer", nil, operatorapi.Explanation{VirtualHost: "bearer", Domain: "bearer",
			Rule: &operatorapi.Rule{Name: "bearer/all"}, Key: "@d//bearer/a"}},
		{"a,b", nil, operatorapi.Explanation{Answer: operatorapi.Answer{Reason: "gatehouse_forbidden_ambiguous_host"}}},
	}
	for _, tt := range tests {
		var e operatorapi.Explanation
		q := &operatorapi.Question{Rules: []byte(rules), Headers: tt.header, Device: "d"}
		require.NoError(t, i.explainRequest(&e, q, tt.host, "/a"))
		name := func(r *operatorapi.Rule) string {
			if r == nil {
				return ""
			}
			return r.Name
		}
		if e.VirtualHost != tt.want.VirtualHost || e.Domain != tt.want.Domain || name(e.Rule) != name(tt.want.Rule) ||
			e.Key != tt.want.Key || e.Answer.Reason == "gatehouse_denied_no_credential" ||
			tt.want.Answer.Reason != "" && e.Answer.Reason != tt.want.Answer.Reason {
			t.Errorf("%q, %q: got %+v, want %+v", tt.host, tt.header, e, tt.want)
		}
	}
}

// TestKeyIsExplained: the same rule serves a key that the edge makes for a request; keys in other forms are not served,
// and the text says why.
func TestKeyIsExplained(t *testing.T) {
	memory, v := newVerifier()
	i := New(Parts{Memory: memory, Verifier: v})
	cases := 0
	for _, scope := range []string{`"shared"`, `"device"`, `"host"`, `["host", "device"]`} {
		for _, languages := range []string{"", `, "languages": ["de", "pt-br"]`} {
			rules := []byte(`{"credentials": {"id_header": "i", "secret_header": "s"}, "rules": [{"match": {"path": "/other"}},
				{"name": "all", "match": {"prefix": "/a/"}, "auth": {}, "cache": {"scope": ` + scope + languages + `}}]}`)
			for _, accept := range []string{"", "de", "pt"} {
				var e operatorapi.Explanation
				q := operatorapi.Question{Rules: rules, Device: "d", Headers: [][2]string{{"accept-language", accept}}}
				if err := i.explainRequest(&e, &q, "h.example", "/a/b?c=1"); err != nil || e.Key == "" {
					t.Fatalf("%s: no key, %v", rules, err)
				}
				for _, other := range []struct {
					key    string
					served bool
				}{{e.Key, true}, {e.Key + "#fr", false}, {"@e" + e.Key, false}, {strings.Replace(e.Key, "/a/", "/b/", 1), false},
					{"//shop" + e.Key, false}} {
					key := other.key
					if strings.Count(key, "#") > 1 || strings.HasPrefix(key, "@e@") || strings.HasPrefix(key, "//shop/") &&
						strings.HasPrefix(e.Key, "//") || strings.HasPrefix(key, "//shop@") {
						continue
					}
					cases++
					got := operatorapi.Explanation{Key: key}
					if err := explainKey(&got, rules); err != nil || (got.Answer.Action == "serve") != other.served ||
						other.served && got.Rule.Name != "all" || !other.served && !strings.HasPrefix(got.Answer.Text, "No request") {
						t.Errorf("%s: %s: %+v, %v", rules, key, got.Answer, err)
					}
				}
			}
		}
	}
	if cases < 60 {
		t.Errorf("%d cases", cases)
	}
}

// TestPageNamesHeadersNotSent: the page names withheld headers, and the rule's field for sending them.
func TestPageNamesHeadersNotSent(t *testing.T) {
	var page strings.Builder
	names := originHeaders("x-a: 1\nalt-svc: clear\nclear-site-data: \"cache\"")
	explanation := &operatorapi.Explanation{Object: &operatorapi.Object{NotSent: names}}
	require.NoError(t, pages.ExecuteTemplate(&page, "explanation", explanation))
	const want = "Not sent: <code>alt-svc</code>, <code>clear-site-data</code>: headers of the whole origin; " +
		"<code>cache.origin_headers</code>"
	if !strings.Contains(page.String(), want) {
		t.Errorf("got %s, want %s", page.String(), want)
	}
}
