package credential_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// service is an authority that allows the secret "right", with a label for the device.
type service struct {
	calls atomic.Int64
	mu    sync.Mutex
	says  func(id, secret string) (credential.Answer, error) // nil: as above
}

func (s *service) Ask(ctx context.Context, id, secret string, _ bool) (credential.Answer, error) {
	s.calls.Add(1)
	s.mu.Lock()
	says := s.says
	s.mu.Unlock()
	if says != nil {
		return says(id, secret)
	}
	return credential.Answer{Allow: secret == "right", Permissions: []string{"config.read"},
		Labels: map[string]string{"fleet": id}}, nil
}

func (s *service) say(says func(id, secret string) (credential.Answer, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says = says
}

// asking returns a verifier that asks s.
func asking(s *service, c credential.Config) fixture {
	c.Authority, c.MaxAnswers = s, 1000
	return start(c)
}

// asks verifies a credential and checks the number of calls.
func (f fixture) asks(t *testing.T, s *service, id, secret string, outcome wire.Outcome, reason credential.Reason,
	calls int64) credential.Result {
	t.Helper()
	before := s.calls.Load()
	r := f.show(t, id, secret, "192.0.2.1", outcome, reason)
	if got := s.calls.Load() - before; got != calls {
		t.Errorf("Verify(%q, %q): %d calls, want %d", id, secret, got, calls)
	}
	return r
}

func tombstone(id string, version uint64) contract.Credential {
	return contract.Credential{ID: id, Version: version, Deleted: true, PublishedMS: time.Now().UnixMilli()}
}

// TestAuthority: the authority decides about devices without a record only.
func TestAuthority(t *testing.T) {
	s := new(service)
	f := asking(s, pinned)
	revoked := device("revoked", 1, "right")
	revoked.Disabled, revoked.Revoked = true, true
	f.Apply(revoked)
	f.Apply(device("registered", 1, "secret"))
	f.Apply(tombstone("deleted", 2))
	for _, test := range []struct {
		name, id, secret string
		outcome          wire.Outcome
		reason           credential.Reason
		calls            int64
	}{
		{"right", "d", "right", wire.Allow, "authority", 1},
		{"right again", "d", "right", wire.Allow, "pin", 0},
		{"wrong", "d", "wrong", wire.Deny, "authority", 1},
		{"deleted", "deleted", "right", wire.Allow, "authority", 1},
		{"revoked", "revoked", "right", wire.Deny, "revoked", 0},
		{"registered", "registered", "right", wire.Deny, "bcrypt", 0},
		{"registered, its secret", "registered", "secret", wire.Allow, "bcrypt", 0},
		{"an invalidation's id", "*", "right", wire.Deny, "unknown", 0},
		{"another one's", "*fleet=d", "right", wire.Deny, "unknown", 0},
		{"not UTF-8", "d", "right\xff", wire.Deny, "malformed", 0},
		{"the character that JSON would have", "d", "right\ufffd", wire.Deny, "authority", 1},
		{"malformed", "a/b", "right", wire.Deny, "malformed", 0},
	} {
		t.Run(test.name, func(t *testing.T) { f.asks(t, s, test.id, test.secret, test.outcome, test.reason, test.calls) })
	}
	v, found := f.edge.verdict("d", "right")
	if !found || v.Outcome != wire.Allow || v.RefreshAfterMS >= v.ExpiresMS {
		t.Errorf("the edge has %+v, %v", v, found)
	}
	if v, _ := f.edge.verdict("d", "wrong"); v.Outcome != wire.Deny {
		t.Errorf("the edge has %+v, want a deny", v)
	}
	if f.edge.complete {
		t.Error("the edge was told that all other devices are unknown")
	}
	if got := f.Describe("d").Permissions; got != "config.read" {
		t.Errorf("permissions %q", got)
	}
	r := f.show(t, "d", "right", "", wire.Allow, "pin")
	if !r.ByAuthority || !f.SessionValid("d", r.Session) || f.SessionValid("deleted", r.Session) ||
		f.SessionValid("d", "") {
		t.Errorf("session %q is not that of the answer", r.Session)
	}
	if got := f.VerifySession("d", r.Session); got.Outcome != wire.Deny {
		t.Errorf("a token: %+v, want deny", got)
	}
	f.Apply(device("d", 1, "secret")) // registered now
	f.asks(t, s, "d", "right", wire.Deny, "bcrypt", 0)
}

// TestAuthorityIsAway: without an answer no verdict is stored, and the earlier verdict stands.
func TestAuthorityIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(service)
		f := asking(s, credential.Config{Limits: fewFailures, Wait: time.Second})
		f.asks(t, s, "d", "right", wire.Allow, "authority", 1)
		before, _ := f.edge.verdict("d", "right")
		time.Sleep(25 * time.Second)
		s.say(func(string, string) (credential.Answer, error) { return credential.Answer{}, errors.New("away") })
		for range 10 {
			if r := f.asks(t, s, "d", "right", wire.Away, "no_authority", 1); r.RetryAfter != time.Second {
				t.Errorf("%+v", r)
			}
		}
		if after, _ := f.edge.verdict("d", "right"); after != before {
			t.Errorf("the edge has %+v, want %+v", after, before)
		}
		for i := range 5 { // or verdict_grace would let a right guess among many in
			f.show(t, "d", fmt.Sprint("guess", i), "198.51.100.1", wire.Away, "no_authority")
		}
		f.show(t, "d", "right", "198.51.100.1", wire.Throttled, "limited")
		s.say(nil)
		f.asks(t, s, "d", "right", wire.Allow, "authority", 1)
	})
}

