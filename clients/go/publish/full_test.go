package publish

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestFullRedis: a Redis without free memory accepts no write that grants, and all writes that take away, from writers
// that have written before, and from new writers.
func TestFullRedis(t *testing.T) {
	client := redistest.StartServer(t).Client(t)
	ctx := t.Context()
	known := New(client)
	prepare(t, known)
	for _, id := range []string{"e", "f"} {
		if _, err := known.PutDevice(ctx, Device{ID: id, Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := known.Put(ctx, Object{Key: "/trimmed", ContentType: "t"}); err != nil {
		t.Fatal(err)
	}
	// The log still has them.
	require.NoError(t, client.Del(ctx, keys.CredentialKey("f"), keys.ObjectKey("/trimmed")).Err())
	require.NoError(t, client.ConfigSet(ctx, "maxmemory", "1").Err())
	for _, p := range []*Publisher{known, New(client)} {
		for name, grant := range map[string]func(context.Context) error{
			"object": func(ctx context.Context) error {
				_, err := p.Put(ctx, Object{Key: "/ttl", Body: []byte("newer"), ContentType: "t", TTL: time.Hour})
				return err
			},
			"device": func(ctx context.Context) error {
				_, err := p.PutDevice(ctx, Device{ID: "d", Secret: "other", Cost: 4})
				return err
			},
		} {
			if err := grant(ctx); !errors.Is(err, ErrFull) {
				t.Errorf("%s: got %v, want ErrFull", name, err)
			}
		}
	}
	for name, take := range map[string]func(*Publisher) error{
		"deletion":           func(p *Publisher) error { _, err := p.Delete(ctx, "/gone", 0); return err },
		"revocation":         func(p *Publisher) error { _, err := p.RevokeDevice(ctx, "d"); return err },
		"unknown device":     func(p *Publisher) error { _, err := p.ForceRevokeDevice(ctx, "never"); return err },
		"revocation of all":  func(p *Publisher) error { _, err := p.RevokeAll(ctx); return err },
		"another revocation": func(p *Publisher) error { _, err := p.RevokeDevice(ctx, "d"); return err },
	} {
		if err := take(New(client)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := client.XLen(ctx, keys.AuditKey()).Val(); n < 5 {
		t.Errorf("the audit has %d entries, want one for each device and what became of it", n)
	}
	if done, err := New(client).Trim(ctx); err != nil || done.Removed == 0 {
		t.Errorf("trim: got %+v, %v; want entries removed", done, err)
	}
	if _, err := known.Get(ctx, "/gone"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the deleted object: got %v, want ErrNotFound", err)
	}
	for _, id := range []string{"d", "e", "f"} {
		fields := client.HGetAll(ctx, keys.CredentialKey(id)).Val()
		if fields[contract.FieldDisabled] == "" && fields[contract.FieldDeleted] == "" {
			t.Errorf("device %s: got %v, want it revoked", id, fields)
		}
	}
}
