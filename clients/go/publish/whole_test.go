package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// documentedWriter returns the permissions of a writer in docs/redis-contract.md.
func documentedWriter(t *testing.T) []string {
	t.Helper()
	return documented(t, "writer")
}

// documented returns the permissions of a user in docs/redis-contract.md.
func documented(t *testing.T, user string) []string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/redis-contract.md")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ACL SETUSER (` + user + ` on .*)$`).FindSubmatch(page)
	if line == nil {
		t.Fatalf("no line of the %s", user)
	}
	return strings.Fields(string(line[1]))
}

// everything returns the content of a Redis: the value and expiry of each key.
func everything(t *testing.T, c *redis.Client) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, key := range c.Keys(t.Context(), "*").Val() {
		dump, err := c.Dump(t.Context(), key).Result()
		require.NoError(t, err)
		all[key] = fmt.Sprint(dump, c.Do(t.Context(), "PEXPIRETIME", key).Val())
	}
	return all
}

// writes returns a write of each kind by its name.
func writes(p *Publisher) map[string]func(context.Context) error {
	receipt := func(_ Receipt, err error) error { return err }
	return map[string]func(context.Context) error{
		"new object": func(ctx context.Context) error {
			return receipt(p.Put(ctx, Object{Key: "/new", Body: []byte("new"), ContentType: "t"}))
		},
		"fewer fields": func(ctx context.Context) error {
			return receipt(p.Put(ctx, Object{Key: "/ttl", Body: []byte("newer"), ContentType: "t"}))
		},
		"after a tombstone": func(ctx context.Context) error {
			return receipt(p.Put(ctx, Object{Key: "/deleted", Body: []byte("newer"), ContentType: "t"}))
		},
		"deletion":   func(ctx context.Context) error { return receipt(p.Delete(ctx, "/gone", 0)) },
		"revocation": func(ctx context.Context) error { return receipt(p.RevokeDevice(ctx, "d")) },
	}
}

// prepare stores the records that writes change.
func prepare(t *testing.T, p *Publisher) {
	t.Helper()
	receipt := func(_ Receipt, err error) {
		t.Helper()
		require.NoError(t, err)
	}
	receipt(p.Put(t.Context(), Object{Key: "/ttl", Body: []byte("precious"), ContentType: "t", TTL: time.Hour}))
	receipt(p.Put(t.Context(), Object{Key: "/gone", Body: []byte("precious"), ContentType: "t"}))
	receipt(p.Delete(t.Context(), "/deleted", 0))
	receipt(p.PutDevice(t.Context(), Device{ID: "d", Secret: "s", Cost: 4}))
}

// TestDocumentedWriter: the documented permissions are enough for writes with conditions and for purges.
func TestDocumentedWriter(t *testing.T) {
	s := redistest.StartServer(t)
	setUser(t, s.Client(t), append([]string{"ACL", "SETUSER"}, documentedWriter(t)...))
	client := redis.NewClient(&redis.Options{Addr: s.Address, Username: "writer", Password: "writer-password"})
	defer client.Close()
	p := New(client)
	object := Object{Key: "/a", ContentType: "t", Tags: []string{"t"}, IfAbsent: true}
	put := func(want error) {
		t.Helper()
		if _, err := p.Put(t.Context(), object); !errors.Is(err, want) {
			t.Errorf("put if absent: %v, want %v", err, want)
		}
	}
	purge := func(u Purge) {
		t.Helper()
		if _, err := p.Purge(t.Context(), u); err != nil {
			t.Errorf("purge %+v: %v", u, err)
		}
	}
	put(nil)
	put(ErrExists)
	purge(Purge{Tag: "t", Soft: true})
	put(ErrExists)
	purge(Purge{Tag: "t"})
	put(nil)
	put(ErrExists)
	purge(Purge{Prefix: "/"})
	object.Tags = nil
	put(nil)
	put(ErrExists)
	if r, err := p.Put(t.Context(), Object{Key: "/a", ContentType: "t", IfVersion: 3}); r.Version != 4 || err != nil {
		t.Errorf("put if version 3: %+v, %v", r, err)
	}
	if r := p.DeleteAll(t.Context(), []string{"/a"}); r[0].Err != nil {
		t.Error(r[0].Err)
	}
	put(nil)
}

