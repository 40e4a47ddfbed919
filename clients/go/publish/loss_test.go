package publish

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestAcceptLoss: each shard without a data epoch gets a new epoch; other shards don't change.
func TestAcceptLoss(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const shards = 4
		p := New(s.Client, Shards(shards))
		if _, err := p.Put(t.Context(), Object{Key: "/a", ContentType: "a"}); err != nil {
			t.Fatal(err)
		}
		key := contract.Keyspace{Shards: shards}.KeysOf("/a").DataEpochKey()
		epoch := s.Get(t.Context(), key).Val()
		for _, want := range []int{shards - 1, 0} {
			if got, err := p.AcceptLoss(t.Context()); err != nil || got != want {
				t.Errorf("got %d shards, %v; want %d", got, err, want)
			}
		}
		if got := s.Get(t.Context(), key).Val(); got != epoch {
			t.Errorf("the epoch of the shard with a record is %q, was %q", got, epoch)
		}
		s.FlushAll(t.Context())
		if got, err := New(s.Client).AcceptLoss(t.Context()); !errors.Is(err, ErrInvalid) {
			t.Errorf("without a number of shards: got %d, %v; want a refusal", got, err)
		}
		if got, err := p.AcceptLoss(t.Context()); err != nil || got != shards {
			t.Errorf("after a flush: got %d shards, %v; want %d", got, err, shards)
		}
		for i := range shards {
			got := s.Get(t.Context(), contract.Keys{Shard: i}.DataEpochKey()).Val()
			if !contract.ValidDataEpoch(got) || got == epoch {
				t.Errorf("shard %d has the epoch %q, want a new one", i, got)
			}
		}
		if got, err := New(s.Client, Shards(2)).AcceptLoss(t.Context()); !isShards(err) {
			t.Errorf("with another number of shards: got %d, %v; want a refusal", got, err)
		}
	})
}

// TestLostLogOrSeq: a write after the loss of seq goes on from the highest number that is left. A write after the loss
// of the log leaves a mark in the chain, and whatever needs the whole log refuses, until the loss is accepted.
func TestLostLogOrSeq(t *testing.T) {
	put := func(key string) func(*testing.T, server) {
		return func(t *testing.T, s server) {
			t.Helper()
			_, err := s.p.Put(t.Context(), Object{Key: key, ContentType: "a"})
			require.NoError(t, err)
		}
	}
	known, unknown := put("/a"), put("/new")
	log, seq, chain := lose(keys.LogKey()), lose(keys.SeqKey()), lose(keys.ChainKey())
	trimmed := func(t *testing.T, s server) {
		t.Helper()
		require.NoError(t, s.HSet(t.Context(), keys.ChainKey(), contract.ChainFloor, 3).Err())
	}
	type steps []func(*testing.T, server)
	for name, test := range map[string]struct {
		steps     steps
		seq, lost string // then
	}{
		"nothing, known":      {steps{known}, "4", ""},
		"nothing, unknown":    {steps{unknown}, "4", ""},
		"seq, known":          {steps{seq, known}, "4", ""},
		"seq, unknown":        {steps{seq, unknown}, "4", ""},
		"seq, chain, known":   {steps{seq, chain, known}, "4", ""},
		"seq, chain, unknown": {steps{seq, chain, unknown}, "4", ""},
		"log, known":          {steps{log, known}, "4", "4"},
		"log, unknown":        {steps{log, unknown}, "4", "4"},
		"log, two writes":     {steps{log, known, unknown}, "5", "4"},
		"log, twice":          {steps{log, known, log, unknown}, "5", "5"},
		"log, chain":          {steps{log, chain, known}, "4", "4"},
		"log, seq":            {steps{log, seq, known}, "4", "4"},
		"log, seq, chain":     {steps{log, seq, chain, known}, "1", ""},
		"seq, counted anew by an earlier script": {steps{func(t *testing.T, s server) {
			t.Helper()
			require.NoError(t, s.Set(t.Context(), keys.SeqKey(), 1, 0).Err())
		}, known}, "4", ""},
		"seq, no number": {steps{chain, func(t *testing.T, s server) {
			t.Helper()
			require.NoError(t, s.Set(t.Context(), keys.SeqKey(), "x", 0).Err())
		}, unknown}, "4", ""},
		"log, all of which was trimmed":            {steps{log, trimmed, known}, "4", ""},
		"log, all of which was trimmed, unwritten": {steps{log, trimmed}, "3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s server) {
				_, err := s.p.PutDevice(t.Context(), Device{ID: "d", Hashes: []string{anyHash}})
				require.NoError(t, err)
				known(t, s)
				put("/b")(t, s)
				for _, step := range test.steps {
					step(t, s)
				}
				number, lost := s.Get(t.Context(), keys.SeqKey()).Val(), s.HGet(t.Context(), keys.ChainKey(),
					contract.ChainLost).Val()
				if number != test.seq || lost != test.lost {
					t.Errorf("seq %s, lost %q; want %s, %q", number, lost, test.seq, test.lost)
				}
				check := func(when string, lost bool) {
					t.Helper()
					_, err := s.p.RevokeAll(t.Context())
					if says := err != nil && strings.Contains(err.Error(), "has lost "+keys.LogKey()); says != lost {
						t.Errorf("%s: revoke all: %v; want a loss: %t", when, err, lost)
					}
					if err := (&trimmer{p: s.p, shard: keys, done: new(Trimmed)}).trimShard(t.Context()); (err != nil) != lost {
						t.Errorf("%s: trim: %v; want a loss: %t", when, err, lost)
					}
				}
				check("before", test.lost != "")
				if n, err := s.p.AcceptLoss(t.Context()); err != nil || (n == 1) != (test.lost != "") {
					t.Errorf("accept: %d, %v", n, err)
				}
				check("accepted", false)
			})
		})
	}
}

// TestSeqLostAtTheEnd: no number is left after the number in the chain's head, which no script wrote.
func TestSeqLostAtTheEnd(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		head := fmt.Sprint(uint64(limits.MaxVersion), " ", strings.Repeat("a", 40))
		require.NoError(t, s.HSet(t.Context(), keys.ChainKey(), contract.ChainHead, head).Err())
		_, err := s.p.Put(t.Context(), Object{Key: "/a", ContentType: "a"})
		if want := keys.SeqKey() + " is lost, want a number below"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

// TestLogLostUnwritten: also before a write, not all devices are known.
func TestLogLostUnwritten(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		_, err := s.p.PutDevice(t.Context(), Device{ID: "d", Hashes: []string{anyHash}})
		require.NoError(t, err)
		lose(keys.LogKey())(t, s)
		if _, err := s.p.RevokeAll(t.Context()); err == nil {
			t.Error("all devices are revoked, of which none is known")
		}
	})
}

// TestWriterWithoutZrange: earlier permissions for writers go on to do, a loss of the log aside.
func TestWriterWithoutZrange(t *testing.T) {
	s := redistest.StartServer(t)
	root := s.Client(t)
	setUser(t, root, append(append([]string{"ACL", "SETUSER"}, documentedWriter(t)...), "-zrange"))
	writer := redis.NewClient(&redis.Options{Addr: s.Address, Username: "writer", Password: "writer-password"})
	defer writer.Close()
	for i, lost := range []string{"other", keys.SeqKey(), keys.LogKey()} {
		root.Del(t.Context(), lost)
		if r, err := New(writer).Put(t.Context(), Object{Key: fmt.Sprint("/", i), ContentType: "a"}); err != nil ||
			r.Seq != uint64(i+1) {
			t.Errorf("without %s: %+v, %v; want number %d", lost, r, err, i+1)
		}
	}
}
