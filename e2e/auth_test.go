package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

func TestAuth(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.putDevice("demo-device", "demo-secret", 4, "telemetry.write", "config.read")
	e.putDevice("read-only", "read-only-secret", 4, "config.read")
	e.putDevice("other", "other-secret", 4, "telemetry.write")
	e.put("@read-only/v1/me/config", "for read-only")
	e.put("/v1/me/config", "for nobody")
	good := credential("demo-device", "demo-secret")
	e.awaitAnswer("device", hasStatus(200), "POST /v1/telemetry", good...)

	seen := e.send("POST /v1/telemetry", append(good, "X-Gatehouse-Device: forged",
		"x-gatehouse-permissions: all")...).seenByUpstream(t)
	if got := seen.Headers["x-gatehouse-device"]; !slices.Equal(got, []string{"demo-device"}) {
		t.Errorf("the upstream saw devices %q, want demo-device", got)
	}
	got := strings.Split(strings.Join(seen.Headers["x-gatehouse-permissions"], ","), ",")
	slices.Sort(got)
	if !slices.Equal(got, []string{"config.read", "telemetry.write"}) {
		t.Errorf("the upstream saw permissions %q, want both", got)
	}
	open := e.send("GET /open", "x-gatehouse-device: forged", "x-gatehouse-permissions: all").seenByUpstream(t)
	if len(open.Headers["x-gatehouse-device"])+len(open.Headers["x-gatehouse-permissions"]) != 0 {
		t.Errorf("without a rule the upstream saw a forged identity: %v", open.Headers)
	}

	before := e.UpstreamRequests()
	long := strings.Repeat("x", 73)
	tests := []struct {
		name   string
		lines  []string
		status int
	}{
		{"wrong secret", credential("demo-device", "wrong"), 401},
		{"wrong secret again", credential("demo-device", "wrong"), 401},
		{"unknown device", credential("nobody", "demo-secret"), 401},
		{"another device's secret", credential("demo-device", "other-secret"), 401},
		{"swapped", credential("demo-secret", "demo-device"), 401},
		{"no headers", nil, 401},
		{"no id", good[1:], 401},
		{"no secret", good[:1], 401},
		{"empty id", credential("", "demo-secret"), 401},
		{"empty secret", credential("demo-device", ""), 401},
		{"two ids", append(slices.Clone(good), "x-device-id: demo-device"), 401},
		{"two secrets", append(slices.Clone(good), "x-device-token: demo-secret"), 401},
		{"folded ids", credential("demo-device, demo-device", "demo-secret"), 401},
		{"over-long secret", credential("demo-device", long), 401},
		{"over-long id", credential(strings.Repeat("d", 129), "demo-secret"), 401},
		{"not UTF-8", credential("demo-device", "\xff\xfe"), 401},
		{"id with a slash", credential("demo/device", "demo-secret"), 401},
		{"no permission", credential("read-only", "read-only-secret"), 403},
	}
	var refused []answer
	for _, tt := range tests {
		a := e.send("POST /v1/telemetry", tt.lines...)
		if a.status != tt.status {
			t.Errorf("%s: got %d %q, want %d", tt.name, a.status, a.body, tt.status)
		}
		if a.status == 401 {
			refused = append(refused, a)
		}
	}
	for _, a := range refused[1:] {
		if a.body != refused[0].body || a.header.Get("Www-Authenticate") != refused[0].header.Get("Www-Authenticate") ||
			len(a.header) != len(refused[0].header) {
			t.Errorf("two refusals differ: %v %q and %v %q", a.header, a.body, refused[0].header, refused[0].body)
		}
	}
	if a := e.send("GET /v1/me/config", credential("read-only", "read-only-secret")...); a.body != "for read-only" ||
		a.header.Get("Cache-Control") != "private, no-cache" {
		t.Errorf("got %q %v, want the device's own payload, private", a.body, a.header)
	}
	if got := e.UpstreamRequests() - before; got != 0 {
		t.Errorf("the upstream saw %d requests, want none", got)
	}
	if a := e.send("GET /v1/me/config", good...); a.seenByUpstream(t).Path != "/v1/me/config" {
		t.Errorf("got %q, want the upstream: there is no payload for this device", a.body)
	}
}