// TestLackingPermission: whichever permission a writer lacks, a write is complete or changes nothing.
func TestLackingPermission(t *testing.T) {
	s := redistest.StartServer(t)
	root := s.Client(t)
	user := documentedWriter(t)
	needed := map[string]bool{}
	for _, right := range user {
		lacking := []string{strings.Replace(right, "+", "-", 1)}
		switch {
		case strings.HasPrefix(right, "&"):
			lacking = []string{"resetchannels", "&elsewhere"}
		case right == "+eval" || right == "+script|load" || right == "+spublish": // not needed here
			continue
		case !strings.HasPrefix(right, "+"):
			continue
		}
		lacks := strings.Join(lacking, " ")
		prepare(t, New(root))
		if err := root.ScriptFlush(t.Context()).Err(); err != nil { // so that evalsha needs eval
			t.Fatal(err)
		}
		setUser(t, root, append(append([]string{"ACL", "SETUSER"}, user...), lacking...))
		writer := redis.NewClient(&redis.Options{Addr: s.Address, Username: "writer",
			Password: "writer-password", MaxRetries: -1})
		defer writer.Close()
		subscription := root.Subscribe(t.Context(), keys.EventsChannel())
		if _, err := subscription.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		p := New(writer)
		for name, write := range writes(p) {
			before := everything(t, root)
			err := write(t.Context())
			if err == nil {
				if err = subscriptionHas(t, subscription); err != nil {
					t.Errorf("%s, %s: %v", lacks, name, err)
				}
				continue
			}
			needed[right] = true
			if after := everything(t, root); !maps.Equal(before, after) {
				t.Errorf("%s, %s: failed with %v, but changed some of %q", lacks, name, err, slices.Sorted(maps.Keys(after)))
			}
			if !redis.HasErrorPrefix(err, "NOPERM") && !strings.Contains(err.Error(), "permission") {
				t.Errorf("%s, %s: %v, want an error that names the permission", lacks, name, err)
			}
		}
		require.NoError(t, root.Publish(t.Context(), keys.EventsChannel(), "last").Err())
		if m, err := subscription.ReceiveMessage(t.Context()); err != nil || m.Payload != "last" {
			t.Errorf("%s: an event of a write that failed: %v, %v", lacks, m, err)
		}
		subscription.Close()
	}
	for _, right := range []string{"+hset", "+hdel", "+persist", "+pexpire", "+incr", "+zadd", "+set",
		"+publish", "+hkeys", "&{gatehouse:*}:events"} {
		if !needed[right] {
			t.Errorf("nothing failed without %s", right)
		}
	}
}

func setUser(t *testing.T, root *redis.Client, line []string) {
	t.Helper()
	args := make([]any, len(line))
	for i, word := range line {
		args[i] = word
	}
	if err := root.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
}

// subscriptionHas receives the event of one write.
func subscriptionHas(t *testing.T, subscription *redis.PubSub) error {
	message, err := subscription.ReceiveMessage(t.Context())
	if err == nil {
		_, err = contract.ParseEvent(message.Payload)
	}
	return err
}

// TestMovingSlot: while a Cluster moves a slot to another server, a write in the slot is complete or changes nothing,
// and succeeds as soon as possible.
func TestMovingSlot(t *testing.T) {
	t.Parallel()
	const slot = 8240 // of {gatehouse:0}
	c := redistest.StartCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{c.Masters[1].Address}})
	t.Cleanup(func() { client.Close() })
	if got := client.ClusterKeySlot(t.Context(), keys.SeqKey()).Val(); got != slot {
		t.Fatalf("slot %d", got)
	}
	p := New(client)
	prepare(t, p)
	from, to := c.Masters[1].Client(t), c.Masters[2].Client(t)
	idOf := func(c *redis.Client) string { return c.Do(t.Context(), "CLUSTER", "MYID").Val().(string) }
	do := func(c *redis.Client, args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", idOf(from))
	do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", idOf(to))
	all := writes(p)
	for _, name := range []string{"fewer fields", "after a tombstone", "deletion", "revocation"} { // all keys are here
		if err := all[name](t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if o, err := p.Get(t.Context(), "/ttl"); err != nil || string(o.Bodies[0].Bytes) != "newer" {
		t.Errorf("after a write: %+v, %v", o, err)
	}
	// A missing key could be at either server.
	refused := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return all["new object"](ctx)
	}
	within := 100 * time.Millisecond
	err := refused(within)
	tried := func() bool { return isSlotMoving(errors.Unwrap(err)) || strings.Contains(fmt.Sprint(err), "TRYAGAIN") }
	for ; !tried() && within < movingFor/2; err = refused(within) { // the machine was too slow for one call
		within *= 2
	}
	if !tried() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("new object while the slot moves: %v, want TRYAGAIN until the deadline", err)
	}
	done := make(chan error)
	go func() { done <- all["new object"](t.Context()) }()
	moved := from.ClusterGetKeysInSlot(t.Context(), slot, 1000).Val()
	slices.Reverse(moved)
	for _, key := range moved { // one at a time, so that they are at both servers
		do(from, "MIGRATE", "127.0.0.1", c.Masters[2].Port(), key, 0, 5000)
	}
	for _, name := range []string{"fewer fields", "revocation"} { // at the new server, unknown to other servers
		if err := all[name](t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, server := range []*redis.Client{to, from} {
		do(server, "CLUSTER", "SETSLOT", slot, "NODE", idOf(to))
	}
	if err := <-done; err != nil {
		t.Errorf("new object: %v", err)
	}
	for name, write := range all {
		if err := write(t.Context()); err != nil {
			t.Errorf("%s, after the move: %v", name, err)
		}
	}
	// Where no write was audited, the audit's key doesn't exist either.
	do(to, "DEL", keys.AuditKey())
	do(from, "CLUSTER", "SETSLOT", slot, "IMPORTING", idOf(to))
	do(to, "CLUSTER", "SETSLOT", slot, "MIGRATING", idOf(from))
	if err := all["revocation"](t.Context()); err != nil {
		t.Errorf("unaudited revocation: %v", err)
	}
}
