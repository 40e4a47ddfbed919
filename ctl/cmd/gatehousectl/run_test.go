package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

var keys contract.Keys

// shell runs the program against one miniredis.
type shell struct {
	t     *testing.T
	redis *miniredis.Miniredis
	env   map[string]string
}

func newShell(t *testing.T) *shell {
	server := miniredis.RunT(t)
	return &shell{t, server, map[string]string{"GATEHOUSE_REDIS": "redis://" + server.Addr()}}
}

// result is the result of a run.
type result struct {
	code           int
	stdout, stderr string
}

func (s *shell) run(stdin string, args ...string) result {
	s.t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(args, strings.NewReader(stdin), &stdout, &stderr, func(name string) string { return s.env[name] })
	return result{code, stdout.String(), stderr.String()}
}

// ok runs a command that must succeed, with output on stdout only.
func (s *shell) ok(stdin string, args ...string) string {
	s.t.Helper()
	r := s.run(stdin, args...)
	if r.code != 0 || r.stderr != "" {
		s.t.Fatalf("%v: %+v, want exit code 0", args, r)
	}
	return r.stdout
}

// fails runs what must fail with code, and say want.
func (s *shell) fails(code int, want, stdin string, args ...string) {
	s.t.Helper()
	r := s.run(stdin, args...)
	if r.code != code || !strings.Contains(r.stderr, want) {
		s.t.Errorf("%v: %+v, want exit code %d with %q", args, r, code, want)
	}
	if r.stdout != "" {
		s.t.Errorf("%v: stdout %q, want none", args, r.stdout)
	}
}

