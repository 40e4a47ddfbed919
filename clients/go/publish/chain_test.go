package publish

import (
	"slices"
	"strconv"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// TestChain: each event follows the event before, and the chain has both; a chain that can't continue begins again.
func TestChain(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		next := s.events(t)
		previous := ""
		write := func(name string, write func() error) {
			t.Helper()
			if err := write(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			e := next()
			if !contract.Follows(previous, e.payload) {
				t.Errorf("%s: %q doesn't follow %q", name, e.payload, previous)
			}
			link := contract.Link{Seq: e.Seq, Digest: e.Digest}.String()
			for _, field := range []string{contract.ChainHead, contract.ChainField(e.Seq)} {
				if got := s.HGet(ctx, keys.ChainKey(), field).Val(); got != link {
					t.Errorf("%s: the chain has %q as %s, want %q", name, got, field, link)
				}
			}
			previous = e.Digest
		}
		put := func() error {
			_, err := s.p.Put(ctx,
				Object{Key: "/a", Body: []byte("a body long enough to be zipped: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
					ContentType: "a"})
			return err
		}
		write("first", put)
		write("second", put)
		write("empty body", func() error {
			_, err := s.p.Put(ctx, Object{Key: "/b", ContentType: "a"})
			return err
		})
		write("device", func() error { _, err := s.p.PutDevice(ctx, Device{ID: "d", Secret: "s", Cost: 4}); return err })
		write("revocation", func() error { _, err := s.p.RevokeDevice(ctx, "d"); return err })
		write("deletion", func() error { _, err := s.p.Delete(ctx, "/a", 0); return err })

		s.Incr(ctx, keys.SeqKey()) // a write that isn't in the chain
		previous = ""
		write("after one that isn't in the chain", put)
		s.Del(ctx, keys.ChainKey())
		previous = ""
		write("chain evicted", put)
		s.HSet(ctx, keys.ChainKey(), contract.ChainHead, "no link at all")
		previous = ""
		write("head damaged", put)
		s.Set(ctx, keys.SeqKey(), 10*contract.ChainRing-1, 0)
		previous = ""
		for range 3 {
			write("around the ring", put)
		}
		fields := slices.DeleteFunc(s.HKeys(ctx, keys.ChainKey()).Val(), func(field string) bool {
			return field[0] == 'r' // requests
		})
		if len(fields) > 6 {
			t.Errorf("the chain has %q", fields)
		}
	})
}

// TestVersionsGoOnFromFloor: versions continue above the floor; up to it, the member's history may be gone.
func TestVersionsGoOnFromFloor(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		for floor, want := range map[int]uint64{0: 1, 41: 42, 7: 8} {
			key := "/" + strconv.Itoa(floor)
			s.HSet(ctx, keys.ChainKey(), contract.ChainFloor, floor)
			if got, err := s.p.Put(ctx, Object{Key: key, ContentType: "a"}); err != nil || got.Version != want {
				t.Errorf("floor %d: %+v, %v; want version %d", floor, got, err, want)
			}
			if got, err := s.p.Put(ctx, Object{Key: key, ContentType: "a"}); err != nil || got.Version != want+1 {
				t.Errorf("floor %d, once more: %+v, %v; want version %d", floor, got, err, want+1)
			}
		}
	})
}
