package redisurl

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestParse(t *testing.T) {
	for url, want := range map[string]target{
		"redis://localhost":                  {addresses: []string{"localhost:6379"}},
		"redis://localhost:7/":               {addresses: []string{"localhost:7"}},
		"redis://127.0.0.1:6379/0":           {addresses: []string{"127.0.0.1:6379"}},
		"redis://[::1]/15":                   {addresses: []string{"[::1]:6379"}, db: 15},
		"rediss://[::1]:7":                   {addresses: []string{"[::1]:7"}, tls: true},
		"redis://u:p@h":                      {addresses: []string{"h:6379"}, username: "u", password: "p"},
		"redis://:p@h":                       {addresses: []string{"h:6379"}, password: "p"},
		"redis://u%3A:%40%2F%3a%23%3F%25p@h": {addresses: []string{"h:6379"}, username: "u:", password: "@/:#?%p"},
		"redis://u:a@b:c@h":                  {addresses: []string{"h:6379"}, username: "u", password: "a@b:c"},
		"unix:///run/redis.sock":             {addresses: []string{"/run/redis.sock"}},
		"unix:///run/a%20b.sock?db=3":        {addresses: []string{"/run/a b.sock"}, db: 3},
		"unix://u:p@/run/redis.sock":         {addresses: []string{"/run/redis.sock"}, username: "u", password: "p"},
		"redis+sentinel://a,b:1,[::1]/main": {kind: sentinel,
			addresses: []string{"a:26379", "b:1", "[::1]:26379"}, master: "main"},
		"redis+sentinel://u:p@a/main-1.x_y/2": {kind: sentinel, addresses: []string{"a:26379"}, master: "main-1.x_y", db: 2,
			username: "u", password: "p"},
		"rediss+sentinel://a/m/":   {kind: sentinel, tls: true, addresses: []string{"a:26379"}, master: "m"},
		"redis+cluster://a,b:7001": {kind: cluster, addresses: []string{"a:6379", "b:7001"}},
		"rediss+cluster://u:p@a/": {kind: cluster, tls: true, addresses: []string{"a:6379"},
			username: "u", password: "p"},
	} {
		got, err := parseURL(url)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v, %v\nwant %+v", url, got, err, want)
		}
	}
}