// TestAuthorityHangs: the answer comes within the time that a caller waits.
func TestAuthorityHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{Wait: time.Second, Authority: hanging{}, MaxAnswers: 10})
		began := time.Now()
		f.show(t, "d", "right", "", wire.Away, "no_authority")
		if took := time.Since(began); took >= time.Second {
			t.Errorf("took %v", took)
		}
	})
}

type hanging struct{}

func (hanging) Ask(ctx context.Context, _, _ string, _ bool) (credential.Answer, error) {
	<-ctx.Done()
	return credential.Answer{}, ctx.Err()
}

// TestAnswersLife: ttl and not-after of an answer end its verdict; the authority is called before the end.
func TestAnswersLife(t *testing.T) {
	for _, test := range []struct {
		name           string
		answer         credential.Answer
		shortest, most time.Duration
	}{
		{"no ttl", credential.Answer{Allow: true}, 27 * time.Second, 33 * time.Second},
		{"a shorter ttl", credential.Answer{Allow: true, TTL: 10 * time.Second}, 10 * time.Second, 10 * time.Second},
		{"a longer ttl", credential.Answer{Allow: true, TTL: time.Hour}, 27 * time.Second, 33 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := new(service)
			f := asking(s, credential.Config{})
			s.say(func(string, string) (credential.Answer, error) { return test.answer, nil })
			f.asks(t, s, "d", "s", wire.Allow, "authority", 1)
			v, _ := f.edge.verdict("d", "s")
			life, refresh := time.Until(time.UnixMilli(v.ExpiresMS)), time.Until(time.UnixMilli(v.RefreshAfterMS))
			if life < test.shortest-time.Millisecond || life > test.most || refresh > life*2/3+time.Millisecond {
				t.Errorf("%s: verdict for %v, refreshed after %v", test.name, life, refresh)
			}
			time.Sleep(refresh - time.Millisecond)
			f.asks(t, s, "d", "s", wire.Allow, "pin", 0)
			time.Sleep(2 * time.Millisecond)
			f.asks(t, s, "d", "s", wire.Allow, "authority", 1)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := new(service)
		f := asking(s, credential.Config{})
		end := time.Now().Add(5 * time.Second)
		s.say(func(string, string) (credential.Answer, error) {
			return credential.Answer{Allow: true, NotAfter: end}, nil
		})
		f.asks(t, s, "d", "s", wire.Allow, "authority", 1)
		if v, _ := f.edge.verdict("d", "s"); v.NotAfterMS != end.UnixMilli() || v.ExpiresMS != end.UnixMilli() {
			t.Errorf("verdict %+v", v)
		}
		time.Sleep(4 * time.Second)
		f.asks(t, s, "d", "s", wire.Allow, "pin", 0)
		time.Sleep(time.Second)
		f.asks(t, s, "d", "s", wire.Deny, "expired", 1)
	})
}

