package lastseen

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/devicelog"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
)

func newLog(client redis.UniversalClient, k contract.Keyspace, log io.Writer) *Log {
	return New(client, k, metrics.New(), slog.New(slog.NewTextHandler(log, nil)))
}

// batch writes the content of l.
func batch(t *testing.T, l *Log) {
	t.Helper()
	require.NoError(t, l.writeBatch(t.Context()))
}

func count(t *testing.T, l *Log, result string) int {
	t.Helper()
	return int(metricstest.Value(t, l.metrics, "gatehouse_last_seen_total", "result", result))
}

// TestBatches: what several sidecars write comes together in Redis, the latest times and the sums.
func TestBatches(t *testing.T) {
	client := redistest.StartServer(t).Client(t)
	k := contract.Keyspace{Shards: 3}
	p := devicelog.Log{Client: client, Keyspace: k}
	one, other := newLog(client, k, io.Discard), newLog(client, k, io.Discard)
	if _, err := p.SeenSince(t.Context()); err == nil {
		t.Error("known before a sidecar wrote")
	}
	start := time.Now().Truncate(time.Millisecond)
	one.Allowed("a", false)
	one.Allowed("b", true)
	one.Allowed("b", false)
	one.Failed("a", "192.0.2.1")
	one.Failed("a", "192.0.2.1")
	one.Failed("a", "")
	batch(t, one)
	later := client.ZScore(t.Context(), k.KeysOf("a").SeenKey(), "a").Val() + 5000
	client.ZAdd(t.Context(), k.KeysOf("a").SeenKey(), redis.Z{Score: later, Member: "a"}) // by another clock
	other.Allowed("a", false)
	other.Failed("a", "192.0.2.1")
	other.Failed("a", "2001:db8::1")
	batch(t, other)

	seen, err := p.LastSeen(t.Context(), "a", "never", "b")
	if err != nil || seen[0].Last.UnixMilli() != int64(later) || !seen[0].Old.IsZero() || seen[1] != (devicelog.Seen{}) ||
		seen[2].Last.Before(start) || seen[2].Old.Before(start) {
		t.Errorf("got %v, %v", seen, err)
	}
	if since, err := p.SeenSince(t.Context()); err != nil || since.Before(start) || since.After(time.Now()) {
		t.Errorf("since %v, %v", since, err)
	}
	attempts, err := p.FailedAttempts(t.Context(), "a")
	want := []devicelog.FailedAttempts{{Network: "192.0.2.1/32", Count: 3}, {Network: "-", Count: 1},
		{Network: "2001:db8::/64", Count: 1}}
	if err != nil || !slices.Equal(attempts, want) {
		t.Errorf("got %v, %v; want %v", attempts, err, want)
	}
	if life := client.TTL(t.Context(), k.KeysOf("a").SeenFailedKey(time.Now())).Val(); life <= 47*time.Hour {
		t.Errorf("wrong secrets are kept for %v, want two days", life)
	}
	if n := count(t, one, written) + count(t, other, written); n != 3 {
		t.Errorf("%d written, want 3", n)
	}
}

// TestBounds: neither devices nor an attacker with many addresses make memory grow, here or in Redis.
func TestBounds(t *testing.T) {
	client := redistest.StartServer(t).Client(t)
	l := newLog(client, contract.Keyspace{}, io.Discard)
	for i := range maxSeen + 10 {
		l.Allowed(strconv.Itoa(i), false)
	}
	for i := range maxFailed + 10 {
		l.Failed("d", fmt.Sprintf("10.0.%d.%d", i/256, i%256))
	}
	for range 7 {
		l.Failed("d", "10.0.0.1")
	}
	if len(l.seen) != maxSeen || len(l.failed) != maxFailed || count(t, l, dropped) != 10 || len(l.halfFull) != 1 {
		t.Errorf("%d devices, %d pairs, %d dropped, %d signals", len(l.seen), len(l.failed), count(t, l, dropped),
			len(l.halfFull))
	}
	batch(t, l)
	key := contract.Keys{}.SeenFailedKey(time.Now())
	if n := client.ZCard(t.Context(), key).Val(); n != failedOfBatch {
		t.Errorf("a batch wrote %d pairs, want %d", n, failedOfBatch)
	}
	for i := range 5 {
		for j := range failedOfBatch {
			l.Failed("d", fmt.Sprintf("10.%d.0.%d", i+1, j))
		}
		batch(t, l)
	}
	if n := client.ZCard(t.Context(), key).Val(); n != contract.MaxFailed {
		t.Errorf("redis has %d pairs, want %d", n, contract.MaxFailed)
	}
	if n := client.ZScore(t.Context(), key, contract.FailedMember("10.0.0.1/32", "d")).Val(); n != 8 {
		t.Errorf("the most frequent one has %v, want 8", n)
	}
	if n := client.ZCard(t.Context(), contract.Keys{}.SeenKey()).Val(); n != maxSeen+1 {
		t.Errorf("redis has %d devices, want %d", n, maxSeen+1)
	}
}

