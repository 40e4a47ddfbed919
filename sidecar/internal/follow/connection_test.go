package follow

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniredisserver "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
)

// removed is a sink that records removals.
type removed[T any] struct{ ids []string }

func (r *removed[T]) Apply(T)                  {}
func (*removed[T]) Grow(int)                   {}
func (r *removed[T]) Confirm(T) bool           { return false }
func (r *removed[T]) Remove(id string)         { r.ids = append(r.ids, id) }
func (r *removed[T]) Doubt(id string)          { r.Remove(id) }
func (r *removed[T]) Announce(T)               {}
func (r *removed[T]) ApplyMalformed(id string) { r.Remove(id) }
func (r *removed[T]) BeginResync()             {}
func (r *removed[T]) Unapplied() []string      { return nil }
func (r *removed[T]) EndResync()               {}

// noPurges is for tests without purges.
type noPurges struct{}

func (noPurges) Apply(contract.Purge) {}
func (noPurges) BeginResync()         {}
func (noPurges) Unapplied() []string  { return nil }
func (noPurges) EndResync()           {}

type noClock struct{}

func (noClock) SetInStep(time.Time)                 {}
func (noClock) ApplyLive(_ time.Time, apply func()) { apply() }

// idle returns a follower that doesn't run, of the server at address, with the follower's removals and log.
func idle(t *testing.T, options *redis.Options) (*Follower, *removed[contract.Credential], *strings.Builder) {
	t.Helper()
	options.MaxRetries = -1
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	devices, log := new(removed[contract.Credential]), new(strings.Builder)
	c := Config{Objects: new(removed[contract.Object]), Credentials: devices, Purges: noPurges{}, Clock: noClock{}}
	return New(c, client, metrics.New(), slog.New(slog.NewTextHandler(log, nil))), devices, log
}

// TestLoginRefused: a refused login of a connection says nothing about the server's records.
func TestLoginRefused(t *testing.T) {
	m := miniredis.RunT(t)
	m.RequireAuth("right")
	s, devices, _ := idle(t, &redis.Options{Addr: m.Addr(), Password: "wrong"})
	client, err := s.findServer(t.Context())
	require.NoError(t, err)
	if p, err := s.readPosition(t.Context(), server{client, ""}, position{}); err == nil {
		t.Errorf("position: got %+v, want an error", p)
	}
	d := contract.CredentialMember("d")
	err = s.newReader(client).readRecords(t.Context(), []sizedRecord{{Member: d}})
	if err == nil || len(devices.ids) != 0 {
		t.Errorf("records: got %v, and %q removed; want an error and nothing removed", err, devices.ids)
	}
	if got, err := s.fetchSizes(t.Context(), server{client, ""}, []contract.Member{d}); err == nil {
		t.Errorf("sizes: got %v, want an error", got)
	}
}

// TestOneServer moves a name to another server during a catch-up: the catch-up stays at its server.
func TestOneServer(t *testing.T) {
	old, other := miniredis.RunT(t), miniredis.RunT(t)
	at := old.Addr()
	s, _, _ := idle(t, &redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		defer func() { at = other.Addr() }() // for further connections
		return new(net.Dialer).DialContext(ctx, network, at)
	}})
	old.Set(s.keys.DataEpochKey(), strings.Repeat("a", 32))
	old.Set(s.keys.SeqKey(), "1")
	old.ZAdd(s.keys.LogKey(), 1, contract.CredentialMember("d").String())
	old.HSet(s.keys.CredentialKey("d"), contract.FieldVersion, "1")
	require.NoError(t, s.catchUp(t.Context(), "connected"))
	if other.CommandCount() != 0 || s.seq != 1 {
		t.Errorf("got %d commands at the other server and seq %d, want all of the first one", other.CommandCount(), s.seq)
	}
}