// TestAuthorityChangesItsMind: a deny ends the allow before, also if denies are not stored.
func TestAuthorityChangesItsMind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(service)
		f := asking(s, credential.Config{})
		f.asks(t, s, "d", "right", wire.Allow, "authority", 1)
		for i := range 600 {
			f.Verify(t.Context(), "other", fmt.Sprint(i)) // more denies than are stored in a second
		}
		time.Sleep(24 * time.Second)
		for i := range 600 {
			f.Verify(t.Context(), "other", fmt.Sprint("again", i))
		}
		s.say(func(string, string) (credential.Answer, error) { return credential.Answer{}, nil })
		f.asks(t, s, "d", "right", wire.Deny, "authority", 1)
		if v, found := f.edge.verdict("d", "right"); found && v.Outcome == wire.Allow {
			t.Error("the edge still has the allow")
		}
	})
}

// TestOneCall: concurrent first requests of a device need one call.
func TestOneCall(t *testing.T) {
	s := new(service)
	release := make(chan struct{})
	s.say(func(string, string) (credential.Answer, error) {
		<-release
		return credential.Answer{Allow: true}, nil
	})
	f := asking(s, pinned)
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			if i == 999 {
				close(release)
			}
			if r := f.Verify(t.Context(), "d", "right"); r.Outcome != wire.Allow {
				t.Errorf("%+v", r)
			}
		})
	}
	wg.Wait()
	if got := s.calls.Load(); got != 1 {
		t.Errorf("%d calls, want 1", got)
	}
}

// TestGuessesOfTheAuthority: wrong secrets are limited like wrong secrets that cost bcrypt.
func TestGuessesOfTheAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(service)
		f := asking(s, credential.Config{Limits: fewFailures})
		const bad = "198.51.100.1"
		f.asks(t, s, "d", "right", wire.Allow, "authority", 1) // from elsewhere
		for i := range 5 {
			f.show(t, "d", fmt.Sprint("wrong", i), bad, wire.Deny, "authority")
		}
		before := s.calls.Load()
		f.show(t, "d", "wrong", bad, wire.Throttled, "limited")
		f.show(t, "d", "right", bad, wire.Throttled, "limited")
		for i := range 7 {
			f.show(t, fmt.Sprint("unknown", i), "s", bad, wire.Deny, "authority")
		}
		f.show(t, "unknown", "s", bad, wire.Unavailable, "limited")
		if got := s.calls.Load() - before; got != 7 {
			t.Errorf("%d calls, want 7", got)
		}
		time.Sleep(25 * time.Second)
		f.asks(t, s, "d", "right", wire.Allow, "authority", 1)
	})
}

