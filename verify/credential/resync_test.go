package credential_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// TestResyncOfOneShard: a full resync of a shard removes no device of other shards, and only devices of read shards are
// unknown.
func TestResyncOfOneShard(t *testing.T) {
	const shards = contract.Shards(4)
	f := start(credential.Config{Shards: shards}) // shard 0 is read
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprint("d", i))
		want := wire.Unavailable
		if shards.Of(ids[i]) == 0 {
			want = wire.Deny
		}
		if r := f.Verify(t.Context(), ids[i], "s"); r.Outcome != want {
			t.Errorf("%s of shard %d: %s because of %s, want %s", ids[i], shards.Of(ids[i]), r.Outcome, r.Reason, want)
		}
	}
	for i := range shards.Count() {
		f.Shard(i).BeginResync()
		for _, id := range ids {
			if shards.Of(id) == i {
				f.Apply(contract.Credential{ID: id, Version: 5, Hashes: []string{hashed("s", 4)}})
			}
		}
		f.Shard(i).EndResync()
	}
	f.Shard(2).BeginResync()
	f.Shard(2).EndResync()
	for _, id := range ids {
		want := wire.Allow
		if shards.Of(id) == 2 {
			want = wire.Deny
		}
		if r := f.Verify(t.Context(), id, "s"); r.Outcome != want {
			t.Errorf("%s of shard %d: %s because of %s, want %s", id, shards.Of(id), r.Outcome, r.Reason, want)
		}
	}
}

// TestTombstoneThatExpires: a writer starts over after a tombstone has expired in Redis, and the new version is
// applied.
func TestTombstoneThatExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{})
		f.Apply(contract.Credential{ID: "d", Version: 7, Deleted: true, PublishedMS: time.Now().UnixMilli()})
		again := contract.Credential{ID: "d", Version: 1, Hashes: []string{hashed("s", 4)}}
		time.Sleep(contract.TombstoneLife - 2*time.Minute)
		f.Apply(again)
		if r := f.Verify(t.Context(), "d", "s"); r.Outcome != wire.Deny {
			t.Errorf("while the tombstone counts: %s because of %s", r.Outcome, r.Reason)
		}
		time.Sleep(time.Minute + time.Millisecond)
		f.Apply(again)
		if r := f.Verify(t.Context(), "d", "s"); r.Outcome != wire.Allow {
			t.Errorf("when it may have expired: %s because of %s", r.Outcome, r.Reason)
		}
	})
}

// TestSameVersionOfAnotherServer: two servers count to the same version, as before and after a failover that lost
// writes. The later write wins, in either order of arrival.
func TestSameVersionOfAnotherServer(t *testing.T) {
	f := start(credential.Config{})
	old := contract.Credential{ID: "d", Version: 5, PublishedMS: 1000, Hashes: []string{hashed("lost", 4)}}
	now := contract.Credential{ID: "d", Version: 5, PublishedMS: 2000, Hashes: []string{hashed("kept", 4)}}
	for _, c := range []contract.Credential{old, now, old} {
		f.Apply(c)
	}
	for secret, want := range map[string]wire.Outcome{"lost": wire.Deny, "kept": wire.Allow} {
		if r := f.Verify(t.Context(), "d", secret); r.Outcome != want {
			t.Errorf("%s: %s because of %s, want %s", secret, r.Outcome, r.Reason, want)
		}
	}
	f.Apply(contract.Credential{ID: "d", Version: 5, PublishedMS: 3000, Disabled: true})
	if r := f.Verify(t.Context(), "d", "kept"); r.Outcome != wire.Deny {
		t.Errorf("disabled: %s because of %s", r.Outcome, r.Reason)
	}
}

// TestUnmet: Unapplied returns the devices whose record a resync has not applied.
func TestUnmet(t *testing.T) {
	f := start(credential.Config{})
	c := contract.Credential{ID: "d", Version: 5, PublishedMS: 1, Hashes: []string{hashed("s", 4)}}
	f.Apply(c)
	if got := f.Shard(0).Unapplied(); len(got) != 0 {
		t.Errorf("got %q without a resync", got)
	}
	f.Shard(0).BeginResync()
	if got := f.Shard(0).Unapplied(); len(got) != 1 || got[0] != "d" {
		t.Errorf("got %q, want d", got)
	}
	if f.Apply(c); len(f.Shard(0).Unapplied()) != 0 {
		t.Error("d was met")
	}
}