// TestAllDoubtsEnd: a single catch-up reads all devices that are in doubt.
func TestAllDoubtsEnd(t *testing.T) {
	m := miniredis.RunT(t)
	s, _, _ := idle(t, &redis.Options{Addr: m.Addr()})
	m.Set(s.keys.DataEpochKey(), "beef")
	m.Set(s.keys.SeqKey(), "1")
	m.ZAdd(s.keys.LogKey(), 1, contract.CredentialMember("d0").String())
	for i := range 20*pipelineSize + 1 {
		s.doubtDevice(contract.CredentialMember(fmt.Sprint("d", i)))
	}
	err := s.catchUp(t.Context(), catchUpConnected)
	if left := len(s.rereads.members) + len(s.grants.waiting); err != nil || left != 0 {
		t.Errorf("got %d devices left in doubt, %v; want none", left, err)
	}
}

// flood is a sink of objects that calls arrive with each object.
type flood struct {
	removed[contract.Object]
	arrive func()
}

func (f *flood) Apply(contract.Object) { f.arrive() }

// TestLateDoubtsEnd puts devices in doubt at the end of a catch-up, more than a catch-up reads. They are read without
// another catch-up, during which others would come into doubt. After more than are listed, everything is read again.
func TestLateDoubtsEnd(t *testing.T) {
	for n, catchUps := range map[int]uint64{10 * pipelineSize: 1, maxRereads + 1: 2} {
		t.Run(fmt.Sprint(n, " devices"), func(t *testing.T) {
			s, _, m := inOrder(t, contract.ObjectMember("/a"))
			late := sync.OnceFunc(func() {
				for i := range n {
					s.doubtDevice(contract.CredentialMember(fmt.Sprint("d", i)))
				}
			})
			s.Objects, s.grants.replies = &flood{arrive: late}, make(chan grantReplies, 1)
			s.readers, s.schedule.limiter = new(sync.WaitGroup), rate.NewLimiter(rate.Every(time.Hour), 1)
			require.NoError(t, s.catchUp(t.Context(), catchUpConnected))
			if s.schedule.scheduled {
				s.scheduleCatchUp() // doesn't delay what is scheduled
			}
			m.Del(s.keys.ResyncKey()) // miniredis doesn't expire the lease
			for s.schedule.scheduled || len(s.grants.waiting) > 0 {
				s.readGrants(t.Context())
				select {
				case <-s.schedule.timer.C:
					require.NoError(t, s.runDueCatchUp(t.Context()))
				case g := <-s.grants.replies:
					require.NoError(t, s.applyGrants(g))
				case <-time.After(await.Deadline):
					t.Fatal("nothing is due")
				}
			}
			if s.needsReread() || s.catchups != catchUps {
				t.Errorf("got %d devices left in doubt after %d catch-ups, want none after %d", len(s.rereads.members),
					s.catchups, catchUps)
			}
		})
	}
}

// TestGrantBeforeACatchUp begins a catch-up while grants wait, or are read: the catch-up reads the grants, since it may
// take minutes.
func TestGrantBeforeACatchUp(t *testing.T) {
	a, b := contract.CredentialMember("a"), contract.CredentialMember("b")
	s, order, _ := inOrder(t, a, b)
	require.NoError(t, s.catchUp(t.Context(), catchUpConnected))
	s.grants.waiting[a], s.grants.reading, *order = true, map[contract.Member]bool{b: true}, nil
	require.NoError(t, s.catchUp(t.Context(), catchUpGap))
	if got := strings.Join(*order, ""); got != "cc" {
		t.Errorf("got %q, want both devices", got)
	}
}

// TestAwayForADay is disconnected for so long that a tombstone may have expired, and a new record may have a lower
// version than the record before the tombstone: everything is read again.
func TestAwayForADay(t *testing.T) {
	s, order, m := inOrder(t, contract.CredentialMember("d"))
	for name, test := range map[string]struct {
		away time.Duration
		want string
	}{"an hour": {time.Hour, ""}, "a day": {24 * time.Hour, "c"}} {
		m.Del(s.keys.ResyncKey()) // miniredis doesn't expire the lease
		require.NoError(t, s.catchUp(t.Context(), catchUpConnected))
		if s.historyAt != s.historyAt.Round(0) {
			t.Errorf("%s: got a time that stands still while the machine is suspended", name)
		}
		s.historyAt, *order = s.historyAt.Add(-test.away), nil
		m.Del(s.keys.ResyncKey())
		asked := position{seq: s.seq, catchups: s.catchups, at: time.Now()}
		compared := s.comparePosition(t.Context(), s.askPosition(t.Context(), asked))
		if away := errors.Is(compared, errOtherServer); away != (test.want != "") {
			t.Errorf("%s: compared: %v", name, compared)
		}
		require.NoError(t, s.catchUp(t.Context(), catchUpConnected))
		if got := strings.Join(*order, ""); got != test.want {
			t.Errorf("away for %s: got %q read, want %q", name, got, test.want)
		}
	}
}

