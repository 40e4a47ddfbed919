package sharedverdict

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9/logging"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/breaker"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// The client would write a line to stderr for every failed connection.
func init() { logging.Disable() }

// sidecar is the Verdicts of a sidecar, with metrics and log.
type sidecar struct {
	*Verdicts
	t   *testing.T
	m   *metrics.Metrics
	log *bytes.Buffer
}

// join returns a sidecar whose calls of Redis may take long: a busy machine is no failure of Redis.
func join(t *testing.T, address string, secret sealer) sidecar {
	t.Helper()
	client, err := redisurl.Settings{URL: "redis://" + address, Deadlines: true}.Connect()
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	log, m := new(bytes.Buffer), metrics.New()
	v := New(secret, client, contract.Keyspace{}, m, slog.New(slog.NewTextHandler(log, nil)))
	v.timeout = await.Deadline
	return sidecar{v, t, m, log}
}

func (s sidecar) counts(result string, want float64) {
	s.t.Helper()
	if got := metricstest.Value(s.t, s.m, "gatehouse_shared_verdicts_total", "result", result); got != want {
		s.t.Errorf("%s: %v, want %v", result, got, want)
	}
}

// runs begins a run of bcrypt, and fails the test if another sidecar runs bcrypt already or knows the result.
func (s sidecar) runs(c *credential.Question) (end func(*credential.Match)) {
	s.t.Helper()
	known, end := s.Begin(s.t.Context(), c)
	if known != nil || end == nil {
		s.t.Fatalf("Begin: %+v, want a run", known)
	}
	return end
}

func always() bool { return true }

// hour returns a match of the second hash, valid for an hour.
func hour() *credential.Match {
	return &credential.Match{Hash: claim.Hashes[1], Until: time.Now().Add(time.Hour)}
}

func isHour(m *credential.Match) bool {
	return m != nil && m.Hash == claim.Hashes[1] && time.Until(m.Until) > 59*time.Minute
}

func TestOneRunForAll(t *testing.T) {
	server := miniredis.RunT(t)
	a, b, stranger := join(t, server.Addr(), secret), join(t, server.Addr(), secret),
		join(t, server.Addr(), sealer("the secret of another fleet, 32 b"))
	if m := a.Find(t.Context(), &claim); m != nil {
		t.Fatalf("found %+v in an empty Redis", m)
	}
	end := a.runs(&claim)
	if known, end := b.Begin(t.Context(), &claim); known != nil || end != nil {
		t.Fatalf("a second run at the same time: %+v", known)
	}
	other := claim
	other.Secret = "t"
	b.runs(&other)(nil) // another secret has another lock

	waited := make(chan *credential.Match)
	go func() { waited <- b.Await(t.Context(), &claim, always) }()
	end(hour())
	if m := <-waited; !isHour(m) {
		t.Errorf("Await: %+v", m)
	}
	if m := b.Find(t.Context(), &claim); !isHour(m) {
		t.Errorf("Find: %+v", m)
	}
	if known, _ := b.Begin(t.Context(), &claim); !isHour(known) {
		t.Errorf("Begin: %+v", known)
	}
	stranger.runs(&claim)
	for _, s := range []struct {
		sidecar
		counts string
	}{{a, "miss 1, stored 1"}, {b, "hit 3, waited 1"}, {stranger, "hit 0, stored 0, invalid 0"}} {
		for _, part := range strings.Split(s.counts, ", ") {
			var result string
			var n float64
			fmt.Sscan(part, &result, &n)
			s.sidecar.counts(result, n)
		}
	}
	for _, key := range server.Keys() {
		if ttl := server.TTL(key); ttl <= 0 || ttl > time.Hour {
			t.Errorf("%s expires after %v", key, ttl)
		}
	}
}

// TestWrongSecretLeavesNothing: a wrong secret stores nothing in Redis, and the next caller can run at once.
func TestWrongSecretLeavesNothing(t *testing.T) {
	server := miniredis.RunT(t)
	a, b := join(t, server.Addr(), secret), join(t, server.Addr(), secret)
	end := a.runs(&claim)
	waited := make(chan *credential.Match)
	go func() { waited <- b.Await(t.Context(), &claim, always) }()
	end(nil)
	if m := <-waited; m != nil {
		t.Errorf("Await: %+v", m)
	}
	if keys := server.Keys(); len(keys) != 0 {
		t.Errorf("keys %q, want none", keys)
	}
	b.runs(&claim)
}

// TestHolderDies: the holder of the lock never releases it.
func TestHolderDies(t *testing.T) {
	server := miniredis.RunT(t)
	a, b := join(t, server.Addr(), secret), join(t, server.Addr(), secret)
	end := a.runs(&claim)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() { b.Await(ctx, &claim, always); close(gone) }()
	cancel()
	<-gone
	if b.Await(t.Context(), &claim, func() bool { return false }) != nil {
		t.Error("Await found a match")
	}
	server.FastForward(lockLife(&claim))
	theirs := b.runs(&claim)
	theirs(hour())
	end(nil) // a late one changes nothing
	if m := a.Find(t.Context(), &claim); !isHour(m) {
		t.Errorf("Find: %+v", m)
	}
}

