package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

const (
	fleetSecret   = "the secret of the fleet, 32 bytes or more\n"
	anotherSecret = "the secret of another fleet, also long enough\n"
)

// fleet is edges of one Redis, each with its own sidecar.
type fleet struct {
	t     *testing.T
	edges []*edge
	admin redis.UniversalClient
}

// startFleet starts an edge with a sidecar for each secret.
func startFleet(t *testing.T, url string, args []string, secrets ...string) *fleet {
	t.Helper()
	return startFleetOf(t, url, 1, args, secrets...)
}

// startFleetOf is startFleet for a Redis with this number of shards.
func startFleetOf(t *testing.T, url string, shards contract.Shards, args []string, secrets ...string) *fleet {
	t.Helper()
	f := &fleet{t: t}
	for _, secret := range secrets {
		file := writeFile(t, "fleet", secret)
		args := append([]string{"--bcrypt.workers=1", "--verdict.secret-file=" + file, fmt.Sprint("--redis.shards=", shards)},
			args...)
		f.edges = append(f.edges,
			reuse(t, stack.Options{RedisURL: url, SidecarArgs: args, Seed: stack.AcceptLoss(contract.Keyspace{Shards: shards}),
				Concurrency: 1}))
	}
	f.admin = f.edges[0].redis
	return f
}

// addDevices registers n more devices, "prefix-0" and so on, with the secret "right", and waits until all sidecars have
// the records.
func (f *fleet) addDevices(prefix string, n, cost int) []string {
	f.t.Helper()
	before := f.edges[0].metric("gatehouse_credentials")
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), cost) // one for all: the race detector makes hashing slow
	require.NoError(f.t, err)
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%d", prefix, i))
		d := publish.Device{ID: ids[i], Hashes: []string{string(hash)}, Permissions: []string{"telemetry.write"}}
		if _, err := f.edges[0].publisher.PutDevice(f.t.Context(), d); err != nil {
			f.t.Fatal(err)
		}
	}
	for _, e := range f.edges {
		e.awaitRecords(int(before) + n)
	}
	return ids
}

// authenticateAll sends the first request of each device to each edge, all at once, and retries as a device does until
// the edge accepts the credential. The many runs of bcrypt need a longer deadline.
func (f *fleet) authenticateAll(edges []*edge, ids []string) time.Duration {
	f.t.Helper()
	const pause = 100 * time.Millisecond
	began := time.Now()
	var wg sync.WaitGroup
	for _, e := range edges {
		for _, id := range ids {
			wg.Go(func() {
				for {
					a, err := e.try(shared, "POST /v1/telemetry", credential(id, "right")...)
					if err == nil && a.status == 200 {
						return
					}
					if err != nil || a.status != 503 || time.Since(began) > 9*patience {
						f.t.Errorf("%s: got %d, %v after %v, want 200", id, a.status, err, time.Since(began))
						return
					}
					time.Sleep(pause) // less than Retry-After
				}
			})
		}
	}
	wg.Wait()
	return time.Since(began)
}

// awaitRefusal waits until no edge authenticates the device with the secret.
func (f *fleet) awaitRefusal(id, secret string) {
	f.t.Helper()
	await(f.t, id+" is refused", patience, func() error {
		for i, e := range f.edges {
			if a := e.send("POST /v1/telemetry", credential(id, secret)...); a.status != 401 {
				return fmt.Errorf("edge %d: got %d", i, a.status)
			}
		}
		return nil
	})
}

// bcryptRuns returns how often bcrypt has run, in each sidecar and in total.
func (f *fleet) bcryptRuns() (each []int, sum int) {
	f.t.Helper()
	for _, e := range f.edges {
		n := int(e.metric("gatehouse_bcrypt_total"))
		each, sum = append(each, n), sum+n
	}
	return each, sum
}

// sharedVerdictCount returns a sidecar's count of one result of shared verdicts.
func (e *edge) sharedVerdictCount(result string) int {
	e.t.Helper()
	return int(e.metric(`gatehouse_shared_verdicts_total{result="` + result + `"}`))
}

// missedCalls returns how many calls to Redis one sidecar failed to make in time, or skipped, because the machine was
// busy: each may cost a run of bcrypt.
func (e *edge) missedCalls() int {
	e.t.Helper()
	return e.sharedVerdictCount("error") + e.sharedVerdictCount("skipped")
}