// ordered is a sink that records when a record of its kind arrives.
type ordered[T any] struct {
	removed[T]
	kind  string
	order *[]string
}

func (o ordered[T]) Apply(T)    { *o.order = append(*o.order, o.kind) }
func (o ordered[T]) Announce(T) { *o.order = append(*o.order, o.kind) }

// tombstone is a record of either kind.
var tombstone = map[string]string{"version": "1", "published": "1", "deleted": "1"}

// registered is a record of a device.
var registered = map[string]string{"version": "1", "published": "1",
	"hash": "$2a$04$" + strings.Repeat("a", 53)}

// inOrder returns an idle follower of a Redis that has tombstones of members, in the given order, in the data epoch
// "aaa…", and the kinds of the records that the follower has applied.
func inOrder(t *testing.T, members ...contract.Member) (*Follower, *[]string, *miniredis.Miniredis) {
	t.Helper()
	m := miniredis.RunT(t)
	s, _, _ := idle(t, &redis.Options{Addr: m.Addr()})
	var order []string
	s.Objects = &ordered[contract.Object]{kind: "o", order: &order}
	s.Credentials = &ordered[contract.Credential]{kind: "c", order: &order}
	m.Set(s.keys.DataEpochKey(), strings.Repeat("a", 32))
	m.Set(s.keys.SeqKey(), fmt.Sprint(len(members)))
	for i, member := range members {
		m.ZAdd(s.keys.LogKey(), float64(i+1), member.String())
		for field, value := range tombstone {
			m.HSet(s.keys.RecordKey(member), field, value)
		}
	}
	return s, &order, m
}

// TestDevicesFirst reads everything: all devices are applied before any object.
func TestDevicesFirst(t *testing.T) {
	s, order, _ := inOrder(t, contract.ObjectMember("/a"), contract.CredentialMember("a"), contract.ObjectMember("/b"),
		contract.CredentialMember("b"))
	require.NoError(t, s.catchUp(t.Context(), "connected"))
	if got := strings.Join(*order, ""); got != "ccoo" || s.seq != 4 {
		t.Errorf("got %q and seq %d, want ccoo and 4", got, s.seq)
	}
}

// TestRevokedWhileObjectsAreRead revokes a device while all objects are read again: the revocation doesn't wait for the
// end.
func TestRevokedWhileObjectsAreRead(t *testing.T) {
	var objects []contract.Member
	for i := range 300 { // several reads
		objects = append(objects, contract.ObjectMember(fmt.Sprint("/", i)))
	}
	s, order, m := inOrder(t, objects...)
	for field, value := range tombstone {
		m.HSet(s.keys.CredentialKey("d"), field, value)
	}
	epoch := strings.Repeat("a", 32)
	s.inbox = newInbox(1, &s.board.waitingBytes)
	for _, e := range []contract.Event{
		{DataEpoch: epoch, Seq: 301, Member: contract.CredentialMember("d"), Fields: tombstone},
		{DataEpoch: epoch, Seq: 302, Member: contract.ObjectMember("/new"), Fields: tombstone},
		{DataEpoch: strings.Repeat("b", 32), Seq: 303, Member: contract.CredentialMember("foreign"), Fields: tombstone},
	} {
		e.Digest = strings.Repeat("0", 40) // not looked at
		s.inbox.put(string(contract.AppendEvent(nil, e)))
	}
	require.NoError(t, s.catchUp(t.Context(), "connected"))
	got := strings.Join(*order, "")
	if at := strings.Index(got, "c"); at < 0 || at > pipelineSize || strings.Count(got, "c") != 1 ||
		strings.Count(got, "o") != 300 {
		t.Errorf("got %d of objects and %d of devices, the first one after %d; want 300, and 1 after at most %d",
			strings.Count(got, "o"), strings.Count(got, "c"), at, pipelineSize)
	}
	if payloads, _, _ := s.inbox.take(); len(payloads) != 3 {
		t.Errorf("got %d events left for their turn, want 3", len(payloads))
	}
}

