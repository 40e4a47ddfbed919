package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// authority is a service that, unless broken, accepts each device with the secret "right".
type authority struct {
	url    string
	calls  atomic.Int64
	answer atomic.Value // string: what it says to a right secret; "": it hangs
}

const (
	letsIn   = `{"allow": true, "permissions": ["telemetry.write"], "labels": {"fleet": "eu"}}`
	nonsense = `{"allow": "yes"}`
)

func startAuthority(t *testing.T) *authority {
	t.Helper()
	a := new(authority)
	a.answer.Store(letsIn)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.calls.Add(1)
		body, _ := io.ReadAll(r.Body)
		switch answer := a.answer.Load().(string); {
		case answer == "":
			<-r.Context().Done()
		case strings.HasSuffix(string(body), `"secret":"right"}`) || answer == nonsense:
			_, _ = io.WriteString(w, answer)
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

// TestAuthorityExample runs the service in docs/authority.md.
func TestAuthorityExample(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	text, err := os.ReadFile("../docs/authority.md")
	require.NoError(t, err)
	address := redistest.FreeAddress(t)
	service := exec.CommandContext(t.Context(), "python3", "-B", "-c", codeBlock(t, string(text), "python"),
		address[strings.LastIndex(address, ":")+1:])
	require.NoError(t, service.Start())
	t.Cleanup(func() {
		_ = service.Process.Kill()
		_ = service.Wait()
	})
	e := start(t, stack.Options{SidecarArgs: []string{"--authority.url=http://" + address}})
	e.awaitAnswer("the device is let in", hasStatus(200), "POST /v1/telemetry", credential("truck-7", "s3cret")...)
	for _, wrong := range [][]string{credential("truck-7", "wrong"), credential("truck-8", "s3cret")} {
		if a := e.send("POST /v1/telemetry", wrong...); a.status != 401 {
			t.Errorf("%q: got %d, want 401", wrong, a.status)
		}
	}
}

// TestAuthority authenticates devices without a record in Redis, through failures of the authority, until the devices
// are invalidated.
func TestAuthority(t *testing.T) {
	t.Parallel()
	a := startAuthority(t)
	e := start(t, stack.Options{
		SidecarArgs: []string{"--authority.url=" + a.url, "--verdict.allow-ttl=2s", "--verdict.deny-ttl=0s"},
		Rules: "verdict_grace: 60s\n" + strings.ReplaceAll(basicRules, "{basic: true}",
			"{id_header: x-device-id, secret_header: x-device-token}"),
	})
	good := credential("theirs", "right")
	e.awaitAnswer("the device is let in", hasStatus(200), "POST /v1/telemetry", good...)
	if got := e.send("POST /v1/telemetry", credential("theirs", "wrong")...).status; got != 401 {
		t.Errorf("wrong secret: got %d, want 401", got)
	}
	e.putDevice("ours", "secret", 4, "telemetry.write")
	e.awaitAnswer("a registered device is let in", hasStatus(200), "POST /v1/telemetry", credential("ours", "secret")...)
	if got := e.send("POST /v1/telemetry", credential("ours", "right")...).status; got != 401 {
		t.Errorf("registered device, with what the authority would let in: got %d, want 401", got)
	}
	for _, bad := range []string{nonsense, ""} {
		a.answer.Store(bad)
		before := e.edgeMetric("gatehouse_auth_requests_total", `outcome="grace"`)
		await(t, "the verdict has expired and stands", patience, func() error {
			if got := e.send("POST /v1/telemetry", good...); got.status != 200 {
				t.Fatalf("%q: got %d %q, want 200 by verdict_grace", bad, got.status, got.body)
			}
			if e.edgeMetric("gatehouse_auth_requests_total", `outcome="grace"`) < before+5 {
				return fmt.Errorf("not yet")
			}
			return nil
		})
		for _, lines := range [][]string{credential("new", "right"), credential("theirs", "guess")} {
			if got := e.send("POST /v1/telemetry", lines...); got.status != 503 || got.header.Get("Retry-After") == "" {
				t.Errorf("%q, %q: got %d, want 503 with Retry-After", bad, lines, got.status)
			}
		}
	}
	e.ctl("device", "invalidate", "theirs")
	e.awaitAnswer("grace is over", hasStatus(503), "POST /v1/telemetry", good...)
	a.answer.Store(letsIn)
	e.awaitAnswer("the authority is asked again", hasStatus(200), "POST /v1/telemetry", good...)
	e.putDevice("theirs", "registered", 4, "telemetry.write")
	e.awaitAnswer("a record decides", hasStatus(401), "POST /v1/telemetry", good...)
	if log := e.readLog("sidecar"); strings.Contains(log, "right") || strings.Contains(log, "guess") {
		t.Error("the log has a secret")
	}
}

// TestForgedLog: somebody who may write the log hides a revoked device there. A sidecar that starts with a reader's
// permissions must not ask the authority, which would accept the device.
func TestForgedLog(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	a := startAuthority(t)
	server := redistest.StartServer(t)
	admin := server.Client(t)
	documentedUsers(t, admin)
	writer := publish.New(admin)
	if _, err := writer.PutDevice(t.Context(), publish.Device{ID: "ours", Secret: "secret", Cost: 4}); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.RevokeDevice(t.Context(), "ours"); err != nil {
		t.Fatal(err)
	}
	if err := admin.ZAdd(t.Context(), contract.Keys{}.LogKey(), redis.Z{Score: limits.MaxVersion, Member: "c:ours"}).
		Err(); err != nil {
		t.Fatal(err)
	}
	e := start(t, stack.Options{RedisURL: "redis://" + server.Address, SidecarArgs: []string{"--authority.url=" + a.url,
		"--redis.username=reader", "--redis.password-file=" + writeFile(t, "reader", "reader-password")}})
	e.awaitAnswer("the device is refused", hasStatus(401), "POST /v1/telemetry", credential("ours", "right")...)
	if calls := a.calls.Load(); calls != 0 {
		t.Errorf("%d calls of the authority about a device with a record", calls)
	}
	e.awaitAnswer("a device without a record is let in", hasStatus(200), "POST /v1/telemetry",
		credential("theirs", "right")...)
}

// TestInvalidation measures how long verdicts of an authority count after an invalidation.
func TestInvalidation(t *testing.T) {
	t.Parallel()
	const limit = 100 * time.Millisecond
	a := startAuthority(t)
	token, address := filepath.Join(t.TempDir(), "token"), redistest.FreeAddress(t)
	require.NoError(t, os.WriteFile(token, []byte(invalidateToken+"\n"), 0o600))
	e := start(t, stack.Options{SidecarArgs: []string{"--authority.url=" + a.url, "--verdict.allow-ttl=10m",
		"--authority.invalidate-address=" + address, "--authority.invalidate-token-file=" + token}})
	clients := e.workerClients()
	const rounds = 120
	var took []time.Duration
	for i := range rounds {
		id := fmt.Sprint("device-", i)
		a.answer.Store(letsIn)
		await(t, "device is authenticated", patience, func() error {
			return e.sendFromAll(clients, hasStatus(200), "POST /v1/telemetry", credential(id, "right")...)
		})
		a.answer.Store(`{"allow": false}`)
		invalidate := map[int]func() error{
			0: func() error { _, err := e.publisher.InvalidateDevice(t.Context(), id); return err },
			1: func() error { _, err := e.publisher.InvalidateLabel(t.Context(), "fleet", "eu"); return err },
			2: func() error { _, err := e.publisher.InvalidateAll(t.Context()); return err },
			3: func() error { return invalidateByHTTP(t, address, id) },
		}[i%4]
		require.NoError(t, invalidate())
		began := time.Now()
		for e.send("POST /v1/telemetry", credential(id, "right")...).status != 401 {
			if time.Since(began) > patience {
				t.Fatal("the verdict still counts")
			}
		}
		took = append(took, time.Since(began))
		await(t, "invalidation", patience, func() error {
			return e.sendFromAll(clients, hasStatus(401), "POST /v1/telemetry", credential(id, "right")...)
		})
	}
	slices.Sort(took)
	t.Logf("from the write's reply to the end of the first 401: p50 %s, p99 %s, max %s of %d", took[rounds/2],
		took[rounds*99/100], took[rounds-1], rounds)
	if took[rounds/2] > limit {
		t.Errorf("median: got %s, want at most %s", took[rounds/2], limit)
	}
}

const invalidateToken = "a token of thirty-two bytes or more"

func invalidateByHTTP(t *testing.T, address, id string) error {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/v1/invalidate",
		strings.NewReader(fmt.Sprintf(`{"device": %q}`, id)))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+invalidateToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("status %d, %w", response.StatusCode, err)
	}
	return nil
}

// TestOneCallOfTheAuthority sends the first thousand requests of a device at once to two edges of one Redis.
func TestOneCallOfTheAuthority(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	const requests = 1000
	a := startAuthority(t)
	f := startFleet(t, redistest.Start(t), []string{"--authority.url=" + a.url}, fleetSecret, fleetSecret)
	var wg sync.WaitGroup
	var let atomic.Int64
	client := newClient()
	client.Timeout = time.Minute
	for i := range requests {
		wg.Go(func() {
			got, err := f.edges[i%2].try(client, "POST /v1/telemetry", credential("theirs", "right")...)
			if err == nil && got.status == 200 {
				let.Add(1)
			}
		})
	}
	wg.Wait()
	if let.Load() != requests || a.calls.Load() != 1 {
		t.Errorf("%d of %d let in, by %d calls, want 1", let.Load(), requests, a.calls.Load())
	}
	f.edges[0].ctl("device", "invalidate", "--all")
	a.answer.Store(`{"allow": false}`)
	for _, e := range f.edges {
		e.awaitAnswer("the device is refused", hasStatus(401), "POST /v1/telemetry", credential("theirs", "right")...)
	}
}
