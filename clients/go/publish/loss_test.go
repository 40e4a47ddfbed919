package publish

import (
	"errors"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// TestAcceptLoss: each shard without a data epoch gets one, and no other is changed.
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
