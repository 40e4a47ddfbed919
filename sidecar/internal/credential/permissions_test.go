package credential_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/credential"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics/metricstest"
)

// permitted returns a device with the secret s and permissions.
func permitted(id string, version uint64, names ...string) contract.Credential {
	c := device(id, version, "s")
	c.Permissions = names
	return c
}

// many returns the maximum number of permission names, with a prefix.
func many(prefix string) (names []string) {
	for i := range limits.MaxPermissions {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// TestPermissionsOverTheLimit refuses a device with a name too many, until another device's name is released.
func TestPermissionsOverTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(pinned)
		f.Apply(permitted("first", 1, many("p")...))
		f.Apply(permitted("d", 1, "p1", "more"))
		f.expect(t, "d", "s", wire.Deny, "refused_record", 0)
		if f.edge.marks["d"] || !f.edge.marks["first"] {
			t.Errorf("marks are %v", f.edge.marks)
		}
		if got := metricstest.Value(t, f.metrics, "gatehouse_credentials_refused_total", "reason", "permissions"); got != 1 {
			t.Errorf("%v refusals counted, want 1", got)
		}
		f.Apply(permitted("first", 2, many("p")[1:]...))
		time.Sleep(2 * time.Second)
		f.expect(t, "d", "s", wire.Unavailable, "permissions", 0) // a bit is free in the next epoch
		if _, found := f.edge.marks["d"]; !found {
			t.Error("the edge says that the device is unknown, which it is to let in soon")
		}
		f.edge.Reset(nil)
		time.Sleep(2 * time.Second)
		f.expect(t, "d", "s", wire.Allow, "bcrypt", 1)
		if v, _ := f.edge.verdict("d", "s"); fmt.Sprint(f.edge.PermissionNames(v.Permissions)) != "[more p1]" {
			t.Errorf("got %q", f.edge.PermissionNames(v.Permissions))
		}
	})
}

// TestPermissionsGiveWay changes the names of all devices in sequence, repeatedly: in the end each device has its own
// names, however many names there were. Deleted, disabled and resynchronized devices leave no names behind.
func TestPermissionsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(pinned)
		for round := range uint64(5) {
			names := many(fmt.Sprint("round", round, "-"))
			for i := range 4 {
				f.Apply(permitted(fmt.Sprint("d", i), round+1, names[16*i:][:16]...))
			}
			f.Apply(permitted("gone", 2*round+1, "gone's"))
			f.Apply(contract.Credential{ID: "gone", Version: 2*round + 2, Disabled: round%2 == 0, Deleted: round%2 == 1})
			for range 3 { // a device may wait for the bits of another waiting device
				f.edge.Reset(nil)
				time.Sleep(2 * time.Second)
			}
			f.Shard(0).BeginResync()
			for i := range 4 {
				f.Apply(permitted(fmt.Sprint("d", i), round+1, names[16*i:][:16]...))
			}
			f.Shard(0).EndResync()
			for i := range 4 {
				id := fmt.Sprint("d", i)
				f.show(t, id, "s", "", wire.Allow, "bcrypt")
				v, _ := f.edge.verdict(id, "s")
				if got := f.edge.PermissionNames(v.Permissions); len(got) != 16 {
					t.Errorf("round %d: %s has %q", round, id, got)
				}
				for _, name := range f.edge.PermissionNames(v.Permissions) {
					if name[:len("round0-")] != fmt.Sprint("round", round, "-") {
						t.Errorf("round %d: %s has permission %s", round, id, name)
					}
				}
			}
		}
		if n := f.edge.Stats().Permissions; n > limits.MaxPermissions {
			t.Errorf("%d names", n)
		}
	})
}

var _ credential.Memory = new(edge)
