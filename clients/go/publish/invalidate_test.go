package publish

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// TestInvalidate writes a tombstone for each kind, again and again, and none where there is a record.
func TestInvalidate(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		s.registered(t, "s")
		for id, invalidate := range map[string]func() (Receipt, error){
			"theirs":    func() (Receipt, error) { return s.p.InvalidateDevice(ctx, "theirs") },
			"*":         func() (Receipt, error) { return s.p.InvalidateAll(ctx) },
			"*fleet=eu": func() (Receipt, error) { return s.p.InvalidateLabel(ctx, "fleet", "eu") },
		} {
			for version := range uint64(3) {
				receipt, err := invalidate()
				if c := s.stored(t, id); err != nil || !c.Deleted || c.Version != receipt.Version || c.Version < version+1 {
					t.Errorf("%s: %+v, %+v, %v", id, receipt, c, err)
				}
			}
		}
		for what, refused := range map[string]func() (Receipt, error){
			"has a record":                  func() (Receipt, error) { return s.p.InvalidateDevice(ctx, "d") },
			"that begin with *":             func() (Receipt, error) { return s.p.InvalidateDevice(ctx, "*") },
			`invalid device id "a/b"`:       func() (Receipt, error) { return s.p.InvalidateDevice(ctx, "a/b") },
			"labels: name \"Fleet\": want ": func() (Receipt, error) { return s.p.InvalidateLabel(ctx, "Fleet", "eu") },
		} {
			if _, err := refused(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), what) {
				t.Errorf("%v, want one that says %s", err, what)
			}
		}
		for _, id := range []string{"*", "*fleet=eu"} {
			m := contract.CredentialMember(id)
			_, err := s.p.PutDevice(ctx, Device{ID: id, Secret: "s", Cost: 4})
			script := s.replaceRecord(t, m, map[string]string{contract.FieldHash: readyHash})
			if !errors.Is(err, ErrInvalid) || !redis.HasErrorPrefix(script, "INVALID") || !s.stored(t, id).Deleted {
				t.Errorf("%s as a device: %v; the script: %v", id, err, script)
			}
			s.HDel(ctx, keys.CredentialKey(id), contract.FieldDeleted) // written by hand: a revocation counts
			if _, err := s.p.RevokeDevice(ctx, id); err != nil {
				t.Errorf("revoke %s: %v", id, err)
			}
		}
		if c := s.stored(t, "d"); c.Deleted {
			t.Error("a record was deleted")
		}
	})
}

// TestInvalidateBesideAPut: a record that is written at the same time stays.
func TestInvalidateBesideAPut(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for i := range 300 {
			id := fmt.Sprint("d", i)
			if i%2 == 0 {
				if _, err := s.p.InvalidateDevice(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			var put error
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, put = s.p.PutDevice(t.Context(), Device{ID: id, Hashes: []string{readyHash}})
			}()
			_, err := s.p.InvalidateDevice(t.Context(), id)
			<-done
			if put != nil || err != nil && !errors.Is(err, ErrInvalid) {
				t.Fatalf("put: %v, invalidate: %v", put, err)
			}
			if c := s.stored(t, id); c.Deleted {
				t.Fatalf("round %d: the record was deleted", i)
			}
		}
	})
}
