package credential_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// peppered returns a configuration with peppers, and a function that makes a device of the pepper with an index.
func peppered(t *testing.T, c credential.Config) (credential.Config, func(id string, version uint64, pepper int,
	secrets ...string) contract.Credential) {
	t.Helper()
	for i := range 3 {
		p, err := contract.NewPepper([]byte(strings.Repeat(fmt.Sprint(i), 32)))
		require.NoError(t, err)
		c.Peppers = append(c.Peppers, p)
	}
	all := c.Peppers
	c.Peppers = all[:2]
	return c, func(id string, version uint64, pepper int, secrets ...string) contract.Credential {
		d := device(id, version)
		for _, secret := range secrets {
			hash, err := all[pepper].Hash(secret)
			require.NoError(t, err)
			d.Hashes = append(d.Hashes, hash)
		}
		return d
	}
}

// TestGH1 verifies without a run, also after a pin's life, and beside bcrypt in a single record.
func TestGH1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peppered := peppered(t, pinned)
		f := start(c)
		first, second := contract.NewSecret(), contract.NewSecret()
		f.Apply(peppered("d", 1, 1, first))
		for range 2 {
			f.expect(t, "d", first, wire.Allow, "gh1", 0)
			if !f.edge.only {
				t.Error("the edge asks about other secrets, although none is right")
			}
			f.expect(t, "d", second, wire.Deny, "resolved", 0)
			f.expect(t, "d", second, wire.Deny, "refuted", 0)
			f.Apply(peppered("d", 2, 1, first))
			time.Sleep(2 * time.Hour)
		}
		f.Apply(peppered("unknown", 1, 2, first))
		f.expect(t, "unknown", first, wire.Deny, "refused_record", 0)
		if got := metricstest.Value(t, f.metrics, "gatehouse_credentials_refused_total", "reason", "pepper"); got != 1 {
			t.Errorf("%v records refused because of their pepper, want 1", got)
		}

		// From bcrypt to gh1, with an overlap.
		old := device("mixed", 1, "old")
		f.Apply(old)
		f.expect(t, "mixed", "old", wire.Allow, "bcrypt", 1)
		mixed := peppered("mixed", 2, 0, first)
		mixed.Hashes = append(mixed.Hashes, old.Hashes...)
		mixed.OldUntilMS = time.Now().Add(time.Minute).UnixMilli()
		f.Apply(mixed)
		f.expect(t, "mixed", "old", wire.Allow, "pin", 0)
		f.expect(t, "mixed", first, wire.Allow, "gh1", 0)
		f.expect(t, "mixed", second, wire.Deny, "resolved", 0)
		restarted := start(c)
		restarted.Apply(mixed)
		restarted.expect(t, "mixed", second, wire.Deny, "bcrypt", 1)
		restarted.expect(t, "mixed", first, wire.Allow, "gh1", 0)
		restarted.expect(t, "mixed", "old", wire.Allow, "bcrypt", 1)
		time.Sleep(time.Minute)
		f.expect(t, "mixed", "old", wire.Deny, "old_secret", 0)
		f.expect(t, "mixed", first, wire.Allow, "gh1", 0)
	})
}

// TestGH1Guesses floods a gh1 device with wrong secrets: they cost nothing and store nothing at the edge. The right
// secret passes from the same address, although the device never authenticated there.
func TestGH1Guesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peppered := peppered(t, credential.Config{PinTTL: time.Hour, Limits: fewFailures})
		f := start(c)
		right := contract.NewSecret()
		f.Apply(peppered("d", 1, 0, right))
		f.Apply(device("other", 1, "s"))
		for i := range 200 {
			secret, reason := contract.NewSecret(), credential.Reason("resolved")
			if i%2 == 1 {
				secret, reason = mistyped(secret), "malformed"
			}
			r := f.show(t, "d", secret, "192.0.2.1", wire.Deny, reason)
			if i%2 == 0 && r.ThrottleFor != time.Second {
				t.Errorf("the edge refuses wrong secrets itself for %v, want 1s", r.ThrottleFor)
			}
		}
		if len(f.edge.stored) != 0 || f.runs(t) != 0 {
			t.Errorf("wrong secrets that came once each: %d verdicts at the edge, %d runs", len(f.edge.stored), f.runs(t))
		}
		f.show(t, "d", right, "192.0.2.1", wire.Allow, "gh1")
		f.show(t, "other", "s", "192.0.2.1", wire.Unavailable, "limited") // a suspect address gets no bcrypt
		f.show(t, "other", "s", "192.0.2.2", wire.Allow, "bcrypt")
	})
}

