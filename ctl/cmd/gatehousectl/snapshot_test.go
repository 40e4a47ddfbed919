package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestSnapshot writes a snapshot with the permissions of the contract.
func TestSnapshot(t *testing.T) {
	server := redistest.StartServer(t)
	client, url := server.Client(t), "redis://"+server.Address
	s := &shell{t, nil, map[string]string{"GATEHOUSE_REDIS": url}}
	s.ok("{}", "put", "/a", "--file", "-")
	s.ok("s", "device", "put", "d", "--secret-file", "-", "--cost", "4")
	contract, err := os.ReadFile("../../../docs/redis-contract.md")
	require.NoError(t, err)
	reader := regexp.MustCompile("(?m)^ACL SETUSER reader on >reader-password (.*)$").FindSubmatch(contract)
	besides := regexp.MustCompile("(?m)^.* `snapshot` .* the reader's, `(.*)` .$").FindSubmatch(contract)
	if reader == nil || besides == nil {
		t.Fatal("the contract lacks permissions of the reader or of snapshot")
	}
	for user, permissions := range map[string]string{"reader": string(reader[1]),
		"snapshot": string(reader[1]) + " " + string(besides[1])} {
		args := []any{"ACL", "SETUSER", user, "on", "nopass"}
		for _, word := range strings.Fields(permissions) {
			args = append(args, word)
		}
		require.NoError(t, client.Do(t.Context(), args...).Err())
	}
	path := filepath.Join(t.TempDir(), "snapshot")
	out := s.ok("", "snapshot", path, "--redis-username", "snapshot", "--redis-password-file", s.file("password", "p"))
	sum, found := strings.CutPrefix(out, "1 objects, 0 purges and the ids of 1 devices: ")
	if _, sum, _ = strings.Cut(strings.TrimSpace(sum), "SHA-256 "); !found {
		t.Errorf("got %q, want an object and a device", out)
	}
	as := *client.Options()
	as.Username, as.Password = "reader", "p"
	limited := redis.NewClient(&as)
	defer limited.Close()
	if got := limited.HMGet(t.Context(), "{gatehouse:0}:snapshots", sum).Val(); len(got) != 1 || got[0] == nil {
		t.Errorf("the reader got %v for %s, want its time", got, sum)
	}
	if content, err := os.ReadFile(path); err != nil || strings.Contains(string(content), "$2") {
		t.Errorf("got %v, want a file without hashes", err)
	}
	for destination, want := range map[string]string{filepath.Join(path, "below"): "not a directory",
		"http://" + redistest.FreeAddress(t): "connection refused"} {
		r := s.run("", "snapshot", destination)
		if r.code == 0 || !strings.Contains(r.stderr, want) || strings.Contains(r.stderr, "--redis") {
			t.Errorf("%s: got %+v, want %q, and no advice about Redis", destination, r, want)
		}
	}
	s.fails(exitUsage, "want a path", "", "snapshot", "ftp://host/file")
}