// TestPlanted puts values into Redis without the secret.
func TestPlanted(t *testing.T) {
	server := miniredis.RunT(t)
	a := join(t, server.Addr(), secret)
	a.runs(&claim)(hour())
	at := a.keysOf(&claim)
	good, _ := server.Get(at.key)
	other := claim
	other.Version++
	forged := secret.sealMatch(a.keysOf(&other).name, 1, until)
	for i, value := range []string{"", "1", good[:40], good + "x", strings.Repeat("\x00", 41), string(forged),
		"\x00" + good[1:]} {
		server.Set(at.key, value)
		if m := a.Find(t.Context(), &claim); m != nil {
			t.Errorf("%q: found %+v", value, m)
		}
		a.counts("invalid", float64(i+1))
	}
	server.Set(a.keysOf(&other).key, good)
	if m := a.Find(t.Context(), &other); m != nil {
		t.Errorf("the predecessor's verdict is believed: %+v", m)
	}
	server.Del(at.key)
	server.HSet(at.key, "a", "b") // not even a string
	if m := a.Find(t.Context(), &claim); m != nil {
		t.Errorf("a hash: found %+v", m)
	}
	a.counts("error", 1)
}

// TestRedisTrouble: failures of Redis are bounded, counted, logged once, and end when Redis is back.
func TestRedisTrouble(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	require.NoError(t, err)
	defer silent.Close()
	failing := miniredis.RunT(t)
	failing.SetError("NOPERM this user has no permissions")
	for name, address := range map[string]string{"silent": silent.Addr().String(), "failing": failing.Addr(),
		"refused": redistest.FreeAddress(t)} {
		t.Run(name, func(t *testing.T) {
			a := join(t, address, secret)
			a.timeout = callTimeout
			late := await.Late(t)
			began := time.Now()
			const rounds = 50
			for range rounds {
				if a.Find(t.Context(), &claim) != nil || a.Await(t.Context(), &claim, always) != nil {
					t.Error("found a match")
				}
				a.runs(&claim)(hour())
			}
			// Two kinds of calls try once per pause; Await also waits for its poll.
			took := time.Since(began)
			if most := 2*callTimeout*(1+took/breaker.Pause) + rounds*pollInterval + time.Second + late(); took > most {
				t.Errorf("%d rounds took %v, want at most %v", rounds, took, most)
			}
			if n := metricstest.Value(t, a.m, "gatehouse_shared_verdicts_total", "result", "error"); n < 2 ||
				n > 2*float64(2+took/breaker.Pause) {
				t.Errorf("%v failed calls in %v", n, took)
			}
			if n := strings.Count(a.log.String(), "level=WARN"); n != 2 {
				t.Errorf("%d warnings, want one for each kind of call:\n%s", n, a.log)
			}
		})
	}
}

func TestRedisIsBack(t *testing.T) {
	server := miniredis.RunT(t)
	a := join(t, server.Addr(), secret)
	a.runs(&claim)(hour())
	server.SetError("LOADING Redis is loading the dataset in memory")
	if m := a.Find(t.Context(), &claim); m != nil {
		t.Errorf("found %+v", m)
	}
	server.SetError("")
	await.Until(t, "Redis to be asked again", func() bool { return isHour(a.Find(t.Context(), &claim)) })
	if n := strings.Count(a.log.String(), "are available again"); n != 1 {
		t.Errorf("said %d times that it is back:\n%s", n, a.log)
	}
}

// TestFloodOfFinds occupies all places of calls without a worker.
func TestFloodOfFinds(t *testing.T) {
	server := miniredis.RunT(t)
	a := join(t, server.Addr(), secret)
	for range maxFinds {
		a.finds <- struct{}{}
	}
	a.timeout = callTimeout
	if a.Find(t.Context(), &claim) != nil {
		t.Error("found a match")
	}
	a.timeout = await.Deadline
	a.counts("skipped", 1)
	a.runs(&claim)(hour()) // calls with a worker are not affected
	<-a.finds
	if m := a.Find(t.Context(), &claim); !isHour(m) {
		t.Errorf("Find: %+v", m)
	}
}

func TestLockLife(t *testing.T) {
	hash := func(cost int) string { return fmt.Sprintf("$2b$%02d$%s", cost, strings.Repeat("a", 53)) }
	for _, test := range []struct {
		costs []int
		want  time.Duration
	}{
		{[]int{4}, 2 * time.Second}, {[]int{10}, 2 * time.Second}, {[]int{12}, 2 * time.Second},
		{[]int{12, 12}, 4 * time.Second},
		{[]int{14}, 8 * time.Second}, {[]int{15}, 16 * time.Second}, {[]int{15, 15, 15, 15}, 30 * time.Second},
	} {
		var c credential.Question
		for _, cost := range test.costs {
			c.Hashes = append(c.Hashes, hash(cost))
		}
		if got := lockLife(&c); got != test.want {
			t.Errorf("costs %v: %v, want %v", test.costs, got, test.want)
		}
	}
	rest := "$" + strings.Repeat("s", 22) + "$" + strings.Repeat("k", 43)
	c := credential.Question{Hashes: []string{hash(12), "$gh1$0123456789abcdef" + rest,
		"$argon2id$v=19$m=100000,t=10,p=1" + rest}}
	if got := lockLife(&c); got != 10*time.Second { // 2 s, nothing, and eight times a second
		t.Errorf("several schemes: %v", got)
	}
}
