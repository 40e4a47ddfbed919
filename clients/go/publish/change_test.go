package publish

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// registered puts a device that has all fields.
func (s server) registered(t *testing.T, secret string) {
	t.Helper()
	if _, err := s.p.PutDevice(t.Context(), Device{ID: "d", Secret: secret, Cost: 4, Permissions: []string{"a"},
		NotAfter: time.UnixMilli(1 << 50), Labels: map[string]string{"fleet": "eu"}}); err != nil {
		t.Fatal(err)
	}
}

// matches returns which of the stored hashes matches secret, -1 for none.
func matches(c contract.Credential, secret string) int {
	for i, hash := range c.Hashes {
		if bcrypt.CompareHashAndPassword([]byte(hash), []byte(secret)) == nil {
			return i
		}
	}
	return -1
}

func TestRotateDevice(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.registered(t, "first")
		want := s.stored(t, "d")
		rotate := func(secret string, overlap time.Duration) contract.Credential {
			t.Helper()
			rotation := Rotation{ID: "d", Secret: secret, Overlap: overlap, Cost: 4}
			if _, err := s.p.RotateDevice(t.Context(), rotation); err != nil {
				t.Fatal(err)
			}
			return s.stored(t, "d")
		}
		began := time.Now()
		got := rotate("second", time.Hour)
		if matches(got, "second") != 0 || matches(got, "first") != 1 || len(got.Hashes) != 2 {
			t.Errorf("got hashes %q, want those of the new secret and the one before", got.Hashes)
		}
		if end := time.UnixMilli(got.OldUntilMS); end.Before(began.Add(time.Hour-time.Second)) ||
			end.After(time.Now().Add(time.Hour)) {
			t.Errorf("the overlap ends at %v, want in an hour", end)
		}
		got = rotate("third", time.Minute)
		if matches(got, "third") != 0 || matches(got, "second") != 1 || matches(got, "first") != -1 {
			t.Error("the second rotation did not end the first secret")
		}
		got = rotate("fourth", 0)
		if matches(got, "fourth") != 0 || len(got.Hashes) != 1 || got.OldUntilMS != 0 {
			t.Errorf("without an overlap: got %+v", got)
		}
		want.Version, want.Hashes = 4, got.Hashes
		if !reflect.DeepEqual(got, want) { // all else stays
			t.Errorf("got %+v, want %+v", got, want)
		}

		if _, err := s.p.RevokeDevice(t.Context(), "d"); err != nil {
			t.Fatal(err)
		}
		if got := rotate("fifth", time.Hour); !got.Disabled {
			t.Error("the rotation ended a revocation")
		}
		for _, test := range []struct {
			rotation Rotation
			want     error
			text     string
		}{
			{Rotation{ID: "d", Secret: "fifth", Cost: 4}, ErrInvalid, "is the current one"},
			{Rotation{ID: "d", Secret: "sixth", Cost: 4, Version: 5}, ErrStale, "has version 6, want 5"},
			{Rotation{ID: "d", Secret: "sixth", Cost: 4, Overlap: -time.Second}, ErrInvalid, "overlap -1s"},
			{Rotation{ID: "d", Secret: strings.Repeat("s", 73)}, ErrInvalid, "73 bytes"},
			{Rotation{ID: "none", Secret: "s", Cost: 4}, ErrNotFound, "none"},
		} {
			_, err := s.p.RotateDevice(t.Context(), test.rotation)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%+v: got %v, want %v with %q", test.rotation, err, test.want, test.text)
			}
		}
		if got := s.stored(t, "d").Version; got != 6 {
			t.Errorf("version %d, want 6: nothing was written", got)
		}
	})
}

// TestLostMeanwhile: a change of a record that Redis has lost must not be the first write of an empty Redis: edges
// would assume the loss of all data.
func TestLostMeanwhile(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		s.registered(t, "s")
		for _, version := range []uint64{0, s.stored(t, "d").Version} {
			s.registered(t, "s")
			_, err := s.p.ChangeDevice(ctx, "d", version, func(c *contract.Credential) error {
				s.FlushAll(ctx)
				return nil
			})
			if want := map[bool]error{true: ErrNotFound, false: ErrStale}[version == 0]; !errors.Is(err, want) {
				t.Errorf("version %d: %v, want %v", version, err, want)
			}
			if n := s.Exists(ctx, keys.DataEpochKey(), keys.SeqKey()).Val(); n > 0 {
				t.Errorf("version %d: the emptied Redis has a data epoch, or a number of writes", version)
			}
		}
	})
}

