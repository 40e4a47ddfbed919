package publish

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// readyHash is a bcrypt hash of no known secret.
var readyHash = "$2b$12$" + strings.Repeat("a", 53)

// TestAddDevices: devices that are registered as wanted are not written again; different records are replaced only by
// force.
func TestAddDevices(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		other := "$2b$12$" + strings.Repeat("b", 53)
		want := Device{ID: "d", Hashes: []string{readyHash, other}, Permissions: []string{"b", "a"},
			Labels:   map[string]string{"fleet": "eu", "a": ""},
			NotAfter: time.UnixMilli(1 << 42), OldUntil: time.UnixMilli(1 << 41)}
		for i, step := range []struct {
			before func()
			force  bool
			want   Result
		}{
			{func() {}, false, Result{Receipt: Receipt{1, 1}}},
			{func() {}, false, Result{Receipt: Receipt{1, 0}}},
			{func() {}, true, Result{Receipt: Receipt{1, 0}}},
			{func() { s.p.RevokeDevice(ctx, "d") }, false, Result{Err: ErrExists}},
			{func() {}, true, Result{Receipt: Receipt{3, 3}}},
			{func() { want.Labels["fleet"] = "us" }, false, Result{Err: ErrExists}},
			{func() { want.Labels["fleet"] = "eu"; want.Permissions = []string{"a"} }, true, Result{Receipt: Receipt{4, 4}}},
			{func() { want.Permissions = nil }, false, Result{Err: ErrExists}},                                 // one field less
			{func() { want.Permissions = []string{"a"}; want.Disabled = true }, false, Result{Err: ErrExists}}, // one more
			{func() { s.HSet(ctx, keys.CredentialKey("d"), "version", "x"); want.Disabled = false }, false,
				Result{Err: ErrExists}},
			{func() { s.p.DeleteDevice(ctx, "d", true) }, false, Result{Err: ErrExists}},
			{func() {}, true, Result{Receipt: Receipt{6, 6}}},
			{func() { want.Hashes = nil }, true, Result{Err: ErrInvalid}},
		} {
			step.before()
			stored := s.hash(t, contract.CredentialMember("d"))
			got := s.p.AddDevices(ctx, []Device{want}, step.force)[0]
			if !errors.Is(got.Err, step.want.Err) || got.Receipt != step.want.Receipt {
				t.Errorf("step %d: got %+v, want %+v", i, got, step.want)
			}
			if after := s.hash(t, contract.CredentialMember("d")); got.Seq == 0 && !maps.Equal(after, stored) {
				t.Errorf("step %d: got %v, want it unchanged: %v", i, after, stored)
			}
			if deleted := stored[contract.FieldDeleted] != ""; got.Err != nil &&
				strings.HasSuffix(got.Err.Error(), ", deleted") != deleted {
				t.Errorf("step %d: %v; it is deleted: %v", i, got.Err, deleted)
			}
		}
	})
}

// TestAddManyDevices adds more devices than a round trip takes, to a Redis without the script, with an invalid device
// among them, and reads the devices.
func TestAddManyDevices(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const n, bad, shards = 1300, 700, 4
		p := New(s.Client, Shards(shards))
		devices := make([]Device, n)
		ids := make([]string, n+1)
		for i := range devices {
			ids[i] = fmt.Sprint("d", i)
			devices[i] = Device{ID: ids[i], Hashes: []string{readyHash}, Permissions: []string{fmt.Sprint("p", i)}}
		}
		devices[bad].Permissions[0], ids[n] = "a b", "nobody"
		seqs := map[int]uint64{}
		for i, r := range p.AddDevices(t.Context(), devices, false) {
			shard := contract.Keyspace{Shards: shards}.KeysOf(ids[i]).Shard
			if i == bad {
				if !errors.Is(r.Err, ErrInvalid) {
					t.Errorf("a bad device: %+v", r)
				}
				continue
			}
			if seqs[shard]++; r.Err != nil || r.Receipt != (Receipt{1, seqs[shard]}) {
				t.Fatalf("device %d: got %+v, want number %d of its shard", i, r, seqs[shard])
			}
		}
		if len(seqs) != shards {
			t.Errorf("devices in %d shards", len(seqs))
		}
		i := 0
		for c, err := range p.GetDevices(t.Context(), ids) {
			switch {
			case c.ID != ids[i]:
				t.Fatalf("device %d is %q, want %q", i, c.ID, ids[i])
			case i == bad || i == n:
				if !errors.Is(err, ErrNotFound) {
					t.Errorf("%s: %v, want ErrNotFound", c.ID, err)
				}
			case err != nil || c.Permissions[0] != fmt.Sprint("p", i):
				t.Errorf("%s: got %+v, %v", c.ID, c, err)
			}
			i++
		}
		for range p.GetDevices(t.Context(), ids) {
			break
		}
	})
}

// TestAddWhileSlotsMove adds devices to a Cluster while the slots of the shards move: each device is registered once.
func TestAddWhileSlotsMove(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	client, err := redisurl.Settings{URL: c.URL, Once: true}.Connect()
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	const shards, batches, size = 2, 12, 40
	p := New(client, Shards(shards))
	batch := func(n int) []Device {
		devices := make([]Device, size)
		for i := range devices {
			devices[i] = Device{ID: fmt.Sprint(n, "-", i), Hashes: []string{readyHash}}
		}
		return devices
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; n < batches; n++ {
			for i, r := range p.AddDevices(t.Context(), batch(n), false) {
				if isSlotMoving(errors.Unwrap(r.Err)) { // for longer than a write waits, on a busy machine
					n--
					break
				}
				if r.Err != nil || r.Version != 1 {
					t.Errorf("device %d of batch %d: %+v", i, n, r)
					return
				}
			}
		}
	}()
	for move := 0; ; move++ {
		select {
		case <-done:
			if move < 2 {
				t.Errorf("%d moves only", move)
			}
			for n := range batches {
				for i, r := range p.AddDevices(t.Context(), batch(n), false) {
					if r.Err != nil || r.Receipt != (Receipt{1, 0}) {
						t.Fatalf("device %d of batch %d: got %+v, want it unchanged", i, n, r)
					}
				}
			}
			return
		default:
		}
		slot := int(client.ClusterKeySlot(t.Context(), contract.Keys{Shard: move % shards}.SeqKey()).Val())
		require.NoError(t, c.MoveSlot(t.Context(), slot, (slot*3/16384+1+move/shards)%3, nil))
	}
}
