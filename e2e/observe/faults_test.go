package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/e2e/chaos"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

const (
	notEnforced = "the stack enforces its rules; promtool's tests have such a rule"
	singleEdge  = "the stack has one edge; promtool's tests have an agent's"
)

// noFault has the alerts without an injected fault, with the reason.
var noFault = map[stack.EdgeKind]map[string]string{
	stack.EnvoyEdge: {"GatehouseRuleNotEnforced": notEnforced, "GatehouseEdgeNotReady": singleEdge},
	stack.NativeEdge: {
		"GatehouseRuleNotEnforced": notEnforced,
		"GatehouseEdgeNotReady":    singleEdge,
		"GatehouseTraps":           "nothing outside the dynamic module makes it panic",
		"GatehouseHeapFull":        "the heap at rest is some 10 MiB, too little to fill it in part",
	},
	stack.NginxEdge: {
		"GatehouseRuleNotEnforced": notEnforced,
		"GatehouseEdgeNotReady":    singleEdge,
		"GatehouseTraps":           "Lua has no VM that traps",
		"GatehouseHeapFull":        "a metric of Envoy",
		"GatehouseRulesRefused":    "nginx doesn't count them",
	},
}

// TestFaults injects the fault of each alert in a real system, and waits until the alert has reached the Alertmanager
// of `make observe`, and the first line of the operator's page and of `gatehousectl status` tell the same cause. The
// alerts are the chart's, without a `for`.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("long; in short: promtool's tests of the alerts, make chart-check")
	}
	f := startFaults(t)
	fired := map[string]bool{}
	for _, fault := range []fault{
		{"GatehouseCorruptRecords", f.publishGarbage, nil, `records or events in Redis are malformed`},
		{"GatehouseChainBroken", f.forgeEvent, nil, `events don't match the writes`},
		{"GatehouseDevicesRefused", f.putExpensive, nil, `records can't authenticate their device`},
		{"GatehouseGuesses", f.guessSecrets, nil, `somebody guesses secrets`},
		{"GatehouseVerificationsUnavailable", f.spraySecrets, nil, `got a 503, most of them because of limited`},
		{"GatehouseRedisEmpty", once(f.emptyRedis), nil, `Redis is empty`},
		{"GatehouseRedisLostData", once(func() error {
			return errors.Join(f.maxMemory("0")(), f.acceptLoss())
		}), nil, `Redis lost data`},
		{"GatehouseRulesRefused", f.refusedRules, f.repairRules, `Envoy refused \d+ changes of the rules`},
		{"GatehouseTraps", f.trapWorkers, nil, `the filter trapped or panicked`},
		{"GatehouseRival", f.runRival, f.endRival, `another sidecar has taken over`},
		{"GatehouseNotInStep", once(f.KillRedis), func() error {
			return errors.Join(f.StartRedis(t.Context()), f.acceptLoss())
		}, `Redis is not followed`},
		{"GatehousePushStalled", f.edge(syscall.SIGSTOP), f.edge(syscall.SIGCONT),
			`the edge has not acknowledged a push|not ready: .*push`},
		{"GatehouseRedisEvicts", f.policy("allkeys-lru"), f.policy("noeviction"), `Redis may evict records`},
		{"GatehouseRedisFull", f.maxMemory("1"), f.maxMemory("0"), `Redis is full`},
		{"GatehouseRedisClockDiffers", step(f.redisClock), func() error {
			return f.redisClock.Step(0)
		}, `Redis's clock is 60 s behind`},
		{"GatehouseClockDiffers", step(f.clock), func() error { return f.clock.Step(0) }, `Redis's clock is 60 s ahead`},
		{"GatehouseSidecarAway", f.sidecar(syscall.SIGSTOP), f.sidecar(syscall.SIGCONT), `the sidecar doesn't answer`},
		{"GatehouseBudgetFull", f.tooMuch, nil, `no room for \d+ objects`},
		{"GatehouseHeapFull", once(f.shrinkHeap), nil, `Envoy's heap is \d+ % full`},
	} {
		if noFault[f.EdgeKind()][fault.alert] == "" {
			f.injectFault(t, fault)
			fired[fault.alert] = true
		}
	}
	for _, alert := range chartAlerts(t) {
		if why := noFault[f.EdgeKind()][alert]; fired[alert] == (why != "") {
			t.Errorf("%s: fired %v, and without a fault because %q", alert, fired[alert], why)
		}
	}
}