// TestConcurrentGuesses: concurrent guesses, for a single device or many, are admitted no more often than guesses in
// sequence, and keep a device out of its own network no longer than a call takes.
func TestConcurrentGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(service)
		s.say(func(_, secret string) (credential.Answer, error) {
			time.Sleep(10 * time.Millisecond)
			return credential.Answer{Allow: secret == "right"}, nil
		})
		f := asking(s, credential.Config{Limits: fewFailures})
		f.asks(t, s, "d", "right", wire.Allow, "authority", 1)
		const bad = "198.51.100.1"
		calls := func(id func(i int) string, from string) int64 {
			before := s.calls.Load()
			for i := range 400 {
				go f.Verifier.Verify(t.Context(), id(i), fmt.Sprint("guess", i), from)
			}
			synctest.Wait() // all calls are running
			if from == bad {
				f.show(t, "d", "right", from, wire.Unavailable, "overload") // known, but an allow would reveal the secret
			}
			f.asks(t, s, "d", "right", wire.Allow, "pin", 0)
			time.Sleep(time.Second)
			return s.calls.Load() - before
		}
		one := func(int) string { return "d" }
		if got := calls(one, bad); got != 5 {
			t.Errorf("%d guesses of 400 for one device were judged, want 5", got)
		}
		f.show(t, "d", "right", bad, wire.Throttled, "limited")
		const other = "203.0.113.1"
		if got := calls(func(i int) string { return fmt.Sprint(i) }, other); got != 12 {
			t.Errorf("%d guesses of 400 from one source were judged, want 12", got)
		}
		if got := calls(one, "192.0.2.1"); got != 8 {
			t.Errorf("%d guesses of 400 from the device's own network were judged, want 8", got)
		}
		time.Sleep(25 * time.Second) // the secret has to be confirmed
		for i := range 400 {
			go f.Verifier.Verify(t.Context(), "d", fmt.Sprint("guess", i), "192.0.2.1")
		}
		synctest.Wait()
		f.show(t, "d", "right", "192.0.2.1", wire.Allow, "authority")

		// All callers with the same unknown secret share a single reservation.
		for range 400 {
			go f.show(t, "e", "right", "203.0.113.2", wire.Allow, "authority")
		}
		synctest.Wait()
		time.Sleep(time.Second)
	})
}

// TestWhoMakesCallsFail: a source whose calls fail while other calls are answered is limited; while the service is
// down, no source is limited.
func TestWhoMakesCallsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(service)
		f := asking(s, credential.Config{Limits: fewFailures})
		const bad, good = "198.51.100.1", "203.0.113.1"
		fails := func(string, string) (credential.Answer, error) {
			return credential.Answer{}, fmt.Errorf("%w: timeout", credential.ErrFailed)
		}
		f.asks(t, s, "d", "right", wire.Allow, "authority", 1)
		s.say(fails)
		for i := range 40 {
			f.show(t, fmt.Sprint("device", i), "right", good, wire.Away, "no_authority")
			f.show(t, "d", "right", "192.0.2.1", wire.Allow, "pin")
		}
		time.Sleep(2 * time.Second)
		s.say(nil)
		f.show(t, "device", "right", good, wire.Allow, "authority")
		for i := range 12 {
			s.say(fails)
			f.Verifier.Verify(t.Context(), fmt.Sprint("poison", i), "s", bad)
			s.say(nil)
			f.show(t, fmt.Sprint("device", i), "right", good, wire.Allow, "authority")
		}
		before := s.calls.Load()
		f.show(t, "poison", "s", bad, wire.Unavailable, "limited")
		if s.calls.Load() != before {
			t.Error("its calls go on")
		}
	})
}

