package upstream_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/upstream"
)

func do(t *testing.T, method, url, body string, header http.Header) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: got %s %q, want 200", method, url, res.Status, answer)
	}
	return string(answer)
}

func TestHandlerEchoesAndCounts(t *testing.T) {
	var handler upstream.Handler
	server := httptest.NewServer(&handler)
	defer server.Close()

	body := do(t, http.MethodPost, server.URL+"/v1/a?b=c&d", "payload", http.Header{"X-Twice": {"1", "2"}})
	var seen upstream.Seen
	if err := json.Unmarshal([]byte(body), &seen); err != nil {
		t.Fatal(err)
	}
	if seen.Method != http.MethodPost || seen.Path != "/v1/a?b=c&d" {
		t.Errorf("got %s %s, want POST /v1/a?b=c&d", seen.Method, seen.Path)
	}
	if got, want := seen.Headers["x-twice"], []string{"1", "2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("x-twice: got %q, want %q", got, want)
	}
	if got, want := seen.Headers["host"], []string{server.Listener.Addr().String()}; !reflect.DeepEqual(got, want) {
		t.Errorf("host: got %q, want %q", got, want)
	}

	do(t, http.MethodHead, server.URL+"/", "", nil)
	do(t, http.MethodPost, server.URL+upstream.CountPath, "", nil) // only a GET returns the count
	for range 2 {
		got := do(t, http.MethodGet, server.URL+upstream.CountPath, "", nil)
		if want := "{\"requests\":3}\n"; got != want {
			t.Errorf("count: got %q, want %q", got, want)
		}
	}
}