// fault is a fault and the alerts and messages that reveal the fault.
type fault struct {
	alert  string
	inject func() error // again and again until everything has told it
	repair func() error
	cause  string // regular expression of the first line of page and status
}

// injectFault injects a fault, waits, and logs how the fault was revealed.
func (f *faults) injectFault(t *testing.T, fault fault) {
	t.Helper()
	if f.firingAlerts(t)[fault.alert] {
		t.Errorf("%s fires before its fault", fault.alert)
	}
	cause := regexp.MustCompile(fault.cause)
	away := fault.alert == "GatehouseSidecarAway" // nobody serves the page
	var status, page string
	begin, alerted := time.Now(), time.Duration(0)
	for end := begin.Add(deadline); ; <-time.After(time.Second / 2) {
		if err := fault.inject(); err != nil {
			t.Fatalf("%s: %v", fault.alert, err)
		}
		if alerted == 0 && f.firingAlerts(t)[fault.alert] {
			alerted = time.Since(begin)
		}
		if alerted != 0 {
			if status = f.statusLine(); !away {
				page = f.pageLine()
			}
			if cause.MatchString(status) && (away || cause.MatchString(page)) {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s: alert after %v (0: never), page %q, status %q within %v; firing: %v", fault.alert,
				alerted, page, status, deadline, f.firingAlerts(t))
		}
	}
	t.Logf("%-34s %4.1f s, page and status %4.1f s | %s | %s", fault.alert, alerted.Seconds(),
		time.Since(begin).Seconds(), page, status)
	if fault.repair != nil {
		if err := fault.repair(); err != nil {
			t.Fatalf("repair after %s: %v", fault.alert, err)
		}
	}
}

// statusLine returns the first line of gatehousectl status, or of its error.
func (f *faults) statusLine() string {
	output, _ := exec.CommandContext(f.t.Context(), f.builtPath("gatehousectl"), "status", "--sidecar",
		hostOf(f.SidecarAdminURL())).CombinedOutput()
	line, _, _ := strings.Cut(string(output), "\n")
	return line
}

// firstProblem is the first line of the page, if something is wrong.
var firstProblem = regexp.MustCompile(`<li class="(?:critical|warning)"><b>(.*)</b>(.*)</li>`)

