package publish

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// stored returns a device's record, which must be valid, without the time of the write.
func (s server) stored(t *testing.T, id string) contract.Credential {
	t.Helper()
	c, err := contract.ParseCredential(s.hash(t, contract.CredentialMember(id)))
	require.NoError(t, err)
	c.PublishedMS = 0
	return c
}

func TestPutDevice(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		end := time.Date(2030, 1, 2, 3, 4, 5, 6e6, time.UTC)
		secret := strings.Repeat("é", limits.MaxSecret/2)
		if _, err := s.p.PutDevice(t.Context(), Device{ID: "d", Secret: secret, Permissions: []string{"b", "a", "b"},
			NotAfter: end, Cost: 5, Version: 7}); err != nil {
			t.Fatal(err)
		}
		got := s.stored(t, "d")
		if err := bcrypt.CompareHashAndPassword([]byte(got.Hashes[0]), []byte(secret)); err != nil {
			t.Errorf("stored hash: %v", err)
		}
		if cost, _ := bcrypt.Cost([]byte(got.Hashes[0])); cost != 5 {
			t.Errorf("cost %d, want 5", cost)
		}
		want := contract.Credential{Version: 7, Hashes: got.Hashes, Permissions: []string{"a", "b"},
			NotAfterMS: end.UnixMilli()}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got := s.hash(t, contract.CredentialMember("d"))["permissions"]; got != "a,b" {
			t.Errorf("permissions are stored as %q, want them sorted and once", got)
		}

		hashes := []string{got.Hashes[0], got.Hashes[0]}
		if _, err := s.p.PutDevice(t.Context(), Device{ID: "d", Hashes: hashes}); err != nil {
			t.Fatal(err)
		}
		want = contract.Credential{Version: 8, Hashes: hashes} // nothing remains of the old record
		if got := s.stored(t, "d"); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestDefaultCost(t *testing.T) {
	s := serverAt(t, redistest.Start(t)) // one server only: hashing is slow with the race detector
	if _, err := s.p.PutDevice(t.Context(), Device{ID: "d", Secret: "s"}); err != nil {
		t.Fatal(err)
	}
	if cost, err := bcrypt.Cost([]byte(s.stored(t, "d").Hashes[0])); cost != 12 {
		t.Errorf("cost %d, %v; want 12", cost, err)
	}
}

func TestRevokeDevice(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		device := Device{ID: "d", Secret: "s", Cost: 4, Permissions: []string{"a"}, NotAfter: time.UnixMilli(99)}
		if _, err := s.p.PutDevice(ctx, device); err != nil {
			t.Fatal(err)
		}
		want := s.stored(t, "d")
		for version := uint64(2); version < 4; version++ { // repetition changes nothing
			if _, err := s.p.RevokeDevice(ctx, "d"); err != nil {
				t.Fatal(err)
			}
			want.Version, want.Disabled, want.Revoked = version, true, true
			if got := s.stored(t, "d"); !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		if _, err := s.p.PutDevice(ctx, device); err != nil {
			t.Fatal(err)
		}
		if s.stored(t, "d").Disabled {
			t.Error("still disabled after a new put")
		}
	})
}

// TestRevokeOddRecords: another writer's tombstone is no device to revoke; a damaged record can be revoked.
func TestRevokeOddRecords(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		s.HSet(ctx, keys.CredentialKey("gone"), contract.Credential{Version: 1, PublishedMS: 1, Deleted: true}.Fields())
		if _, err := s.p.RevokeDevice(ctx, "gone"); !errors.Is(err, ErrNotFound) {
			t.Errorf("tombstone: %v, want ErrNotFound", err)
		}
		s.HSet(ctx, keys.CredentialKey("damaged"), "hash", "x")
		if _, err := s.p.RevokeDevice(ctx, "damaged"); err != nil {
			t.Errorf("damaged: %v", err)
		}
		if got := s.hash(t, contract.CredentialMember("damaged")); got["disabled"] != "revoked" || got["version"] != "1" ||
			got["hash"] != "x" {
			t.Errorf("damaged: %v", got)
		}
	})
}

