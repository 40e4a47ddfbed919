package publish

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

func TestRevokeAll(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const devices = 700 // some pages of the log
		ctx := t.Context()
		hash, err := bcrypt.GenerateFromPassword([]byte("s"), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		put := func(id string) {
			t.Helper()
			if _, err := s.p.PutDevice(ctx, Device{ID: id, Hashes: []string{string(hash)}, Permissions: []string{"p"}}); err != nil {
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
		if n != devices-3 || err != nil {
			t.Fatalf("%d revoked, %v; want %d", n, err, devices-3)
		}
		seen := map[string]bool{}
		for range n { // an event for each, once
			e := next()
			if seen[e.Member.ID] || e.Fields["disabled"] != "1" || e.Fields["permissions"] != "p" {
				t.Errorf("event %+v", e)
			}
			seen[e.Member.ID] = true
		}
		for i := range devices {
			if c := s.hash(t, contract.CredentialMember(fmt.Sprint("d", i))); i != 9 && i != 10 && (c["disabled"] != "1" || c["version"] != "2" || c["hash"] != string(hash)) {
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
		for i := range 300 {
			put(fmt.Sprint("d", 100+i))
		}
		if n, err := s.p.RevokeAll(ctx); n != 300 || err == nil || !strings.Contains(err.Error(), `"d4"`) {
			t.Errorf("with one that can't be revoked: %d, %v; want 300, and an error that names it", n, err)
		}
	})
}
