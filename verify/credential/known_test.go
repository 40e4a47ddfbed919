package credential_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// memory survives a Verifier.
type memory struct {
	sources map[uint64][]uint64
	asked   int
}

func (m *memory) Key() (key [16]byte) { key[0] = 1; return key }
func (m *memory) Restored()           {}
func (m *memory) Add(device, source uint64) {
	m.sources[device] = append(m.sources[device], source)
}
func (m *memory) Of(device uint64) []uint64 { m.asked++; return m.sources[device] }

// nat is the address of a bad client and good devices.
const nat = "192.0.2.1"

// exhaust sends wrong secrets from nat until its limit is reached.
func (f fixture) exhaust(t *testing.T) {
	t.Helper()
	for i := range fewFailures.SourceFailures {
		f.show(t, fmt.Sprint("bad", i%3), fmt.Sprint("wrong", i), nat, wire.Deny, "bcrypt")
	}
	f.show(t, "bad0", "another", nat, wire.Unavailable, "limited")
}

// behindNAT returns a verifier with good and bad devices from the first read of Redis.
func behindNAT(c credential.Config) fixture {
	c.PinTTL, c.Limits, c.Workers = time.Hour, fewFailures, 1
	c.DeviceFailures = c.SourceFailures
	f := starting(c)
	for _, id := range []string{"good", "new", "bad0", "bad1", "bad2"} {
		f.Apply(device(id, 1, "right"))
	}
	f.Shard(0).EndResync()
	return f
}

// TestKnownAcrossRestart: a device that authenticated from its address before a restart can authenticate from this
// address again, although another client at the address has exceeded the limit. Other devices and other addresses
// cannot.
func TestKnownAcrossRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{sources: map[uint64][]uint64{}}
		f := behindNAT(credential.Config{Known: m})
		f.show(t, "good", "right", nat, wire.Allow, "bcrypt")
		f.show(t, "good", "right", nat, wire.Allow, "pin")
		f.show(t, "good", "right", "", wire.Allow, "pin") // an unknown address
		if len(m.sources) != 1 {
			t.Fatalf("kept %v, want one device", m.sources)
		}
		for _, of := range m.sources {
			if len(of) != 1 {
				t.Fatalf("kept %v, want its address once", of)
			}
		}
		f = behindNAT(credential.Config{Known: m})
		if isNew := f.edge.marks; isNew["good"] || !isNew["new"] {
			t.Errorf("the edge is told of new devices: %v, want new but not good", isNew)
		}
		f.exhaust(t)
		f.show(t, "new", "right", nat, wire.Unavailable, "limited")
		f.show(t, "good", "right", nat, wire.Allow, "bcrypt")
		asked := m.asked
		f.Apply(device("later", 1, "right")) // first read after the start
		if m.asked != asked {
			t.Error("asked what was before the start for a device that came after it")
		}
	})
}

// TestFleetBeforeLimit finds a device's verdict in the fleet although its address has exceeded the limit. The edge must
// ask again afterwards, and a flood does not cause a flood of lookups.
func TestFleetBeforeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		o := &others{find: func(c *credential.Question) *credential.Match {
			asked++
			if c.Device == "good" && c.Secret == "right" {
				return right(c, time.Hour)
			}
			return nil
		}}
		f := behindNAT(credential.Config{Fleet: o})
		f.exhaust(t)
		if r := f.show(t, "new", "right", nat, wire.Unavailable, "limited"); r.ThrottleFor != 0 {
			t.Errorf("the edge is to hold for %v, want not at all while the fleet may be asked", r.ThrottleFor)
		}
		f.show(t, "good", "wrong", nat, wire.Unavailable, "limited")
		f.show(t, "good", "right", nat, wire.Allow, "shared")

		time.Sleep(time.Second)
		asked = 0
		var last credential.Result
		for i := range 1000 {
			last = f.Verifier.Verify(t.Context(), []string{"new", "bad0", "bad1", "bad2"}[i%4], fmt.Sprint("guess", i), nat)
		}
		if last.Reason != "limited" || asked > 30 { // some attempts are within the limit
			t.Errorf("asked %d times for 1000 guesses, the last of which is %v", asked, last)
		}
		if r := f.show(t, "new", "right", nat, wire.Unavailable, "limited"); r.ThrottleFor <= 0 ||
			r.ThrottleFor > 100*time.Millisecond {
			t.Errorf("the edge is to hold for %v, want a moment", r.ThrottleFor)
		}
		time.Sleep(time.Second)
		asked = 0
		for i := range 20 {
			f.Verifier.Verify(t.Context(), "new", fmt.Sprint("another", i), nat)
		}
		f.show(t, "new", "right", nat, wire.Throttled, "limited")
		if asked >= fewFailures.SourceFailures { // the limit of the device here
			t.Errorf("asked %d times for the guesses of one device", asked)
		}
	})
}