var verdictKey = regexp.MustCompile(`^\{gatehouse:\d+\}:v:[0-9a-f]{64}$`)

// sharedVerdicts returns the keys of shared verdicts in Redis, sorted. Locks expire by themselves.
func (f *fleet) sharedVerdicts() []string {
	f.t.Helper()
	keys, err := f.admin.Keys(f.t.Context(), "{gatehouse:*}:v:*").Result()
	require.NoError(f.t, err)
	keys = slices.DeleteFunc(keys, func(key string) bool { return strings.HasSuffix(key, ":lock") })
	for _, key := range keys {
		if ttl := f.admin.PTTL(f.t.Context(), key).Val(); !verdictKey.MatchString(key) || ttl <= 0 || ttl > time.Hour {
			f.t.Errorf("key %s expires after %v, want a name in hex and at most an hour", key, ttl)
		}
	}
	slices.Sort(keys)
	return keys
}

// TestFleetSharesVerdicts sends requests of 300 devices to three edges at once: bcrypt runs once for each device. A
// restarted sidecar has the verdicts again.
func TestFleetSharesVerdicts(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	devices := pickSize(300, 60)
	f := startFleet(t, redistest.Start(t), nil, fleetSecret, fleetSecret, fleetSecret)
	ids := f.addDevices("dev", devices, 10)
	took := f.authenticateAll(f.edges, ids)
	each, sum := f.bcryptRuns()
	t.Logf("%d devices at %d edges: authenticated everywhere after %v, runs of bcrypt %v, in all %d",
		devices, len(f.edges), took.Round(time.Millisecond), each, sum)
	missed := 0
	for _, e := range f.edges {
		missed += e.missedCalls()
	}
	if sum < devices || sum > devices+missed {
		t.Errorf("%d runs of bcrypt and %d calls to Redis that failed, want %d runs", sum, missed, devices)
	}
	if n := len(f.sharedVerdicts()); n != devices {
		t.Errorf("%d verdicts in Redis, want %d", n, devices)
	}

	require.NoError(t, f.edges[0].KillSidecar())
	require.NoError(t, f.edges[0].StartSidecar(t.Context()))
	took = f.authenticateAll(f.edges[:1], ids)
	if n, missed := int(f.edges[0].metric("gatehouse_bcrypt_total")), f.edges[0].missedCalls(); n > missed {
		t.Errorf("%d runs of bcrypt in a sidecar that was killed, and %d calls to Redis that failed, want none", n, missed)
	}
	t.Logf("a sidecar that was killed: all authenticated after %v, %d by shared verdicts", took.Round(time.Millisecond),
		f.edges[0].sharedVerdictCount("hit"))
}

