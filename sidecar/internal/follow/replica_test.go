package follow_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/testbed/link"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// pick picks the server that it points to.
type pick struct {
	atomic.Pointer[redistest.Server]
}

func (p *pick) Pick(context.Context) (*redis.Client, error) {
	return redis.NewClient(&redis.Options{Addr: p.Load().Address, MaxRetries: -1}), nil
}

// startReplica starts a replica of a master, and returns it with the link between both.
func startReplica(t *testing.T, master *redistest.Server) (*redistest.Server, *link.Link) {
	t.Helper()
	l := newLine(t, master.Address)
	_, port, _ := strings.Cut(l.Address(), ":")
	replica := redistest.StartServer(t, "--replicaof", "127.0.0.1 "+port, "--repl-timeout", "5",
		"--repl-ping-replica-period", "1")
	awaitLinked(t, replica)
	return replica, l
}

func awaitLinked(t *testing.T, replica *redistest.Server) {
	t.Helper()
	client := replica.Client(t)
	await.Until(t, "the replica to be linked", func() bool {
		return strings.Contains(client.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
}

// startMaster starts a master that has /a and the device d.
func startMaster(t *testing.T) (*redistest.Server, server) {
	t.Helper()
	master := redistest.StartServer(t, "--repl-ping-replica-period", "1")
	s := serverAt(t, master.Address)
	s.put(t, "/a")
	putDevice(t, s.publish)
	return master, s
}

func putDevice(t *testing.T, p *publish.Publisher) {
	t.Helper()
	_, err := p.PutDevice(t.Context(), publish.Device{ID: "d", Secret: "s", Cost: 4})
	require.NoError(t, err)
}

// followReplica follows the devices of s, and the objects of replicas.
func followReplica(t *testing.T, client redis.UniversalClient, replicas follow.Replicas,
	deviceNamespace string) *group {
	t.Helper()
	g := &group{clock: new(clock), metrics: metrics.New(), log: new(logbuffer.Buffer)}
	g.Group = follow.NewGroup(contract.Keyspace{Shards: 1}, func(int) follow.Config {
		g.objects, g.credentials = append(g.objects, newSink()), append(g.credentials, newSink())
		return follow.Config{Objects: objects{g.objects[0]}, Credentials: credentials{g.credentials[0]},
			Purges: purges{newSink()}, Replicas: replicas, DeviceNamespace: deviceNamespace}
	}, g.clock, client, g.metrics, slog.New(slog.NewTextHandler(g.log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { g.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if t.Failed() {
			t.Log(g.log.String())
		}
	})
	return g
}

func (g *group) awaitSynced(t *testing.T) {
	t.Helper()
	await.Until(t, "synced", func() bool {
		select {
		case <-g.Synced():
			return true
		default:
			return false
		}
	})
}

// awaitInStep waits until g is in step as of a time after the call.
func (g *group) awaitInStep(t *testing.T) {
	t.Helper()
	now := time.Now()
	await.Until(t, "in step", func() bool { return g.clock.inStep().After(now) })
}

func (g *group) awaitLog(t *testing.T, text string) {
	t.Helper()
	await.Until(t, text, func() bool { return strings.Contains(g.log.String(), text) })
}

func (g *group) fullResyncs() int { return strings.Count(g.log.String(), "full=true") }

func (g *group) version(key string) uint64 { return g.objects[0].version(key) }

func follows(t *testing.T, s *redistest.Server, channel string) int64 {
	t.Helper()
	return s.Client(t).PubSubNumSub(t.Context(), channel).Val()[channel]
}

// TestObjectsFromAReplica: objects come from a replica, also a replica's replica; devices come from the master.
func TestObjectsFromAReplica(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	first, _ := startReplica(t, master)
	chained, _ := startReplica(t, first)
	for name, replica := range map[string]*redistest.Server{"replica": first, "chained": chained} {
		t.Run(name, func(t *testing.T) {
			var p pick
			p.Store(replica)
			for _, server := range []*redistest.Server{master, replica} {
				require.NoError(t, server.Client(t).ConfigResetStat(t.Context()).Err())
			}
			g := followReplica(t, s.Client, &p, "")
			g.awaitSynced(t)
			g.awaitInStep(t)
			before := g.version("/a")
			if before == 0 || g.objects[0].len() != 1 || g.credentials[0].version("d") == 0 || g.credentials[0].len() != 1 {
				t.Errorf("got %d objects and %d devices, want one each", g.objects[0].len(), g.credentials[0].len())
			}
			s.put(t, "/a")
			putDevice(t, s.publish)
			await.Until(t, "both events", func() bool {
				return g.version("/a") == before+1 && g.credentials[0].version("d") == before+1
			})
			g.awaitInStep(t)
			hgetall := func(s *redistest.Server) string {
				_, after, _ := strings.Cut(s.Client(t).Info(t.Context(), "commandstats").Val(), "cmdstat_hgetall:calls=")
				calls, _, _ := strings.Cut(after, ",")
				return calls
			}
			if got := hgetall(replica); got != "1" { // of /a
				t.Errorf("got %s reads of records at the replica, want 1", got)
			}
			if got := g.fullResyncs(); got != 2 {
				t.Errorf("got %d full resyncs, want 2: of devices and of objects", got)
			}
			if got, err := g.Replica(0); err != nil || got.Options().Addr != replica.Address {
				t.Errorf("reads: got %v, %v, want %s", got, err, replica.Address)
			}
		})
	}
}

// TestDeviceNamespace: with devices in a namespace of their own, the master sends no events of objects.
func TestDeviceNamespace(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	devices := publish.New(s.Client, publish.Namespace("devices"))
	putDevice(t, devices)
	replica, _ := startReplica(t, master)
	var p pick
	p.Store(replica)
	g := followReplica(t, s.Client, &p, "devices")
	g.awaitSynced(t)
	putDevice(t, devices)
	s.put(t, "/a")
	await.Until(t, "both events", func() bool { return g.version("/a") == 2 && g.credentials[0].version("d") == 2 })
	g.awaitInStep(t)
	putDevice(t, s.publish) // not of this namespace
	s.put(t, "/a")
	await.Until(t, "the next event", func() bool { return g.version("/a") == 3 })
	if got := g.credentials[0].version("d"); got != 2 {
		t.Errorf("got version %d of a device of another namespace", got)
	}
	for _, test := range []struct {
		at      *redistest.Server
		channel string
		want    int64
	}{
		{master, keys.EventsChannel(), 0}, {master, contract.Keys{Namespace: "devices"}.EventsChannel(), 1},
		{replica, keys.EventsChannel(), 1},
	} {
		if got := follows(t, test.at, test.channel); got != test.want {
			t.Errorf("%s: got %d subscribers, want %d", test.channel, got, test.want)
		}
	}
}

// TestDeviceNamespaceAtTheMaster: devices may have a namespace of their own without replicas.
func TestDeviceNamespaceAtTheMaster(t *testing.T) {
	t.Parallel()
	_, s := startMaster(t)
	devices := publish.New(s.Client, publish.Namespace("devices"))
	putDevice(t, devices)
	g := followReplica(t, s.Client, nil, "devices")
	g.awaitSynced(t)
	putDevice(t, s.publish) // not of this namespace
	putDevice(t, devices)
	s.put(t, "/a")
	await.Until(t, "both events", func() bool { return g.version("/a") == 2 && g.credentials[0].version("d") == 2 })
	g.awaitInStep(t)
}

// TestReplicaCut cuts, delays and stops the link between a replica and its master. Objects are in step only as of a
// time at which the master had no more than was applied; revocations don't wait.
func TestReplicaCut(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	replica, l := startReplica(t, master)
	var p pick
	p.Store(replica)
	g := followReplica(t, s.Client, &p, "")
	g.awaitSynced(t)
	g.awaitInStep(t)
	for name, fault := range map[string]func(){"cut": l.Cut, "hanging": l.Hang,
		"delayed": func() { l.Delay(2*time.Second, 0) }} {
		t.Run(name, func(t *testing.T) {
			putDevice(t, s.publish)
			g.awaitInStep(t)
			before, device := g.version("/a"), g.credentials[0].version("d")
			fault()
			s.put(t, "/a")
			written := time.Now()
			_, err := s.publish.RevokeDevice(t.Context(), "d")
			require.NoError(t, err)
			await.Until(t, "the revocation", func() bool { return g.credentials[0].version("d") == device+1 })
			if g.version("/a") != before || g.clock.inStep().After(written) {
				t.Errorf("got version %d, in step as of %v after the write; want %d, before", g.version("/a"),
					g.clock.inStep().Sub(written), before)
			}
			await.Until(t, "the delay to be told", func() bool {
				if g.clock.inStep().After(written) && g.version("/a") == before {
					t.Fatal("in step without the write")
				}
				return strings.Contains(g.Failure(), "is behind")
			})
			l.Clear()
			require.NoError(t, l.Heal())
			await.Until(t, "the write", func() bool {
				if g.clock.inStep().After(written) && g.version("/a") == before {
					t.Fatal("in step without the write")
				}
				return g.version("/a") == before+1
			})
			g.awaitInStep(t)
			if got := g.fullResyncs(); got != 2 {
				t.Errorf("got %d full resyncs, want 2: of devices and of objects", got)
			}
			await.Until(t, "no failure", func() bool { return g.Failure() == "" })
		})
	}
}

// TestStartAtASlowReplica: a start is not over before the replica has what the master had: an edge may have it from an
// earlier sidecar.
func TestStartAtASlowReplica(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	replica, l := startReplica(t, master)
	l.Hang()
	s.put(t, "/a")
	var p pick
	p.Store(replica)
	g := followReplica(t, s.Client, &p, "")
	g.awaitLog(t, "the replica is followed")
	select {
	case <-g.Synced():
		t.Errorf("synced with version %d of /a, the master has 2", g.version("/a"))
	default:
	}
	l.Clear()
	g.awaitSynced(t)
	if got := g.version("/a"); got != 2 {
		t.Errorf("synced with version %d of /a, want 2", got)
	}
}

// TestReplicaPromoted: a replica that became a master isn't followed, whatever was written there; as a replica again,
// it is.
func TestReplicaPromoted(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	replica, l := startReplica(t, master)
	var p pick
	p.Store(replica)
	g := followReplica(t, s.Client, &p, "")
	g.awaitSynced(t)
	other := serverAt(t, replica.Address)
	other.do(t, "REPLICAOF", "NO", "ONE")
	g.awaitLog(t, "it is a master, because it was promoted")
	other.put(t, "/a")
	other.put(t, "/foreign")
	s.put(t, "/a")
	written := time.Now()
	if _, err := s.publish.RevokeDevice(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the revocation", func() bool { return g.credentials[0].version("d") == 2 })

	// A replica again, before it is synchronized: of its own history.
	l.Cut()
	_, port, _ := strings.Cut(l.Address(), ":")
	other.do(t, "REPLICAOF", "127.0.0.1", port)
	await.Until(t, "the refusal", func() bool { return strings.Contains(g.Failure(), "the master has another write 4") })
	if g.version("/foreign") != 0 || g.version("/a") != 1 || g.clock.inStep().After(written) {
		t.Errorf("got version %d of /a, %d of /foreign, in step %v after the write; want 1, none, before", g.version("/a"),
			g.version("/foreign"), g.clock.inStep().Sub(written))
	}
	require.NoError(t, l.Heal())
	await.Until(t, "the write", func() bool { return g.version("/a") == 2 })
	g.awaitInStep(t)
	if g.version("/foreign") != 0 || g.fullResyncs() != 2 {
		t.Errorf("got version %d of /foreign and %d full resyncs, want none and 2", g.version("/foreign"), g.fullResyncs())
	}
}

// TestReplicaOfAnotherMaster: a replica with other data is never believed, neither at the start nor later.
func TestReplicaOfAnotherMaster(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	replica, _ := startReplica(t, master)
	otherMaster, other := startMaster(t)
	other.put(t, "/foreign")
	foreign, _ := startReplica(t, otherMaster)
	var p pick
	p.Store(foreign)
	g := followReplica(t, s.Client, &p, "")
	g.awaitLog(t, "the master has another data epoch")
	if g.objects[0].len() != 0 || g.clock.inStep() != (time.Time{}) {
		t.Errorf("got %d objects, in step as of %v; want none", g.objects[0].len(), g.clock.inStep())
	}
	p.Store(replica)
	g.awaitSynced(t)
	g.awaitInStep(t)
	p.Store(foreign)
	replica.Kill()
	await.Until(t, "the second refusal", func() bool {
		return strings.Contains(g.Failure(), "the master has another data epoch")
	})
	if g.version("/a") != 1 || g.version("/foreign") != 0 {
		t.Errorf("got version %d of /a, %d of /foreign; want 1, none", g.version("/a"), g.version("/foreign"))
	}
	await.Until(t, "reads to fail", func() bool { _, err := g.Replica(0); return err != nil })
}

// TestReplicaKilled: the next replica is followed from the last write, unless it is behind; it is once it has it.
func TestReplicaKilled(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	first, _ := startReplica(t, master)
	second, l := startReplica(t, master)
	var p pick
	p.Store(first)
	g := followReplica(t, s.Client, &p, "")
	g.awaitSynced(t)
	l.Cut()
	s.put(t, "/a")
	await.Until(t, "the write", func() bool { return g.version("/a") == 2 })
	p.Store(second)
	first.Kill()
	g.awaitLog(t, "replica "+second.Address+" is behind")
	if got := g.version("/a"); got != 2 {
		t.Errorf("got version %d after a look at a replica that is behind, want 2", got)
	}
	require.NoError(t, l.Heal())
	g.awaitInStep(t)
	s.put(t, "/a")
	await.Until(t, "the next write", func() bool { return g.version("/a") == 3 })
	if got := g.fullResyncs(); got != 2 {
		t.Errorf("got %d full resyncs, want 2: of devices and of objects", got)
	}

	// It comes back without its data, and gets them from the master.
	second.Kill()
	s.put(t, "/a")
	second.Restart()
	await.Until(t, "the write that it missed", func() bool { return g.version("/a") == 4 })
	g.awaitInStep(t)
	if got := g.fullResyncs(); got != 2 {
		t.Errorf("got %d full resyncs after the restart, want 2", got)
	}
}

// TestLostAtTheMaster: what a failover lost goes, also if a replica had brought it.
func TestLostAtTheMaster(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	replica, l := startReplica(t, master)
	promoted, behind := startReplica(t, master)
	var p pick
	p.Store(replica)
	var named atomic.Pointer[redistest.Server] // by the master's name
	named.Store(master)
	client := redis.NewClient(&redis.Options{MaxRetries: -1,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, named.Load().Address)
		}})
	t.Cleanup(func() { client.Close() })
	g := followReplica(t, client, &p, "")
	g.awaitSynced(t)
	behind.Cut()
	s.put(t, "/lost")
	await.Until(t, "the write", func() bool { return g.version("/lost") == 1 })
	l.Cut()
	master.Kill()
	next := serverAt(t, promoted.Address)
	next.do(t, "REPLICAOF", "NO", "ONE")
	for i := range 3 { // the lost write's number is exceeded
		next.put(t, fmt.Sprint("/", i))
	}
	lost := time.Now()
	named.Store(promoted)
	g.awaitLog(t, "the master has another write")
	if g.clock.inStep().After(lost) {
		t.Error("in step at a replica that the new master doesn't have")
	}
	replica.Client(t).Do(t.Context(), "REPLICAOF", "127.0.0.1", promoted.Port())
	await.Until(t, "what was lost to go", func() bool { return g.version("/lost") == 0 && g.version("/2") == 1 })
	g.awaitInStep(t)
}

// TestReplicaLeft: a replica that stays behind is left for another one.
func TestReplicaLeft(t *testing.T) {
	t.Parallel()
	master, s := startMaster(t)
	first, l := startReplica(t, master)
	second, _ := startReplica(t, master)
	var p pick
	p.Store(first)
	g := followReplica(t, s.Client, &p, "")
	g.awaitSynced(t)
	l.Cut()
	p.Store(second)
	s.put(t, "/a")
	await.Until(t, "the write", func() bool { return g.version("/a") == 2 })
	g.awaitInStep(t)
	if got := g.fullResyncs(); got != 2 {
		t.Errorf("got %d full resyncs, want 2: of devices and of objects", got)
	}
}
