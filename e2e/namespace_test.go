package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// namespacedUsers creates the users of the document, writer and reader with all optional permissions, for a keyspace:
// the names have the namespace at their end.
func namespacedUsers(t *testing.T, admin redis.UniversalClient, k contract.Keyspace) {
	t.Helper()
	for _, line := range userLines(t) { // changed as the section Namespaces says
		rules := line[2]
		if k.Namespace != "" {
			rules = strings.ReplaceAll(rules, "{gatehouse:", "{gatehouse."+k.Namespace+":")
		}
		if k.Database != 0 {
			rules = strings.Replace(rules, ":events ", fmt.Sprintf(":events:%d ", k.Database), 1) + " +select"
		}
		setUser(t, admin, append([]string{line[1] + k.Namespace}, strings.Fields(rules)...)...)
	}
}

// userLines returns user and rules of each of the document's lines, from the second element on.
func userLines(t *testing.T) [][]string {
	t.Helper()
	text, err := os.ReadFile(contractDoc)
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^ACL SETUSER (writer|reader) (.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(lines) != 6 {
		t.Fatalf("%s has %d lines for users, want 6", contractDoc, len(lines))
	}
	return lines
}

// userURL returns the URL of a server for a user of the document.
func userURL(server *redistest.Server, user, namespace string) string {
	return fmt.Sprintf("redis://%s%s:%s-password@%s", user, namespace, user, server.Address)
}

// TestNamespaces runs two edges at one Redis, each with its own namespace and with users who may use only this
// namespace. Both namespaces have the same keys and device ids.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	server := redistest.StartServer(t)
	namespaces := []string{"", "shop"}
	edges := make([]*edge, len(namespaces))
	for i, namespace := range namespaces {
		k := contract.Keyspace{Namespace: namespace}
		namespacedUsers(t, server.Client(t), k)
		edges[i] = reuse(t, stack.Options{
			RedisURL: "redis://" + server.Address, SidecarRedisURL: userURL(server, "reader", namespace),
			SidecarArgs: []string{"--redis.namespace=" + namespace,
				"--verdict.secret-file=" + writeFile(t, "fleet", fleetSecret)},
			Seed: stack.AcceptLoss(k), Concurrency: 1,
		})
		edges[i].publisher = publish.New(connectRedis(t, userURL(server, "writer", namespace)), publish.Namespace(namespace))
	}
	secret := func(i int) string { return "secret-of-" + fmt.Sprint(i) }
	for i, e := range edges {
		e.put("/v1/products/1", "of "+namespaces[i])
		e.putDevice("dev", secret(i), 4, "telemetry.write")
		e.putDevice("kept", secret(i), 4, "telemetry.write")
	}
	for i, e := range edges {
		e.awaitAnswer("its own object", hasBody("of "+namespaces[i]), "GET /v1/products/1")
		for _, id := range []string{"dev", "kept"} {
			e.awaitAnswer("its own device", hasStatus(200), "POST /v1/telemetry", credential(id, secret(i))...)
			e.awaitAnswer("the other's secret is wrong", hasStatus(401), "POST /v1/telemetry", credential(id, secret(1-i))...)
		}
	}
	edges[1].put("/v1/products/2", "of shop only")
	edges[1].awaitAnswer("an object of one", hasBody("of shop only"), "GET /v1/products/2")
	if a := edges[0].send("GET /v1/products/2"); a.body == "of shop only" {
		t.Error("the other namespace's object is served")
	}
	if _, err := edges[1].publisher.RevokeDevice(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	edges[1].awaitAnswer("the revoked device", hasStatus(401), "POST /v1/telemetry", credential("dev", secret(1))...)
	for _, id := range []string{"dev", "kept"} {
		for range 20 {
			if a := edges[0].send("POST /v1/telemetry", credential(id, secret(0))...); a.status != 200 {
				t.Fatalf("%s, revoked in the other namespace: got %d", id, a.status)
			}
		}
	}
	for i, e := range edges {
		for _, result := range []string{"foreign", "gap", "mistrusted"} {
			if n := e.metric(`gatehouse_events_total{result="` + result + `"}`); n != 0 {
				t.Errorf("edge %d: %v events %s, want none", i, n, result)
			}
		}
		if log := e.readLog("sidecar"); strings.Contains(log, "NOPERM") {
			t.Errorf("edge %d: the documented permissions are not enough:\n%s", i, log)
		}
		out, err := gatehousectl(t, "status", "--sidecar", strings.TrimPrefix(e.SidecarAdminURL(), "http://"))
		named := strings.Contains(out, "namespace shop, ") && strings.Contains(e.readLog("sidecar"), "namespace=shop")
		if err != nil || named != (i == 1) {
			t.Errorf("edge %d: status %v: %s; named %v", i, err, out, named)
		}
	}
	out, err := gatehousectl(t, "edges", "--namespace=shop", "--redis", userURL(server, "reader", "shop"))
	if err != nil || strings.Count(out, " ready ") != 1 {
		t.Errorf("edges of a namespace: %v: %s, want one", err, out)
	}
}

// TestNamespacePermissions: with the documented permissions for one namespace, Redis refuses each command on keys and
// channels of another.
func TestNamespacePermissions(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	server := redistest.StartServer(t)
	keyspaces := []contract.Keyspace{{}, {Namespace: "shop"}, {Namespace: "shop-a"}, {Namespace: "db", Database: 3}}
	for _, k := range keyspaces {
		namespacedUsers(t, server.Client(t), k)
	}
	hash, day := strings.Repeat("0", 40), time.Now()
	commands := map[string]func(k contract.Keyspace) [][]any{
		"writer": func(k contract.Keyspace) [][]any {
			keys := k.Keys(0)
			record, channel := keys.ObjectKey("/a"), keys.EventsChannel()
			return [][]any{
				{"evalsha", hash, 1, record}, {"eval", "return redis.call('GET', KEYS[1])", 1, keys.SeqKey()},
				{"hget", record, "f"}, {"hgetall", record}, {"hkeys", record}, {"hexists", record, "f"},
				{"zscore", keys.LogKey(), "m"}, {"zrange", keys.LogKey(), -1, -1}, {"set", k.ShardsKey(), "1"},
				{"get", keys.SeqKey()}, {"incr", keys.SeqKey()},
				{"zadd", keys.LogKey(), 1, "m"}, {"hset", record, "f", "v"}, {"hdel", record, "f"},
				{"pexpire", record, 1000}, {"persist", keys.SeqKey()}, {"publish", channel, "m"}, {"spublish", channel, "m"},
				{"xadd", keys.AuditKey(), "*", "f", "v"},
			}
		},
		"reader": func(k contract.Keyspace) [][]any {
			keys := k.Keys(0)
			record, channel := keys.CredentialKey("d"), keys.EventsChannel()
			return [][]any{
				{"subscribe", channel}, {"ssubscribe", channel}, {"get", keys.SeqKey()}, {"zrange", keys.LogKey(), 0, 1},
				{"hgetall", record}, {"hmget", record, "f"}, {"memory", "usage", record}, {"set", keys.ResyncKey(), "x"},
				{"hset", k.EdgesKey(), "f", "v"}, {"hdel", k.EdgesKey(), "f"}, {"set", keys.VerdictKey("x"), "x"},
				{"del", keys.VerdictLockKey("x")},
				{"zadd", keys.SeenKey(), 1, "d"}, {"zincrby", keys.SeenFailedKey(day), 1, "d"},
				{"zremrangebyrank", keys.SeenFailedKey(day), 0, 0}, {"zmscore", keys.SeenKey(), "d"},
				{"expire", keys.SeenOldKey(), 1000},
			}
		},
	}
	noKey := []string{"time", "script", "acl", "client", "unsubscribe", "sunsubscribe", "ping", "info"}
	for user, of := range commands {
		for _, line := range userLines(t) {
			for _, permitted := range regexp.MustCompile(` \+([a-z]+)`).FindAllStringSubmatch(line[2], -1) {
				if line[1] == user && !slices.Contains(noKey, permitted[1]) &&
					!slices.ContainsFunc(of(keyspaces[0]), func(c []any) bool { return c[0] == permitted[1] }) {
					t.Errorf("%s may use %s, which isn't tried", user, permitted[1])
				}
			}
		}
		for _, mine := range keyspaces {
			for _, theirs := range keyspaces {
				for _, command := range of(theirs) {
					options := redis.Options{Addr: server.Address, Username: user + mine.Namespace, Password: user + "-password",
						DB: mine.Database, Protocol: 2}
					c := redis.NewClient(&options) // a new one: SUBSCRIBE changes a connection
					err := c.Do(t.Context(), command...).Err()
					c.Close()
					if refused := redis.HasErrorPrefix(err, "NOPERM"); refused != (mine != theirs) {
						t.Errorf("%s of %+v: %v in %+v: %v, want refused: %v", user, mine, command, theirs, err, mine != theirs)
					}
				}
			}
		}
	}
	// The channels of a namespace's databases differ, too.
	c := connectRedis(t, userURL(server, "writer", ""))
	channel := contract.Keyspace{Database: 1}.Keys(0).EventsChannel()
	if err := c.Publish(t.Context(), channel, "m").Err(); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Errorf("publish on %s: %v, want NOPERM", channel, err)
	}
}