func (s *shell) file(name, content string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), name)
	require.NoError(s.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestObjects(t *testing.T) {
	s := newShell(t)
	body := strings.Repeat("<p>hello</p>", 100)
	got := s.ok("", "put", "/a", "--file", s.file("a.html", body), "--ttl", "90s")
	if want := "/a: version 1, etag " + publish.ETag("text/html; charset=utf-8", []byte(body)) +
		", text/html; charset=utf-8\n"; got != want {
		t.Errorf("put: got %q, want %q", got, want)
	}
	if got := s.ok("", "get", "/a"); got != body {
		t.Errorf("get: got %.20q…, want the body", got)
	}
	if got := s.ok("", "get", "/a", "--encoding", "gzip"); !strings.HasPrefix(got, "\x1f\x8b") {
		t.Errorf("get gzip: got %.20q", got)
	}
	head := s.ok("", "get", "/a", "--head")
	for _, want := range []string{"version:       1\n", "fresh:         1m30s\n",
		"identity:      1200 bytes\n", "zstd: "} {
		if !strings.Contains(head, want) {
			t.Errorf("head has no %q:\n%s", want, head)
		}
	}
	s.ok("{}", "put", "/b", "--file", "-", "--version", "7", "--content-type", "text/x")
	got = s.ok("", "put", "/old", "--file", "-", "--content-type", "text/plain", "--status", "308", "--header",
		"Location: /new", "--header", "link: </a>, </b>", "--header", "link:</c>")
	if want := `/old: version 1, etag "7a60805e5dce2632dfa7e4c6edebb44c", text/plain` + "\n"; got != want {
		t.Errorf("put: got %q, want %q", got, want)
	}
	head = s.ok("", "get", "/old", "--head")
	for _, want := range []string{"status:        308\n", "header:        location: /new\n",
		"header:        link: </a>, </b>\nheader:        link: </c>\n"} {
		if !strings.Contains(head, want) {
			t.Errorf("head has no %q:\n%s", want, head)
		}
	}
	if got := s.ok("", "list", "/old"); !strings.Contains(got, "\n/old  1        308     0 ") {
		t.Errorf("list: %q", got)
	}
	s.ok("", "delete", "/old")
	s.fails(2, "want NAME:VALUE", "", "put", "/old", "--file", "-", "--header", "location")
	s.fails(2, "location is missing", "", "put", "/old", "--file", "-", "--status", "308")
	s.fails(1, "no encoding gzip (has: identity)", "", "get", "/b", "--encoding", "gzip")
	s.fails(1, "stale version", "", "put", "/b", "--file", "-", "--version", "7")
	s.fails(1, "stale version", "", "delete", "/b", "--version", "6")
	s.fails(1, "stale version", "", "put", "/b", "--file", "-", "--if-version", "6")
	s.fails(1, "already exists", "", "put", "/b", "--file", "-", "--if-absent")
	s.fails(2, "one of version", "", "put", "/b", "--file", "-", "--if-absent", "--version", "9")
	s.ok("", "put", "/c", "--file", "-", "--if-absent")
	s.ok("", "put", "/c", "--file", "-", "--if-version", "1")
	s.ok("", "delete", "/c")

	list := strings.Split(s.ok("", "list"), "\n")
	if len(list) != 4 || !strings.HasPrefix(list[1], "/a   1        200     1200  2") ||
		!strings.HasSuffix(strings.TrimSpace(list[2]), "text/x") {
		t.Errorf("list: %q", list)
	}
	var entry publish.Entry
	if err := json.Unmarshal([]byte(s.ok("", "list", "/b", "--json")), &entry); err != nil || entry.Key != "/b" ||
		entry.Version != 7 {
		t.Errorf("list --json: %+v, %v", entry, err)
	}
	if got := s.ok("", "delete", "/b"); got != "/b: deleted, version 8\n" {
		t.Errorf("delete: %q", got)
	}
	s.fails(3, "not found", "", "get", "/b")
	members, _ := s.redis.ZMembers(keys.LogKey())
	for _, key := range []string{"/b", "/v1/products/*", "/unknown"} {
		s.fails(3, "--force", "", "delete", key)
	}
	if after, _ := s.redis.ZMembers(keys.LogKey()); len(after) != len(members) {
		t.Errorf("log %q, was %q", after, members)
	}
	if got := s.ok("", "delete", "/unknown", "--force"); got != "/unknown: deleted, version 1\n" {
		t.Errorf("delete --force: %q", got)
	}
	s.fails(2, `want "/a"`, "", "put", "/x/../a", "--file", "-")
	for key, flags := range map[string][]string{
		"//shop/a": {"--virtual-host", "shop"}, "//:a.example/a": {"--host", "A.Example"},
		"//shop:a.example/a": {"--host", "a.example", "--virtual-host", "shop"},
		"/a#en-gb":           {"--language", "en-GB"}, "//:b.example/a#de": {"--language", "de", "--host", "b.example"},
	} {
		s.ok("of "+key, append([]string{"put", "/a", "--file", "-"}, flags...)...)
		for _, args := range [][]string{{"get", key}, append([]string{"get", "/a"}, flags...)} {
			if got := s.ok("", args...); got != "of "+key {
				t.Errorf("%v: got %q", args, got)
			}
		}
	}
	s.ok("d", "put", "@d/a", "--file", "-", "--virtual-host", "shop")
	s.ok("d", "get", "@d//shop/a")
	if got := strings.Split(s.ok("", "list", "--virtual-host", "shop"), "\n"); len(got) != 3 ||
		!strings.HasPrefix(got[1], "//shop/a ") {
		t.Errorf("list --virtual-host: %q", got)
	}
	s.ok("", "delete", "/a", "--virtual-host", "shop")
	s.fails(3, "", "", "get", "//shop/a")
	for _, key := range []string{"a", "//shop/a", "@d", "@d//shop/a"} {
		s.fails(2, "want /path or @device/path", "", "get", key, "--virtual-host", "shop")
	}
	s.fails(2, "then \"//virtual-host:host\"", "", "put", "/a", "--file", "-", "--virtual-host",
		"Shop")
	if got := s.ok("", "list", "/b", "--json"); got != "" {
		t.Errorf("list after delete: %q", got)
	}
}

// TestAcceptLoss accepts the loss of an empty Redis, once.
func TestAcceptLoss(t *testing.T) {
	s := newShell(t)
	s.fails(2, "name the sidecars' number", "", "accept-loss")
	for _, want := range []string{"2 of 2 shards were empty", "no shard is empty"} {
		if got := s.ok("", "accept-loss", "--shards", "2"); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	s.fails(2, "is 2, this program is set to 1", "", "accept-loss")
}

func TestDevices(t *testing.T) {
	s := newShell(t)
	secret := func(content string) string { return s.file("secret", content) }
	s.ok("", "device", "put", "demo", "--secret-file", secret("demo-secret\n"), "--permissions",
		"b,a", "--cost", "4", "--not-after", "2001-02-03T04:05:06Z")
	c, err := contract.ParseCredential(hash(s, "demo"))
	require.NoError(t, err)
	if err := bcrypt.CompareHashAndPassword([]byte(c.Hashes[0]), []byte("demo-secret")); err != nil {
		t.Errorf("the stored hash is not that of the file's first line: %v", err)
	}
	s.ok("other\r\n", "device", "put", "other", "--secret-file", "-", "--cost", "4")
	c, err = contract.ParseCredential(hash(s, "other"))
	if err != nil || bcrypt.CompareHashAndPassword([]byte(c.Hashes[0]), []byte("other")) != nil {
		t.Errorf("line end CRLF: %+v, %v", c, err)
	}
	s.ok("x", "device", "put", "third", "--secret-file", "-", "--cost", "4")
	if got := s.ok("", "device", "revoke", "third"); got != "third: revoked, version 2\n" {
		t.Errorf("revoke: %q", got)
	}
	want := `ID     VERSION  STATE    NOT-AFTER                 LAST SEEN  PERMISSIONS  LABELS
demo   1        expired  2001-02-03T04:05:06.000Z  -          a,b          -
other  1        enabled  -                         -          -            -
third  2        revoked  -                         -          -            -
`
	if got := s.ok("", "device", "list"); got != want {
		t.Errorf("list:\n%s\nwant:\n%s", got, want)
	}
	s.redis.HSet(keys.CredentialKey("other"), "disabled", "yes")
	if r := s.run("", "device", "list"); r.code != 1 || !strings.Contains(r.stdout, "other  0        corrupt") ||
		!strings.Contains(r.stderr, `device "other"`) {
		t.Errorf("list with a damaged record: %+v", r)
	}
}

func TestRevokeAll(t *testing.T) {
	s := newShell(t)
	for _, id := range []string{"a", "b", "c"} {
		s.ok("x", "device", "put", id, "--secret-file", "-", "--cost", "4")
	}
	s.ok("", "device", "revoke", "b")
	for _, args := range [][]string{{"device", "revoke"}, {"device", "revoke", "a", "--all"}} {
		s.fails(2, "give a device's id, --label NAME=VALUE, or --all", "", args...)
	}
	for _, want := range []string{"all devices: 2 revoked\n", "all devices: 0 revoked\n"} {
		if got := s.ok("", "device", "revoke", "--all"); got != want {
			t.Errorf("revoke --all: got %q, want %q", got, want)
		}
	}
	s.redis.Del(keys.CredentialKey("a"))
	s.redis.Del(keys.CredentialKey("b"))
	if got := s.ok("", "device", "revoke", "--all"); got != "all devices: 2 revoked\n" {
		t.Errorf("revoke --all of evicted ones: %q", got)
	}
	s.fails(3, "not found; if your authority has it, register it first", "", "device", "revoke", "nobody")
	if got := s.ok("", "device", "revoke", "nobody", "--force"); !strings.HasPrefix(got, "nobody: revoked, version ") {
		t.Errorf("revoke --force: %q", got)
	}
	s.fails(2, "--force", "", "device", "revoke", "--all", "--force")
	if got := s.ok("", "device", "list"); strings.Count(got, "revoked") != 1 {
		t.Errorf("list:\n%s", got)
	}
}

func TestRevokeLabelled(t *testing.T) {
	s := newShell(t)
	for id, label := range map[string]string{"a": "fleet=eu,site=7", "b": "fleet=eu", "c": "fleet=us", "d": "site=7"} {
		s.ok("x", "device", "put", id, "--secret-file", "-", "--cost", "4", "--label", label)
	}
	s.ok("", "device", "revoke", "b")
	for _, args := range [][]string{{"a", "--label", "fleet=eu"}, {"--all", "--label", "fleet=eu"}} {
		s.fails(2, "give a device's id, --label NAME=VALUE, or --all", "", append([]string{"device", "revoke"}, args...)...)
	}
	s.fails(2, "--force", "", "device", "revoke", "--label", "fleet=eu", "--force")
	for _, want := range []string{"1", "0"} {
		got := s.ok("", "device", "revoke", "--label", "fleet=eu")
		if got != "devices with fleet=eu: "+want+" revoked\n" {
			t.Errorf("got %q, want %s", got, want)
		}
	}
	for id, want := range map[string]string{"a": "revoked", "b": "revoked", "c": "enabled", "d": "enabled"} {
		if got := s.ok("", "device", "get", id); !strings.Contains(got, "state:        "+want) {
			t.Errorf("%s: got %s, want %s", id, got, want)
		}
	}
}

func hash(s *shell, id string) map[string]string {
	fields := map[string]string{}
	names, _ := s.redis.HKeys(keys.CredentialKey(id))
	for _, name := range names {
		fields[name] = s.redis.HGet(keys.CredentialKey(id), name)
	}
	return fields
}

func TestRefuses(t *testing.T) {
	s := newShell(t)
	tests := []struct {
		name, want, stdin string
		code              int
		args              []string
	}{
		{"no command", "--help", "", 2, nil},
		{"unknown command", "unexpected argument", "", 2, []string{"pot"}},
		{"unknown flag", "unknown flag", "", 2, []string{"list", "--colour"}},
		{"put without a file", "--file", "", 2, []string{"put", "/a"}},
		{"missing file", "no such file", "", 1, []string{"put", "/a", "--file", filepath.Join(t.TempDir(), "none")}},
		{"large object", "-: over 1048576 bytes, too large for an object", strings.Repeat("x", 1<<20+1),
			2, []string{"put", "/a", "--file", "-"}},
		{"bad key", `invalid key "a"`, "", 2, []string{"put", "a", "--file", "-"}},
		{"bad ttl", "--ttl", "", 2, []string{"put", "/a", "--file", "-", "--ttl", "soon"}},
		{"no ttl", "--ttl: 0s: want whole milliseconds, 1ms at least; without it", "", 2,
			[]string{"put", "/a", "--file", "-", "--ttl", "0"}},
		{"no ttl of a directory", "--ttl: 0s: want whole", "", 2, []string{"sync", t.TempDir(), "/a/", "--ttl", "0s"}},
		{"if-version 0", "--if-version: 0: no record has it", "", 2,
			[]string{"put", "/a", "--file", "-", "--if-version", "0"}},
		{"if-version 0 of a device", "--if-version: 0: no record has it", "", 2,
			[]string{"device", "set", "d", "--add", "a", "--if-version", "0"}},
		{"an empty host", "--host: is empty", "", 2, []string{"put", "/a", "--file", "-", "--host", ""}},
		{"an empty virtual host", "--virtual-host: is empty", "", 2,
			[]string{"put", "/a", "--file", "-", "--virtual-host="}},
		{"an empty virtual host of a purge", "--virtual-host: is empty", "", 2,
			[]string{"purge", "--all", "--virtual-host", ""}},
		{"an empty language", "--language: is empty", "", 2, []string{"delete", "/a", "--language", ""}},
		{"negative version", "--version", "", 2, []string{"put", "/a", "--file", "-", "--version", "-1"}},
		{"unknown encoding", "--encoding", "", 2, []string{"get", "/a", "--encoding", "lz4"}},
		{"low cost", "--cost 3: is out of 4 to 15", "s", 2,
			[]string{"device", "put", "d", "--secret-file", "-", "--cost", "3"}},
		{"cost 0", "--cost 0: is out of 4 to 15", "s", 2,
			[]string{"device", "put", "d", "--secret-file", "-", "--cost", "0"}},
		{"high cost", "--cost 16", "s", 2, []string{"device", "put", "d", "--secret-file", "-", "--cost", "16"}},
		{"empty secret", "is empty", "\n", 2, []string{"device", "put", "d", "--secret-file", "-"}},
		{"long secret", "73 bytes, at most 72", strings.Repeat("s", 73), 2,
			[]string{"device", "put", "d", "--secret-file", "-"}},
		{"two line ends", "line end", "s\n\n", 2, []string{"device", "put", "d", "--secret-file", "-"}},
		{"blank after a secret", "a blank at an end", "s \n", 2, []string{"device", "put", "d", "--secret-file", "-"}},
		{"byte order mark", "byte order mark", "\ufeffs\n", 2, []string{"device", "put", "d", "--secret-file", "-"}},
		{"huge secret", "too large for a secret (at most 72)", strings.Repeat("s", 5000), 2,
			[]string{"device", "put", "d", "--secret-file", "-"}},
		{"NUL in secret", "NUL", "a\x00b", 2, []string{"device", "put", "d", "--secret-file", "-"}},
		{"two lines", "line end", "a\n\n", 2, []string{"device", "put", "d", "--secret-file", "-"}},
		{"bad time", "--not-after", "s", 2, []string{"device", "put", "d", "--secret-file", "-", "--not-after", "tomorrow"}},
		{"bad permission", `permission "a b"`, "s", 2,
			[]string{"device", "put", "d", "--secret-file", "-", "--permissions", "a b"}},
		{"revoke nobody", "not found", "", 3, []string{"device", "revoke", "nobody"}},
		{"delete a bad key", "invalid", "", 2, []string{"delete", "a"}},
		{"URL scheme", "--redis", "", 2, []string{"list", "--redis", "http://127.0.0.1"}},
		{"shards", "--shards, GATEHOUSE_REDIS_SHARDS: shards: 65 is out of 1 to 64", "", 2,
			[]string{"list", "--shards", "65"}},
		{"password file", "--redis-password-file: open /no/such", "", 2,
			[]string{"list", "--redis-password-file", "/no/such"}},
		{"TLS without TLS", "--redis-tls-ca-file: the url is not of TLS", "", 2,
			[]string{"list", "--redis-tls-ca-file", "x"}},
		{"nobody listens", "connection refused", "", 1, []string{"list", "--redis", "redis://127.0.0.1:1"}},
		{"no sidecar", "the sidecar doesn't answer", "", 1, []string{"status", "--sidecar", "127.0.0.1:1"}},
		{"no sidecar to explain", "the sidecar doesn't answer", "", 1, []string{"explain", "/a", "--sidecar", "127.0.0.1:1"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			s.fails(test.code, test.want, test.stdin, test.args...)
		})
	}
	if got := s.redis.Keys(); len(got) > 1 || len(got) == 1 && got[0] != (contract.Keyspace{}).ShardsKey() {
		t.Errorf("keys %q in Redis, want at most the number of shards", got)
	}
}

func TestNumberOfShards(t *testing.T) {
	s := newShell(t)
	s.env["GATEHOUSE_REDIS_SHARDS"] = "8"
	s.ok("x", "put", "/a", "--file", "-")
	s.fails(2, "is 8, this program is set to 4", "x", "put", "/a", "--file", "-", "--shards", "4")
	s.fails(2, "is 8, this program is set to 4", "", "list", "--shards", "4")
	if got := s.ok("", "list"); !strings.Contains(got, "/a") {
		t.Errorf("list: %q", got)
	}
	s.env["GATEHOUSE_REDIS_SHARDS"] = "many"
	s.fails(2, "--shards: $GATEHOUSE_REDIS_SHARDS: expected a valid 64 bit int but got \"many\"", "", "list")
}

func TestPasswordIsNotShown(t *testing.T) {
	s := newShell(t)
	for _, url := range []string{"redis://u:hunter2/x@127.0.0.1:1", "redis://u:hunter2%zz@127.0.0.1:1",
		"redis://u:hunter2@127.0.0.1:1", "redis://u:hunter2@127.0.0.1:1/x", "no://u:hunter2@h"} {
		s.env["GATEHOUSE_REDIS"] = url
		for _, args := range [][]string{{"list"}, {"list", "--redis", url}, {"--help"}} {
			if r := s.run("", args...); strings.Contains(r.stdout+r.stderr, "hunter2") {
				t.Errorf("%v with %s: shows the password: %+v", args, url, r)
			}
		}
	}
}

func TestRedisAddress(t *testing.T) {
	s := newShell(t)
	other := newShell(t)
	other.redis.RequireUserAuth("user", "secret")
	// The flag comes before the environment.
	s.ok("x", "put", "/a", "--file", "-", "--redis", "redis://user:secret@"+other.redis.Addr())
	if len(s.redis.Keys()) != 0 || len(other.redis.Keys()) == 0 {
		t.Errorf("keys: %v and %v, want them in the second", s.redis.Keys(), other.redis.Keys())
	}
}

func TestContentType(t *testing.T) {
	tests := []struct{ file, key, body, want string }{
		{"a.json", "/x.html", "x", "application/json"},
		{"-", "/x.svg?v=1.js", "x", "image/svg+xml"},
		{"-", "/x", ` {"a": 1}`, "application/json"},
		{"-", "/x", `{"a"`, "text/plain; charset=utf-8"},
		{"-", "/x", "\x89PNG\r\n\x1a\n", "image/png"},
		{"-", "/x", "", "text/plain; charset=utf-8"},
	}
	for _, test := range tests {
		if got := detectContentType(test.file, test.key, []byte(test.body)); got != test.want {
			t.Errorf("%s as %s: got %s, want %s", test.file, test.key, got, test.want)
		}
	}
}

func TestCheckFile(t *testing.T) {
	s := newShell(t)
	const shipped = "../../../envoy/envoy.yaml"
	if got := s.ok("", "check", shipped); got != shipped+": ok, 4 rules\n" {
		t.Errorf("got %q", got)
	}
	content, err := os.ReadFile(shipped)
	require.NoError(t, err)
	bad := s.file("bad.yaml", strings.NewReplacer("on_miss: fetch", "on_mis: fetch").Replace(string(content)))
	s.fails(2, "error [GH0104] "+bad+":107: listener edge: rule fleet-config: rules[2].cache.on_mis: unknown field", "",
		"check", bad)
	s.fails(2, "\n       cache: {on_miss: fetch} # ask the sidecar (Redis) before going upstream\n", "", "check", bad)
	s.fails(2, "errors found: 1", "", "check", bad)
	warned := s.file("warned.yaml", strings.NewReplacer("mode: 384", "mode: 438").Replace(string(content)))
	if got := s.run("", "check", warned); got.code != 0 || got.stdout != warned+": ok, 4 rules\n" ||
		!strings.HasPrefix(got.stderr, "warning [GH0403] "+warned+":241: listener gatehouse-push: address.pipe.mode: ") {
		t.Errorf("of a warning, got %+v", got)
	}
	var report findings.Report
	if err := json.Unmarshal([]byte(s.ok("", "check", "--json", warned)), &report); err != nil || report.Rules != 4 ||
		len(report.Findings) != 1 || report.Findings[0].Severity != findings.Warning ||
		report.Findings[0].Path != "address.pipe.mode" {
		t.Errorf("as JSON, got %+v, %v", report, err)
	}
	other := strings.NewReplacer("cluster: gatehouse-sidecar, timeout",
		"cluster: elsewhere, timeout").Replace(string(content))
	s.fails(2,
		`-:89: listener edge: sidecar.cluster: "elsewhere" is not a cluster of this file (has: gatehouse-sidecar, upstream)`,
		other, "check", "-")
}

// TestTraceparent writes within the trace of the environment.
func TestTraceparent(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for given, want := range map[string]string{traceparent: traceparent, "": "", "00-beef": ""} {
		s := newShell(t)
		s.env["TRACEPARENT"] = given
		events := s.redis.NewSubscriber()
		events.Subscribe(contract.Keys{}.EventsChannel())
		payload := make(chan string, 1)
		go func() { payload <- (<-events.Messages()).Message }() // miniredis waits until it is read
		s.ok("{}", "put", "/a", "--file", "-")
		e, err := contract.ParseEvent(<-payload)
		if events.Close(); err != nil || e.Traceparent != want {
			t.Errorf("%q: got the traceparent %q (%v), want %q", given, e.Traceparent, err, want)
		}
	}
}

func TestInvalidate(t *testing.T) {
	s := newShell(t)
	s.ok("x", "device", "put", "ours", "--secret-file", "-", "--cost", "4")
	for _, args := range [][]string{{}, {"d", "--all"}, {"--all", "--label", "a=b"}, {"--label", "a"}} {
		s.fails(2, "give a device's id, --all or --label", "", append([]string{"device", "invalidate"}, args...)...)
	}
	s.fails(2, "has a record", "", "device", "invalidate", "ours")
	for want, args := range map[string][]string{"d: invalidated\n": {"d"}, "all devices: invalidated\n": {"--all"},
		"devices with a=b: invalidated\n": {"--label", "a=b"}} {
		if got := s.ok("", append([]string{"device", "invalidate"}, args...)...); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, id := range []string{"d", "*", "*a=b"} {
		if got := s.redis.HGet(keys.CredentialKey(id), "deleted"); got != "1" {
			t.Errorf("%s: deleted is %q", id, got)
		}
	}
}
