package invalidate

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

const token = "a token of thirty-two bytes or more"

// fixture is a server whose writes go to a real Redis as the user that the documentation gives writers.
type fixture struct {
	*Server
	t      *testing.T
	server *redistest.Server
	url    string
	log    *logbuffer.Buffer
}

func start(t *testing.T) fixture {
	t.Helper()
	text, err := os.ReadFile("../../docs/redis-contract.md")
	require.NoError(t, err)
	_, user, _ := strings.Cut(string(text), "\nACL SETUSER writer ")
	user, _, _ = strings.Cut(user, "\n")
	rules := []any{"ACL", "SETUSER", "writer"}
	for _, rule := range strings.Fields(user) {
		rules = append(rules, rule)
	}
	server := redistest.StartServer(t)
	require.NoError(t, server.Client(t).Do(t.Context(), rules...).Err())
	client := redis.NewClient(&redis.Options{Addr: server.Address, Username: "writer", Password: "writer-password"})
	t.Cleanup(func() { client.Close() })
	log := new(logbuffer.Buffer)
	s := New("127.0.0.1:0", []byte(token), publish.New(client), metrics.New(), slog.New(slog.NewTextHandler(log, nil)))
	web := httptest.NewServer(s.Handler())
	t.Cleanup(web.Close)
	return fixture{s, t, server, web.URL, log}
}

// post sends a body and returns the answer.
func (f fixture) post(authorization, body string) *http.Response {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.url+"/v1/invalidate",
		strings.NewReader(body))
	require.NoError(f.t, err)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(f.t, err)
	text, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || (response.StatusCode == 204) != (len(text) == 0) || strings.Contains(string(text), token) {
		f.t.Errorf("%.80s: %d %q, %v", body, response.StatusCode, text, err)
	}
	return response
}

func (f fixture) counts(result string) float64 {
	f.t.Helper()
	return metricstest.Value(f.t, f.metrics, "gatehouse_invalidations_total", "result", result)
}

// tombstone returns the version of an id's tombstone, "" for none.
func (f fixture) tombstone(id string) string {
	f.t.Helper()
	keys := contract.Keyspace{Shards: 1}.KeysOf(id)
	got, err := f.server.Client(f.t).HGetAll(f.t.Context(), keys.CredentialKey(id)).Result()
	require.NoError(f.t, err)
	if got[contract.FieldDeleted] == "" {
		return ""
	}
	return got[contract.FieldVersion]
}