// TestChangeDevice: a change is made again if another change of the record came first; with a version, the change
// fails.
func TestChangeDevice(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		s.registered(t, "s")
		overtaken := 0
		add := func(c *contract.Credential) error {
			if overtaken++; overtaken == 1 {
				if _, err := s.p.RevokeDevice(ctx, "d"); err != nil {
					return err
				}
			}
			c.Permissions = append(c.Permissions, "c", "b", "c")
			return nil
		}
		want := s.stored(t, "d")
		receipt, err := s.p.ChangeDevice(ctx, "d", 0, add)
		want.Version, want.Disabled, want.Revoked, want.Permissions = 3, true, true, []string{"a", "b", "c"}
		if got := s.stored(t, "d"); err != nil || receipt.Version != 3 || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
		overtaken = 0
		if _, err := s.p.ChangeDevice(ctx, "d", 3, add); !errors.Is(err, ErrStale) || overtaken != 1 {
			t.Errorf("overtaken with a version: %v after %d calls, want ErrStale", err, overtaken)
		}
		for name, change := range map[string]func(*contract.Credential){
			"permission": func(c *contract.Credential) { c.Permissions = []string{"a b"} },
			"label":      func(c *contract.Credential) { c.Labels = map[string]string{"A": ""} },
			"17, at most": func(c *contract.Credential) {
				for i := range contract.MaxLabels {
					c.Labels[fmt.Sprint("label", i)] = ""
				}
			},
		} {
			_, err := s.p.ChangeDevice(ctx, "d", 0, func(c *contract.Credential) error { change(c); return nil })
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v, want ErrInvalid with %q", err, name)
			}
		}
		s.HSet(ctx, keys.CredentialKey("d"), "disabled", "yes")
		if _, err := s.p.ChangeDevice(ctx, "d", 0, add); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a corrupt record: %v", err)
		}
		if _, err := s.p.GetDevice(ctx, "d"); !errors.Is(err, ErrCorrupt) {
			t.Errorf("get a corrupt record: %v", err)
		}
	})
}

func TestDeleteDevice(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		s.registered(t, "s")
		if c, err := s.p.GetDevice(ctx, "d"); err != nil || c.ID != "d" || c.Labels["fleet"] != "eu" {
			t.Errorf("got %+v, %v", c, err)
		}
		if receipt, err := s.p.DeleteDevice(ctx, "d", false); err != nil || receipt.Version != 2 {
			t.Errorf("got %+v, %v", receipt, err)
		}
		if got := s.stored(t, "d"); !got.Deleted {
			t.Errorf("got %+v, want a tombstone", got)
		}
		if _, err := s.p.GetDevice(ctx, "d"); !errors.Is(err, ErrNotFound) {
			t.Errorf("get after delete: %v", err)
		}
		for _, id := range []string{"d", "none"} {
			if _, err := s.p.DeleteDevice(ctx, id, false); !errors.Is(err, ErrNotFound) {
				t.Errorf("delete %s: %v, want ErrNotFound", id, err)
			}
			if _, err := s.p.DeleteDevice(ctx, id, true); err != nil {
				t.Errorf("delete %s by force: %v", id, err)
			}
		}
	})
}

func TestNewSecret(t *testing.T) {
	form := regexp.MustCompile(`^(gh_[A-Z2-7]{26})_([0-9a-f]{8})$`)
	first := NewSecret()
	parts := form.FindStringSubmatch(first)
	if parts == nil || !limits.ValidSecret(first) || first == NewSecret() {
		t.Fatalf("got %q", first)
	}
	text, err := os.ReadFile("../../../docs/devices.md")
	require.NoError(t, err)
	scanned := regexp.MustCompile(regexp.MustCompile(`(?m)^    (gh_\(.*)$`).FindStringSubmatch(string(text))[1])
	key, ok := APIKey("a_b", first)
	if got := scanned.FindString(`"` + key + `",`); !ok || got != key || scanned.FindString("x "+first) != first ||
		scanned.MatchString("gh_x") {
		t.Errorf("scanners find %q of %q", got, key)
	}
	if want := fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(parts[1]))); parts[2] != want {
		t.Errorf("checksum %s, want %s", parts[2], want)
	}
}
