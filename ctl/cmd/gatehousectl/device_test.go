package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// record returns the stored record of device d.
func (s *shell) record() contract.Credential {
	s.t.Helper()
	c, err := contract.ParseCredential(hash(s, "d"))
	require.NoError(s.t, err)
	return c
}

// TestLifeOfADevice registers, changes, rotates and deletes a device.
func TestLifeOfADevice(t *testing.T) {
	s := newShell(t)
	generated := func(version string, args ...string) string {
		t.Helper()
		r := s.run("", append(args, "--generate", "--cost", "4")...)
		secret := strings.TrimSuffix(r.stdout, "\n")
		if r.code != 0 || r.stderr != "d: version "+version+"\n" || !strings.HasPrefix(secret, "gh_") ||
			bcrypt.CompareHashAndPassword([]byte(s.record().Hashes[0]), []byte(secret)) != nil {
			t.Fatalf("%v: %+v, want the secret alone", args, r)
		}
		return secret
	}
	first := generated("1", "device", "put", "d", "--permissions", "a,b", "--label", "fleet=eu,model=x1")
	for i, step := range []struct {
		args []string
		want map[string]string // fields that change; "": removed
	}{
		{[]string{"--add", "c,a", "--remove", "b"}, map[string]string{"permissions": "a,c"}},
		{[]string{"--permissions", "z"}, map[string]string{"permissions": "z"}},
		{[]string{"--permissions", ""}, map[string]string{"permissions": ""}},
		{[]string{"--label", "fleet=us", "--label", "site=7", "--unlabel", "model"},
			map[string]string{"labels": "fleet=us,site=7"}},
		{[]string{"--not-after", "2001-01-01T00:00:00Z"}, map[string]string{"not-after": "978307200000"}},
		{[]string{"--not-after", "never"}, map[string]string{"not-after": ""}},
		{[]string{"--disabled"}, map[string]string{"disabled": "1"}},
		{[]string{"--no-disabled", "--if-version", "8"}, map[string]string{"disabled": ""}},
	} {
		want := hash(s, "d")
		for field, value := range step.want {
			if want[field] = value; value == "" {
				delete(want, field)
			}
		}
		s.ok("", append([]string{"device", "set", "d"}, step.args...)...)
		got := hash(s, "d")
		for field, value := range want {
			if field != "version" && field != "published" && got[field] != value {
				t.Errorf("step %d, %v: %s is %q, want %q", i, step.args, field, got[field], value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("step %d, %v: got %v, want %v", i, step.args, got, want)
		}
	}
	s.fails(1, `stale version: device "d" has version 9, want 8`, "", "device", "set", "d", "--disabled",
		"--if-version", "8")
	s.fails(2, "give what to change", "", "device", "set", "d")
	s.fails(2, `--not-after "soon"`, "", "device", "set", "d", "--not-after", "soon")
	s.fails(2, `labels: name "A"`, "", "device", "set", "d", "--label", "A=b")
	s.fails(2, "can't be used together", "", "device", "set", "d", "--permissions", "a", "--add", "b")
	s.fails(2, "--secret-file", "", "device", "rotate", "d")
	s.fails(2, `"-1d": want a duration such as 24h or 30d`, "", "device", "rotate", "d", "--overlap=-1d", "--generate")
	s.fails(3, "not found", "x", "device", "rotate", "nobody", "--secret-file", "-", "--cost", "4")
	s.fails(2, "is the current one", first, "device", "rotate", "d", "--secret-file", "-", "--cost", "4")

	s.fails(2, "needs --generate", "x", "device", "put", "d", "--secret-file", "-", "--api-key")
	key := s.run("", "device", "put", "a_b", "--generate", "--api-key", "--cost", "4").stdout
	secret, found := strings.CutPrefix(strings.TrimSuffix(key, "\n"), "gh_a_b_")
	if c, err := contract.ParseCredential(hash(s, "a_b")); err != nil || !found ||
		bcrypt.CompareHashAndPassword([]byte(c.Hashes[0]), []byte("gh_"+secret)) != nil {
		t.Errorf("got the API key %q, want a_b's", key)
	}

	generated("10", "device", "rotate", "d", "--overlap", "1h", "--if-version", "9")
	if c := s.record(); len(c.Hashes) != 2 || c.OldUntilMS == 0 ||
		bcrypt.CompareHashAndPassword([]byte(c.Hashes[1]), []byte(first)) != nil {
		t.Errorf("after a rotation: %+v", c)
	}
	var d deviceView
	if err := json.Unmarshal([]byte(s.ok("", "device", "get", "d", "--json")), &d); err != nil || d.ID != "d" ||
		d.State != "enabled" || len(d.Schemes) != 2 || d.Schemes[1] != "bcrypt 4" ||
		d.OldUntil == "" || d.Labels["site"] != "7" || d.Hashes != nil {
		t.Errorf("get --json: %+v, %v", d, err)
	}
	text := s.ok("", "device", "get", "d")
	for _, want := range []string{"state:        enabled\n", "secret:       newest, bcrypt 4\n",
		"secret:       until 2", "labels:       fleet=us,site=7\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("get has no %q:\n%s", want, text)
		}
	}
	s.redis.HSet(keys.CredentialKey("d"), "old-until", "978307200000")
	if text := s.ok("", "device", "get", "d"); !strings.Contains(text, "secret:       ended 2001-01-01T00:00:00.000Z") {
		t.Errorf("get after the overlap:\n%s", text)
	}
	s.ok("", "device", "set", "d", "--end-overlap")
	if c := s.record(); len(c.Hashes) != 1 || c.OldUntilMS != 0 {
		t.Errorf("after the end of the overlap: %+v", c)
	}
	if got := s.ok("", "device", "delete", "d"); got != "d: deleted, version 12\n" {
		t.Errorf("delete: %q", got)
	}
	for _, command := range []string{"get", "delete"} {
		s.fails(3, "not found", "", "device", command, "d")
	}
	s.ok("", "device", "delete", "nobody", "--force")
}

// TestSelection lists and exports the devices that match.
func TestSelection(t *testing.T) {
	s := newShell(t)
	for id, flags := range map[string][]string{
		"car-1": {"--label", "fleet=eu", "--permissions", "read,write"},
		"car-2": {"--label", "fleet=us,model=x", "--permissions", "read"},
		"van-1": {"--label", "fleet=eu,model=x"},
	} {
		s.ok("secret", append([]string{"device", "put", id, "--secret-file", "-", "--cost", "4"}, flags...)...)
	}
	s.ok("new", "device", "rotate", "car-2", "--secret-file", "-", "--cost", "4")
	for _, test := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"car-1", "car-2", "van-1"}},
		{[]string{"car-*"}, []string{"car-1", "car-2"}},
		{[]string{"car-?", "--label", "fleet=eu"}, []string{"car-1"}},
		{[]string{"--label", "fleet=eu", "--label", "model=x"}, []string{"van-1"}},
		{[]string{"--permission", "write"}, []string{"car-1"}},
		{[]string{"--overlap"}, []string{"car-2"}},
		{[]string{"--label", "fleet="}, nil},
	} {
		for _, command := range []string{"list", "export"} {
			args := append([]string{"device", command}, test.args...)
			if command == "list" {
				args = append(args, "--json")
			}
			got := map[string]deviceView{}
			for line := range strings.Lines(s.ok("", args...)) {
				var d deviceView
				require.NoError(t, json.Unmarshal([]byte(line), &d))
				got[d.ID] = d
				if d.Permissions == nil {
					t.Errorf("%v: %s: permissions are null", args, d.ID)
				}
				if (len(d.Hashes) > 0) != (command == "export") {
					t.Errorf("%v: %s has hashes %q", args, d.ID, d.Hashes)
				}
			}
			for _, id := range test.want {
				if _, found := got[id]; !found {
					t.Errorf("%v: no %s", args, id)
				}
			}
			if len(got) != len(test.want) {
				t.Errorf("%v: got %d devices, want %d", args, len(got), len(test.want))
			}
		}
	}
	s.fails(2, "syntax error in pattern", "", "device", "list", "[")
}