// pageLine returns the first line of the operator's page, "" if there is no problem.
func (f *faults) pageLine() string {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get(f.SidecarAdminURL() + "/")
	if err != nil {
		return err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	line := firstProblem.FindSubmatch(text)
	if line == nil {
		return ""
	}
	return html.UnescapeString(string(line[1]) + string(line[2]))
}

func hostOf(url string) string { return strings.TrimPrefix(url, "http://") }

// once returns a function that calls f at its first call only.
func once(f func() error) func() error {
	done := false
	return func() error {
		if done {
			return nil
		}
		done = true
		return f()
	}
}

// faults is a stack with what make observe runs beside it.
type faults struct {
	*stack.Stack
	t            *testing.T
	root         string
	alertmanager string       // URL
	clock        *chaos.Clock // of the edge and its sidecar
	redisClock   *chaos.Clock
	client       redis.UniversalClient
	publisher    *publish.Publisher
	second       *exec.Cmd // another sidecar
	wrote        int
	guessed      bool   // its device is registered
	maxHeap      int    // of Envoy, bytes; 0: as shipped
	parts        string // directory of Envoy's configuration in parts
	rules        []byte // the part with the rules
	refusals     int    // parts with an error so far
}

// builtPath returns the path of a program that make built.
func (f *faults) builtPath(name string) string { return filepath.Join(f.root, "build", name) }

func startFaults(t *testing.T) *faults {
	t.Helper()
	server, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("%v: see scripts/install-packages.sh", err)
	}
	f := &faults{t: t}
	if f.root, err = stack.Root(); err != nil {
		t.Fatal(err)
	}
	if f.clock, err = chaos.NewClock(filepath.Join(t.TempDir(), "clock")); err != nil {
		t.Fatal(err)
	}
	if f.redisClock, err = chaos.NewClock(filepath.Join(t.TempDir(), "clock")); err != nil {
		t.Fatal(err)
	}
	library := f.builtPath("chaos/clock.so")
	clock := f.clock.Environment(library)
	envoy, err := f.renderParts()
	require.NoError(t, err)
	f.Stack, err = stack.Start(t.Context(), stack.Options{
		ModifyConfig: f.limitHeap, ModifyNginx: func(config string) string { return config },
		Dir: t.TempDir(), EnvoyPath: envoy, RedisServerPath: server, EnvoyEnv: clock, SidecarEnv: clock[:1],
		RedisEnv:    f.redisClock.Environment(library),
		SidecarPath: f.builtPath("chaos/gatehouse-sidecar"), WasmPath: f.builtPath("chaos/gatehouse.wasm"),
		LibraryPath:  filepath.Join(f.root, "build", "chaos", "libgatehouse.so"),
		NginxLibrary: filepath.Join(f.root, "build", "chaos", "libgatehouse-nginx.so"),
		SidecarArgs:  []string{"--memory.bytes=1MiB", "--bcrypt.max-cost=5", "--limit.device=1", "--limit.source=10"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := errors.Join(f.endRival(), f.Stop()); err != nil {
			t.Error(err)
		}
	})
	if f.client, err = redisurl.Connect(f.RedisURL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.client.Close() })
	f.publisher = publish.New(f.client, publish.Shards(1))
	f.startObserving()
	return f
}

// startObserving runs what make observe runs beside the stack.
func (f *faults) startObserving() {
	alerts, err := os.ReadFile(filepath.Join(f.root, "docs/prometheus/alerts.yaml"))
	require.NoError(f.t, err)
	text := regexp.MustCompile(`for: \w+`).ReplaceAllString(string(alerts), "for: 0s")
	path := filepath.Join(f.t.TempDir(), "alerts.yaml")
	require.NoError(f.t, os.WriteFile(path, []byte(text), 0o600))
	addresses := runScript(f.t, map[string]string{
		"EDGE": hostOf(f.EdgeURL()), "ENVOY_ADMIN": hostOf(f.EnvoyAdminURL()), "SIDECAR_ADMIN": hostOf(f.SidecarAdminURL()),
		"REDIS_URL": f.RedisURL(), "ALERTS": path,
	}, "sh", "-c", "echo gatehouse ready; exec sleep 600")
	f.alertmanager = "http://" + addresses["ALERTMANAGER"]
}

// firingAlerts returns the firing alerts as Alertmanager received them.
func (f *faults) firingAlerts(t *testing.T) map[string]bool {
	t.Helper()
	firing := map[string]bool{}
	answer, err := http.Get(f.alertmanager + "/api/v2/alerts")
	if err != nil {
		return firing // it still starts
	}
	defer func() { _ = answer.Body.Close() }()
	var alerts []struct{ Labels map[string]string }
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&alerts))
	for _, a := range alerts {
		firing[a.Labels["alertname"]] = true
	}
	return firing
}

var shard = contract.Keys{}

func (f *faults) publishGarbage() error {
	return f.client.Publish(f.t.Context(), shard.EventsChannel(), "not an event").Err()
}

