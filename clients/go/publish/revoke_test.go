package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestRevokeAll(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const devices, again = 300, 100 // more than a page of the log
		ctx := t.Context()
		hash, err := bcrypt.GenerateFromPassword([]byte("s"), bcrypt.MinCost)
		require.NoError(t, err)
		put := func(id string) {
			t.Helper()
			if _, err := s.p.PutDevice(ctx, Device{ID: id, Hashes: []string{string(hash)},
				Permissions: []string{"p"}}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range devices {
			put(fmt.Sprint("d", i))
		}
		if _, err := s.p.Put(ctx, Object{Key: "/a", Body: []byte("a"), ContentType: "a"}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.p.RevokeDevice(ctx, "d7"); err != nil {
			t.Fatal(err)
		}
		s.HSet(ctx, keys.CredentialKey("d8"), "disabled", "no") // damaged
		s.Del(ctx, keys.CredentialKey("d9"))
		s.HSet(ctx, keys.CredentialKey("d9"), contract.Credential{Version: 2, PublishedMS: 1, Deleted: true}.Fields())
		s.Del(ctx, keys.CredentialKey("d10"))

		next := s.events(t)
		n, err := s.p.RevokeAll(ctx)
		if n != devices-2 || err != nil {
			t.Fatalf("%d revoked, %v; want %d", n, err, devices-2)
		}
		seen := map[string]bool{}
		for range n { // an event for each, once
			e := next()
			gone := e.Member.ID == "d10" && e.Fields["deleted"] == "1" // evicted, according to Redis
			if seen[e.Member.ID] || !gone && (e.Fields["disabled"] != "revoked" || e.Fields["permissions"] != "p") {
				t.Errorf("event %+v", e)
			}
			seen[e.Member.ID] = true
		}
		for i := range devices {
			if c := s.hash(t, contract.CredentialMember(fmt.Sprint("d", i))); i != 9 && i != 10 &&
				(c["disabled"] != "revoked" || c["version"] != "2" || c["hash"] != string(hash)) {
				t.Errorf("d%d: %v", i, c)
			}
		}
		if n, err := s.p.RevokeAll(ctx); n != 0 || err != nil {
			t.Errorf("once more: %d, %v", n, err)
		}
		put("d3")
		if n, err := s.p.RevokeAll(ctx); n != 1 || err != nil {
			t.Errorf("after one was registered again: %d, %v", n, err)
		}
		s.Set(ctx, keys.CredentialKey("d4"), "not a hash", 0) // before all others in the log
		for i := range again {
			put(fmt.Sprint("d", 100+i))
		}
		if n, err := s.p.RevokeAll(ctx); n != again || err == nil || !strings.Contains(err.Error(), `"d4"`) {
			t.Errorf("with one that can't be revoked: %d, %v; want %d, and an error that names it", n, err, again)
		}
	})
}

// TestRevokeAllGoesOn: whatever the number of devices that can't be revoked, all other devices are revoked.
func TestRevokeAllGoesOn(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const odd, good = 2*maxFailures + 1, 20
		var devices []Device
		for i := range odd + good {
			devices = append(devices, Device{ID: fmt.Sprint("d", i), Disabled: true})
		}
		for _, r := range s.p.AddDevices(t.Context(), devices, false) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		for i := range odd + good {
			key := keys.CredentialKey(fmt.Sprint("d", i))
			if i < odd {
				s.Set(t.Context(), key, "no hash", 0)
			} else {
				s.HDel(t.Context(), key, contract.FieldDisabled)
			}
		}
		n, err := s.p.RevokeAll(t.Context())
		if n != good || err == nil || !strings.Contains(err.Error(), fmt.Sprint(odd-maxFailures, " more devices")) {
			t.Errorf("%d revoked, want %d; %v", n, good, err)
		}
	})
}

// TestRevokeAllBlind: without a permission to read states, RevokeAll must not revoke the same devices for ever.
func TestRevokeAllBlind(t *testing.T) {
	s := redistest.StartServer(t)
	root := s.Client(t)
	if _, err := New(root).PutDevice(t.Context(), Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
		t.Fatal(err)
	}
	setUser(t, root, append(append([]string{"ACL", "SETUSER"}, documentedWriter(t)...), "-hmget"))
	writer := redis.NewClient(&redis.Options{Addr: s.Address, Username: "writer", Password: "writer-password"})
	defer writer.Close()
	ctx, cancel := context.WithTimeout(t.Context(), await.Deadline)
	defer cancel()
	if n, err := New(writer).RevokeAll(ctx); n != 0 || err == nil || !strings.Contains(err.Error(), "permission") {
		t.Errorf("got %d, %v; want an error that names the permission", n, err)
	}
}