// TestFleetFollowsRecords revokes and changes credentials with shared verdicts, and sends wrong credentials.
func TestFleetFollowsRecords(t *testing.T) {
	leaveToLongForm(t, "TestFleetSharesVerdicts")
	t.Parallel()
	f := startFleet(t, redistest.Start(t), nil, fleetSecret, fleetSecret)
	ids := f.addDevices("dev", 4, 6)
	f.authenticateAll(f.edges, ids)
	known := f.sharedVerdicts()

	e := f.edges[0]
	if _, err := e.publisher.RevokeDevice(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	f.awaitRefusal(ids[0], "right")
	e.putDevice(ids[1], "another", 6, "telemetry.write")
	f.awaitRefusal(ids[1], "right")
	e.putDevice("new", "never shown", 6, "telemetry.write")
	for _, e := range f.edges {
		e.awaitRecords(5)
	}
	f.awaitRefusal("new", "wrong")
	f.awaitRefusal(ids[2], "wrong")
	if now := f.sharedVerdicts(); !slices.Equal(now, known) {
		t.Errorf("wrong and revoked credentials have changed the verdicts in Redis: %d, were %d", len(now), len(known))
	}

	// A revoked record that is restored with the same content has another version.
	_, before := f.bcryptRuns()
	e.putDevice(ids[0], "right", 6, "telemetry.write")
	for _, e := range f.edges {
		e.awaitAnswer("restored", let, "POST /v1/telemetry", credential(ids[0], "right")...)
	}
	if _, after := f.bcryptRuns(); after != before+1 {
		t.Errorf("%d runs of bcrypt for a restored device at two edges, want 1", after-before)
	}
	if n := len(f.sharedVerdicts()); n != len(known)+1 {
		t.Errorf("%d verdicts, want one more than %d", n, len(known))
	}
}

// TestFleetIgnoresForgedVerdicts writes to Redis everything that an attacker without the secret can write.
func TestFleetIgnoresForgedVerdicts(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	f := startFleet(t, redistest.Start(t), nil, fleetSecret, fleetSecret)
	ids := f.addDevices("dev", 8, 6)
	f.authenticateAll(f.edges[:1], ids)
	keys := f.sharedVerdicts()
	values, err := f.admin.MGet(t.Context(), keys...).Result()
	if err != nil || len(values) != len(ids) {
		t.Fatalf("%d verdicts, %v", len(values), err)
	}
	for i, key := range keys {
		// Another device's verdict, a later expiry, garbage, nothing.
		forged := []string{values[(i+1)%len(values)].(string), "\x00\xff" + values[i].(string)[2:],
			strings.Repeat("1", 41), ""}[i%4]
		require.NoError(t, f.admin.Set(t.Context(), key, forged, time.Hour).Err())
	}
	f.authenticateAll(f.edges[1:], ids)
	each, _ := f.bcryptRuns()
	if n := f.edges[1].sharedVerdictCount("invalid"); each[1] != len(ids) || n < len(ids) {
		t.Errorf("%d runs of bcrypt and %d verdicts not believed, want %d each", each[1], n, len(ids))
	}
	f.awaitRefusal(ids[0], "wrong")
	for i, value := range f.admin.MGet(t.Context(), keys...).Val() {
		if text, _ := value.(string); len(text) != 41 || text == values[i] {
			t.Errorf("%s: %q, want the second sidecar's verdict", keys[i], text)
		}
	}
}

// TestFleetsOfTwoSecrets: sidecars with two secrets share nothing, and don't disturb each other.
func TestFleetsOfTwoSecrets(t *testing.T) {
	leaveToLongForm(t, "TestFleetIgnoresForgedVerdicts")
	t.Parallel()
	f := startFleet(t, redistest.Start(t), nil, fleetSecret, anotherSecret, strings.TrimSpace(fleetSecret))
	ids := f.addDevices("dev", 6, 6)
	f.authenticateAll(f.edges, ids)
	each, _ := f.bcryptRuns()
	if each[1] != len(ids) || each[0]+each[2] != len(ids) {
		t.Errorf("runs of bcrypt %v, want %d of the second and as many of the others together", each, len(ids))
	}
	for i, e := range f.edges {
		if e.sharedVerdictCount("invalid") != 0 || e.sharedVerdictCount("error") != 0 {
			t.Errorf("sidecar %d: %d invalid, %d errors", i, e.sharedVerdictCount("invalid"), e.sharedVerdictCount("error"))
		}
	}
}

// TestFleetWithoutRedis pauses Redis and kills it: each sidecar verifies known credentials alone, not much later than
// without a fleet.
func TestFleetWithoutRedis(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	server := redistest.StartServer(t)
	f := startFleet(t, "redis://"+server.Address, nil, fleetSecret, fleetSecret)
	first, second := f.addDevices("first", 20, 6), f.addDevices("second", 20, 6)
	const limit = 5 * time.Second // 20 runs of bcrypt, and a few times 200 ms
	for _, trouble := range []struct {
		what string
		ids  []string
		make func()
	}{
		{"paused", first, func() { server.Signal(syscall.SIGSTOP) }},
		{"killed", second, server.Kill},
	} {
		_, before := f.bcryptRuns()
		trouble.make()
		took := f.authenticateAll(f.edges, trouble.ids)
		_, after := f.bcryptRuns()
		t.Logf("redis %s: %d devices authenticated at both edges after %v, %d runs of bcrypt", trouble.what,
			len(trouble.ids), took.Round(time.Millisecond), after-before)
		if after-before != 2*len(trouble.ids) || took > limit {
			t.Errorf("redis %s: %d runs of bcrypt, %v; want %d, within %v", trouble.what, after-before,
				took, 2*len(trouble.ids), limit)
		}
	}
	for _, e := range f.edges {
		if n := strings.Count(e.readLog("sidecar"), "shared verdicts are unavailable"); n != 2 {
			t.Errorf("logged %d times that Redis can't be reached, want once for each kind of call", n)
		}
	}
}

// TestFleetPermissions shares verdicts as a user with just the documented permissions, and then without the permissions
// that only sharing needs.
func TestFleetPermissions(t *testing.T) {
	leaveToLongForm(t, "TestFleetSharesVerdicts")
	t.Parallel()
	server := redistest.StartServer(t)
	admin := server.Client(t)
	documentedUsers(t, admin)
	args := []string{"--redis.username=reader", "--redis.password-file=" + writeFile(t, "reader", "reader-password")}
	f := &fleet{t: t, admin: admin}
	for _, text := range []string{fleetSecret, fleetSecret} {
		f.edges = append(f.edges, start(t, stack.Options{
			RedisURL:    "redis://" + server.Address,
			SidecarArgs: append([]string{"--verdict.secret-file=" + writeFile(t, "fleet", text)}, args...), Concurrency: 1,
		}))
	}
	first := f.addDevices("first", 5, 6)
	f.authenticateAll(f.edges, first)
	if _, sum := f.bcryptRuns(); sum != 2*len(first) {
		t.Errorf("%d runs of bcrypt without permission to share, want %d", sum, 2*len(first))
	}
	if warned := strings.Count(f.edges[0].readLog("sidecar"), "shared verdicts are unavailable"); warned != 1 {
		t.Errorf("warned %d times, want once: reading is permitted", warned)
	}

	setUser(t, admin, strings.Fields(strings.TrimPrefix(
		codeBlock(t, sectionOf(t, "Shared verdicts"), "text"), "ACL SETUSER "))...)
	await(t, "verdicts are shared", patience, func() error {
		ids := f.addDevices(fmt.Sprint("more-", time.Now().UnixNano()), 1, 6)
		f.authenticateAll(f.edges[:1], ids)
		if len(f.sharedVerdicts()) == 0 {
			return fmt.Errorf("none in Redis")
		}
		return nil
	})
	reader, err := redisurl.Connect("redis://reader:reader-password@" + server.Address)
	require.NoError(t, err)
	defer reader.Close()
	for key, permitted := range map[string]bool{
		"{gatehouse:0}:v:x": true, "{gatehouse:63}:v:x": true, "{gatehouse:0}:o:/x}:v:y": false,
		"{gatehouse:0}:c:x": false, "other": false,
	} {
		if err := reader.Set(t.Context(), key, "x", time.Second).Err(); (err == nil) != permitted {
			t.Errorf("SET %s: %v, want permitted %v", key, err, permitted)
		}
	}
}

// TestFleetOfCluster shares verdicts through the masters of a real Redis Cluster.
func TestFleetOfCluster(t *testing.T) {
	leaveToLongForm(t, "TestFleetSharesVerdicts, TestCluster")
	t.Parallel()
	const shards = 8
	cluster := redistest.StartCluster(t)
	f := startFleetOf(t, cluster.URL, shards, nil, fleetSecret, fleetSecret)
	for _, e := range f.edges {
		e.publisher = publish.New(e.redis, publish.Shards(shards))
	}
	ids := f.addDevices("dev", 40, 6)
	f.authenticateAll(f.edges, ids)
	if each, sum := f.bcryptRuns(); sum != len(ids) {
		t.Errorf("runs of bcrypt %v, want %d", each, len(ids))
	}
	var mu sync.Mutex
	masters := map[string]int{}
	err := f.admin.(*redis.ClusterClient).ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
		keys, err := c.Keys(ctx, "{gatehouse:*}:v:*").Result()
		mu.Lock()
		defer mu.Unlock()
		masters[c.Options().Addr] = len(keys)
		return err
	})
	if err != nil || len(masters) < 2 {
		t.Errorf("masters %v, %v", masters, err)
	}
	for address, n := range masters {
		if n == 0 {
			t.Errorf("no verdict on %s: %v", address, masters)
		}
	}
}
