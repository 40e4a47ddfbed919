package credential_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// rotated returns the record of a device with a new secret, and an old secret that counts for another 10 s.
func rotated(old contract.Credential, secret string) contract.Credential {
	c := device(old.ID, old.Version+1, secret)
	c.Hashes = append(c.Hashes, old.Hashes[0])
	c.OldUntilMS = time.Now().Add(10 * time.Second).UnixMilli()
	return c
}

// TestOverlap rotates a device: both secrets count, without bcrypt for the known secret; when the overlap ends, the old
// secret is refused at once, without bcrypt, and the edge drops its verdict without a request.
func TestOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(pinned)
		before := device("d", 1, "old")
		f.Apply(before)
		f.expect(t, "d", "old", wire.Allow, "bcrypt", 1)
		c := rotated(before, "new")
		f.Apply(c)
		f.expect(t, "d", "old", wire.Allow, "pin", 0)
		f.expect(t, "d", "new", wire.Allow, "bcrypt", 1)
		if v, _ := f.edge.verdict("d", "old"); v.NotAfterMS != c.OldUntilMS {
			t.Errorf("the edge may use the old secret until %d, want %d", v.NotAfterMS, c.OldUntilMS)
		}
		if v, _ := f.edge.verdict("d", "new"); v.NotAfterMS != 0 {
			t.Errorf("the edge may use the new secret until %d, want no end", v.NotAfterMS)
		}
		oldToken, newToken := f.session(t, "d", "old"), f.session(t, "d", "new")
		if r := f.expectSession(t, "d", oldToken, wire.Allow, "session"); r.NotAfter.UnixMilli() != c.OldUntilMS {
			t.Errorf("a token of the old secret ends at %v, want the end of the overlap", r.NotAfter)
		}
		time.Sleep(10*time.Second - time.Millisecond)
		f.expect(t, "d", "old", wire.Allow, "pin", 0)
		f.expectSession(t, "d", oldToken, wire.Allow, "session")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		for _, secret := range []string{"old", "\x00" + oldToken} {
			if v, found := f.edge.verdict("d", secret); found {
				t.Errorf("the edge has %v for %q after the overlap", v, secret)
			}
		}
		f.expect(t, "d", "old", wire.Deny, "old_secret", 0)
		f.expect(t, "d", "old", wire.Deny, "old_secret", 0)
		f.expectSession(t, "d", oldToken, wire.Deny, "session")
		f.expect(t, "d", "new", wire.Allow, "pin", 0)
		if !f.edge.only {
			t.Error("the edge asks about other secrets, although none is right")
		}
		f.expectSession(t, "d", newToken, wire.Allow, "session")
		f.Shard(0).BeginResync()
		f.Apply(c) // the record as Redis has it
		f.Shard(0).EndResync()
		f.expect(t, "d", "old", wire.Deny, "old_secret", 0)
		f.expect(t, "d", "new", wire.Allow, "pin", 0)
		got := f.Describe("d").Refused
		if got == nil || got.Reason != "old_secret" || !strings.Contains(got.Text, "overlap") {
			t.Errorf("the last refusal is %+v, want the old secret", got)
		}
	})
}

// TestOverlapEndsEarly: not-after goes first, another rotation ends the oldest secret, and a record that is read after
// the overlap has a single secret.
func TestOverlapEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(pinned)
		first := device("d", 1, "first")
		f.Apply(first)
		second := rotated(first, "second")
		f.Apply(second)
		f.expect(t, "d", "second", wire.Allow, "bcrypt", 1)
		f.expect(t, "d", "first", wire.Allow, "bcrypt", 1)
		third := rotated(second, "third")
		third.NotAfterMS = time.Now().Add(time.Second).UnixMilli()
		f.Apply(third)
		f.expect(t, "d", "second", wire.Allow, "pin", 0)
		if v, _ := f.edge.verdict("d", "second"); v.NotAfterMS != third.NotAfterMS {
			t.Errorf("the edge may use the secret until %d, want the device's end, %d", v.NotAfterMS, third.NotAfterMS)
		}
		f.expect(t, "d", "first", wire.Deny, "bcrypt", 1) // the third secret might be the same
		third.NotAfterMS = 0
		third.Version++
		f.Apply(third)
		time.Sleep(11 * time.Second)
		fresh := start(pinned)
		fresh.Apply(third)
		fresh.expect(t, "d", "second", wire.Deny, "bcrypt", 1)
		fresh.expect(t, "d", "third", wire.Allow, "bcrypt", 1)
	})
}

// TestOverlapEndsDuringBcrypt: a run that began in the overlap does not authenticate after the overlap.
func TestOverlapEndsDuringBcrypt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		f := start(credential.Config{PinTTL: time.Hour, Compare: bcryptAfter(end)})
		c := rotated(device("d", 1, "old"), "new")
		f.Apply(c)
		result := make(chan credential.Result, 1)
		go func() { result <- f.Verify(t.Context(), "d", "old") }()
		f.running(t)
		time.Sleep(10 * time.Second)
		close(end)
		if r := <-result; r.Outcome != wire.Deny {
			t.Errorf("Verify = %+v, want deny", r)
		}
		if v, found := f.edge.verdict("d", "old"); found && v.Outcome == wire.Allow {
			t.Errorf("%v was stored after the overlap", v)
		}
	})
}

// TestOldSecretCountsOnce: a device's repeated old secret counts as a single wrong secret, so the limits don't delay
// the second device at the address.
func TestOldSecretCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const home, nat = "192.0.2.1", "192.0.2.2"
		f := start(credential.Config{PinTTL: time.Hour, Limits: fewFailures})
		before := device("d", 1, "old")
		f.Apply(before)
		f.Apply(device("other", 1, "right"))
		f.show(t, "d", "old", home, wire.Allow, "bcrypt")
		f.Apply(rotated(before, "new"))
		f.show(t, "d", "new", home, wire.Allow, "bcrypt")
		time.Sleep(11 * time.Second)
		for range 3 * fewFailures.SourceFailures {
			f.show(t, "d", "old", nat, wire.Deny, "old_secret")
		}
		f.show(t, "other", "right", nat, wire.Allow, "bcrypt")
	})
}
