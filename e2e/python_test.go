package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// runPython runs the interpreter of .venv, with the packages of testdata/requirements.txt.
func runPython(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	const interpreter = "../.venv/bin/python"
	if out, err := exec.CommandContext(t.Context(), interpreter, "-c", "import redis, bcrypt").
		CombinedOutput(); err != nil {
		t.Fatalf("python3 with redis-py and bcrypt in .venv: %v: %s; run scripts/install-python.sh "+
			"e2e/testdata/requirements.txt ''", err, out)
	}
	cmd := exec.CommandContext(t.Context(), interpreter, append([]string{"-B"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// writer publishes with the example, and receives the events.
type writer struct {
	t     *testing.T
	url   string
	redis *redis.Client
	keys  contract.Keys
	sub   *redis.PubSub
}

// newWriter publishes to url; admin has all permissions there. The writes go to the one shard with these keys.
func newWriter(t *testing.T, url string, admin *redis.Client, keys contract.Keys) *writer {
	t.Helper()
	sub := admin.Subscribe(t.Context(), keys.EventsChannel())
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(t.Context()); err != nil { // the acknowledgement
		t.Fatal(err)
	}
	return &writer{t, url, admin, keys, sub}
}

func (w *writer) run(stdin string, args ...string) (string, error) {
	w.t.Helper()
	return runPython(w.t, stdin, append([]string{pythonExample, w.url}, args...)...)
}

// runExample runs the example and returns the payload of its event, after comparing the event with the example's output
// and with Redis.
func (w *writer) runExample(m contract.Member, stdin string, args ...string) string {
	w.t.Helper()
	out, err := w.run(stdin, args...)
	if err != nil {
		w.t.Fatalf("%s %s: %v: %s", pythonExample, args[0], err, out)
	}
	message, err := w.sub.ReceiveMessage(w.t.Context())
	require.NoError(w.t, err)
	e, err := contract.ParseEvent(message.Payload)
	if err != nil {
		w.t.Fatalf("%s: event %q: %v", args[0], message.Payload, err)
	}
	if receipt := fmt.Sprintf("%s %d", e.Fields[contract.FieldVersion], e.Seq); out != receipt || e.Member != m {
		w.t.Errorf("%s: printed %q, the event says %q of %s, want %s", args[0], out, receipt, e.Member, m)
	}
	stored, err := w.redis.HGetAll(w.t.Context(), w.keys.RecordKey(m)).Result()
	if err != nil || !maps.Equal(stored, e.Fields) {
		w.t.Errorf("%s: the event has %q, redis %q, %v", args[0], e.Fields, stored, err)
	}
	if epoch := w.redis.Get(w.t.Context(), w.keys.DataEpochKey()).Val(); e.DataEpoch != epoch {
		w.t.Errorf("%s: the event is of epoch %q, redis has %q", args[0], e.DataEpoch, epoch)
	}
	link := w.redis.HGet(w.t.Context(), w.keys.ChainKey(), contract.ChainHead).Val()
	if link != (contract.Link{Seq: e.Seq, Digest: e.Digest}).String() {
		w.t.Errorf("%s: the event has digest %s, the chain %q", args[0], e.Digest, link)
	}
	if ours := contract.AppendEvent(nil, e); len(ours) != len(message.Payload) {
		w.t.Errorf("%s: got an event of %d bytes, want %d", args[0], len(message.Payload), len(ours))
	}
	return message.Payload
}

// TestPythonWriter publishes with the documented example to a real edge. Both have just the documented permissions.
func TestPythonWriter(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	url := redistest.Start(t)
	admin := connectRedis(t, url)
	documentedUsers(t, admin)
	as := func(user string) string {
		return strings.Replace(url, "redis://", "redis://"+user+":"+user+"-password@", 1)
	}
	e := reuse(t, stack.Options{RedisURL: as("reader"), Seed: func(ctx context.Context, _ string) error {
		return stack.AcceptLoss(contract.Keyspace{})(ctx, as("writer"))
	}})
	w := newWriter(t, as("writer"), admin, contract.Keys{})
	one := []*http.Client{shared}

	const key = "/v1/products/42?lang=de"
	object, body := contract.ObjectMember(key), prettyJSON(1024, "python")
	file := writeFile(t, "body.json", body)
	w.runExample(object, "", "put", key, file, "application/json", "41")
	await(t, "published", patience, func() error {
		return e.sendFromAll(one, hasBody(body), "GET "+key)
	})
	zipped := e.send("GET /v1/products/42?b=2&lang=de", "accept-encoding: gzip")
	if zipped.status != 200 || zipped.header.Get("Content-Encoding") != "gzip" || decodeBody(t, zipped) != body {
		t.Errorf("got %d %v, want the object in gzip", zipped.status, zipped.header)
	}
	if got, want := zipped.header.Get("ETag"), "W/"+publish.ETag("application/json", []byte(body)); got != want {
		t.Errorf("got entity-tag %s, want %s", got, want)
	}
	if out, err := w.run("", "put", key, file, "application/json", "41"); err == nil || !strings.Contains(out, "STALE") {
		t.Errorf("the same version again: got %v: %s, want STALE", err, out)
	}
	w.runExample(object, "", "delete", key)
	await(t, "deleted", patience, func() error {
		return e.sendFromAll(one, func(a answer) bool {
			return a.header.Get("Cache-Status") == "gatehouse; fwd=uri-miss"
		}, "GET "+key)
	})

	const device, secret = "thermostat-7", "python's secret"
	member, shows := contract.CredentialMember(device), credential(device, secret)
	if a := e.send("POST /v1/telemetry", shows...); a.status != 401 {
		t.Errorf("unknown: got %d, want 401", a.status)
	}
	w.runExample(member, secret+"\n", "register", device, "telemetry.write", "config.read")
	await(t, "authenticated", patience, func() error {
		return e.sendFromAll(one, hasStatus(200), "POST /v1/telemetry", shows...)
	})
	w.runExample(member, "", "revoke", device)
	await(t, "refused", patience, func() error {
		return e.sendFromAll(one, hasStatus(401), "POST /v1/telemetry", shows...)
	})
	if got := e.metric("gatehouse_corrupt_total"); got != 0 {
		t.Errorf("the sidecar refused %v records", got)
	}
}

// TestPythonWriterInKeyspaces publishes with the example in another database and in a namespace: the events are in the
// channel of the keyspace.
func TestPythonWriterInKeyspaces(t *testing.T) {
	leaveToNative(t)
	url := redistest.Start(t)
	for _, keys := range []contract.Keys{{Namespace: "shop"}, {Database: 1}, {Namespace: "shop", Database: 12}} {
		t.Setenv("GATEHOUSE_REDIS_NAMESPACE", keys.Namespace)
		at := fmt.Sprint(url, "/", keys.Database)
		w := newWriter(t, at, connectRedis(t, at), keys)
		w.runExample(contract.ObjectMember("/a"), "", "put", "/a", writeFile(t, "a.txt", "a"), "text/plain", "3")
		w.runExample(contract.CredentialMember("d"), "secret\n", "register", "d")
		w.runExample(contract.CredentialMember("d"), "", "revoke", "d")
	}
	t.Setenv("GATEHOUSE_REDIS_NAMESPACE", "a.b")
	if out, err := runPython(t, "", pythonExample, url, "delete", "/a"); err == nil ||
		!strings.Contains(out, "namespace 'a.b'") {
		t.Errorf("got %v, %s; want the namespace refused", err, out)
	}
	if n := connectRedis(t, url).Exists(t.Context(), contract.Keys{}.SeqKey()).Val(); n != 0 {
		t.Error("something was written in the default namespace")
	}
}

// TestWriteScriptRefusesSlips passes the script likely mistakes of writers in other languages: the existing record must
// stay, and no event may be sent.
func TestWriteScriptRefusesSlips(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../clients/go/publish/write.lua")
	require.NoError(t, err)
	admin := connectRedis(t, redistest.Start(t))
	write := func(keys []string, args ...any) error {
		return admin.Eval(t.Context(), string(source), keys, args...).Err()
	}
	keys := []string{"{gatehouse:0}:o:/a", "{gatehouse:0}:seq", "{gatehouse:0}:log", "{gatehouse:0}:epoch",
		"{gatehouse:0}:chain"}
	good := []any{"replace", "0", "beef", "o:/a", "0", "{gatehouse:0}:events", "PUBLISH", "", "etag",
		`""`, "content-type", "a", "body", ""}
	require.NoError(t, write(keys, good...))
	with := func(i int, value string) []any {
		args := slices.Clone(good)
		args[i] = value
		return args
	}
	many := slices.Clone(good)
	for i := range 40 {
		many = append(many, "field-"+strconv.Itoa(i), "")
	}
	tests := []struct {
		name string
		keys []string
		args []any
		says string // beside INVALID
	}{
		{"no arguments", keys, nil, "0 arguments"},
		{"no field", keys, good[:8], "8 arguments"},
		{"a field without its value", keys, good[:13], "13 arguments"},
		{"too many fields", keys, many, "1 to 32 fields"},
		{"a key too few", keys[:4], good, "4 keys"},
		{"keys in another order", []string{keys[0], keys[2], keys[1], keys[3], keys[4]}, good, "want {gatehouse:0}:seq"},
		{"a key of another shard", []string{keys[0], keys[1], keys[2], keys[3], "{gatehouse:1}:chain"},
			good, "want {gatehouse:0}:chain"},
		{"channel of another shard", keys, with(5, "{gatehouse:1}:events"), "channel {gatehouse:1}:events"},
		{"channel of another namespace", keys, with(5, "{gatehouse.shop:0}:events"), "want {gatehouse:0}:events"},
		{"channel with database 0", keys, with(5, "{gatehouse:0}:events:0"), "other than 0 {gatehouse:0}:events:D"},
		{"channel with another end", keys, with(5, "{gatehouse:0}:events:1x"), "channel {gatehouse:0}:events:1x"},
		{"channel without the colon", keys, with(5, "{gatehouse:0}:events1"), "channel {gatehouse:0}:events1"},
		{"traceparent", keys, with(7, "00-beef"), "traceparent 00-beef"},
		{"mode", keys, with(0, "put"), "mode put"},
		{"version", keys, with(1, "-1"), "version -1"},
		{"epoch", keys, with(2, "BEEF"), "epoch BEEF"},
		{"member of another key", keys, with(3, "o:/b"), "member o:/b"},
		{"member without its kind", keys, with(3, "/a"), "member /a"},
		{"expiry without deletion", keys, with(4, "86400000"), "expiry 86400000"},
		{"deletion without expiry", keys, append(slices.Clone(good[:8]), "deleted", "1"), "expiry 0"},
		{"expiry", keys, append(with(4, "24h")[:8], "deleted", "1"), "expiry 24h"},
		{"publishing", keys, with(6, "publish"), "publishing by publish"},
		{"version as a field", keys, with(8, "version"), "field version"},
		{"a field twice", keys, with(10, "etag"), "field etag"},
	}
	for _, tt := range tests {
		err := write(tt.keys, tt.args...)
		if err == nil || !strings.HasPrefix(err.Error(), "INVALID ") || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want INVALID … %s", tt.name, err, tt.says)
		}
	}
	fields, err := admin.HGetAll(t.Context(), keys[0]).Result()
	if o, parseErr := contract.ParseObject(fields); err != nil || parseErr != nil || o.Version != 1 {
		t.Errorf("got %v, %v, want the first record: %v", fields, parseErr, err)
	}
	if seq := admin.Get(t.Context(), keys[1]).Val(); seq != "1" {
		t.Errorf("got seq %s, want 1", seq)
	}
}

// connectRedis connects to url until the test ends.
func connectRedis(t *testing.T, url string) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(url)
	require.NoError(t, err)
	c := redis.NewClient(options)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
