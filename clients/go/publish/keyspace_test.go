package publish

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
)

// TestKeyspace: all keys are in the namespace and in the client's database, and so are the events.
func TestKeyspace(t *testing.T) {
	url := redistest.Start(t)
	for _, k := range []contract.Keyspace{
		{}, {Database: 1}, {Namespace: "shop"}, {Namespace: "shop", Database: 12},
	} {
		s := serverAt(t, fmt.Sprint(url, "/", k.Database))
		subscription := s.Subscribe(t.Context(), k.Keys(0).EventsChannel())
		defer subscription.Close()
		if _, err := subscription.Receive(t.Context()); err != nil { // the acknowledgement
			t.Fatal(err)
		}
		p := New(s.Client, Namespace(k.Namespace))
		before := s.DBSize(t.Context()).Val()
		if _, err := p.Put(t.Context(), Object{Key: "/a", Body: []byte("a"), ContentType: "a"}); err != nil {
			t.Fatal(err)
		}
		if _, err := subscription.ReceiveMessage(t.Context()); err != nil {
			t.Errorf("%+v: no event: %v", k, err)
		}
		ours := s.Keys(t.Context(), strings.TrimSuffix(k.ShardsKey(), "0}:shards")+"*").Val()
		if added := s.DBSize(t.Context()).Val() - before; len(ours) != 6 || added != 6 {
			t.Errorf("%+v: %d more keys, and %q, want 6", k, added, ours)
		}
	}

	p := New(serverAt(t, url).Client, Namespace("Shop"))
	_, put := p.Put(t.Context(), Object{Key: "/a", Body: []byte("a"), ContentType: "a"})
	_, get := p.Get(t.Context(), "/a")
	_, revoke := p.RevokeDevice(t.Context(), "d")
	_, revokeAll := p.RevokeAll(t.Context())
	_, trim := p.Trim(t.Context())
	_, loss := p.AcceptLoss(t.Context())
	for i, err := range []error{put, get, revoke, revokeAll, trim, loss} {
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `namespace: "Shop": want 1 to 32 of a-z`) {
			t.Errorf("call %d in an invalid namespace: %v", i, err)
		}
	}
}