// TestInvalidation: each kind ends the named verdicts, and running calls start over.
func TestInvalidation(t *testing.T) {
	for _, test := range []struct {
		name       string
		invalidate func(fixture)
		ends       bool // the verdicts of device d
		restarts   bool // a running call about device d
	}{
		{"the device", func(f fixture) { f.Apply(tombstone("d", 1)) }, true, true},
		{"another device", func(f fixture) { f.Apply(tombstone("e", 1)) }, false, false},
		{"all", func(f fixture) { f.Apply(tombstone("*", 1)) }, true, true},
		{"its label", func(f fixture) { f.Apply(tombstone("*fleet=d", 1)) }, true, true},
		{"another label", func(f fixture) { f.Apply(tombstone("*fleet=e", 1)) }, false, true},
		{"a doubt", func(f fixture) { f.Doubt("d") }, true, true},
		{"a doubt about all", func(f fixture) { f.Doubt("*") }, true, true},
		{"a tombstone that goes at once", func(f fixture) {
			f.Apply(tombstone("d", 1))
			f.Remove("d")
		}, true, true},
		{"a record that goes at once", func(f fixture) {
			f.Apply(device("d", 1, "s"))
			f.Remove("d")
		}, true, true},
		{"the end of a tombstone", func(f fixture) { f.Remove("*") }, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := new(service)
			f := asking(s, credential.Config{})
			first := f.asks(t, s, "d", "right", wire.Allow, "authority", 1)
			test.invalidate(f)
			if _, found := f.edge.verdict("d", "right"); found == test.ends {
				t.Errorf("%s: the edge has the verdict: %v", test.name, found)
			}
			if f.SessionValid("d", first.Session) == test.ends {
				t.Errorf("%s: an answer that was just given counts: %v", test.name, !test.ends)
			}
			want, reason := int64(0), credential.Reason("pin")
			if test.ends {
				want, reason = 1, "authority"
			}
			f.asks(t, s, "d", "right", wire.Allow, reason, want)

			// The same during a call, whose answer is outdated afterwards.
			f = asking(s, credential.Config{})
			release := make(chan struct{})
			s.say(func(string, string) (credential.Answer, error) {
				<-release
				return credential.Answer{Allow: true, Labels: map[string]string{"fleet": "d"}}, nil
			})
			result := make(chan credential.Result)
			go func() { result <- f.Verify(t.Context(), "d", "right") }()
			synctest.Wait()
			test.invalidate(f)
			if test.restarts {
				s.say(func(string, string) (credential.Answer, error) { return credential.Answer{}, nil })
			}
			close(release)
			wants := wire.Allow
			if test.restarts {
				wants = wire.Deny
			}
			if r := <-result; r.Outcome != wants {
				t.Errorf("%s during a call: %+v, want %v", test.name, r, wants)
			}
			if v, found := f.edge.verdict("d", "right"); test.restarts && found && v.Outcome == wire.Allow {
				t.Errorf("%s during a call: the edge has an allow", test.name)
			}
		})
	}
}

// TestAnswersAreBounded: a service that allows everything doesn't grow the table.
func TestAnswersAreBounded(t *testing.T) {
	s := new(service)
	c := credential.Config{Authority: s, MaxAnswers: 10}
	f := start(c)
	s.say(func(id, _ string) (credential.Answer, error) {
		return credential.Answer{Allow: true, Permissions: []string{"p-" + id}}, nil
	})
	for i := range 64 {
		f.show(t, fmt.Sprint(i), "s", "", wire.Allow, "authority")
	}
	held := 0
	for i := range 64 {
		if _, found := f.edge.verdict(fmt.Sprint(i), "s"); found {
			held++
		}
	}
	if held != 10 {
		t.Errorf("the edge has %d verdicts, want 10", held)
	}
	for i := range 6 { // secrets of the same device
		f.show(t, "0", fmt.Sprint(i), "", wire.Allow, "authority")
	}
	f.edge.mu.Lock()
	defer f.edge.mu.Unlock()
	if got := len(f.edge.verdicts["0"]); got > 4 {
		t.Errorf("the edge has %d verdicts on one device, want 4 at most", got)
	}
	if got := metricstest.Value(t, f.metrics, "gatehouse_verifications_total", "reason", "authority"); got != 70 {
		t.Errorf("%v allows, want 70", got)
	}
}