// TestRevokeMissing: a device that edges have, and Redis has evicted, is revoked by a tombstone that is newer to the
// edges.
func TestRevokeMissing(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		next := s.events(t)
		buried := func(id string, known uint64, revoke func() (Receipt, error)) {
			t.Helper()
			got, err := revoke()
			e := next()
			if err != nil || e.Member != contract.CredentialMember(id) || e.Fields["deleted"] != "1" || got.Version <= known {
				t.Errorf("%s: %+v, %v, event %+v; want a tombstone newer than %d", id, got, err, e, known)
			}
			if life := s.PTTL(ctx, keys.CredentialKey(id)).Val(); life <= 0 {
				t.Errorf("%s: the tombstone expires in %v", id, life)
			}
		}
		for id, version := range map[string]uint64{"counted": 0, "revision": 7,
			"milliseconds": uint64(time.Now().UnixMilli()) - 1} {
			receipt, err := s.p.PutDevice(ctx, Device{ID: id, Secret: "s", Cost: 4, Version: version})
			require.NoError(t, err)
			next()
			s.Del(ctx, keys.CredentialKey(id))
			buried(id, receipt.Version, func() (Receipt, error) { return s.p.RevokeDevice(ctx, id) })
			if _, err := s.p.RevokeDevice(ctx, id); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s, again: %v, want ErrNotFound", id, err)
			}
			if n, err := s.p.RevokeAll(ctx); n != 0 || err != nil {
				t.Errorf("%s: %d more, %v", id, n, err)
			}
			s.Del(ctx, keys.CredentialKey(id))
			if n, err := s.p.RevokeAll(ctx); n != 1 || err != nil {
				t.Errorf("%s: %d of all, %v", id, n, err)
			}
			next()
		}
		receipt, err := s.p.PutDevice(ctx, Device{ID: "counted", Secret: "s", Cost: 4}) // goes on above the tombstone
		require.NoError(t, err)
		next()
		s.Del(ctx, keys.CredentialKey("counted"))
		buried("counted", receipt.Version, func() (Receipt, error) { return s.p.RevokeDevice(ctx, "counted") })
		before := s.Get(ctx, keys.SeqKey()).Val()
		if _, err := s.p.RevokeDevice(ctx, "nobody"); !errors.Is(err, ErrNotFound) ||
			s.Get(ctx, keys.SeqKey()).Val() != before {
			t.Errorf("nobody: %v, want ErrNotFound and no write", err)
		}
		buried("nobody", 0, func() (Receipt, error) { return s.p.ForceRevokeDevice(ctx, "nobody") })
		buried("nobody", limits.MaxOwnVersion, func() (Receipt, error) { return s.p.ForceRevokeDevice(ctx, "nobody") })
	})
}

// TestRevokeWhileAdded: a device written between the read and the write of a revocation is revoked, and keeps its
// record.
func TestRevokeWhileAdded(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		meanwhile := afterScore{}
		s.AddHook(&meanwhile)
		for _, deletedBefore := range []bool{false, true} {
			if deletedBefore {
				if _, err := s.p.DeleteDevice(ctx, "d", true); err != nil {
					t.Fatal(err)
				}
			} else {
				s.FlushAll(ctx)
			}
			meanwhile.then = func() { s.registered(t, "s") }
			_, err := s.p.ForceRevokeDevice(ctx, "d")
			if got := s.HGetAll(ctx, keys.CredentialKey("d")).Val(); err != nil || meanwhile.then != nil ||
				got["disabled"] != "revoked" || got["hash"] == "" {
				t.Errorf("deleted before: %t: %v, %v; want a revoked record", deletedBefore, got, err)
			}
		}
	})
}

// afterScore calls a function once, after a pipeline has read an entry of the log.
type afterScore struct {
	redis.Hook
	then func()
}

func (*afterScore) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*afterScore) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (a *afterScore) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if then := a.then; then != nil && cmds[0].Name() == "zscore" {
			a.then = nil
			then()
		}
		return err
	}
}