// revocation returns an event that revokes d.
func revocation() string { return announcement(tombstone) }

// announcement returns an event of d.
func announcement(fields map[string]string) string {
	return string(contract.AppendEvent(nil, contract.Event{DataEpoch: strings.Repeat("a", 32), Seq: 2,
		Digest: strings.Repeat("0", 40), Member: contract.CredentialMember("d"), Fields: fields}))
}

// doubting signals that a device is in doubt.
type doubting struct {
	ordered[contract.Credential]
	doubted chan string
}

func (d *doubting) Doubt(id string) { d.doubted <- id }

// TestRevokedDuringARead revokes a device, or gives the device another secret, while Redis takes its time to answer:
// until the answer, the old secret doesn't count, and the answer, which may be older, isn't applied.
func TestRevokedDuringARead(t *testing.T) {
	for name, event := range map[string]string{"revoked": revocation(), "another secret": announcement(registered)} {
		t.Run(name, func(t *testing.T) {
			s, order, m := inOrder(t, contract.CredentialMember("d"))
			d := &doubting{ordered[contract.Credential]{kind: "c", order: order}, make(chan string, 1)}
			s.Credentials, s.inbox = d, newInbox(1, &s.board.waitingBytes)
			reads := 0
			m.Server().SetPreHook(func(_ *miniredisserver.Peer, command string, _ ...string) bool {
				if command != "HGETALL" {
					return false
				}
				if reads++; reads == 1 {
					s.inbox.put(event)
					select {
					case <-d.doubted:
					case <-time.After(await.Deadline):
						t.Error("the old secret counts until the answer")
					}
				}
				return false
			})
			require.NoError(t, s.catchUp(t.Context(), catchUpConnected))
			if got := strings.Join(*order, ""); reads != 2 || got != "c" || len(s.rereads.members) > 0 {
				t.Errorf("%d reads, %q applied, %d to read again; want the second of 2, and none", reads, got,
					len(s.rereads.members))
			}
		})
	}
}

// TestRevokedAsRedisGoes: a revocation that has arrived counts, however the subscription ends before its turn.
func TestRevokedAsRedisGoes(t *testing.T) {
	for name, end := range map[string]func(*Follower){
		"waiting":   func(s *Follower) { s.inbox.put(revocation()) },
		"announced": func(s *Follower) { s.addReread(contract.CredentialMember("d")) },
		"after an overflow": func(s *Follower) {
			s.inbox.put(revocation())
			s.inbox.lost = true
			if err := s.applyInbox(t.Context(), s.inbox); err == nil {
				t.Error("caught up without Redis")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, order, m := inOrder(t)
			d := &doubting{ordered[contract.Credential]{kind: "c", order: order}, make(chan string, 2)}
			s.Credentials, s.inbox, s.dataEpoch = d, newInbox(1, &s.board.waitingBytes), strings.Repeat("a", 32)
			m.Close()
			end(s)
			if s.abandonSubscription(); len(d.doubted) == 0 || s.board.waitingBytes.Load() != 0 {
				t.Errorf("%d in doubt, %d bytes wait; want d in doubt, and none", len(d.doubted), s.board.waitingBytes.Load())
			}
		})
	}
}

// ending calls a function once it has got a device.
type ending struct {
	ordered[contract.Credential]
	end func()
}

func (e *ending) Apply(c contract.Credential) {
	e.ordered.Apply(c)
	e.end()
}

// TestRevokedBeforeItsTurn revokes a device while other shards read objects, and its shard waits for a slot.
func TestRevokedBeforeItsTurn(t *testing.T) {
	s, order, m := inOrder(t, contract.ObjectMember("/a"))
	for field, value := range tombstone {
		m.HSet(s.keys.CredentialKey("d"), field, value)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Deadline)
	defer cancel()
	s.Credentials = &ending{ordered[contract.Credential]{kind: "c", order: order}, cancel}
	s.inbox = newInbox(1, &s.board.waitingBytes)
	for range maxReads {
		<-s.board.readSlots
	}
	defer time.AfterFunc(100*time.Millisecond, func() {
		s.inbox.put(revocation())
	}).Stop()
	err := s.catchUp(ctx, "connected")
	if got := strings.Join(*order, ""); got != "c" || !errors.Is(err, context.Canceled) {
		t.Errorf("got %q, %v; want the device, and nothing after it", got, err)
	}
}