// emptyRedis empties Redis, which is full afterwards, so that the load's publications don't end the emptiness.
func (f *faults) emptyRedis() error {
	return errors.Join(f.maxMemory("1")(), f.client.FlushAll(f.t.Context()).Err())
}

func (f *faults) acceptLoss() error {
	_, err := f.publisher.AcceptLoss(f.t.Context())
	return err
}

// forgeEvent publishes an event with the digest of a different event.
func (f *faults) forgeEvent() error {
	ctx := f.t.Context()
	f.wrote++
	if _, err := f.publisher.Put(ctx, publish.Object{Key: fmt.Sprint("/", f.wrote), Body: []byte("x"),
		ContentType: "text/plain"}); err != nil {
		return err
	}
	epoch, err := f.client.Get(ctx, shard.DataEpochKey()).Result()
	if err != nil {
		return err
	}
	seq, err := f.client.Get(ctx, shard.SeqKey()).Uint64()
	if err != nil {
		return err
	}
	link, err := f.client.HGet(ctx, shard.ChainKey(), contract.ChainField(seq)).Result()
	if err != nil {
		return err
	}
	last, err := contract.ParseLink(link)
	if err != nil {
		return err
	}
	forged := contract.AppendEvent(nil, contract.Event{
		DataEpoch: epoch, Seq: seq + 1, Digest: last.Digest, Member: contract.ObjectMember("/forged"),
		Fields: map[string]string{contract.FieldVersion: "1", contract.FieldPublished: "1", contract.FieldDeleted: "1"},
	})
	return f.client.Publish(ctx, shard.EventsChannel(), forged).Err()
}

func step(clock *chaos.Clock) func() error {
	return func() error { return clock.Step(-time.Minute) }
}

func (f *faults) policy(name string) func() error {
	return func() error { return f.client.ConfigSet(f.t.Context(), "maxmemory-policy", name).Err() }
}

func (f *faults) maxMemory(bytes string) func() error {
	return func() error { return f.client.ConfigSet(f.t.Context(), "maxmemory", bytes).Err() }
}

// putExpensive registers a device whose hash costs more than the sidecar permits.
func (f *faults) putExpensive() error {
	f.wrote++
	_, err := f.publisher.PutDevice(f.t.Context(), publish.Device{ID: fmt.Sprint("expensive", f.wrote),
		Secret: "secret", Cost: 6})
	return err
}

func (f *faults) tooMuch() error {
	for range 8 {
		f.wrote++
		body := []byte(strings.Repeat(fmt.Sprintf("%08d", f.wrote), 25000))
		if _, err := f.publisher.Put(f.t.Context(), publish.Object{Key: fmt.Sprint("/large/", f.wrote),
			Body: body, ContentType: "application/octet-stream"}); err != nil {
			return err
		}
	}
	return nil
}

// guessSecrets sends more wrong secrets of an active device than the limit allows.
func (f *faults) guessSecrets() error {
	if !f.guessed {
		if _, err := f.publisher.PutDevice(f.t.Context(),
			publish.Device{ID: "guessed", Secret: "secret", Cost: 4}); err != nil {
			return err
		}
		f.guessed = true
	}
	status, err := f.showCredential("guessed", "secret")
	for i := 0; i < 5 && err == nil && status == http.StatusForbidden; i++ { // it lacks a permission
		f.wrote++
		_, err = f.showCredential("guessed", fmt.Sprint("wrong", f.wrote))
	}
	return err
}

// spraySecrets sends a wrong secret for each of some devices, more than the limit of the address.
func (f *faults) spraySecrets() error {
	const devices = 5
	f.wrote += devices
	for i := range devices {
		if _, err := f.publisher.PutDevice(f.t.Context(), publish.Device{ID: fmt.Sprint("sprayed", f.wrote-i),
			Secret: "secret", Cost: 4}); err != nil {
			return err
		}
	}
	for i := range devices {
		if _, err := f.showCredential(fmt.Sprint("sprayed", f.wrote-i), "wrong"); err != nil {
			return err
		}
	}
	return nil
}

