package credential_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// marked returns the devices in the edge's list, sorted.
func (e *edge) marked() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.marks))
}

// TestMarks changes a device's record: the edge lists the device exactly while the device may authenticate.
func TestMarks(t *testing.T) {
	f := start(pinned)
	deleted := contract.Credential{ID: "d", Deleted: true}
	revoked := device("d", 0, "s")
	revoked.Disabled = true
	costly := contract.Credential{ID: "d", Hashes: []string{"$2a$15$" + strings.Repeat("a", 53)}}
	steps := []struct {
		name   string
		record contract.Credential
		marked bool
	}{
		{"registered", device("d", 0, "s"), true},
		{"deleted", deleted, false},
		{"registered again", device("d", 0, "s"), true},
		{"given another secret", device("d", 0, "t"), true},
		{"rotated", device("d", 0, "t", "u"), true},
		{"revoked", revoked, false},
		{"still revoked", revoked, false},
		{"enabled", device("d", 0, "s"), true},
		{"hashed at too high a cost", costly, false},
		{"healed", device("d", 0, "s"), true},
		{"without a hash", device("d", 0), false},
	}
	for i, step := range steps {
		step.record.Version = uint64(i + 1)
		f.Apply(step.record)
		if got := len(f.edge.marked()) == 1; got != step.marked {
			t.Errorf("%s: got a mark %v, want %v", step.name, got, step.marked)
		}
	}
	f.Apply(device("d", 100, "s"))
	f.Remove("d")
	f.Remove("d")
	f.Apply(device("kept", 1, "s"))
	f.Apply(device("lost", 1, "s"))
	f.Shard(0).BeginResync()
	f.Apply(device("kept", 1, "s"))
	f.Shard(0).EndResync()
	if got := f.edge.marked(); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("after a full resync without it: got marks of %q, want kept only", got)
	}
}

// TestOnlySecret: a verdict has only only if the device has no other right secret.
func TestOnlySecret(t *testing.T) {
	tests := []struct {
		name    string
		secrets []string
		shown   string
		outcome wire.Outcome
		only    bool
	}{
		{"one secret", []string{"right"}, "right", wire.Allow, true},
		{"one secret, another is shown", []string{"right"}, "wrong", wire.Deny, false},
		{"two secrets, the first", []string{"right", "next"}, "right", wire.Allow, false},
		{"two secrets, the second", []string{"right", "next"}, "next", wire.Allow, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := start(pinned)
			f.Apply(device("d", 1, tt.secrets...))
			for _, how := range []string{"by bcrypt", "again"} {
				if r := f.Verify(t.Context(), "d", tt.shown); r.Outcome != tt.outcome {
					t.Errorf("%s: got %s because of %s", how, r.Outcome, r.Reason)
				}
				if f.edge.only != tt.only {
					t.Errorf("%s: got only %v, want %v", how, f.edge.only, tt.only)
				}
			}
		})
	}
}

// TestDevicesComplete reads shard after shard: the list of devices is complete only after the last shard.
func TestDevicesComplete(t *testing.T) {
	const shards = contract.Shards(3)
	f := start(credential.Config{Shards: shards}) // shard 0 is read
	for i := range shards.Count() {
		if f.edge.complete {
			t.Errorf("complete before shard %d was read", i)
		}
		f.Shard(i).BeginResync()
		f.Shard(i).EndResync()
	}
	if !f.edge.complete {
		t.Error("not complete although all shards were read")
	}
}
