package publish

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// audited returns the entries as texts.
func audited(t *testing.T, s server) (all []string) {
	t.Helper()
	for _, entry := range s.XRange(t.Context(), keys.AuditKey(), "-", "+").Val() {
		all = append(all, fmt.Sprint(entry.Values["device"], " ", entry.Values["change"], " ", entry.Values["fields"], " ",
			entry.Values["author"]))
	}
	return all
}

// TestAudit: each write of a device, and no other write, has an entry with changes and author.
func TestAudit(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		p := New(s.Client, Author("ann@ops"))
		must := func(_ Receipt, err error) {
			t.Helper()
			require.NoError(t, err)
		}
		change := func(change func(c *contract.Credential)) {
			t.Helper()
			must(p.ChangeDevice(ctx, "d", 0, func(c *contract.Credential) error { change(c); return nil }))
		}
		must(p.Put(ctx, Object{Key: "/a", ContentType: "a"}))
		must(p.PutDevice(ctx, Device{ID: "d", Secret: "s", Cost: 4}))
		must(p.RotateDevice(ctx, Rotation{ID: "d", Secret: "t", Overlap: time.Hour, Cost: 4}))
		change(func(c *contract.Credential) { c.Permissions, c.Labels = []string{"a"}, map[string]string{"b": "c"} })
		change(func(c *contract.Credential) { c.Permissions = nil })
		change(func(*contract.Credential) {})
		must(p.RevokeDevice(ctx, "d"))
		must(p.RevokeDevice(ctx, "d"))
		change(func(c *contract.Credential) { c.Disabled, c.Revoked = true, false })
		change(func(c *contract.Credential) { c.Disabled, c.Revoked = false, false })
		must(p.PutDevice(ctx, Device{ID: "e", Secret: "s", Cost: 4}))
		if n, err := New(s.Client, Author("")).RevokeAll(ctx); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		must(p.DeleteDevice(ctx, "d", false))
		must(p.PutDevice(ctx, Device{ID: "d", Secret: "s", Cost: 4}))
		if _, err := p.RevokeDevice(ctx, "nobody"); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
		for _, author := range []string{" ann\n", "é@ops ", strings.Repeat("a", 500), " ", "\xff",
			strings.Repeat(" ", 200) + "b"} {
			must(New(s.Client, Author(author)).RevokeDevice(ctx, "e"))
		}
		got := audited(t, s)
		if len(got) == 20 {
			slices.Sort(got[10:12]) // revoked at once
		}
		want := []string{"d put  ann@ops", "d changed hash,old-until ann@ops", "d changed labels,permissions ann@ops",
			"d changed permissions ann@ops", "d changed  ann@ops", "d revoked disabled ann@ops", "d changed  ann@ops",
			"d disabled disabled ann@ops", "d enabled disabled ann@ops",
			"e put  ann@ops", "d revoked disabled ", "e revoked disabled ", "d deleted  ann@ops",
			"d put  ann@ops", "e changed  ann?", "e changed  ??@ops", "e changed  " + strings.Repeat("a", contract.MaxAuthor),
			"e changed  ", "e changed  ?", "e changed  "}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		for _, entry := range s.XRange(ctx, keys.AuditKey(), "-", "+").Val() {
			if text := entry.Values; len(text) != 5 {
				t.Errorf("entry %v has %d fields, want 5", text, len(text))
			}
		}
	})
}

// TestUnaudited: writers without the permissions for the audit write as before.
func TestUnaudited(t *testing.T) {
	redisServer := redistest.StartServer(t)
	admin := redisServer.Client(t)
	const commands = "+evalsha +eval +script|load +hget +hgetall +hkeys +hexists +zscore +time +set +get +incr +zadd " +
		"+hset +hdel +pexpire +persist +publish"
	for user, rules := range map[string]string{
		"command": "~{gatehouse:*}:* " + commands,
		"key": "~{gatehouse:*}:c:* ~{gatehouse:*}:s* ~{gatehouse:*}:log ~{gatehouse:*}:epoch ~{gatehouse:*}:chain +xadd " +
			commands,
	} {
		args := []any{"acl", "setuser", user, "on", ">p", "resetkeys", "&*", "-@all"}
		for _, rule := range strings.Fields(rules) {
			args = append(args, rule)
		}
		require.NoError(t, admin.Do(t.Context(), args...).Err())
		options := *admin.Options()
		options.Username, options.Password = user, "p"
		client := redis.NewClient(&options)
		defer client.Close()
		p := New(client)
		if _, err := p.PutDevice(t.Context(), Device{ID: user, Secret: "s", Cost: 4}); err != nil {
			t.Errorf("%s: put: %v", user, err)
		}
		if _, err := p.RevokeDevice(t.Context(), user); err != nil {
			t.Errorf("%s: revoke: %v", user, err)
		}
	}
	if n := admin.Exists(t.Context(), keys.AuditKey()).Val(); n != 0 {
		t.Errorf("the audit has entries: %v", admin.XRange(t.Context(), keys.AuditKey(), "-", "+").Val())
	}
	// An audit of a wrong type doesn't stop a revocation, either.
	admin.Set(t.Context(), keys.AuditKey(), "odd", 0)
	if r, err := New(admin).RevokeDevice(t.Context(), "key"); err != nil || r.Version != 3 {
		t.Errorf("beside another type: %v, %v", r, err)
	}
}

// TestRenamedAudit: where redis.conf has taken a command away, writes go on without the audit.
func TestRenamedAudit(t *testing.T) {
	p := New(redistest.StartServer(t, "--rename-command", "XADD", "").Client(t))
	if r, err := p.PutDevice(t.Context(), Device{ID: "d", Secret: "s", Cost: 4}); err != nil || r.Version != 1 {
		t.Errorf("put: %+v, %v", r, err)
	}
	if r, err := p.RevokeDevice(t.Context(), "d"); err != nil || r.Version != 2 {
		t.Errorf("revoke: %+v, %v", r, err)
	}
}

// TestAuditIsBounded: old entries go.
func TestAuditIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 100,000 entries")
	}
	s := serverAt(t, redistest.Start(t))
	pipe := s.Pipeline()
	for range 100_200 {
		pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: keys.AuditKey(), Values: []string{"device", "d"}})
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.p.PutDevice(t.Context(), Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
		t.Fatal(err)
	}
	if n := s.XLen(t.Context(), keys.AuditKey()).Val(); n < 100_000 || n > 100_100 {
		t.Errorf("%d entries, want 100,000 to 100,100", n)
	}
}

// TestDefaultAuthor has the form that the script accepts.
func TestDefaultAuthor(t *testing.T) {
	author := DefaultAuthor()
	if !strings.Contains(author, "@") || len(author) > contract.MaxAuthor || author != strings.TrimSpace(author) {
		t.Errorf("got %q", author)
	}
}