func (f *faults) showCredential(id, secret string) (int, error) {
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.EdgeURL()+"/v1/telemetry", nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("x-device-id", id)
	request.Header.Set("x-device-token", secret)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}

// runRival runs another sidecar for the same edge.
func (f *faults) runRival() error {
	if f.second != nil {
		return nil
	}
	f.second = exec.CommandContext(context.WithoutCancel(f.t.Context()), f.builtPath("gatehouse-sidecar"),
		"--redis.url", f.RedisURL(), "--push.socket", f.PushSocket(), "--api.socket", f.APISocket()+
			"2", "--admin.address", redistest.FreeAddress(f.t))
	return f.second.Start()
}

func (f *faults) endRival() error {
	if f.second == nil {
		return nil
	}
	err := f.second.Process.Kill()
	_ = f.second.Wait()
	f.second = nil
	return err
}

// trapWorkers has the filter of each worker trap.
func (f *faults) trapWorkers() error {
	chaos.TrapModule(&http.Client{Timeout: time.Second}, f.EdgeURL()+"/v1/products/1")
	return nil
}

// renderParts returns a program that renders the parts of Envoy's configuration and runs Envoy with them, as
// gatehouse-envoy.service does.
func (f *faults) renderParts() (program string, err error) {
	envoy, err := stack.FindEnvoy()
	if err != nil {
		return "", err
	}
	f.parts = filepath.Join(f.t.TempDir(), "parts")
	program = filepath.Join(f.t.TempDir(), "envoy")
	return program, os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh -e\n[ \"$1\" = --config-path ]\n"+
		"%s envoy render \"$2\" --dir %s\nshift 2\nexec %s --config-path %s/envoy.yaml \"$@\"\n",
		f.builtPath("gatehousectl"), f.parts, envoy, f.parts), 0o700)
}

// refusedRules replaces the part with the rules by a part with an unknown field.
func (f *faults) refusedRules() (err error) {
	if f.rules == nil {
		if f.rules, err = os.ReadFile(filepath.Join(f.parts, "gatehouse.yaml")); err != nil {
			return err
		}
	}
	f.refusals++ // Envoy ignores the same text again
	wrong := strings.Replace(string(f.rules), "max_staleness:", fmt.Sprintf("max_staleness_%d:", f.refusals), 1)
	if wrong == string(f.rules) {
		return errors.New("the rules have no max_staleness")
	}
	return f.replaceRules([]byte(wrong))
}

func (f *faults) repairRules() error { return f.replaceRules(f.rules) }

// replaceRules replaces the part with the rules as Envoy watches it: by another file of that name.
func (f *faults) replaceRules(text []byte) error {
	file := filepath.Join(f.parts, "gatehouse.yaml")
	return errors.Join(os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file))
}

// limitHeap gives Envoy the heap of shrinkHeap.
func (f *faults) limitHeap(c *stack.Config) error {
	if f.maxHeap == 0 {
		return nil // the shipped one
	}
	return c.Set(f.maxHeap, "overload_manager", "resource_monitors", "envoy.resource_monitors.fixed_heap",
		"typed_config", "max_heap_size_bytes")
}

// shrinkHeap starts Envoy again with a heap slightly above the use at rest, 85 to 90 MiB.
func (f *faults) shrinkHeap() error {
	f.maxHeap = 108 << 20
	return errors.Join(f.KillEdge(), f.StartEdge(f.t.Context()))
}

func (f *faults) edge(signal syscall.Signal) func() error {
	return func() error { return f.SignalEdge(signal) }
}

func (f *faults) sidecar(signal syscall.Signal) func() error {
	return func() error { return f.SignalSidecar(signal) }
}