// TestManyHeaders sends more headers than usual, the credential last, to an edge that allows so many.
func TestManyHeaders(t *testing.T) {
	t.Parallel()
	opts := stack.Options{}
	if !onNginx() { // which limits their bytes alone
		opts.ModifyConfig = func(c *stack.Config) error {
			return c.Set(1000, append(edgeManager, "common_http_protocol_options", "max_headers_count")...)
		}
	}
	e := start(t, opts)
	e.putDevice("dev", "secret", 4, "telemetry.write")
	e.awaitAnswer("device", hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	for _, n := range []int{120, 130, 400} {
		var lines []string
		for i := range n {
			lines = append(lines, fmt.Sprintf("x-filler-%d: v", i))
		}
		with := func(secret string) answer {
			return e.send("POST /v1/telemetry", append(append(slices.Clone(lines), "x-gatehouse-device: forged"),
				credential("dev", secret)...)...)
		}
		if got := with("wrong").status; got != 401 {
			t.Errorf("%d headers, wrong secret: got %d, want 401", n, got)
		}
		if seen := with("secret").seenByUpstream(t).Headers; !slices.Equal(seen["x-gatehouse-device"], []string{"dev"}) ||
			len(seen["x-filler-0"]) != 1 {
			t.Errorf("%d headers: the upstream saw devices %q and %q, want dev and the filler", n, seen["x-gatehouse-device"],
				seen["x-filler-0"])
		}
	}
}

// TestOneBcrypt sends the first thousand requests of a device at once, and wrong secrets of the device meanwhile.
func TestOneBcrypt(t *testing.T) {
	t.Parallel()
	const requests = 1000
	cost := pickSize(12, 8) // the race detector makes hashing slow, and a request doesn't wait for ever
	e := reuse(t, stack.Options{})
	e.putDevice("first", "right", cost, "telemetry.write")
	e.awaitRecords(1)
	burst := func(secret string, n int) map[int]int {
		client := newClient()
		client.Timeout = time.Minute
		var mu sync.Mutex
		statuses := map[int]int{}
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for range n {
			wg.Go(func() {
				<-begin
				a, err := e.try(client, "POST /v1/telemetry", credential("first", secret)...)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					a.status = -1
				}
				statuses[a.status]++
			})
		}
		close(begin)
		wg.Wait()
		return statuses
	}
	if got := burst("right", requests); got[200] != requests {
		t.Errorf("got %v, want 200 for all %d", got, requests)
	}
	if got := e.metric("gatehouse_bcrypt_total"); got != 1 {
		t.Errorf("got %v bcrypt runs, want 1", got)
	}

	e.putDevice("first", "right again", cost, "telemetry.write")
	await(t, "device has a new secret", patience, func() error {
		if a := e.send("POST /v1/telemetry", credential("first", "right")...); a.status != 401 {
			return fmt.Errorf("got %d for the old secret", a.status)
		}
		return nil
	})
	var wg sync.WaitGroup
	var right, wrong map[int]int
	wg.Go(func() { right = burst("right again", 100) })
	wg.Go(func() { wrong = burst("wrong", 100) })
	wg.Wait()
	if right[200] != 100 || wrong[401] != 100 {
		t.Errorf("together: got %v for the right secret and %v for a wrong one, want 200 and 401 each time", right, wrong)
	}
}

// TestRevocation revokes a device whose verdict has a long life.
func TestRevocation(t *testing.T) {
	t.Parallel()
	const limit = 100 * time.Millisecond
	e := reuse(t, stack.Options{SidecarArgs: []string{"--verdict.allow-ttl=10m"}})
	clients := e.workerClients()
	const rounds = 7
	var took []time.Duration
	for i := range rounds {
		id := fmt.Sprintf("device-%d", i)
		e.putDevice(id, "secret", 4, "telemetry.write")
		await(t, "device is authenticated", patience, func() error {
			return e.sendFromAll(clients, hasStatus(200), "POST /v1/telemetry", credential(id, "secret")...)
		})
		e.ctl("device", "revoke", id)
		took = append(took, await(t, "revocation", patience, func() error {
			return e.sendFromAll(clients, hasStatus(401), "POST /v1/telemetry", credential(id, "secret")...)
		}))
	}
	slices.Sort(took)
	t.Logf("from the command's return to a 401 on %d connections over both workers: median %s, max %s of %d",
		len(clients), took[rounds/2], took[rounds-1], rounds)
	if took[rounds/2] > limit {
		t.Errorf("median: got %s, want at most %s", took[rounds/2], limit)
	}
}

// TestLargeBodyWaitsForItsVerdict delays a request body of several MiB while its credential is verified.
func TestLargeBodyWaitsForItsVerdict(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.putDevice("uploader", "secret", 10, "telemetry.write")
	e.awaitRecords(1)
	body := strings.NewReader(strings.Repeat("x", 5<<20))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.EdgeURL()+"/v1/telemetry", body)
	require.NoError(t, err)
	request.Header.Set("x-device-id", "uploader")
	request.Header.Set("x-device-token", "secret")
	response, err := newClient().Do(request)
	require.NoError(t, err)
	_ = response.Body.Close()
	if response.StatusCode != 200 {
		t.Errorf("got %d, want 200", response.StatusCode)
	}
}