// TestDoubtNeverAsks: the authority never decides about a device in doubt, and answers that were shared before the
// doubt don't count again.
func TestDoubtNeverAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		revoked := device("r", 1, "own")
		revoked.Disabled, revoked.Revoked = true, true
		s, c := new(service), pinned
		c.Fleet = &sharing{matches: map[string]*credential.Match{}}
		f := asking(s, c)
		f.Apply(revoked)
		f.Doubt("r")
		f.asks(t, s, "r", "right", wire.Deny, "revoked", 0)
		f.Doubt("r")
		f.Apply(revoked) // the record as read from Redis
		f.asks(t, s, "r", "right", wire.Deny, "revoked", 0)
		older := revoked
		older.Version, older.Disabled, older.Revoked = 0, false, false
		f.Doubt("r")
		f.Apply(older) // Redis has lost the revocation
		f.asks(t, s, "r", "own", wire.Allow, "bcrypt", 0)
		f.ApplyMalformed("m")
		f.asks(t, s, "m", "right", wire.Deny, "refused_record", 0)
		f.Remove("m")
		f.asks(t, s, "m", "right", wire.Allow, "authority", 1)
		for i, id := range []string{"d", "*", "*fleet=d"} {
			for _, known := range []bool{true, false} {
				name := fmt.Sprintf("device-%d-%t", i, known)
				if known {
					f.Apply(contract.Credential{ID: id, Version: uint64(i + 1), Deleted: true, PublishedMS: time.Now().UnixMilli()})
				}
				f.asks(t, s, name, "right", wire.Allow, "authority", 1)
				f.Doubt(id)
				f.Doubt(name)
				f.asks(t, s, name, "right", wire.Allow, "authority", 1)
			}
		}
	})
}

// TestAuthorityWaitsForRedis: the authority is called only if Redis has no record; if Redis doesn't answer, only about
// devices without an event of a deletion. No event keeps a record of Redis out.
func TestAuthorityWaitsForRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := new(service), pinned
		has, away := map[string]bool{}, error(nil)
		c.Registered = func(_ context.Context, id string) (bool, error) { return has[id], away }
		f := asking(s, c)
		const last = limits.MaxVersion
		lastly := tombstone("r", last)
		lastly.PublishedMS = last
		revoked := device("r", 1, "own")
		revoked.Disabled, revoked.Revoked = true, true

		has["r"] = true // without an event
		f.asks(t, s, "r", "right", wire.Unavailable, "timeout", 0)
		f.Apply(revoked)
		f.asks(t, s, "r", "right", wire.Deny, "revoked", 0)
		f.Announce(lastly) // forged
		f.asks(t, s, "r", "right", wire.Unavailable, "timeout", 0)
		f.Apply(revoked)
		f.asks(t, s, "r", "right", wire.Deny, "revoked", 0)

		f.asks(t, s, "d", "right", wire.Allow, "authority", 1)
		f.Announce(tombstone("d", 1))
		f.asks(t, s, "d", "right", wire.Allow, "authority", 1) // Redis has no record
		away = errors.New("away")
		f.Announce(tombstone("d", 2))
		f.asks(t, s, "d", "right", wire.Unavailable, "timeout", 0)
		f.Apply(tombstone("d", 2))
		f.asks(t, s, "d", "right", wire.Allow, "authority", 1)
		f.asks(t, s, "new", "right", wire.Allow, "authority", 1)

		good := device("g", 1, "own")
		f.Apply(good)
		f.asks(t, s, "g", "own", wire.Allow, "bcrypt", 0)
		refused := good
		refused.Version, refused.PublishedMS, refused.Disabled = last, last, true
		f.Announce(refused)
		f.asks(t, s, "g", "own", wire.Deny, "disabled", 0)
		f.Apply(good)
		f.asks(t, s, "g", "own", wire.Allow, "bcrypt", 0)
	})
}

// sharing is a fleet that keeps all matches by their question.
type sharing struct {
	mu      sync.Mutex
	matches map[string]*credential.Match
}

func (s *sharing) Find(_ context.Context, c *credential.Question) *credential.Match {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.matches[fmt.Sprintf("%+v", *c)]
}

func (s *sharing) Begin(ctx context.Context, c *credential.Question) (*credential.Match, func(*credential.Match)) {
	if m := s.Find(ctx, c); m != nil {
		return m, nil
	}
	return nil, func(m *credential.Match) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.matches[fmt.Sprintf("%+v", *c)] = m
	}
}

func (s *sharing) Await(context.Context, *credential.Question, func() bool) *credential.Match {
	return nil
}
