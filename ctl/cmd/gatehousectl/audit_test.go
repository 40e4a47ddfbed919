package main

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/devicelog"
)

// TestAuditCommand changes devices, and finds author and change in the audit.
func TestAuditCommand(t *testing.T) {
	s := newShell(t)
	s.env["GATEHOUSE_REDIS_SHARDS"] = "3"
	s.ok("secret", "device", "put", "car-1", "--secret-file", "-", "--cost", "4")
	s.ok("", "device", "set", "car-1", "--add", "read", "--author", "ann")
	s.ok("", "device", "revoke", "--all", "--author", "ann")
	s.ok("secret", "device", "--author", "job 7", "put", "van-1", "--secret-file", "-", "--cost", "4")
	s.ok("", "device", "--author", "dba", "invalidate", "--label", "fleet=eu")
	for _, test := range []struct {
		args []string
		want []string // device, version, change
	}{
		{nil, []string{"car-1 version 1: put, by " + publish.DefaultAuthor(),
			"car-1 version 2: changed permissions, by ann", "car-1 version 3: revoked, by ann",
			"van-1 version 1: put, by job 7", "*fleet=eu version 1: invalidated, by dba"}},
		{[]string{"--device", "van-*"}, []string{"van-1 version 1: put, by job 7"}},
		{[]string{"--author", "ann", "--since", "1h"},
			[]string{"car-1 version 2: changed permissions, by ann", "car-1 version 3: revoked, by ann"}},
		{[]string{"--author", "dba"}, []string{"*fleet=eu version 1: invalidated, by dba"}},
		{[]string{"--since", "2100-01-01T00:00:00Z"}, nil},
	} {
		out := s.ok("", append([]string{"audit"}, test.args...)...)
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if out == "" {
			lines = nil
		}
		for i, line := range lines {
			_, text, _ := strings.Cut(line, "  ")
			if i >= len(test.want) || text != test.want[i] {
				t.Errorf("%v: line %d is %q, want %q", test.args, i, line, test.want)
			}
		}
		if len(lines) != len(test.want) {
			t.Errorf("%v: %d lines, want %d", test.args, len(lines), len(test.want))
		}
	}
	var change devicelog.Change
	if err := json.Unmarshal([]byte(s.ok("", "audit", "--device", "van-1", "--json")), &change); err != nil ||
		change.Device != "van-1" || change.Change != "put" || change.Author != "job 7" || change.Fields == nil {
		t.Errorf("--json: %+v, %v", change, err)
	}
	if _, err := s.redis.XAdd(keys.AuditKey(), "*", []string{"device", "\x1b[31m", "author", "a\nb"}); err != nil {
		t.Fatal(err)
	}
	if out := s.ok("", "audit"); !strings.Contains(out, `"\x1b[31m" version 0: , by "a\nb"`) {
		t.Errorf("an entry for the terminal: %q", out)
	}
	s.fails(2, "syntax error in pattern", "", "audit", "--device", "[")
	s.fails(2, `--since "soon"`, "", "audit", "--since", "soon")
	s.env["GATEHOUSE_REDIS_SHARDS"] = "2"
	s.fails(2, "is 3, this program is set to 2", "", "audit")
}

// TestAuditOfTheFuture: entries with ids beyond all valid times don't end the list.
func TestAuditOfTheFuture(t *testing.T) {
	s := &shell{t, nil, map[string]string{"GATEHOUSE_REDIS": redistest.Start(t)}}
	client, err := redisurl.Connect(s.env["GATEHOUSE_REDIS"])
	require.NoError(t, err)
	defer client.Close()
	const highest = "18446744073709551615"
	for _, id := range []string{"300000000000000-0", highest + "-0", highest + "-" + highest} {
		if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: keys.AuditKey(), ID: id, Values: []string{"device", "d"}}).
			Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, flag := range []string{"--json", "--json=false"} {
		if out := s.ok("", "audit", flag); strings.Count(out, "9999-12-31T23:59:59.999Z") != 3 {
			t.Errorf("%s: got %q", flag, out)
		}
	}
}

// TestRedisUserIsAnAuthor: where Redis tells the user, the audit has it.
func TestRedisUserIsAnAuthor(t *testing.T) {
	server := redistest.StartServer(t)
	for user, name := range map[string]string{"ops": "ops", "zoë": "zo??"} {
		acl := []any{"acl", "setuser", user, "on", ">p", "~*", "&*", "+@all"}
		require.NoError(t, server.Client(t).Do(t.Context(), acl...).Err())
		at := "redis://" + url.User(user).String() + ":p@" + server.Address
		s := &shell{t, nil, map[string]string{"GATEHOUSE_REDIS": at}}
		s.ok("secret", "device", "put", "d", "--secret-file", "-", "--cost", "4")
		s.ok("", "device", "revoke", "d")
		want := "by " + publish.DefaultAuthor() + " as " + name + "\n"
		if out := s.ok("", "audit"); !strings.HasSuffix(out, want) {
			t.Errorf("got %q, want %q at its end", out, want)
		}
	}
}
