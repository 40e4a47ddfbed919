package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// onServer runs test on a redis-server; miniredis doesn't report its maxmemory-policy.
func onServer(t *testing.T, test func(t *testing.T, s server)) {
	t.Helper()
	client := redistest.StartServer(t).Client(t)
	test(t, server{client, New(client)})
}

// TestTrim: entries without a record are removed, and the floor is raised; nothing else changes.
func TestTrim(t *testing.T) {
	onServer(t, func(t *testing.T, s server) {
		ctx := t.Context()
		put := func(key string, ttl time.Duration) {
			t.Helper()
			if _, err := s.p.Put(ctx, Object{Key: key, ContentType: "a", TTL: ttl}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.p.PutDevice(ctx, Device{ID: "gone", Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
		const many = 2*trimPage + 10
		for i := range many {
			put(fmt.Sprint("/gone/", i), 0)
		}
		put("/kept", 0)
		put("/fresh", time.Hour)
		put("/expired", time.Hour)
		put("/expired-a-day-ago", time.Hour)
		if _, err := s.p.PutDevice(ctx, Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.p.Delete(ctx, "/deleted", 0); err != nil { // its tombstone still exists
			t.Fatal(err)
		}
		for _, key := range []string{keys.SeenKey(), keys.SeenOldKey()} {
			s.ZAdd(ctx, key, redis.Z{Score: 1, Member: contract.SeenBegin}, redis.Z{Score: 2, Member: "d"},
				redis.Z{Score: 3, Member: "gone"})
		}
		s.Del(ctx, keys.CredentialKey("gone")) // like the expiry of its tombstone
		s.Set(ctx, keys.ObjectKey("/odd"), "not a hash", 0)
		s.ZAdd(ctx, keys.LogKey(), redis.Z{Score: 3.5, Member: "o:/odd"})
		age := func(key string, by time.Duration) {
			s.HSet(ctx, keys.ObjectKey(key), contract.FieldPublished, time.Now().Add(-by).UnixMilli())
		}
		age("/expired", 24*time.Hour)
		age("/expired-a-day-ago", 26*time.Hour)
		for i := range many {
			s.Del(ctx, keys.ObjectKey(fmt.Sprint("/gone/", i))) // like the expiry of its tombstone
		}
		members := s.ZCard(ctx, keys.LogKey()).Val()

		done, err := s.p.Trim(ctx)
		if want := (Trimmed{Members: int(members), Removed: many + 1, Expired: 1}); err != nil || done != want {
			t.Fatalf("got %+v, %v; want %+v", done, err, want)
		}
		if floor, _ := s.HGet(ctx, keys.ChainKey(), contract.ChainFloor).Uint64(); floor != many+1 {
			t.Errorf("floor %d, want the last number of those removed, %d", floor, many+1)
		}
		for _, key := range []string{keys.SeenKey(), keys.SeenOldKey()} {
			if left := s.ZRange(ctx, key, 0, -1).Val(); !slices.Equal(left, []string{contract.SeenBegin, "d"}) {
				t.Errorf("%s has %q, want no device that is gone", key, left)
			}
		}
		for _, member := range []string{"o:/kept", "o:/fresh", "o:/expired", "o:/expired-a-day-ago",
			"c:d", "o:/deleted", "o:/odd"} {
			if err := s.ZScore(ctx, keys.LogKey(), member).Err(); err != nil {
				t.Errorf("%s: %v", member, err)
			}
		}
		if o := s.hash(t, contract.ObjectMember("/expired-a-day-ago")); o["deleted"] != "1" || o["version"] != "1" {
			t.Errorf("expired: %v", o)
		}
		done, err = s.p.Trim(ctx)
		if want := (Trimmed{Members: int(members) - many - 1}); err != nil || done != want {
			t.Errorf("again: %+v, %v; want %+v", done, err, want)
		}
		// Versions continue above the earlier ones.
		if got, err := s.p.Put(ctx, Object{Key: "/gone/7", ContentType: "a"}); err != nil || got.Version != many+2 {
			t.Errorf("written again: %+v, %v; want version %d", got, err, many+2)
		}
		// The floor never decreases.
		s.HSet(ctx, keys.ChainKey(), contract.ChainFloor, 1<<40)
		s.Del(ctx, keys.ObjectKey("/kept"))
		if done, err := s.p.Trim(ctx); err != nil || done.Removed != 1 {
			t.Errorf("one more: %+v, %v", done, err)
		}
		if floor, _ := s.HGet(ctx, keys.ChainKey(), contract.ChainFloor).Uint64(); floor != 1<<40 {
			t.Errorf("floor %d, want %d", floor, 1<<40)
		}
	})
}

// TestTrimKeepsVersions: writers that count the versions of a key continue after the trimmed version, and readers take
// the tombstone for the newer of two writes with the same version, even if the clock has stepped back.
func TestTrimKeepsVersions(t *testing.T) {
	onServer(t, func(t *testing.T, s server) {
		ctx := t.Context()
		put := func(key string, version uint64) error {
			_, err := s.p.Put(ctx, Object{Key: key, ContentType: "a", TTL: time.Hour, Tags: []string{"t"}, Version: version})
			return err
		}
		for _, key := range []string{"/expired", "/purged", "/moved"} {
			require.NoError(t, put(key, 7))
		}
		day := 25 * time.Hour.Milliseconds()
		s.HIncrBy(ctx, keys.ObjectKey("/expired"), contract.FieldPublished, -day)
		ahead := s.HIncrBy(ctx, keys.ObjectKey("/purged"), contract.FieldPublished, day).Val()
		if _, err := s.p.Purge(ctx, Purge{Tag: "t"}); err != nil {
			t.Fatal(err)
		}
		require.NoError(t, put("/moved", 8))
		if done, err := s.p.Trim(ctx); err != nil || done.Expired+done.Purged != 2 {
			t.Fatalf("%+v, %v, want two deleted", done, err)
		}
		if o := s.hash(t, contract.ObjectMember("/purged")); o["deleted"] != "1" || o["version"] != "7" ||
			o["published"] != strconv.FormatInt(ahead+1, 10) {
			t.Errorf("purged: %v, want version 7, published at %d", o, ahead+1)
		}
		for _, key := range []string{"/expired", "/purged"} {
			if err := put(key, 7); !errors.Is(err, ErrStale) {
				t.Errorf("%s: version 7 again: %v", key, err)
			}
			if err := put(key, 8); err != nil {
				t.Errorf("%s: the next version: %v", key, err)
			}
		}
		if _, err := s.p.Delete(ctx, "/expired", 9); err != nil {
			t.Fatal(err)
		}
		for _, of := range []struct{ key, version string }{{"/moved", "7"}, {"/expired", "9"}} { // the latter a tombstone
			if deleted, err := s.p.writer.deleteVersion(ctx, contract.ObjectMember(of.key), of.version); deleted || err != nil {
				t.Errorf("%s, version %s: deleted: %t, %v", of.key, of.version, deleted, err)
			}
		}
		if _, err := s.p.PutDevice(ctx, Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
		_, err := s.p.writer.deleteVersion(ctx, contract.CredentialMember("d"), "1")
		if d := s.stored(t, "d"); err == nil || !strings.Contains(err.Error(), "only an object's tombstone") || d.Deleted {
			t.Errorf("a device: %+v, %v", d, err)
		}
	})
}

// clockBehind is a hook that sets Redis's clock back, as seen by the client.
type clockBehind time.Duration

func (clockBehind) DialHook(next redis.DialHook) redis.DialHook { return next }

func (clockBehind) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c clockBehind) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if told, ok := cmd.(*redis.TimeCmd); ok {
			told.SetVal(told.Val().Add(-time.Duration(c)))
		}
		return err
	}
}

// TestTrimByTheClockOfRedis: lifetimes count by the clock that published the objects, since the local clock may be
// wrong.
func TestTrimByTheClockOfRedis(t *testing.T) {
	onServer(t, func(t *testing.T, s server) {
		ctx := t.Context()
		if _, err := s.p.Put(ctx, Object{Key: "/a", ContentType: "a", TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		s.HSet(ctx, keys.ObjectKey("/a"), contract.FieldPublished, time.Now().Add(-26*time.Hour).UnixMilli())
		s.AddHook(clockBehind(2 * time.Hour))
		if done, err := s.p.Trim(ctx); err != nil || done != (Trimmed{Members: 1}) {
			t.Errorf("got %+v, %v, want nothing deleted", done, err)
		}
	})
}

// TestTrimLeavesWhatMovesOn: an entry stays if its record is written or moved during the trim.
func TestTrimLeavesWhatMovesOn(t *testing.T) {
	onServer(t, func(t *testing.T, s server) {
		ctx := t.Context()
		for _, key := range []string{"/a", "/b"} {
			if _, err := s.p.Put(ctx, Object{Key: key, ContentType: "a"}); err != nil {
				t.Fatal(err)
			}
		}
		s.Del(ctx, keys.ObjectKey("/b"))
		got := trimScript.runCalls(ctx, s.p.client, call{
			[]string{keys.LogKey(), keys.ChainKey(), keys.ObjectKey("/a"), keys.ObjectKey("/b")},
			[]any{"1", "o:/a", "1", "o:/b"}, // the score of the second one has changed
		})[0]
		if got.err != nil || len(got.numbers) != 1 || got.numbers[0] != 0 || s.ZCard(ctx, keys.LogKey()).Val() != 2 {
			t.Errorf("got %+v, want nothing removed", got)
		}
		if s.HExists(ctx, keys.ChainKey(), contract.ChainFloor).Val() {
			t.Error("a floor although nothing is gone")
		}
	})
}

// afterSeq is a hook that calls itself once, after the next read of a sequence number.
type afterSeq func()

func (*afterSeq) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*afterSeq) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a *afterSeq) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if then := *a; then != nil && cmd.Name() == "get" && slices.Contains(cmd.Args(), any(keys.SeqKey())) {
			*a = nil
			then()
		}
		return err
	}
}

// TestTrimKeepsNewPurges: the trim doesn't know objects written meanwhile, so purges written meanwhile stay.
func TestTrimKeepsNewPurges(t *testing.T) {
	onServer(t, func(t *testing.T, s server) {
		put := func() {
			if _, err := s.p.Put(t.Context(), Object{Key: "/a", ContentType: "a"}); err != nil {
				t.Fatal(err)
			}
		}
		put()
		meanwhile := afterSeq(func() {
			put()
			if _, err := s.p.Purge(t.Context(), Purge{Prefix: "/"}); err != nil {
				t.Fatal(err)
			}
		})
		s.AddHook(&meanwhile)
		for round, want := range []Trimmed{{Members: 0}, {Members: 2, Purged: 1, Purges: 1}} {
			if done, err := s.p.Trim(t.Context()); err != nil || done != want {
				t.Errorf("round %d: %+v, %v; want %+v", round, done, err, want)
			}
			if got := listed(t, s.p); len(got) != 0 {
				t.Errorf("round %d: %q came back", round, got)
			}
		}
	})
}

// TestTrimRefuses: if Redis evicts, a missing record was not deleted, and a revocation needs its entry.
func TestTrimRefuses(t *testing.T) {
	onServer(t, func(t *testing.T, s server) {
		ctx := t.Context()
		require.NoError(t, s.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
		if _, err := s.p.PutDevice(ctx, Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
		s.Del(ctx, keys.CredentialKey("d"))
		if done, err := s.p.Trim(ctx); !errors.Is(err, ErrEvicts) || !strings.Contains(err.Error(), "allkeys-lru") ||
			done != (Trimmed{}) {
			t.Errorf("got %+v, %v; want ErrEvicts", done, err)
		}
		if n := s.ZCard(ctx, keys.LogKey()).Val(); n != 1 {
			t.Errorf("%d entries", n)
		}
	})
}
