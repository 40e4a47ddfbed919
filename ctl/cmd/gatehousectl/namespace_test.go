package main

import (
	"maps"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// TestNamespace runs commands in a namespace, and in another database: other data is neither found nor changed.
func TestNamespace(t *testing.T) {
	url := redistest.Start(t)
	s := &shell{t, nil, map[string]string{"GATEHOUSE_REDIS": url}}
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(url, "redis://")})
	defer client.Close()
	// dump returns the values of all keys in database 0 with this prefix.
	dump := func(prefix string) map[string]string {
		values := map[string]string{}
		for _, key := range client.Keys(t.Context(), prefix+"*").Val() {
			values[key] = client.Dump(t.Context(), key).Val()
		}
		return values
	}
	s.ok("default", "put", "/a", "--file", "-")
	s.ok("default", "put", "/b", "--file", "-")
	s.ok("secret", "device", "put", "d", "--secret-file", "-", "--cost", "4")
	for _, test := range []struct {
		keyspace contract.Keyspace
		flags    []string
	}{
		{contract.Keyspace{Namespace: "shop"}, []string{"--namespace", "shop"}},
		{contract.Keyspace{Namespace: "shop", Database: 2}, []string{"--redis", url + "/2", "--namespace", "shop"}},
		{contract.Keyspace{Database: 1}, []string{"--redis", url + "/1"}},
	} {
		with := func(args ...string) []string { return append(args, test.flags...) }
		s.fails(exitUsage, test.keyspace.ShardsKey()+" is gone", "", with("accept-loss")...)
		if got := s.ok("", with("accept-loss", "--shards", "1")...); !strings.HasPrefix(got, "1 of 1 shards") {
			t.Errorf("%v: accept-loss: %q", test.flags, got)
		}
		var watched, failed logbuffer.Buffer
		stopped := make(chan int)
		go func() {
			stopped <- run(with("watch"), nil, &watched, &failed, func(name string) string { return s.env[name] })
		}()
		channel := test.keyspace.Keys(0).EventsChannel()
		await.Until(t, "a subscription", func() bool {
			return client.PubSubNumSub(t.Context(), channel).Val()[channel] == 1
		})
		s.ok("", "delete", "/b")
		s.ok("default", "put", "/b", "--file", "-")
		before := dump("{gatehouse:")

		s.fails(exitNotFound, "not found", "", with("get", "/a")...)
		s.fails(exitNotFound, "not found", "", with("device", "revoke", "d")...)
		if got := s.ok("", with("list")...) + s.ok("", with("device", "list")...); strings.Count(got, "\n") != 2 {
			t.Errorf("%v: lists: %q, want titles only", test.flags, got)
		}
		s.ok("ours", with("put", "/a", "--file", "-")...)
		s.ok("ours", with("put", "/a", "--file", "-")...)
		s.ok("secret", with("device", "put", "d", "--secret-file", "-", "--cost", "4")...)
		s.ok("", with("device", "revoke", "d")...)
		if got := s.ok("", with("get", "/a")...); got != "ours" {
			t.Errorf("%v: get: %q", test.flags, got)
		}
		if got := s.ok("", with("device", "revoke", "--all")...); !strings.Contains(got, " 0 revoked") {
			t.Errorf("%v: revoke all: %q, want none left", test.flags, got)
		}
		if got := s.ok("", with("trim")...); !strings.HasPrefix(got, "2 members") {
			t.Errorf("%v: trim: %q, want two members", test.flags, got)
		}
		if got := s.ok("", with("edges", "--json")...); got != "" {
			t.Errorf("%v: edges: %q", test.flags, got)
		}
		await.Until(t, "the last event", func() bool {
			return strings.Contains(watched.String(), "device d revoked version 2")
		})
		if got := watched.String(); strings.Count(got, "\n") != 4 || strings.Contains(got, "/b") {
			t.Errorf("%v: watched:\n%s\nwant the four writes here", test.flags, got)
		}
		client.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub")
		if code := <-stopped; code != exitRuntime {
			t.Errorf("%v: watch ended with %d: %s", test.flags, code, failed.String())
		}
		if after := dump("{gatehouse:"); !maps.Equal(before, after) {
			t.Errorf("%v: the default namespace changed", test.flags)
		}
	}
	if got := len(dump("{gatehouse.shop:")); got == 0 {
		t.Error("no key of the namespace in database 0")
	}
	s.env["GATEHOUSE_REDIS_NAMESPACE"] = "shop"
	if got := s.ok("", "get", "/a"); got != "ours" {
		t.Errorf("by the environment: %q", got)
	}
	s.fails(exitUsage, `--namespace, GATEHOUSE_REDIS_NAMESPACE: "Shop": want 1 to 32 of a-z`, "", "list", "--namespace", "Shop")
}
