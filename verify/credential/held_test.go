package credential_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// TestHeld lists and releases holds of the limits.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{Limits: credential.Limits{DeviceFailures: 2, SourceFailures: 3, Window: time.Hour}})
		f.Apply(device("a", 1, "right"))
		f.Apply(device("b", 1, "right"))
		const from, other = "192.0.2.1", "2001:db8::1"
		f.show(t, "a", "wrong1", from, wire.Deny, "bcrypt")
		f.show(t, "a", "wrong2", from, wire.Deny, "bcrypt")
		f.show(t, "b", "wrong", other, wire.Deny, "bcrypt")
		network := netip.MustParsePrefix("192.0.2.1/32")
		held := f.ListHolds()
		if len(held) != 3 || held[0].Network != network || held[0].Device != "a" || held[0].WaitS <= 0 || held[1].WaitS != 0 {
			t.Fatalf("got %+v, want the device at its network first, and the two networks", held)
		}
		f.show(t, "a", "right", from, wire.Throttled, "limited")
		if n := f.ReleaseHold(network, "b"); n != 0 {
			t.Errorf("released %d of another device, want 0", n)
		}
		if n := f.ReleaseHold(network, ""); n != 2 {
			t.Errorf("released %d, want 2", n)
		}
		f.show(t, "a", "right", from, wire.Allow, "bcrypt")
		if held := f.ListHolds(); len(held) != 1 || held[0].Network != netip.MustParsePrefix("2001:db8::/64") {
			t.Errorf("got %+v, want the other network", held)
		}
		f.show(t, "a", "wrong3", from, wire.Deny, "resolved")
		f.Apply(device("a", 2, "new"))
		f.show(t, "a", "wrong4", from, wire.Deny, "bcrypt")
		f.show(t, "a", "wrong5", from, wire.Deny, "bcrypt")
		f.show(t, "b", "right", other, wire.Allow, "bcrypt")
		f.Apply(device("b", 2, "new"))
		f.show(t, "b", "wrong6", other, wire.Deny, "bcrypt")
		f.show(t, "b", "wrong7", other, wire.Deny, "bcrypt")
		if held := f.ListHolds(); len(held) != 3 || !held[0].Own || !held[1].Own || held[2].Device != "" {
			t.Errorf("got %+v, want both devices where they authenticated before, and the other network", held)
		}
		time.Sleep(time.Hour)
		if held := f.ListHolds(); len(held) != 0 {
			t.Errorf("an hour later: got %+v", held)
		}
	})
}

// TestHeldIsBounded: the newest 1,024 failures are known by name.
func TestHeldIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{
			Limits:  credential.Limits{DeviceFailures: 1, SourceFailures: 1, Window: time.Hour},
			Compare: func(string, string, <-chan bool) error { return bcrypt.ErrMismatchedHashAndPassword },
		})
		f.Apply(device("a", 1, "right"))
		for n := range 600 {
			f.show(t, "a", fmt.Sprint("wrong", n), fmt.Sprintf("192.0.%d.%d", n/200, n%200), wire.Deny, "bcrypt")
		}
		if held := f.ListHolds(); len(held) != 1024 {
			t.Errorf("%d are held by name, want 1024 of 1200", len(held))
		}
	})
}
