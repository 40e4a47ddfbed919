package e2e

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// acknowledged is the last acknowledged write of a record.
type acknowledged struct {
	version   uint64
	deleted   bool
	uncertain bool // a write failed, but may have been applied
}

// TestReshardUnderWrites moves the slots of shards between the servers of a Cluster while records are written: all
// acknowledged writes are present and complete, and a revocation never gets the answer that the device doesn't exist.
func TestReshardUnderWrites(t *testing.T) {
	t.Parallel()
	leaveToNative(t)
	const (
		shards, writers, records = 2, 4, 10
		moves                    = 12
	)
	c := redistest.StartCluster(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	connect := func() *publish.Publisher {
		client, err := redisurl.Settings{URL: c.URL, Once: true}.Connect()
		require.NoError(t, err)
		t.Cleanup(func() { client.Close() })
		return publish.New(client, publish.Shards(shards))
	}
	var wg sync.WaitGroup
	all := make([]map[contract.Member]acknowledged, writers)
	var writes atomic.Int64
	for w := range writers {
		p, known := connect(), map[contract.Member]acknowledged{}
		all[w] = known
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				id := fmt.Sprintf("%d-%d", w, n/7%records)
				m, deleted := contract.ObjectMember("/"+id), false
				var receipt publish.Receipt
				var err error
				switch n % 7 {
				case 0, 1, 2:
					receipt, err = p.Put(t.Context(), publish.Object{Key: m.ID, Body: []byte(id),
						ContentType: "t", TTL: time.Duration(n%2) * time.Hour})
				case 3:
					receipt, err = p.Delete(t.Context(), m.ID, 0)
					deleted = true
				case 4:
					m = contract.CredentialMember(id)
					receipt, err = p.PutDevice(t.Context(), publish.Device{ID: id, Secret: "s", Cost: 4})
				default:
					m = contract.CredentialMember(id)
					receipt, err = p.RevokeDevice(t.Context(), id)
				}
				before := known[m]
				switch {
				case errors.Is(err, publish.ErrNotFound) && (before.version == 0 || before.uncertain):
				case err != nil:
					t.Errorf("%s, write %d: %v", m, n, err)
					before.uncertain = true
					known[m] = before
				case receipt.Version != before.version+1 && !before.uncertain:
					t.Errorf("%s, write %d: version %d after %d", m, n, receipt.Version, before.version)
					fallthrough
				default:
					known[m] = acknowledged{version: receipt.Version, deleted: deleted}
					writes.Add(1)
				}
			}
		})
	}
	// Writers continue between two moved keys, except writers that wait for the slot.
	between := func(int) {
		for until, begin := writes.Load()+2, time.Now(); writes.Load() < until && time.Since(begin) < 10*time.Millisecond; {
			runtime.Gosched()
		}
	}
	reader := connect()
	client, err := redisurl.Connect(c.URL)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	for move := range moves {
		shard := contract.Keys{Shard: move % shards}
		slot := int(client.ClusterKeySlot(ctx, shard.SeqKey()).Val())
		to := (slot*3/16384 + 1 + move/shards) % 3 // the next master after the current one
		require.NoError(t, c.MoveSlot(ctx, slot, to, between))
	}
	stop()
	wg.Wait()
	for w, known := range all {
		if len(known) < records {
			t.Errorf("writer %d wrote %d records only", w, len(known))
		}
		for m, want := range known {
			fields, err := client.HGetAll(t.Context(), contract.Keyspace{Shards: shards}.KeysOf(m.ID).RecordKey(m)).Result()
			if err != nil || len(fields) == 0 {
				t.Errorf("%s: lost, version %d was acknowledged: %v", m, want.version, err)
				continue
			}
			if got := fields[contract.FieldVersion]; got != fmt.Sprint(want.version) && !want.uncertain {
				t.Errorf("%s: version %s, %d was acknowledged", m, got, want.version)
			}
			if m.Kind == contract.KindObject {
				_, err = reader.Get(t.Context(), m.ID)
				if errors.Is(err, publish.ErrNotFound) == want.deleted {
					err = nil
				}
			} else {
				_, err = contract.ParseCredential(fields)
			}
			if err != nil {
				t.Errorf("%s: %v", m, err)
			}
		}
	}
	for shard := range shards {
		keys := contract.Keys{Shard: shard}
		seq, head := client.Get(t.Context(), keys.SeqKey()).Val(),
			client.HGet(t.Context(), keys.ChainKey(), contract.ChainHead).Val()
		if link, err := contract.ParseLink(head); err != nil || fmt.Sprint(link.Seq) != seq {
			t.Errorf("shard %d: seq %s, the chain ends with %q", shard, seq, head)
		}
	}
	t.Logf("%d writes acknowledged in %d moves of slots, 0 lost", writes.Load(), moves)
}