// Nothing of a malformed URL is shown: any part may be a password's.
func TestParseRefuses(t *testing.T) {
	for url, want := range map[string]string{
		"":                                 "scheme: want redis://",
		"hunter2":                          "scheme",
		"mysql://hunter2":                  "scheme",
		"redis:hunter2":                    "scheme",
		"REDIS://hunter2":                  "scheme",
		"redis://":                         "host 1",
		"redis://:6379":                    "host 1",
		"redis://u:hunter2@":               "host 1",
		"redis://:hunter2@host:bad":        "host 1",
		"redis://u:hunt/er2@host":          "host 1",
		"redis://u:hunter2@host/db/x":      "database",
		"redis://:1/hunter2@host":          "host 1",
		"redis://u:1/hunter2@host":         "database",
		"redis://u:hunter2%zz@h":           "password: has a %",
		"redis://hunter2%@h":               "user: has a %",
		"redis://u:hunter2@h:0":            "host 1",
		"redis://u:hunter2@h:65536":        "host 1",
		"redis://u:hunter2@h:+1":           "host 1",
		"redis://u:hunter2@h:":             "host 1",
		"redis://u:hunter2@::1":            "host 1",
		"redis://u:hunter2@[::1":           "host 1",
		"redis://u:hunter2@[hunter2]":      "host 1",
		"redis://u:hunter2@[::1]x":         "host 1",
		"redis://u:hunter2@a,b":            "hosts: 2, a single server has one",
		"redis://u:hunter2@h?x=y":          "has a ? or #",
		"redis://u:hunt#er2@h":             "has a ? or #",
		"redis://u:hunt er2@h":             "byte 14",
		"redis://u:hunt\u00e9r2@h":         "byte 14",
		"redis://u:hunter2@h/-1":           "database",
		"redis://u:hunter2@h/65536":        "database",
		"unix://hunter2":                   "socket: want unix:///path",
		"unix://u:hunter2@":                "socket",
		"unix:///":                         "socket",
		"unix://hunter2/x":                 "socket",
		"unix:///hunter2?x=1":              "options",
		"unix:///hunter2?db=x":             "database",
		"redis+sentinel://u:hunter2@a":     "master",
		"redis+sentinel://u:hunter2@a//1":  "master",
		"redis+sentinel://u:hunter2@a/m/x": "database",
		"redis+sentinel://u:hunter2@a,/m":  "host 2",
		"redis+cluster://u:hunter2@a/1":    "path: a Cluster has no databases",
		"redis+cluster://u:hunter2@a:x,b":  "host 1",
	} {
		_, err := parseURL(url)
		if err == nil || err.Setting != "url" || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", url, err, want)
			continue
		}
		for _, secret := range []string{"hunt", "er2"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q: the password is in %q", url, err)
			}
		}
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSettings(t *testing.T) {
	password := write(t, "hunter2\n")
	for _, test := range []struct {
		name     string
		settings Settings
		want     []string // setting: part of the text
	}{
		{"url only", Settings{URL: "redis://h"}, nil},
		{"password file", Settings{URL: "redis://h", PasswordFile: password}, nil},
		{"user and password file", Settings{URL: "redis://h", Username: "u", PasswordFile: password}, nil},
		{"user in the url, password in a file", Settings{URL: "redis://u@h", PasswordFile: password}, nil},
		{"sentinel", Settings{URL: "redis+sentinel://h/m", SentinelUsername: "u", SentinelPasswordFile: password}, nil},
		{"bad url, and the rest is not looked at", Settings{URL: "redis://", PasswordFile: "/no/such"},
			[]string{"url: host 1"}},
		{"two passwords", Settings{URL: "redis://:hunter2@h", PasswordFile: password},
			[]string{"password_file: the url has"}},
		{"two users", Settings{URL: "redis://u:hunter2@h", Username: "v"}, []string{"username: the url has"}},
		{"user without a password", Settings{URL: "redis://h", Username: "u"}, []string{"username: \"u\" has no password"}},
		{"user without a password in the url", Settings{URL: "redis://u@h"}, []string{"url: password"}},
		{"no such file", Settings{URL: "redis://h", PasswordFile: "/no/such"}, []string{"password_file: open /no/such"}},
		{"empty file", Settings{URL: "redis://h", PasswordFile: write(t, "\n")}, []string{"is empty"}},
		{"two lines", Settings{URL: "redis://h", PasswordFile: write(t, "hunter2\nhunter2\n")},
			[]string{"more than one line"}},
		{"huge file", Settings{URL: "redis://h", PasswordFile: write(t, strings.Repeat("x", 5000))},
			[]string{"over 4096 bytes"}},
		{"sentinel's without sentinels", Settings{URL: "redis://h", SentinelUsername: "u", SentinelPasswordFile: password},
			[]string{"sentinel_username: the url", "sentinel_password_file: the url"}},
		{"sentinel's user alone", Settings{URL: "redis+sentinel://h/m", SentinelUsername: "u"},
			[]string{"sentinel_username: \"u\" has no password"}},
		{"TLS files without TLS", Settings{URL: "redis://h", TLSCAFile: "a", TLSServerName: "b"},
			[]string{"tls_ca_file: the url is not of TLS", "tls_server_name: the url"}},
		{"no certificate", Settings{URL: "rediss://h", TLSCAFile: password}, []string{"tls_ca_file: "}},
		{"key without a certificate", Settings{URL: "rediss://h", TLSKeyFile: password},
			[]string{"tls_cert_file: not given"}},
		{"certificate without a key", Settings{URL: "rediss://h", TLSCertFile: password},
			[]string{"tls_key_file: not given"}},
		{"not a key pair", Settings{URL: "rediss://h", TLSCertFile: password, TLSKeyFile: password},
			[]string{"tls_cert_file: with tls_key_file"}},
		{"pool", Settings{URL: "redis://h", PoolSize: 1025}, []string{"pool_size: 1025 is out of 1 to 1024"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, err := range test.settings.Check() {
				got = append(got, err.Setting+": "+err.Error())
			}
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			for i, want := range test.want {
				if !strings.Contains(got[i], want) || strings.Contains(got[i], "hunter2") {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
			client, err := test.settings.Connect()
			if (err == nil) != (test.want == nil) {
				t.Errorf("connect: %v", err)
			}
			if err == nil {
				client.Close()
			}
		})
	}
}

func TestConnectKinds(t *testing.T) {
	for url, want := range map[string]string{
		"redis://h": "*redis.Client 0", "redis://h/12": "*redis.Client 12", "unix:///s": "*redis.Client 0",
		"unix:///s?db=3": "*redis.Client 3", "redis+sentinel://h/m": "*redis.Client 0",
		"redis+sentinel://h/m/2": "*redis.Client 2",
		"redis+cluster://h":      "*redis.ClusterClient 0", "rediss+cluster://h,i": "*redis.ClusterClient 0",
	} {
		client, err := Connect(url)
		require.NoError(t, err)
		if got := fmt.Sprintf("%T %d", client, Database(client)); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
		client.Close()
	}
	if _, err := Connect("hunter2"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
	client, err := Settings{URL: "unix:///run/s?db=2", PoolSize: 3, Once: true}.Connect()
	require.NoError(t, err)
	defer client.Close()
	o := client.(*redis.Client).Options()
	if o.Network != "unix" || o.Addr != "/run/s" || o.DB != 2 || o.PoolSize != 3 || o.MaxRetries != 0 ||
		o.DialTimeout != dialTimeout {
		t.Errorf("options %+v", o)
	}
}