// TestRefused: without the permission nothing is kept, and the log says so once; the permission may be granted later.
func TestRefused(t *testing.T) {
	server := redistest.StartServer(t)
	admin := server.Client(t)
	acl := func(rules ...any) {
		t.Helper()
		rules = append([]any{"acl", "setuser", "reader", "on", ">p"}, rules...)
		require.NoError(t, admin.Do(t.Context(), rules...).Err())
	}
	acl("%R~*", "-@all", "+get")
	options := *admin.Options()
	options.Username, options.Password = "reader", "p"
	client := redis.NewClient(&options)
	defer client.Close()
	var out strings.Builder
	l := newLog(client, contract.Keyspace{}, &out)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	for range 3 {
		l.halfFull <- struct{}{}
	}
	await.Until(t, "refused", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.isRefused && len(l.halfFull) == 0 })
	l.Allowed("d", false)
	l.Failed("d", "192.0.2.1")
	l.mu.Lock()
	if len(l.seen)+len(l.failed) != 0 {
		t.Error("something is kept that can't be written")
	}
	l.mu.Unlock()
	acl("~{gatehouse:[0-9]}:seen*", "+zadd", "+zincrby", "+zremrangebyrank", "+expire")
	l.halfFull <- struct{}{}
	await.Until(t, "permitted", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return !l.isRefused })
	l.Allowed("d", false)
	l.Failed("d", "192.0.2.1")
	cancel()
	require.NoError(t, <-ended)
	if n := count(t, l, written); n != 1 || admin.ZScore(t.Context(), contract.Keys{}.SeenKey(), "d").Err() != nil {
		t.Errorf("%d written at the end, want 1", n)
	}
	if said := strings.Count(out.String(), "does not permit"); said != 1 {
		t.Errorf("said %d times:\n%s", said, &out)
	}
}

// TestRetry: a failed batch is written with the next batch.
func TestRetry(t *testing.T) {
	client := redistest.StartServer(t).Client(t)
	l := newLog(client, contract.Keyspace{}, io.Discard)
	client.ConfigSet(t.Context(), "maxmemory", "1")
	l.Allowed("d", true)
	if err := l.writeBatch(t.Context()); err == nil || count(t, l, failed) != 1 {
		t.Errorf("a full redis: %v, %d failed", err, count(t, l, failed))
	}
	client.ConfigSet(t.Context(), "maxmemory", "0")
	batch(t, l)
	for _, key := range []string{contract.Keys{}.SeenKey(), contract.Keys{}.SeenOldKey()} {
		if at := client.ZScore(t.Context(), key, "d").Val(); math.Abs(at-float64(time.Now().UnixMilli())) > 60_000 {
			t.Errorf("%s: %v", key, at)
		}
	}
}

// TestFailingBatches: while Redis refuses, a full memory doesn't cause batch after batch.
func TestFailingBatches(t *testing.T) {
	client := redistest.StartServer(t).Client(t)
	client.Set(t.Context(), contract.Keyspace{}.Keys(0).SeenKey(), "another type", 0)
	l := newLog(client, contract.Keyspace{}, io.Discard)
	for i := range maxSeen {
		l.Allowed(fmt.Sprint("device ", i), false)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	await.Until(t, "a failed batch", func() bool { return count(t, l, failed) > 0 })
	for i := range 1000 {
		l.Allowed(fmt.Sprint("device ", i), false)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// A batch began early, perhaps a second batch by an earlier signal, and a last batch at the end.
	if n := count(t, l, failed); n > 3*maxSeen {
		t.Errorf("%d devices failed, want three batches of %d at most", n, maxSeen)
	}
	if len(l.seen) != maxSeen {
		t.Errorf("%d devices are left, want all %d", len(l.seen), maxSeen)
	}
}
