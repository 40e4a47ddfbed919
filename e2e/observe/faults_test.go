package observe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/sidecar/redisurl"
	"github.com/gatehouse/gatehouse/testbed/redistest"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// noFault has the alerts that no fault is injected for, with the reason.
var noFault = map[string]string{
	"GatehouseRedisLostData": "it is silent in the first 15 minutes of a sidecar",
	"GatehouseTraps":         "nothing is known that makes the filter trap",
	"GatehouseClockDiffers":  "the clock of this stack can't be stepped",
	"GatehouseHeapFull":      "it would take most of a GiB",
}

// TestFaults injects the fault of each alert in a real system, and waits until the alert fires in a real Prometheus. The
// alerts are the chart's with a `for` of a second.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("long; in short: promtool's tests of the alerts, make chart-check")
	}
	f := startFaults(t)
	fired := map[string]bool{}
	for _, fault := range []struct {
		alert  string
		inject func() error // again and again until the alert fires
		repair func() error
	}{
		{"GatehouseCorruptRecords", f.corrupt, nil},
		{"GatehouseChainBroken", f.forge, nil},
		{"GatehouseRedisEvicts", f.policy("allkeys-lru"), f.policy("noeviction")},
		{"GatehouseDevicesRefused", f.expensive, nil},
		{"GatehouseBudgetFull", f.tooMuch, nil},
		{"GatehouseVerificationsUnavailable", f.guess, nil},
		{"GatehouseRival", f.rival, f.endRival},
		{"GatehouseNotInStep", once(f.KillRedis), func() error { return f.StartRedis(t.Context()) }},
		{"GatehousePushStalled", once(f.KillEdge), func() error { return f.StartEdge(t.Context()) }},
		{"GatehouseSidecarAway", once(f.KillSidecar), func() error { return f.StartSidecar(t.Context()) }},
	} {
		if f.firing(t)[fault.alert] {
			t.Errorf("%s fires before its fault", fault.alert)
		}
		begin := time.Now()
		for end := begin.Add(deadline); !f.firing(t)[fault.alert]; <-time.After(time.Second) {
			if err := fault.inject(); err != nil {
				t.Fatalf("%s: %v", fault.alert, err)
			}
			if time.Now().After(end) {
				t.Fatalf("%s does not fire within %v; firing: %v", fault.alert, deadline, f.firing(t))
			}
		}
		t.Logf("%s fires after %v", fault.alert, time.Since(begin).Round(time.Second))
		fired[fault.alert] = true
		if fault.repair != nil {
			if err := fault.repair(); err != nil {
				t.Fatalf("repair after %s: %v", fault.alert, err)
			}
		}
	}
	for _, alert := range chartAlerts(t) {
		if fired[alert] == (noFault[alert] != "") {
			t.Errorf("%s: fired %v, and without a fault because %q", alert, fired[alert], noFault[alert])
		}
	}
}

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

// faults is a stack with a Prometheus.
type faults struct {
	*stack.Stack
	t          *testing.T
	prometheus server
	client     redis.UniversalClient
	publisher  *publish.Publisher
	second     *exec.Cmd // another sidecar
	wrote      int
}

