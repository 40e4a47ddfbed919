package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// trimmer is the user who trims, with the permissions in the contract's page.
const trimmer = "trimmer"

// documentedTrimmer creates the trimmer on each server, and returns the permissions beyond a writer's.
func documentedTrimmer(t *testing.T, cluster bool, servers ...*redistest.Server) (extra []string) {
	t.Helper()
	named := func(of, text string) []string {
		found := regexp.MustCompile(of + "[^`]*`([^`]*)`").FindStringSubmatch(strings.Join(strings.Fields(text), " "))
		if found == nil {
			t.Fatalf("%s doesn't name what %s", contractDoc, of)
		}
		return strings.Fields(found[1])
	}
	users := sectionOf(t, "Redis itself")
	writer, _, _ := strings.Cut(codeBlock(t, users, "text"), "\n")
	user := append([]string{trimmer}, strings.Fields(writer)[3:]...) // ACL SETUSER writer …
	extra = named(`permissions,`, sectionOf(t, "Trimming"))
	if user = append(user, extra...); cluster {
		user = append(user, named("Clients of a Cluster need", users)...)
	}
	for _, server := range servers {
		setUser(t, server.Client(t), user...)
	}
	return extra
}

// asTrimmer returns url with the user trimmer, who has the documented writer's password.
func asTrimmer(url string) string {
	return strings.Replace(url, "://", "://"+trimmer+":writer-password@", 1)
}

// fillWornLog returns keys of all shards. The change log has entries of deleted records, of objects that expired over a
// day ago, and of present records.
func fillWornLog(t *testing.T, client redis.UniversalClient, k contract.Keyspace) (gone, expired, kept []string) {
	t.Helper()
	p := publish.New(client, publish.Shards(k.Count()))
	for i := range 48 {
		key := fmt.Sprint("/v1/products/", i)
		if _, err := p.Put(t.Context(), publish.Object{Key: key, Body: []byte("body"),
			ContentType: "text/plain", TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		record := k.KeysOf(key).ObjectKey(key)
		var err error
		switch i % 3 {
		case 0:
			gone = append(gone, key)
			err = client.Del(t.Context(), record).Err() // as when a tombstone expires
		case 1:
			expired = append(expired, key)
			err = client.HSet(t.Context(), record, contract.FieldPublished, time.Now().Add(-26*time.Hour).UnixMilli()).Err()
		default:
			kept = append(kept, key)
		}
		require.NoError(t, err)
	}
	return gone, expired, kept
}

// TestTrimOfACluster trims the shards of a real Redis Cluster with several masters, with just the documented
// permissions.
func TestTrimOfACluster(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	k := contract.Keyspace{Shards: 8}
	cluster := redistest.StartCluster(t)
	documentedTrimmer(t, true, append(cluster.Masters, cluster.Replica)...)
	client, err := redisurl.Connect(cluster.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	gone, expired, kept := fillWornLog(t, client, k)
	out, err := gatehousectl(t, "trim", "--shards", "8", "--redis", asTrimmer(cluster.URL))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, key := range gone {
		if err := client.ZScore(t.Context(), k.KeysOf(key).LogKey(),
			contract.ObjectMember(key).String()).Err(); err != redis.Nil {
			t.Errorf("%s: its entry is there: %v", key, err)
		}
		floor, err := client.HGet(t.Context(), k.KeysOf(key).ChainKey(), contract.ChainFloor).Uint64()
		if err != nil || floor == 0 {
			t.Errorf("%s: floor %d, %v", key, floor, err)
		}
	}
	state := func(key string) string {
		return client.HGet(t.Context(), k.KeysOf(key).ObjectKey(key), contract.FieldDeleted).Val()
	}
	for _, key := range expired {
		if state(key) != "1" {
			t.Errorf("%s expired, and wasn't deleted", key)
		}
	}
	for _, key := range kept {
		if state(key) != "" || client.ZScore(t.Context(), k.KeysOf(key).LogKey(),
			contract.ObjectMember(key).String()).Err() != nil {
			t.Errorf("%s was trimmed", key)
		}
	}

	// One master that evicts is enough to refuse.
	require.NoError(t, cluster.Masters[2].Client(t).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	if out, err := gatehousectl(t, "trim", "--shards", "8", "--redis", asTrimmer(cluster.URL)); err == nil ||
		!strings.Contains(out, "allkeys-lru") {
		t.Errorf("a master evicts: got %v: %s", err, out)
	}
}

// TestTrimPermissions: the documented permissions are sufficient and necessary.
func TestTrimPermissions(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	server := redistest.StartServer(t)
	admin := server.Client(t)
	extra := documentedTrimmer(t, false, server)
	if len(extra) < 4 {
		t.Errorf("documented: %v", extra)
	}
	for _, permission := range extra {
		fillWornLog(t, admin, contract.Keyspace{})
		setUser(t, admin, trimmer, strings.Replace(permission, "+", "-", 1))
		if out, err := gatehousectl(t, "trim", "--redis", asTrimmer("redis://"+server.Address)); err == nil {
			t.Errorf("without %s: %s; want an error, or it isn't needed", permission, out)
		}
		setUser(t, admin, trimmer, permission)
	}
	out, err := gatehousectl(t, "trim", "--redis", asTrimmer("redis://"+server.Address))
	if err != nil {
		t.Errorf("with the documented permissions: %v: %s", err, out)
	}
}