// TestLostIsRemembered: Redis is behind us at a comparison, and ahead of our number at the next read.
func TestLostIsRemembered(t *testing.T) {
	m := miniredis.RunT(t)
	s, _, log := idle(t, &redis.Options{Addr: m.Addr()})
	m.Set(s.keys.DataEpochKey(), strings.Repeat("a", 32))
	m.Set(s.keys.SeqKey(), "7")
	m.ZAdd(s.keys.LogKey(), 7, contract.ObjectMember("/a").String())
	require.NoError(t, s.catchUp(t.Context(), "connected"))
	m.FastForward(time.Second) // the lease ends
	p := position{dataEpoch: s.dataEpoch, history: s.history, seq: 5, last: 5, ours: 7, catchups: s.catchups,
		at: time.Now()}
	m.Set(s.keys.SeqKey(), "9")
	before := log.Len()
	require.NoError(t, s.comparePosition(t.Context(), p))
	if said := log.String()[before:]; !strings.Contains(said, "redis has lost data") ||
		!strings.Contains(said, "full=true") {
		t.Errorf("got %s, want the loss, and all read again", said)
	}
}

// TestPositionMoves: Redis is written to while its position is read. The number that counts is not older than the
// chain.
func TestPositionMoves(t *testing.T) {
	m := miniredis.RunT(t)
	s, _, _ := idle(t, &redis.Options{Addr: m.Addr()})
	s.withheld.info.Store(true) // miniredis would cause another read
	m.Set(s.keys.SeqKey(), "7")
	chain := 0
	m.Server().SetPreHook(func(_ *miniredisserver.Peer, command string, _ ...string) bool {
		if chain += strings.Count(command, "HMGET"); command == "HMGET" && chain == 1 {
			m.Set(s.keys.SeqKey(), "8")
		}
		return false
	})
	client, err := s.findServer(t.Context())
	require.NoError(t, err)
	if p, err := s.readPosition(t.Context(), server{client, ""}, position{}); err != nil || p.seq != 8 || chain != 2 {
		t.Errorf("got number %d and the chain read %d times, %v; want 8 and twice", p.seq, chain, err)
	}
}

// TestSlowRecords: after a timeout the follower reads fewer records at once, until a catch-up goes well.
func TestSlowRecords(t *testing.T) {
	var members []contract.Member
	for i := range 300 {
		members = append(members, contract.CredentialMember(fmt.Sprint("d", i)))
	}
	s, _, _ := inOrder(t, members...)
	client, err := s.findServer(t.Context())
	require.NoError(t, err)
	client.AddHook(slowFrom(100))
	read := func() error { return s.newReader(client).readLog(t.Context(), 0, 300, contract.KindCredential) }
	for _, next := range []int{pipelineSize / 2, pipelineSize / 4} {
		if err := read(); err == nil || s.batch != next {
			t.Fatalf("got %v, and %d at once next; want a timeout, and %d", err, s.batch, next)
		}
	}
	require.NoError(t, read())
	if err := s.catchUp(t.Context(), catchUpConnected); err != nil || s.batch != pipelineSize {
		t.Errorf("got %v, and %d at once after it went well, want %d", err, s.batch, pipelineSize)
	}
}

// TestReadsAreMeasured: metrics have the calls of a catch-up, and of reading granted devices.
func TestReadsAreMeasured(t *testing.T) {
	s, _, _ := inOrder(t, contract.CredentialMember("d"))
	measured := func() float64 {
		return metricstest.Value(t, s.metrics, "gatehouse_redis_seconds", "call", "pipeline")
	}
	if err := s.catchUp(t.Context(), catchUpConnected); err != nil || measured() == 0 {
		t.Errorf("got %v, and %v calls of a catch-up", err, measured())
	}
	before := measured()
	s.readers, s.grants.replies = new(sync.WaitGroup), make(chan grantReplies, 1)
	s.grants.waiting[contract.CredentialMember("d")] = true
	s.readGrants(t.Context())
	if g := <-s.grants.replies; g.err != nil || measured() == before {
		t.Errorf("got %v, and %v calls for a grant", g.err, measured()-before)
	}
}