func startFaults(t *testing.T) *faults {
	t.Helper()
	server, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("%v: see scripts/need.sh", err)
	}
	s, err := stack.Start(t.Context(), stack.Options{
		Dir: t.TempDir(), RedisServerPath: server,
		SidecarArgs: []string{"--memory.bytes=1MiB", "--bcrypt.max-cost=5", "--limit.device=1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &faults{Stack: s, t: t}
	t.Cleanup(func() {
		if err := errors.Join(f.endRival(), s.Stop()); err != nil {
			t.Error(err)
		}
	})
	if f.client, err = redisurl.Connect(s.RedisURL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.client.Close() })
	f.publisher = publish.New(f.client)
	f.prometheus = f.runPrometheus()
	return f
}

// runPrometheus runs a Prometheus that reads the stack, with docs/prometheus.
func (f *faults) runPrometheus() server {
	f.t.Helper()
	dir := f.t.TempDir()
	write := func(name string, change func(string) string) {
		text, err := os.ReadFile(filepath.Join("../../docs/prometheus", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(change(string(text))), 0o600)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
	path := "/stats/prometheus"
	if f.EdgeKind() == stack.NginxEdge {
		path = "/metrics"
	}
	write("alerts.yaml", func(text string) string {
		return regexp.MustCompile(`for: \w+`).ReplaceAllString(text, "for: 1s")
	})
	write("prometheus.yml", func(text string) string {
		text = regexp.MustCompile(`_interval: \w+`).ReplaceAllString(text, "_interval: 1s")
		return strings.NewReplacer("127.0.0.1:9090", strings.TrimPrefix(f.SidecarAdminURL(), "http://"),
			"127.0.0.1:9901", strings.TrimPrefix(f.EnvoyAdminURL(), "http://"), "__metrics_path__: /stats/prometheus", "__metrics_path__: "+path).Replace(text)
	})
	address := redistest.FreeAddress(f.t)
	command := exec.CommandContext(f.t.Context(), "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--web.listen-address="+address, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--log.level=warn")
	command.Stderr = f.t.Output()
	if err := command.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return server("http://" + address)
}

// firing returns the alerts that fire.
func (f *faults) firing(t *testing.T) map[string]bool {
	t.Helper()
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	f.prometheus.get(t, "/api/v1/alerts", &data)
	firing := map[string]bool{}
	for _, a := range data.Alerts {
		if a.State == "firing" {
			firing[a.Labels["alertname"]] = true
		}
	}
	return firing
}

var shard = contract.ShardKeys(0)

func (f *faults) corrupt() error {
	return f.client.Publish(f.t.Context(), shard.EventsChannel(), "not an event").Err()
}

// forge publishes an event with the digest of another one.
func (f *faults) forge() error {
	ctx := f.t.Context()
	f.wrote++
	if _, err := f.publisher.Put(ctx, publish.Object{Key: fmt.Sprint("/", f.wrote), Body: []byte("x"), ContentType: "text/plain"}); err != nil {
		return err
	}
	epoch, err := f.client.Get(ctx, shard.EpochKey()).Result()
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
		Epoch: epoch, Seq: seq + 1, Digest: last.Digest, Member: contract.ObjectMember("/forged"),
		Fields: map[string]string{contract.FieldVersion: "1", contract.FieldPublished: "1", contract.FieldDeleted: "1"},
	})
	return f.client.Publish(ctx, shard.EventsChannel(), forged).Err()
}

func (f *faults) policy(name string) func() error {
	return func() error { return f.client.ConfigSet(f.t.Context(), "maxmemory-policy", name).Err() }
}

// expensive registers a device whose hash costs more than the sidecar permits.
func (f *faults) expensive() error {
	f.wrote++
	_, err := f.publisher.PutDevice(f.t.Context(), publish.Device{ID: fmt.Sprint("expensive", f.wrote), Secret: "secret", Cost: 6})
	return err
}

// tooMuch publishes more than fits.
func (f *faults) tooMuch() error {
	for range 8 {
		f.wrote++
		body := []byte(strings.Repeat(fmt.Sprintf("%08d", f.wrote), 25000))
		if _, err := f.publisher.Put(f.t.Context(), publish.Object{Key: fmt.Sprint("/large/", f.wrote), Body: body, ContentType: "application/octet-stream"}); err != nil {
			return err
		}
	}
	return nil
}

// guess sends wrong secrets of a device, more than the limit.
func (f *faults) guess() error {
	ctx := f.t.Context()
	if _, err := f.publisher.PutDevice(ctx, publish.Device{ID: "guessed", Secret: "secret", Cost: 4}); err != nil {
		return err
	}
	for range 5 {
		f.wrote++
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.EdgeURL()+"/v1/telemetry", nil)
		if err != nil {
			return err
		}
		request.Header.Set("x-device-id", "guessed")
		request.Header.Set("x-device-token", fmt.Sprint("wrong", f.wrote))
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		_ = answer.Body.Close()
	}
	return nil
}

// rival runs another sidecar for the same edge.
func (f *faults) rival() error {
	if f.second != nil {
		return nil
	}
	root, err := stack.Root()
	if err != nil {
		return err
	}
	f.second = exec.CommandContext(context.WithoutCancel(f.t.Context()), filepath.Join(root, "build", "gatehouse-sidecar"),
		"--redis.url", f.RedisURL(), "--push.socket", f.PushSocket(), "--api.socket", f.APISocket()+"2", "--admin.address", redistest.FreeAddress(f.t))
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