// TestDevicePepper stores generated secrets as gh1, beside the hash before, and refuses chosen ones.
func TestDevicePepper(t *testing.T) {
	s := newShell(t)
	file := filepath.Join(t.TempDir(), "pepper")
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("p", 64)+"\n"), 0o600))
	pepper, err := contract.NewPepper([]byte(strings.Repeat("p", 64)))
	require.NoError(t, err)
	s.ok("chosen", "device", "put", "d", "--secret-file", "-", "--cost", "4")
	secret := strings.TrimSpace(s.run("", "device", "rotate", "d", "--generate", "--pepper-file", file).stdout)
	if c := s.record(); len(c.Hashes) != 2 || !pepper.Matches(c.Hashes[0], secret) {
		t.Errorf("got %+v", c)
	}
	s.fails(2, "is the current one", secret, "device", "rotate", "d", "--secret-file", "-", "--pepper-file", file)
	var d deviceView
	if err := json.Unmarshal([]byte(s.ok("", "device", "list", "--json")), &d); err != nil ||
		!slices.Equal(d.Schemes, []string{"gh1 " + pepper.ID, "bcrypt 4"}) {
		t.Errorf("list --json: %+v, %v", d, err)
	}
	s.fails(2, "only generated ones", "chosen", "device", "put", "d", "--secret-file", "-", "--pepper-file", file)
	s.fails(2, "its checksum is wrong", secret+"0", "device", "put", "d", "--secret-file", "-", "--cost", "4")
	s.fails(2, "a pepper of 3 bytes", "abc", "device", "put", "d", "--generate", "--pepper-file", "-")
	s.run("", "device", "put", "d", "--generate", "--pepper-file", file)
	if c := s.record(); len(c.Hashes) != 1 || !strings.HasPrefix(c.Hashes[0], "$gh1$"+pepper.ID) {
		t.Errorf("got %+v", c)
	}
}

