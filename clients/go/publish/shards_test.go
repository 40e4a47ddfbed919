package publish

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestShards: each record is in the shard of its id, and readers find all records.
func TestShards(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const shards, records = 8, 40
		p := New(s.Client, Shards(shards))
		seqs := map[int]uint64{}
		write := func(id string, receipt Receipt, err error) {
			t.Helper()
			shard := contract.Keyspace{Shards: shards}.KeysOf(id)
			if seqs[shard.Shard]++; err != nil || receipt.Seq != seqs[shard.Shard] {
				t.Fatalf("%s: %+v, %v; want number %d of shard %d", id, receipt, err, seqs[shard.Shard], shard.Shard)
			}
		}
		for i := range records {
			key, id := fmt.Sprint("/", i), fmt.Sprint("d", i)
			receipt, err := p.Put(t.Context(), Object{Key: key, Body: []byte(key), ContentType: "a"})
			write(key, receipt, err)
			receipt, err = p.PutDevice(t.Context(), Device{ID: id, Secret: "s", Cost: 4})
			write(id, receipt, err)
			if n := s.Exists(t.Context(), contract.Keyspace{Shards: shards}.KeysOf(key).ObjectKey(key)).Val(); n != 1 {
				t.Errorf("%s is not in its shard", key)
			}
			if o, err := p.Get(t.Context(), key); err != nil || o.Key != key {
				t.Errorf("get %s: %v", key, err)
			}
		}
		if len(seqs) != shards {
			t.Fatalf("records in %d shards, want all %d", len(seqs), shards)
		}
		var objects, devices int
		for _, err := range p.List(t.Context(), "/") {
			if objects++; err != nil {
				t.Fatal(err)
			}
		}
		for _, err := range p.ListDevices(t.Context()) {
			if devices++; err != nil {
				t.Fatal(err)
			}
		}
		if objects != records || devices != records {
			t.Errorf("listed %d objects and %d devices, want %d each", objects, devices, records)
		}
		for range p.List(t.Context(), "/") {
			break // in the middle of a shard
		}
	})
}

func isShards(err error) bool {
	return errors.As(err, new(*contract.ShardsError))
}

func TestAnotherNumberOfShards(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		put := func(p *Publisher) error {
			_, err := p.Put(t.Context(), Object{Key: "/a", Body: []byte("a"), ContentType: "a"})
			return err
		}
		require.NoError(t, put(New(s.Client, Shards(4))))
		for _, shards := range []int{1, 8} {
			p := New(s.Client, Shards(shards))
			err := put(p)
			if e := (*contract.ShardsError)(nil); !errors.As(err, &e) || e.Stored != "4" || e.Ours.Count() != shards {
				t.Errorf("%d shards: %v, want both numbers", shards, err)
			}
			if _, err := p.Get(t.Context(), "/b"); !isShards(err) {
				t.Errorf("get with %d shards: %v", shards, err)
			}
			for _, err := range p.List(t.Context(), "") {
				if !isShards(err) {
					t.Errorf("list with %d shards: %v", shards, err)
				}
			}
		}
		if err := put(New(s.Client, Shards(65))); !errors.Is(err, ErrInvalid) ||
			!strings.Contains(err.Error(), "out of 1 to 64") {
			t.Errorf("65 shards: %v", err)
		}
		// After a loss of data the number is stored again, also by a running publisher.
		p := New(s.Client, Shards(4))
		require.NoError(t, put(p))
		s.FlushAll(t.Context())
		for range 2 {
			require.NoError(t, put(p))
		}
		if got := s.Get(t.Context(), contract.Keyspace{}.ShardsKey()).Val(); got != "4" {
			t.Errorf("after a flush %s is %q, want 4", contract.Keyspace{}.ShardsKey(), got)
		}
	})
}
