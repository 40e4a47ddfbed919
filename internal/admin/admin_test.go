package admin_test

import (
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/admin"
)

// registry returns a registry with a few metrics.
func registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	bcrypt := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gatehouse_bcrypt_total"}, []string{"result"})
	bcrypt.WithLabelValues("match")
	r.MustRegister(collectors.NewGoCollector(), bcrypt)
	return r
}

func TestEndpoints(t *testing.T) {
	var one, two error
	checks := []admin.Check{{Name: "push", Ready: func() error {
		return one
	}}, {Name: "other", Ready: func() error { return two }}}
	server := httptest.NewServer(admin.New("", registry(), checks, http.NotFoundHandler(),
		slog.New(slog.DiscardHandler)).Handler())
	defer server.Close()
	get := func(path string) (int, string) {
		r, err := http.Get(server.URL + path)
		require.NoError(t, err)
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(body)
	}
	for _, test := range []struct {
		path   string
		status int
		say    string
	}{
		{"/healthz", 200, "ok"},
		{"/readyz", 200, "ok"},
		{"/metrics", 200, "gatehouse_bcrypt_total{result=\"match\"} 0"},
		{"/metrics", 200, "go_goroutines"},
		{"/debug/pprof/", 200, "goroutine"},
		{"/debug/pprof/heap", 200, ""},
		{"/debug/pprof/cmdline", 404, ""},
		{"/else", 404, ""},
	} {
		if status, body := get(test.path); status != test.status || !strings.Contains(body, test.say) {
			t.Errorf("GET %s: %d, want %d and %q", test.path, status, test.status, test.say)
		}
	}
	one, two = errors.New("not yet"), errors.New("nor this")
	if status, body := get("/readyz"); status != 503 || body != "push: not yet\nother: nor this\n" {
		t.Errorf("GET /readyz: %d %q", status, body)
	}
	if status, _ := get("/healthz"); status != 200 {
		t.Errorf("GET /healthz: %d while not ready, want 200", status)
	}
}

// TestOtherSites: a browser sends requests on behalf of pages of foreign sites, or by a foreign name of this address.
func TestOtherSites(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "page") })
	handler := admin.New("", registry(), nil, page, slog.New(slog.DiscardHandler)).Handler()
	type header = map[string]string
	for _, tt := range []struct {
		name, method, target string
		header               header
		want                 int
	}{
		{"a program", "GET", "/debug/pprof/symbol", nil, 200},
		{"a user", "GET", "/debug/pprof/symbol", header{"Sec-Fetch-Site": "none"}, 200},
		{"the page", "GET", "/v1/status", header{"Sec-Fetch-Site": "same-origin"}, 200},
		{"the page, in an old browser", "GET", "/v1/status", header{"Origin": "http://127.0.0.1:9090"}, 200},
		{"trace", "GET", "/debug/pprof/trace?seconds=1", header{"Sec-Fetch-Site": "cross-site"}, 403},
		{"trace by a link", "GET", "/debug/pprof/trace?seconds=1",
			header{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 403},
		{"trace, another port", "GET", "/debug/pprof/trace?seconds=1", header{"Sec-Fetch-Site": "same-site"}, 403},
		{"trace, in an old browser", "GET", "/debug/pprof/trace?seconds=1", header{"Origin": "http://other.example"}, 403},
		{"profile, HEAD", "HEAD", "/debug/pprof/profile?seconds=1", header{"Sec-Fetch-Site": "cross-site"}, 403},
		{"events", "GET", "/v1/live", header{"Sec-Fetch-Site": "cross-site"}, 403},
		{"metrics", "GET", "/metrics", header{"Sec-Fetch-Site": "cross-site"}, 403},
		{"a link to the page", "GET", "/", header{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 200},
		{"the page in a frame", "GET", "/", header{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, 403},
		{"a form", "POST", "/", header{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 403},
		{"a call", "POST", "/v1/resync", header{"Origin": "null"}, 403},
		{"another name", "GET", "/debug/pprof/symbol", header{"Host": "rebound.example"}, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), tt.method, "http://127.0.0.1:9090"+tt.target, nil)
			for name, value := range tt.header {
				r.Header.Set(name, value)
			}
			if host := r.Header.Get("Host"); host != "" {
				r.Host = host
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != tt.want {
				t.Errorf("got %d %.80q, want %d", w.Code, w.Body, tt.want)
			}
		})
	}
}

// TestFormats serves the text format that a client gets without Accept, OpenMetrics, and the binary form with native
// histograms.
func TestFormats(t *testing.T) {
	server := httptest.NewServer(admin.New("", registry(), nil, http.NotFoundHandler(),
		slog.New(slog.DiscardHandler)).Handler())
	defer server.Close()
	const protobuf = "application/vnd.google.protobuf"
	for accept, want := range map[string]string{
		"": "text/plain",
		"application/openmetrics-text; version=1.0.0":                            "application/openmetrics-text",
		protobuf + ";proto=io.prometheus.client.MetricFamily;encoding=delimited": protobuf,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/metrics", nil)
		require.NoError(t, err)
		request.Header.Set("Accept", accept)
		r, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		r.Body.Close()
		if got := r.Header.Get("Content-Type"); !strings.HasPrefix(got, want) {
			t.Errorf("Accept %q: got %q, want %q", accept, got, want)
		}
	}
}

func TestListenSaysWhichAddress(t *testing.T) {
	err := admin.New("127.0.0.1:99999", registry(), nil, http.NotFoundHandler(),
		slog.New(slog.DiscardHandler)).Listen()
	if err == nil || !strings.Contains(err.Error(), "99999") {
		t.Errorf("Listen = %v, want an error that names the address", err)
	}
}

// TestBlockProfile takes a profile while a goroutine of the test is blocked repeatedly.
func TestBlockProfile(t *testing.T) {
	server := httptest.NewServer(admin.New("", registry(), nil, http.NotFoundHandler(),
		slog.New(slog.DiscardHandler)).Handler())
	defer server.Close()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	blocked, done := make(chan struct{}), make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				close(blocked)
				return
			case <-ticker.C:
				blocked <- struct{}{}
			}
		}
	}()
	go func() {
		for range blocked { // the name of this function is in the profile
		}
	}()
	defer close(done)
	r, err := http.Get(server.URL + "/debug/pprof/block?seconds=1")
	require.NoError(t, err)
	defer r.Body.Close()
	unzipped, err := gzip.NewReader(r.Body)
	require.NoError(t, err)
	profile, err := io.ReadAll(unzipped)
	if err != nil || !strings.Contains(string(profile), "TestBlockProfile") {
		t.Errorf("got %d bytes (%v), want a profile with this test's function", len(profile), err)
	}
}