// slowFrom times out pipelines that read at least the given number of records, with the client's error after some
// replies have arrived.
type slowFrom int

func (slowFrom) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (slowFrom) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (n slowFrom) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if len(commands) < int(n) || commands[0].Name() != "hgetall" {
			return next(ctx, commands)
		}
		late := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
		for i, c := range commands {
			c.SetErr(map[bool]error{true: context.DeadlineExceeded, false: late}[i < 10])
		}
		return late
	}
}

// BenchmarkResync reads 10,000 unchanged objects of 1 KiB with a gzip encoding again: once only their heads, once
// whole.
func BenchmarkResync(b *testing.B) {
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(redistest.Start(b), "redis://")})
	b.Cleanup(func() { client.Close() })
	const n = 10_000
	body := make([]byte, 1<<10)
	o := contract.Object{Version: 1, PublishedMS: 1, ETag: `"0123456789abcdef0123456789abcdef"`,
		ContentType: "application/json",
		Bodies:      []contract.Body{{Encoding: wire.Identity, Bytes: body}, {Encoding: wire.Gzip, Bytes: body[:400]}}}
	pipe := client.Pipeline()
	pipe.Set(b.Context(), contract.Keys{}.DataEpochKey(), strings.Repeat("a", 32), 0)
	pipe.Set(b.Context(), contract.Keys{}.SeqKey(), n, 0)
	for i := range n {
		m := contract.ObjectMember(fmt.Sprint("/v1/products/", i))
		pipe.HSet(b.Context(), contract.Keys{}.RecordKey(m), o.Fields())
		pipe.ZAdd(b.Context(), contract.Keys{}.LogKey(), redis.Z{Score: float64(i + 1), Member: m.String()})
	}
	if _, err := pipe.Exec(b.Context()); err != nil {
		b.Fatal(err)
	}
	for name, resynced := range map[string]bool{"known": true, "whole": false} {
		b.Run(name, func(b *testing.B) {
			s := New(Config{Objects: knowing{new(removed[contract.Object])}, Credentials: new(removed[contract.Credential]),
				Purges: noPurges{}, Clock: noClock{}}, client, metrics.New(), slog.New(slog.DiscardHandler))
			usage := func(section, name string) (n float64) {
				_, after, _ := strings.Cut(client.Info(b.Context(), section).Val(), "\n"+name+":")
				fmt.Sscan(after, &n)
				return n
			}
			sent := func() float64 { return usage("stats", "total_net_output_bytes") }
			cpu := func() float64 { return usage("cpu", "used_cpu_user") + usage("cpu", "used_cpu_sys") }
			sentBefore, cpuBefore := sent(), cpu()
			for b.Loop() {
				s.synced, s.resync.tried = false, resynced
				require.NoError(b, s.catchUp(b.Context(), "connected"))
			}
			read := float64(b.N * n)
			b.ReportMetric((sent()-sentBefore)/read, "bytes/object")
			b.ReportMetric((cpu()-cpuBefore)/read*1e6, "redis-µs/object")
		})
	}
}

// knowing is a sink that has everything.
type knowing struct{ *removed[contract.Object] }

func (knowing) Grow(int)                     {}
func (knowing) Confirm(contract.Object) bool { return true }

