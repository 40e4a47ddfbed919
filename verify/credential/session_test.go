package credential_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// session returns the session for a token of the device, got with its secret.
func (f fixture) session(t *testing.T, id, secret string) string {
	t.Helper()
	r := f.Verify(t.Context(), id, secret)
	if r.Outcome != wire.Allow || r.Session == "" {
		t.Fatalf("Verify(%q, %q) = %+v, want allow with a session", id, secret, r)
	}
	return r.Session
}

func (f fixture) expectSession(t *testing.T, id, session string, outcome wire.Outcome,
	reason credential.Reason) credential.Result {
	t.Helper()
	before := f.runs(t)
	r := f.VerifySession(id, session)
	if r.Outcome != outcome || r.Reason != reason {
		t.Errorf("VerifySession(%q, %q) = %v because of %s, want %v because of %s", id, session, r.Outcome,
			r.Reason, outcome, reason)
	}
	if got := f.runs(t) - before; got != 0 {
		t.Errorf("VerifySession(%q, %q): %d runs of bcrypt, want none", id, session, got)
	}
	return r
}

func TestSession(t *testing.T) {
	f := start(pinned)
	f.Apply(device("d", 7, "s"))
	session := f.session(t, "d", "s")
	r := f.expectSession(t, "d", session, wire.Allow, "session")
	if verdict, found := f.edge.verdict("d", "\x00"+session); !found || verdict.Outcome != wire.Allow ||
		verdict.Permissions != r.Permissions || r.Permissions != "config.read,telemetry.write" {
		t.Errorf("stored %+v, %t after %+v, want an allow with both permissions", verdict, found, r)
	}
	if got := metricstest.Value(t, f.metrics, "gatehouse_verifications_total", "reason", "session"); got != 1 {
		t.Errorf("got %v counted, want 1", got)
	}
	for _, test := range []struct {
		name, id, session string
		reason            credential.Reason
	}{
		{"another device's", "other", session, "unknown"},
		{"empty", "d", "", "malformed"},
		{"a version only", "d", "7", "session"},
		{"an older version", "d", "6-0", "session"},
		{"a newer version", "d", "8-0", "session"},
		{"another time", "d", "7-1", "session"},
		{"as long as can be", "d", strings.Repeat("7", limits.MaxSession), "session"},
		{"longer", "d", strings.Repeat("7", limits.MaxSession+1), "malformed"},
		{"no device id", "d/e", session, "malformed"},
	} {
		t.Run(test.name, func(t *testing.T) { f.expectSession(t, test.id, test.session, wire.Deny, test.reason) })
	}
	// A token's session is no secret, and a secret is no session.
	f.expect(t, "d", session, wire.Deny, "resolved", 0)
	f.expectSession(t, "d", "s", wire.Deny, "session")
}

// TestSessionEnds changes the record in every way that invalidates a device's token.
func TestSessionEnds(t *testing.T) {
	with := func(change func(*contract.Credential)) func() contract.Credential {
		return func() contract.Credential {
			c := device("d", 8, "s")
			change(&c)
			return c
		}
	}
	for _, test := range []struct {
		name   string
		change func() contract.Credential
		reason credential.Reason
	}{
		{"deleted", func() contract.Credential { return contract.Credential{ID: "d", Version: 8, Deleted: true} }, "deleted"},
		{"revoked", with(func(c *contract.Credential) { c.Disabled, c.Revoked = true, true }), "revoked"},
		{"another secret", with(func(c *contract.Credential) { c.Hashes = []string{hashed("t", 4)} }), "session"},
		{"other permissions", with(func(c *contract.Credential) { c.Permissions = nil }), "session"},
		{"over", with(func(c *contract.Credential) { c.NotAfterMS = 1 }), "expired"},
		{"written again as it was", with(func(*contract.Credential) {}), "session"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := start(pinned)
			f.Apply(device("d", 7, "s"))
			session := f.session(t, "d", "s")
			f.expectSession(t, "d", session, wire.Allow, "session")
			if !f.SessionValid("d", session) || f.SessionValid("d", session+"0") || f.SessionValid("e", session) {
				t.Error("its record stands, and no other")
			}
			f.Apply(test.change())
			if f.SessionValid("d", session) {
				t.Error("its record stands still")
			}
			if _, found := f.edge.verdict("d", "\x00"+session); found {
				t.Error("the edge still has the token's verdict")
			}
			f.expectSession(t, "d", session, wire.Deny, test.reason)
		})
	}
	t.Run("removed", func(t *testing.T) {
		f := start(pinned)
		f.Apply(device("d", 7, "s"))
		session := f.session(t, "d", "s")
		f.Remove("d")
		f.expectSession(t, "d", session, wire.Deny, "unknown")
	})
}

// TestSessionOfLostData registers a device again after Redis lost its data: the version is the same, but the token
// belongs to another record.
func TestSessionOfLostData(t *testing.T) {
	f := start(pinned)
	before := device("d", 1, "s")
	before.PublishedMS = 1000
	f.Apply(before)
	session := f.session(t, "d", "s")
	f.Shard(0).BeginResync()
	again := before
	again.PublishedMS = 2000 // and the same hash
	f.Apply(again)
	f.Shard(0).EndResync()
	f.expectSession(t, "d", session, wire.Deny, "session")
	if f.session(t, "d", "s") == session {
		t.Error("two records have one session")
	}
}

// TestSessionNotAfter stores no verdict beyond the record's not-after.
func TestSessionNotAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(pinned)
		end := time.Now().Add(10 * time.Second)
		c := device("d", 7, "s")
		c.NotAfterMS = end.UnixMilli()
		f.Apply(c)
		session := f.session(t, "d", "s")
		if r := f.expectSession(t, "d", session, wire.Allow, "session"); !r.NotAfter.Equal(end) {
			t.Errorf("got an end of %v, want %v", r.NotAfter, end)
		}
		if verdict, _ := f.edge.verdict("d", "\x00"+session); verdict.ExpiresMS > end.UnixMilli() {
			t.Errorf("got a verdict until %d, want at most %d", verdict.ExpiresMS, end.UnixMilli())
		}
		time.Sleep(11 * time.Second)
		f.expectSession(t, "d", session, wire.Deny, "expired")
	})
}

// TestSessionWhileStarting: of two shards, a single one was read.
func TestSessionWhileStarting(t *testing.T) {
	f := start(credential.Config{Shards: 2})
	of := map[int]string{}
	for n := 0; len(of) < 2; n++ {
		id := fmt.Sprint("d", n)
		of[contract.Shards(2).Of(id)] = id
	}
	f.expectSession(t, of[0], "7-0", wire.Deny, "unknown")
	f.expectSession(t, of[1], "7-0", wire.Unavailable, "starting")
}
