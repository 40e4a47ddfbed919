// Package clients tests the packages that scripts/clients.sh has built and installed: the clients for Python, Node.js
// and Java. Their own tests run clients/vectors.json, and their READMEs' examples run here, word by word.
package clients

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/devicelog"
)

// work is where scripts/clients.sh leaves the installed packages.
const work = "../../build/clients"

// language is a client's.
type language struct {
	name    string
	tests   []string // a command
	fence   string   // of the README's example
	file    string   // of the example
	example []string // a command
}

var languages = []language{
	{"python", []string{"../../../.venv/bin/python", "-B", "-m", "unittest", "discover", "-s", "tests"}, "python",
		"example.py", []string{"../../../.venv/bin/python", "-B", "example.py"}},
	{"node", []string{"node", "--test", "test/"}, "js", "example.js", []string{"node", "example.js"}},
	{"java", []string{"mvn", "--file", "../stage/clients/java/pom.xml", "--batch-mode", "--quiet", "surefire:test"},
		"java", "Example.java", []string{"java", "-cp", "gatehouse-client-0.1.0.jar:lib/*", "Example.java"}},
}

// run runs a command in the language's project.
func (l language) run(t *testing.T, command []string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = filepath.Join(work, l.name)
	path := absolutePath(t, filepath.Join(work, "python")) + ":" + absolutePath(t, "../../.venv/clients")
	cmd.Env = append(append(os.Environ(), "PYTHONPATH="+path), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

func absolutePath(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	return path
}

// TestVectors runs the tests of each client against one server and a Cluster.
func TestVectors(t *testing.T) {
	t.Parallel()
	single, cluster := redistest.Start(t), redistest.StartCluster(t)
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			_, addresses, _ := strings.Cut(cluster.URL, "://")
			l.run(t, l.tests, "GATEHOUSE_TEST_REDIS="+single, "GATEHOUSE_TEST_CLUSTER="+addresses)
		})
	}
}

// TestReadme runs the example of each client's README, which publishes to its own database with the documented
// permissions. The test receives the events as a sidecar does.
func TestReadme(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t)
	for i, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			keys := contract.Keys{Database: i + 1}
			client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(url, "redis://"), DB: keys.Database})
			t.Cleanup(func() { client.Close() })
			permitWriter(t, client, l.name)
			events := client.Subscribe(ctx, keys.EventsChannel())
			t.Cleanup(func() { events.Close() })
			if _, err := events.Receive(ctx); err != nil { // the acknowledgement
				t.Fatal(err)
			}
			readme, err := os.ReadFile("../../clients/" + l.name + "/README.md")
			require.NoError(t, err)
			_, code, _ := strings.Cut(string(readme), "```"+l.fence+"\n")
			code, _, found := strings.Cut(code, "```")
			const address = "redis://127.0.0.1:6380"
			if !found || strings.Count(code, address) != 1 {
				t.Fatalf("README.md has no example in %s that connects to %s", l.fence, address)
			}
			own := strings.Replace(url, "redis://", "redis://"+l.name+":password@", 1)
			code = strings.Replace(code, address, fmt.Sprint(own, "/", keys.Database), 1)
			require.NoError(t, os.WriteFile(filepath.Join(work, l.name, l.file), []byte(code), 0o600))
			if out := l.run(t, l.example); !strings.Contains(out, "no device") || !strings.Contains(out, "truck-8") {
				t.Errorf("got %q, want that there is no truck-8", out)
			}
			checkPublished(t, client)
			compareEvents(t, client, events, keys)
		})
	}
}

// permitWriter gives user the writer's permissions of docs/redis-contract.md.
func permitWriter(t *testing.T, client *redis.Client, user string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/redis-contract.md")
	require.NoError(t, err)
	_, rule, _ := strings.Cut(string(page), "ACL SETUSER writer ")
	rule, _, _ = strings.Cut(rule, "\n")
	rule = strings.Replace(rule, "&{gatehouse:*}:events", "&{gatehouse:*}:events:*", 1)
	rule = strings.Replace(rule, "writer-password", "password", 1)
	args := []any{"ACL", "SETUSER", user}
	for word := range strings.FieldsSeq(rule + " +select") {
		args = append(args, word)
	}
	require.NoError(t, client.Do(t.Context(), args...).Err())
}

// checkPublished checks what the examples leave.
func checkPublished(t *testing.T, client *redis.Client) {
	t.Helper()
	ctx, p := t.Context(), publish.New(client)
	if o, err := p.Get(ctx, "/v1/prices/999"); err != nil || string(o.Bodies[0].Bytes) != "1" {
		t.Errorf("/v1/prices/999: %+v, %v", o, err)
	}
	if _, err := p.Get(ctx, "/v1/products/42"); err != nil {
		t.Errorf("/v1/products/42: %v, want it as the README's reader asks the edge for it", err)
	}
	if _, err := p.Get(ctx, "/v1/prices/0"); !errors.Is(err, publish.ErrNotFound) {
		t.Errorf("/v1/prices/0: %v, want it deleted", err)
	}
	device, err := p.GetDevice(ctx, "truck-7")
	if err != nil || !publish.Matches(device.Hashes[0], "a secret of yours", nil) {
		t.Errorf("truck-7: %+v, %v", device, err)
	}
	log := devicelog.Log{Client: client}
	for change, err := range log.Audit(ctx, time.Time{}) {
		if err != nil || change.Device != "truck-7" || !strings.Contains(change.Author, "@") {
			t.Errorf("audit: %+v, %v, want a put of truck-7 by user@host", change, err)
		}
	}
}

// compareEvents compares all events with Redis: numbers without a hole, digests of the chain, and records.
func compareEvents(t *testing.T, client *redis.Client, events *redis.PubSub, keys contract.Keys) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	const writes = 1003 // an object, 1000 prices, a deletion, a device
	last := map[contract.Member]map[string]string{}
	for seq := uint64(1); seq <= writes; seq++ {
		message, err := events.ReceiveMessage(ctx)
		if err != nil {
			t.Fatalf("event %d: %v", seq, err)
		}
		e, err := contract.ParseEvent(message.Payload)
		if err != nil || e.Seq != seq {
			t.Fatalf("event %d: %v, has number %d", seq, err, e.Seq)
		}
		last[e.Member] = e.Fields
		link := client.HGet(ctx, keys.ChainKey(), contract.ChainField(seq)).Val()
		if want := (contract.Link{Seq: seq, Digest: e.Digest}).String(); link != want {
			t.Fatalf("event %d: the chain has %q, want %q", seq, link, want)
		}
	}
	for m, fields := range last {
		if stored := client.HGetAll(ctx, keys.RecordKey(m)).Val(); !maps.Equal(stored, fields) {
			t.Errorf("%s: the event has %q, redis %q", m, fields, stored)
		}
	}
}