// TestCause: errors with the same cause have the same text.
func TestCause(t *testing.T) {
	refused := func(port string) error {
		return fmt.Errorf("dial: %w", &net.OpError{Op: "read", Err: errors.New("connection reset"),
			Source: &net.TCPAddr{Port: len(port)}})
	}
	lookup := func(port string) error {
		return &net.OpError{Op: "dial", Err: &net.DNSError{Name: "redis", Err: "read udp 10.0.0.1:" + port + ": refused"}}
	}
	page := func(to int) error { return fmt.Errorf("catch up from 0 to %d: %w", to, errors.New("NOPERM")) }
	sentinels := func(first, second error) error {
		return fmt.Errorf("all sentinels are unreachable: %w", errors.Join(first, second))
	}
	expired := func(at string) error {
		return fmt.Errorf("tls: %w", x509.CertificateInvalidError{Reason: x509.Expired, Detail: "current time " + at})
	}
	for _, same := range [][2]error{
		{refused("1"), refused("22")}, {lookup("1"), lookup("2")}, {page(1), page(2)}, {expired("1"), expired("2")},
		{sentinels(refused("1"), lookup("1")), sentinels(lookup("2"), refused("22"))},
	} {
		if a, b := rootCause(same[0]), rootCause(same[1]); a != b {
			t.Errorf("got %q and %q, want one cause", a, b)
		}
	}
	if a, b := rootCause(page(1)), rootCause(refused("1")); a == b {
		t.Errorf("got %q for both, want two", a)
	}
}

// TestNext: sidecars ask less and less often while Redis answers, but can't be followed until an operator acts.
func TestNext(t *testing.T) {
	refused := fmt.Errorf("catch up: %w", emptyError{})
	for _, test := range []struct {
		backoff time.Duration
		err     error
		want    time.Duration
	}{
		{minBackoff, errSilent, 2 * minBackoff},
		{maxBackoff, errSilent, maxBackoff},
		{minBackoff, refused, 2 * minBackoff},
		{maxBackoff, refused, maxBackoff * 11 / 10},
		{maxRefused, refused, maxRefused},
		{maxRefused, errSilent, maxBackoff},
	} {
		if got := nextBackoff(test.backoff, test.err); got != test.want {
			t.Errorf("after %v and %v: got %v, want %v", test.backoff, test.err, got, test.want)
		}
	}
}

// TestUnknownPosition: a position that stays unreadable is logged once.
func TestUnknownPosition(t *testing.T) {
	s, _, log := idle(t, &redis.Options{Addr: "127.0.0.1:1"})
	refused := errors.New("NOPERM")
	s.logUnknownPosition(refused)
	if log.Len() != 0 {
		t.Errorf("got %s, want nothing yet", log)
	}
	s.comparison.unknownAt = s.comparison.unknownAt.Add(-unknownLogAfter)
	for range 3 {
		s.logUnknownPosition(refused)
	}
	if got := strings.Count(log.String(), "level=WARN"); got != 1 {
		t.Errorf("got %d lines, want 1: %s", got, log)
	}
}

// TestAnswerOfBefore revokes a device by an event while its record is read: the older record is not applied.
func TestAnswerOfBefore(t *testing.T) {
	m := miniredis.RunT(t)
	s, _, _ := idle(t, &redis.Options{Addr: m.Addr()})
	var order []string
	s.Credentials = &ordered[contract.Credential]{kind: "c", order: &order}
	d := contract.CredentialMember("d")
	m.Set(s.keys.DataEpochKey(), "beef")
	for field, value := range tombstone {
		m.HSet(s.keys.RecordKey(d), field, value)
	}
	client, err := s.findServer(t.Context())
	require.NoError(t, err)
	replies, err := s.fetchRecords(t.Context(), client, []sizedRecord{{Member: d}}, grantTimeout, nil, false)
	require.NoError(t, err)
	for name, want := range map[string]int{"taken away": 0, "not": 1} {
		s.grants.reading = map[contract.Member]bool{d: true}
		if order = nil; name == "taken away" {
			s.doubtDevice(d)
		}
		require.NoError(t, s.applyGrants(grantReplies{members: []contract.Member{d}, replies: replies}))
		if len(order) != want {
			t.Errorf("%s: got %d records applied, want %d", name, len(order), want)
		}
	}
}