// TestInvalidate: what is asked for, and only that, is in Redis once it is acknowledged.
func TestInvalidate(t *testing.T) {
	f := start(t)
	p := publish.New(f.server.Client(t))
	if _, err := p.PutDevice(t.Context(), publish.Device{ID: "ours", Secret: "s", Cost: 4}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		authorization, body string
		status              int
		counts, id          string
	}{
		{"Bearer " + token, `{"device": "theirs"}`, 204, "written", "theirs"},
		{"bearer " + token, `{"label": "fleet=eu"}`, 204, "written", "*fleet=eu"},
		{"Bearer " + token, `{"all": true}`, 204, "written", "*"},
		{"", `{"device": "a"}`, 401, "unauthorized", ""},
		{"Bearer", `{"device": "a"}`, 401, "unauthorized", ""},
		{"Bearer " + token + "x", `{"device": "a"}`, 401, "unauthorized", ""},
		{"Bearer " + token[1:], `{"device": "a"}`, 401, "unauthorized", ""},
		{"Basic " + token, `{"device": "a"}`, 401, "unauthorized", ""},
		{token, `{"device": "a"}`, 401, "unauthorized", ""},
		{"Bearer " + token, ``, 400, "malformed", ""},
		{"Bearer " + token, `{}`, 400, "malformed", ""},
		{"Bearer " + token, `{"all": false}`, 400, "malformed", ""},
		{"Bearer " + token, `{"device": "a", "all": true}`, 400, "malformed", ""},
		{"Bearer " + token, `{"device": "a", "label": "a=b"}`, 400, "malformed", ""},
		{"Bearer " + token, `{"label": "a=b", "all": true}`, 400, "malformed", ""},
		{"Bearer " + token, `{"device": "a", "devices": "b"}`, 400, "malformed", ""},
		{"Bearer " + token, `{"device": "a"} {"device": "b"}`, 400, "malformed", ""},
		{"Bearer " + token, `{"device": "*"}`, 400, "malformed", ""},
		{"Bearer " + token, `{"device": ""}`, 400, "malformed", ""},
		{"Bearer " + token, `{"device": "ours"}`, 400, "malformed", ""},
		{"Bearer " + token, `{"label": "fleet"}`, 400, "malformed", ""},
		{"Bearer " + token, `{"label": "Fleet=eu"}`, 400, "malformed", ""},
		{"Bearer " + token, `{"device": "` + strings.Repeat("a", maxBody) + `"}`, 400, "malformed", ""},
	} {
		before := f.counts(test.counts)
		if got := f.post(test.authorization, test.body).StatusCode; got != test.status {
			t.Errorf("%s, %.80s: got %d, want %d", test.authorization, test.body, got, test.status)
		}
		if f.counts(test.counts) != before+1 {
			t.Errorf("%s, %.80s: not counted as %s", test.authorization, test.body, test.counts)
		}
		if test.id != "" && f.tombstone(test.id) == "" {
			t.Errorf("%s: no tombstone", test.body)
		}
	}
	if f.tombstone("a") != "" || f.tombstone("ours") != "" {
		t.Error("a refused invalidation was written")
	}
	before := f.tombstone("theirs")
	if f.post("Bearer "+token, `{"device": "theirs"}`); f.tombstone("theirs") == before {
		t.Error("the second invalidation of a device has no version of its own")
	}
}

// TestRate: the invalidations of devices and of several devices are bounded, each by itself.
func TestRate(t *testing.T) {
	f := start(t)
	for range groupsBurst {
		f.groups.Allow()
	}
	limited := 0
	for range 3 { // there may be one more each second
		if r := f.post("Bearer "+token, `{"all": true}`); r.StatusCode == 429 && r.Header.Get("Retry-After") != "" {
			limited++
		}
	}
	if limited == 0 || f.counts("limited") != float64(limited) {
		t.Errorf("%d limited, counted %v", limited, f.counts("limited"))
	}
	if got := f.post("Bearer "+token, `{"device": "a"}`).StatusCode; got != 204 {
		t.Errorf("a device: %d", got)
	}
	f.devices.AllowN(time.Now(), devicesBurst-1)
	limited = 0
	for range devicesRate + 5 {
		if f.post("Bearer "+token, `{"device": "a"}`).StatusCode == 429 {
			limited++
		}
	}
	if limited == 0 {
		t.Error("devices aren't limited")
	}
}

// TestNotAcknowledged: without an answer of Redis, or without permission, nothing is acknowledged.
func TestNotAcknowledged(t *testing.T) {
	f := start(t)
	admin := f.server.Client(t)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "writer", "-evalsha", "-eval").Err())
	if r := f.post("Bearer "+token, `{"device": "a"}`); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" {
		t.Errorf("without permission: %d", r.StatusCode)
	}
	if !strings.Contains(f.log.String(), "NOPERM") {
		t.Errorf("the log doesn't say why: %s", f.log)
	}
	f.server.Kill()
	if r := f.post("Bearer "+token, `{"device": "a"}`); r.StatusCode != 503 {
		t.Errorf("without Redis: %d", r.StatusCode)
	}
	if f.counts("failed") != 2 {
		t.Errorf("%v failed, want 2", f.counts("failed"))
	}
}

// TestRun: the server listens, and ends with its context.
func TestRun(t *testing.T) {
	f := start(t)
	f.address = "127.0.0.1:0"
	require.NoError(t, f.Listen())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	f.url = "http://" + f.listener.Addr().String()
	if got := f.post("Bearer "+token, `{"all": true}`).StatusCode; got != 204 {
		t.Errorf("got %d, want 204", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
