package publish

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// userOf returns a client of the user with the documented permissions for role, in a namespace.
func userOf(t *testing.T, s *redistest.Server, role, namespace string) *redis.Client {
	t.Helper()
	line := documented(t, role)
	line[0] = role + namespace
	for i := range line {
		line[i] = strings.ReplaceAll(line[i], "{gatehouse:", "{gatehouse."+namespace+":")
	}
	setUser(t, s.Client(t), append([]string{"ACL", "SETUSER"}, line...))
	client := redis.NewClient(&redis.Options{Addr: s.Address, Username: role + namespace, Password: role + "-password",
		ReadTimeout: 5 * time.Minute, MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	return client
}

// TestPublisherPermissions: the documented user of gatehouse-publisher writes objects and purges, but no device.
func TestPublisherPermissions(t *testing.T) {
	s := redistest.StartServer(t)
	ctx, root := t.Context(), s.Client(t)
	admin := New(root, Namespace("shop"))
	if _, err := admin.PutDevice(ctx, Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
		t.Fatal(err)
	}
	client := userOf(t, s, "publisher", "shop")
	p := New(client, Namespace("shop"))
	objectsOnly := func(err error) error {
		if err == nil {
			return errors.New("a device was written")
		}
		if !redis.HasErrorPrefix(err, "NOPERM") && !strings.Contains(err.Error(), "permission") &&
			!strings.Contains(err.Error(), "can't access") {
			return err
		}
		return nil
	}
	purge := Purge{Tag: "t"}
	for name, run := range map[string]func() error{
		"put": func() error {
			_, err := p.Put(ctx, Object{Key: "/a", ContentType: "a", Tags: []string{"t"}})
			return err
		},
		"absent": func() error { _, err := p.Put(ctx, Object{Key: "/b", ContentType: "a", IfAbsent: true}); return err },
		"batch":  func() error { return p.PutAll(ctx, []Object{{Key: "/c", ContentType: "a", IfAbsent: true}})[0].Err },
		"get": func() error {
			_, err := p.Get(ctx, "/x")
			if errors.Is(err, ErrNotFound) {
				err = nil
			}
			return err
		},
		"delete": func() error { _, err := p.Delete(ctx, "/d", 0); return err },
		"purge":  func() error { _, err := p.Purge(ctx, purge); return err },
		"device": func() error {
			_, err := p.PutDevice(ctx, Device{ID: "d", Secret: "other", Cost: 4})
			return objectsOnly(err)
		},
		"revoke":        func() error { _, err := p.RevokeDevice(ctx, "d"); return objectsOnly(err) },
		"forget":        func() error { _, err := p.DeleteDevice(ctx, "d", true); return objectsOnly(err) },
		"read a device": func() error { _, err := p.GetDevice(ctx, "d"); return objectsOnly(err) },
		"directly": func() error {
			return objectsOnly(client.HSet(ctx, "{gatehouse.shop:0}:c:d", "permissions", "all").Err())
		},
		"by a script": func() error {
			return objectsOnly(client.Eval(ctx, "return redis.call('HSET', KEYS[1], 'a', 'b')",
				[]string{"{gatehouse.shop:0}:c:d"}).Err())
		},
		"by a key that is not named": func() error {
			return objectsOnly(client.Eval(ctx, "return redis.call('HSET', '{gatehouse.shop:0}:c:d', 'a', 'b')", nil).Err())
		},
		"another namespace": func() error {
			_, err := New(client).Put(ctx, Object{Key: "/a", ContentType: "a"})
			return objectsOnly(err)
		},
	} {
		if err := run(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d, err := admin.GetDevice(ctx, "d"); err != nil || d.Version != 1 {
		t.Errorf("the device is %+v, %v", d, err)
	}
}

// busy returns how long the thread that serves all users has run, in seconds.
func busy(t *testing.T, root *redis.Client) (seconds float64) {
	t.Helper()
	for line := range strings.Lines(root.Info(t.Context(), "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if strings.HasSuffix(name, "_main_thread") {
			n, _ := strconv.ParseFloat(value, 64)
			seconds += n
		}
	}
	return seconds
}

// TestNeighbour measures for each command that a writer of one namespace may run how long the command keeps Redis from
// serving other namespaces, with the most expensive arguments within a bound. docs/redis-contract.md has the table. The
// table also names the commands that Redis can't end.
func TestNeighbour(t *testing.T) {
	size := 20_000
	if text := os.Getenv("SIZE"); text != "" {
		size, _ = strconv.Atoi(text)
	}
	s := redistest.StartServer(t, "--busy-reply-threshold", "100")
	ctx, hostile, root := t.Context(), userOf(t, s, "writer", "a"), s.Client(t)
	neighbour := userOf(t, s, "writer", "b")
	key := "{gatehouse.a:0}:o:/big"
	fill := func(key string) {
		for i := 0; i < size; i += 1000 {
			var pairs []any
			for j := range 1000 {
				pairs = append(pairs, fmt.Sprint("field-", i+j), strings.Repeat("v", 65)) // no listpack
			}
			require.NoError(t, hostile.HSet(ctx, key, pairs...).Err())
		}
	}
	many := func(command ...any) []any {
		for i := range size {
			if command[0] == "zadd" {
				command = append(command, i, fmt.Sprint("m", i))
			} else {
				command = append(command, fmt.Sprint("field-", i))
			}
			if command[0] == "hset" || command[0] == "xadd" {
				command = append(command, "v")
			}
		}
		return command
	}
	for _, test := range []struct {
		name    string
		prepare func()
		command []any
	}{
		{"HGETALL", func() { fill(key) }, []any{"hgetall", key}},
		{"HKEYS", nil, []any{"hkeys", key}},
		{"SET over it", nil, []any{"set", key, ""}},
		{"PEXPIRE of it", func() { unlink(t, s, key); fill(key) }, []any{"pexpire", key, 1}},
		{"HSET", func() { unlink(t, s, key) }, many("hset", key)},
		{"HDEL", nil, many("hdel", key)},
		{"ZADD", nil, many("zadd", "{gatehouse.a:0}:log")},
		{"XADD", nil, many("xadd", "{gatehouse.a:0}:audit", "*")},
		{"SET", nil, []any{"set", "{gatehouse.a:0}:o:/s", strings.Repeat("x", 400*size)}},
		{"GET", nil, []any{"get", "{gatehouse.a:0}:o:/s"}},
		{"PUBLISH", nil, []any{"publish", "{gatehouse.a:0}:events", strings.Repeat("x", 400*size)}},
	} {
		if test.prepare != nil {
			test.prepare()
		}
		before := busy(t, root)
		err := hostile.Do(ctx, test.command...).Err()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Errorf("%s: %v", test.name, err)
		}
		if test.name == "PEXPIRE of it" {
			await.Until(t, "the end of a key", func() bool { return root.Exists(ctx, key).Val() == 0 })
		}
		t.Logf("%-16s %8.1f ms", test.name, (busy(t, root)-before)*1000)
		if err := neighbour.Get(ctx, "{gatehouse.b:0}:seq").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("after %s the neighbour: %v", test.name, err)
		}
	}
	// Redis can end a loop without writes, but not after a write: only a restart ends the loop.
	for _, loop := range []struct{ script, kill string }{
		{"while true do end", "OK"},
		{"redis.call('SET', KEYS[1], '1') while true do end", "UNKILLABLE"},
	} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			hostile.Do(ctx, "eval", loop.script, 1, "{gatehouse.a:0}:seq")
		}()
		got := ""
		for got == "" {
			reply, err := root.Do(ctx, "script", "kill").Text()
			if got = reply; err != nil && !redis.HasErrorPrefix(err, "NOTBUSY") {
				got, _, _ = strings.Cut(err.Error(), " ")
			}
		}
		if got != loop.kill {
			t.Errorf("%s: SCRIPT KILL: %s, want %s", loop.script, got, loop.kill)
		}
		if loop.kill == "UNKILLABLE" {
			s.Kill()
		}
		<-ended
	}
}

// unlink removes a key of a former measurement.
func unlink(t *testing.T, s *redistest.Server, key string) {
	t.Helper()
	require.NoError(t, s.Client(t).Unlink(t.Context(), key).Err())
}