// TestInStepWhenRead: the shard is not in step until the grants in events were read.
func TestInStepWhenRead(t *testing.T) {
	s, _, _ := idle(t, &redis.Options{Addr: "127.0.0.1:1"})
	s.Credentials = new(removed[contract.Credential])
	at := time.UnixMilli(1000)
	s.grants.waiting[contract.CredentialMember("d")] = true
	s.setInStep(at)
	if !s.board.inStep[0].IsZero() {
		t.Error("in step while a device waits")
	}
	s.grants.waiting, s.grants.reading, s.grants.rounds = map[contract.Member]bool{contract.CredentialMember("e"): true},
		map[contract.Member]bool{}, 1
	require.NoError(t, s.applyGrants(grantReplies{}))
	if got := s.board.inStep[0]; got != at {
		t.Errorf("got %v when it was read, want %v, though another waits", got, at)
	}
	clear(s.grants.waiting)
	s.schedule.reason = "chain"
	if s.setInStep(at.Add(time.Second)); s.board.inStep[0] != at {
		t.Error("in step while in doubt")
	}
}

// TestEmptyInARow: only a shard that was empty at each look since AcceptLossAfter counts as lost.
func TestEmptyInARow(t *testing.T) {
	s, _, _ := idle(t, &redis.Options{Addr: "127.0.0.1:1"})
	begin := time.Now()
	for _, look := range []struct {
		after    time.Duration // to wait
		at       time.Duration
		p        position
		believed bool
	}{
		{0, time.Hour, position{}, false},
		{time.Second, 2 * time.Hour, position{dataEpoch: "beef"}, true},
		{time.Second, 3 * time.Hour, position{}, false},
		{time.Second, 3*time.Hour + 999*time.Millisecond, position{}, false},
		{time.Second, 3*time.Hour + time.Second, position{}, true},
		{time.Second, 3*time.Hour + 2*time.Second, position{}, true},
		{time.Second, 4 * time.Hour, position{}, false}, // Redis was away
		{time.Second, 4*time.Hour + time.Second, position{}, true},
		{time.Second, 5 * time.Hour, position{dataEpoch: "beef", seq: 1, last: 1}, true},
		{time.Second, 6 * time.Hour, position{}, false},
	} {
		s.AcceptLossAfter, look.p.at = look.after, begin.Add(look.at)
		if err := s.confirmNotLost(look.p, true); (err == nil) != look.believed {
			t.Errorf("at %v: got %v, want %v", look.at, err, look.believed)
		}
	}
}

// TestEmptiedWhileRead loses keys before a command of a catch-up: records that are absent afterwards were not deleted.
func TestEmptiedWhileRead(t *testing.T) {
	d := contract.CredentialMember("d")
	for _, tt := range []struct {
		name, before string
		lose         func(f *Follower, m *miniredis.Miniredis)
		gone         bool // the device is absent in Redis after the loss
	}{
		{"all before the log is read", "ZRANGE", func(_ *Follower, m *miniredis.Miniredis) { m.FlushAll() }, false},
		{"all", "HGETALL", func(_ *Follower, m *miniredis.Miniredis) { m.FlushAll() }, false},
		{"all, then another's data", "HGETALL", func(f *Follower, m *miniredis.Miniredis) {
			m.FlushAll()
			m.Set(f.keys.DataEpochKey(), "beef")
			m.Set(f.keys.SeqKey(), "1")
			m.ZAdd(f.keys.LogKey(), 1, "c:e")
		}, true},
		{"the log", "HGETALL", func(f *Follower, m *miniredis.Miniredis) { m.Del(f.keys.LogKey()) }, false},
		{"the log, then a write", "HGETALL", func(f *Follower, m *miniredis.Miniredis) {
			m.Del(f.keys.LogKey())
			m.Set(f.keys.SeqKey(), "2")
			m.ZAdd(f.keys.LogKey(), 2, "c:e")
			m.HSet(f.keys.ChainKey(), contract.ChainLost, "2")
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, order, m := inOrder(t, d)
			devices := new(removed[contract.Credential])
			s.Credentials = devices
			m.Server().SetPreHook(func(_ *miniredisserver.Peer, command string, _ ...string) bool {
				if command == tt.before {
					tt.lose(s, m)
				}
				return false
			})
			if err := s.catchUp(t.Context(), catchUpConnected); err == nil || s.synced || len(devices.ids) > 0 != tt.gone {
				t.Errorf("got %v, synced %v, %q removed, %d applied; want an error, and d removed: %v",
					err, s.synced, devices.ids, len(*order), tt.gone)
			}
		})
	}
}