// mistyped returns a generated secret with another checksum.
func mistyped(secret string) string {
	last := map[bool]string{true: "1", false: "0"}[strings.HasSuffix(secret, "0")]
	return secret[:len(secret)-1] + last
}

// TestMistyped: a generated secret with a wrong checksum costs no run, counts for no limit, and is stored at the edge
// when repeated.
func TestMistyped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{PinTTL: time.Hour, Limits: fewFailures})
		right := contract.NewSecret()
		f.Apply(device("d", 1, right))
		for range 20 {
			f.show(t, "d", mistyped(right), "192.0.2.1", wire.Deny, "malformed")
		}
		if _, stored := f.edge.verdict("d", mistyped(right)); !stored || f.runs(t) != 0 {
			t.Errorf("stored at the edge: %v; %d runs", stored, f.runs(t))
		}
		f.show(t, "d", right, "192.0.2.1", wire.Allow, "bcrypt")
		f.show(t, "nobody", mistyped(right), "192.0.2.1", wire.Deny, "unknown")
	})
}

// TestUpgrade: only generated secrets that authenticate by a slow hash are offered.
func TestUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var offered []credential.Upgrade
		c, peppered := peppered(t, pinned)
		c.Upgrade = func(u credential.Upgrade) { offered = append(offered, u) }
		f := start(c)
		secret := contract.NewSecret()
		slow, old := device("slow", 3, secret), peppered("old", 4, 1, secret)
		f.Apply(slow)
		f.Apply(old)
		f.Apply(peppered("new", 5, 0, secret))
		f.Apply(device("chosen", 6, "chosen"))
		f.expect(t, "slow", secret, wire.Allow, "bcrypt", 1)
		f.expect(t, "slow", secret, wire.Allow, "pin", 0)
		f.expect(t, "old", secret, wire.Allow, "gh1", 0)
		f.expect(t, "new", secret, wire.Allow, "gh1", 0)
		f.expect(t, "chosen", "chosen", wire.Allow, "bcrypt", 1)
		f.expect(t, "slow", contract.NewSecret(), wire.Deny, "resolved", 0)
		want := []credential.Upgrade{{Device: "slow", Secret: secret, Hash: slow.Hashes[0], Version: 3},
			{Device: "slow", Secret: secret, Hash: slow.Hashes[0], Version: 3}}
		if fmt.Sprint(offered) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", offered, want)
		}
	})
}

// TestCostOfSchemes refuses hashes that take longer than bcrypt at the highest cost.
func TestCostOfSchemes(t *testing.T) {
	f := start(credential.Config{MaxCost: 12})
	rest := "$" + strings.Repeat("s", 22) + "$" + strings.Repeat("k", 43)
	for hash, ok := range map[string]bool{
		"$argon2id$v=19$m=65536,t=3,p=4" + rest:  true,
		"$argon2id$v=19$m=131072,t=2,p=1" + rest: false,
		"$scrypt$ln=16,r=8,p=1" + rest:           true,
		"$scrypt$ln=17,r=8,p=1" + rest:           false,
		"$pbkdf2-sha256$i=600000" + rest:         true,
		"$pbkdf2-sha256$i=1000000" + rest:        false,
		"$pbkdf2-sha512$i=210000" + rest:         true,
	} {
		f.Apply(contract.Credential{ID: hash[:20], Version: 1, Hashes: []string{hash}})
		if d := f.Describe(hash[:20]); (d.Refusal == "") != ok {
			t.Errorf("%s: refused because of %q", hash, d.Refusal)
		}
		f.Remove(hash[:20])
	}
}