// TestSeen lists devices by the sidecars' records of authentications.
func TestSeen(t *testing.T) {
	s := newShell(t)
	for _, id := range []string{"here", "away", "never", "old", "both", "moved"} {
		s.ok("secret", "device", "put", id, "--secret-file", "-", "--cost", "4")
	}
	for _, id := range []string{"old", "both", "moved"} {
		s.ok("new", "device", "rotate", id, "--secret-file", "-", "--cost", "4", "--overlap", "1d")
	}
	s.fails(1, "no sidecar has written last authentications", "", "device", "list", "--not-seen", "30d")
	if out := s.ok("", "device", "get", "here"); !strings.Contains(out, "last seen:    -\n") {
		t.Errorf("before a sidecar wrote: %s", out)
	}
	now := time.Now()
	at := func(key, id string, ago time.Duration) {
		if _, err := s.redis.ZAdd(key, float64(now.Add(-ago).UnixMilli()), id); err != nil {
			t.Fatal(err)
		}
	}
	const day = 24 * time.Hour
	at(keys.SeenKey(), contract.SeenBegin, 100*day)
	at(keys.SeenKey(), "here", time.Hour)
	at(keys.SeenKey(), "away", 40*day)
	at(keys.SeenKey(), "old", 20*day)
	at(keys.SeenOldKey(), "old", 20*day)
	at(keys.SeenKey(), "both", time.Hour)
	at(keys.SeenOldKey(), "both", time.Hour+5*time.Minute) // before the last write of the record, which doesn't matter
	at(keys.SeenKey(), "moved", -time.Hour)
	at(keys.SeenOldKey(), "moved", -time.Hour+6*time.Minute)
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "away both here moved never old"},
		{[]string{"--not-seen", "30d"}, "away never"},
		{[]string{"--not-seen", "10d", "--label", "a=b"}, ""},
		{[]string{"--not-seen", "240h"}, "away never old"},
		{[]string{"--not-seen", now.Add(-50 * day).Format(time.RFC3339)}, "never"},
		{[]string{"--old-secret-in-use"}, "both old"},
		{[]string{"--old-secret-in-use", "--not-seen", "10d"}, "old"},
	} {
		var got []string
		for line := range strings.Lines(s.ok("", append([]string{"device", "list", "--json"}, test.args...)...)) {
			var d deviceView
			if err := json.Unmarshal([]byte(line), &d); err != nil || (d.LastSeen == "") != (d.ID == "never") {
				t.Errorf("%s: %v", line, err)
			}
			got = append(got, d.ID)
		}
		if slices.Sort(got); strings.Join(got, " ") != test.want {
			t.Errorf("%v: got %v, want %s", test.args, got, test.want)
		}
	}
	s.ok("", "device", "set", "old", "--end-overlap")
	if _, err := s.redis.ZAdd(keys.SeenFailedKey(now), 3, contract.FailedMember("192.0.2.1/32", "old")); err != nil {
		t.Fatal(err)
	}
	out := s.ok("", "device", "get", "old")
	for _, want := range []string{"last seen:    2", ", with an old secret\n",
		"failed:       3 times from 192.0.2.1/32 since yesterday\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("get has no %q:\n%s", want, out)
		}
	}
	if out := s.ok("", "device", "list", "--old-secret-in-use", "--json"); strings.Contains(out, `"old"`) {
		t.Errorf("after the end of the overlap: %s", out)
	}
	s.fails(2, `--not-seen "soon"`, "", "device", "list", "--not-seen", "soon")
	at(keys.SeenKey(), contract.SeenBegin, day)
	if r := s.run("", "device", "list", "--not-seen", "30d"); r.code != 0 || !strings.Contains(r.stderr, "known since") {
		t.Errorf("known for a day only: %+v, want that it says so", r)
	}
}