func TestListDevices(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		hash, err := bcrypt.GenerateFromPassword([]byte("s"), bcrypt.MinCost)
		require.NoError(t, err)
		for _, id := range []string{"a", "b", "damaged", "foreign", "gone", "expired"} {
			if _, err := s.p.PutDevice(ctx, Device{ID: id, Hashes: []string{string(hash)}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.p.Put(ctx, Object{Key: "/a", ContentType: "a"}); err != nil { // not to be listed
			t.Fatal(err)
		}
		s.HSet(ctx, keys.CredentialKey("damaged"), "disabled", "true")
		s.Del(ctx, keys.CredentialKey("gone"), keys.CredentialKey("expired"), keys.CredentialKey("foreign"))
		s.Set(ctx, keys.CredentialKey("foreign"), "a string", 0)
		s.HSet(ctx, keys.CredentialKey("gone"), contract.Credential{Version: 2, PublishedMS: 1, Deleted: true}.Fields())
		if _, err := s.p.RevokeDevice(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		var got []string
		for c, err := range s.p.ListDevices(ctx) {
			got = append(got, fmt.Sprint(c.ID, c.Version, c.Disabled, errors.Is(err, ErrCorrupt)))
		}
		want := []string{"b1 false false", "damaged0 false true", "foreign0 false true", "a2 true false"}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestPutDeviceRefuses(t *testing.T) {
	const hash = "$2b$12$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234"
	good := Device{ID: "d", Secret: "secret-value", Cost: 4}
	tests := []struct {
		name  string
		spoil func(*Device)
		want  string
	}{
		{"no id", func(d *Device) { d.ID = "" }, `device id ""`},
		{"id with slash", func(d *Device) { d.ID = "a/b" }, `device id "a/b"`},
		{"long id", func(d *Device) { d.ID = strings.Repeat("a", 129) }, "129 bytes, at most 128"},
		{"neither secret nor hash", func(d *Device) { d.Secret = "" }, "give a secret"},
		{"both", func(d *Device) { d.Hashes = []string{hash} }, "give a secret"},
		{"long secret", func(d *Device) { d.Secret = strings.Repeat("s", 73) }, "73 bytes, at most 72"},
		{"NUL", func(d *Device) { d.Secret += "\x00" }, "control character"},
		{"blank before", func(d *Device) { d.Secret = " " + d.Secret }, "blank at an end"},
		{"blank after", func(d *Device) { d.Secret += " " }, "blank at an end"},
		{"only a blank", func(d *Device) { d.Secret = " " }, "blank at an end"},
		{"tab after", func(d *Device) { d.Secret += "\t" }, "control character"},
		{"byte order mark", func(d *Device) { d.Secret = "\ufeff" + d.Secret }, "byte order mark"},
		{"line end", func(d *Device) { d.Secret += "\n" }, "line end"},
		{"low cost", func(d *Device) { d.Cost = 3 }, "cost 3 of \"d\": is out of 4 to 15"},
		{"high cost", func(d *Device) { d.Cost = 16 }, "cost 16"},
		{"negative cost", func(d *Device) { d.Cost = -1 }, "cost -1"},
		{"no bcrypt", func(d *Device) { d.Secret, d.Hashes = "", []string{hash, "secret-value"} }, "hash 2 of"},
		{"many hashes", func(d *Device) { d.Secret, d.Hashes = "", []string{hash, hash, hash, hash, hash} }, "5, at most 4"},
		{"permission with comma", func(d *Device) { d.Permissions = []string{"a,b"} }, `permission "a,b"`},
		{"permission empty", func(d *Device) { d.Permissions = []string{""} }, `permission ""`},
		{"many permissions", func(d *Device) {
			d.Permissions = strings.Split(strings.Repeat("a.", 64)+"a", ".")
		}, "65 names, at most 64"},
		{"not-after before 1970", func(d *Device) { d.NotAfter = time.UnixMilli(-1) }, "not-after"},
		{"large version", func(d *Device) { d.Version = 1 << 53 }, "version 9007199254740992"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := good
			test.spoil(&d)
			_, err := New(nil).PutDevice(t.Context(), d) // refused before the client is used
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrInvalid with %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret-value") {
				t.Errorf("the error has the secret in it: %v", err)
			}
		})
	}
}
