package credential_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// others is a fleet that answers as a test wants. A nil function returns no match; without begin, bcrypt runs here.
type others struct {
	find  func(*credential.Question) *credential.Match
	begin func(*credential.Question) (known *credential.Match, theirs bool)
	await func(context.Context, *credential.Question, func() bool) *credential.Match
	end   func() // called after bcrypt

	mu   sync.Mutex
	told []*credential.Match // results of bcrypt, in order
}

func (o *others) Find(_ context.Context, c *credential.Question) *credential.Match {
	if o.find == nil {
		return nil
	}
	return o.find(c)
}

func (o *others) Begin(_ context.Context, c *credential.Question) (*credential.Match, func(*credential.Match)) {
	if o.begin != nil {
		if known, theirs := o.begin(c); known != nil || theirs {
			return known, nil
		}
	}
	return nil, func(m *credential.Match) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.told = append(o.told, m); o.end != nil {
			o.end()
		}
	}
}

func (o *others) Await(ctx context.Context, c *credential.Question, wanted func() bool) *credential.Match {
	return o.await(ctx, c, wanted)
}

// right returns a match of the question's first hash with this lifetime.
func right(c *credential.Question, life time.Duration) *credential.Match {
	return &credential.Match{Hash: c.Hashes[0], Until: time.Now().Add(life)}
}

// verifier returns a verifier in the fleet, with device d and secret s.
func (o *others) verifier() fixture {
	f := start(credential.Config{PinTTL: time.Hour, Workers: 1, Fleet: o})
	f.Apply(device("d", 7, "s"))
	return f
}

func TestSharedVerdicts(t *testing.T) {
	found := func(c *credential.Question) *credential.Match { return right(c, time.Hour) }
	theirs := func(*credential.Question) (*credential.Match, bool) { return nil, true }
	once := func() func(*credential.Question) (*credential.Match, bool) {
		asked := 0
		return func(*credential.Question) (*credential.Match, bool) { asked++; return nil, asked == 1 }
	}
	for _, test := range []struct {
		name   string
		fleet  *others
		reason credential.Reason
		runs   int
	}{
		{"found before it waits for a worker", &others{find: found}, "shared", 0},
		{"found when it has one", &others{begin: func(c *credential.Question) (*credential.Match, bool) {
			return found(c), false
		}}, "shared", 0},
		{"made by another meanwhile",
			&others{begin: theirs, await: func(_ context.Context, c *credential.Question, _ func() bool) *credential.Match {
				return found(c)
			}}, "shared", 0},
		{"another has failed",
			&others{begin: once(), await: func(context.Context, *credential.Question, func() bool) *credential.Match {
				return nil
			}}, "bcrypt", 1},
		{"nobody knows", &others{}, "bcrypt", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := test.fleet.verifier()
			f.expect(t, "d", "s", wire.Allow, test.reason, test.runs)
			f.expectVerdict(t, "d", "s", wire.Allow, test.reason)
			f.expect(t, "d", "s", wire.Allow, "pin", 0)
			f.expect(t, "d", "wrong", wire.Deny, "resolved", 0)
			if len(test.fleet.told) != test.runs {
				t.Errorf("told of %d runs, want %d", len(test.fleet.told), test.runs)
			}
		})
	}
}

// TestClaim checks the questions to other sidecars, and the results reported to them.
func TestClaim(t *testing.T) {
	var asked *credential.Question
	o := &others{find: func(c *credential.Question) *credential.Match { asked = c; return nil }}
	f := start(credential.Config{PinTTL: time.Hour, Fleet: o})
	c := device("d", 7, "old", "new")
	f.Apply(c)
	f.expect(t, "d", "wrong", wire.Deny, "bcrypt", 2)
	f.expect(t, "d", "new", wire.Allow, "bcrypt", 2)
	if asked.Device != "d" || asked.Secret != "new" || asked.Version != 7 ||
		fmt.Sprint(asked.Hashes) != fmt.Sprint(c.Hashes) {
		t.Errorf("asked for %+v", asked)
	}
	if len(o.told) != 2 || o.told[0] != nil || o.told[1] == nil || o.told[1].Hash != c.Hashes[1] {
		t.Fatalf("told %+v, want nothing of the wrong secret and the second hash of the right one", o.told)
	}
	if life := time.Until(o.told[1].Until); life < 44*time.Minute || life > time.Hour {
		t.Errorf("told that it counts for %v, want 45 to 60 minutes", life)
	}
}

// TestRevocationBeatsSharedVerdict changes the record in the last moment before a shared match is used.
func TestRevocationBeatsSharedVerdict(t *testing.T) {
	revoked, other := contract.Credential{ID: "d", Version: 8, Disabled: true, Revoked: true}, device("d", 8, "t")
	for _, test := range []struct {
		when   string
		then   contract.Credential
		reason credential.Reason
		runs   int
	}{
		{"find", revoked, "revoked", 0}, {"begin", revoked, "revoked", 0}, {"await", revoked, "revoked", 0},
		{"find", other, "bcrypt", 1}, {"begin", other, "bcrypt", 1},
	} {
		t.Run(test.when, func(t *testing.T) {
			o := new(others)
			f := o.verifier()
			late := func(c *credential.Question) *credential.Match {
				if c.Version != 7 {
					return nil
				}
				f.Apply(test.then)
				return right(c, time.Hour)
			}
			switch test.when {
			case "find":
				o.find = late
			case "begin":
				o.begin = func(c *credential.Question) (*credential.Match, bool) { return late(c), false }
			case "await":
				o.begin = func(*credential.Question) (*credential.Match, bool) { return nil, true }
				o.await = func(_ context.Context, c *credential.Question, _ func() bool) *credential.Match { return late(c) }
			}
			f.expect(t, "d", "s", wire.Deny, test.reason, test.runs)
			if got := f.edge.stored; len(got) != test.runs {
				t.Errorf("%d verdicts were stored after the revocation, want %d", len(got), test.runs)
			}
		})
	}
}

// TestDoubtBeatsResult: the record is in doubt in the last moment before the answer.
func TestDoubtBeatsResult(t *testing.T) {
	o := new(others)
	f := o.verifier()
	o.end = func() { f.Doubt("d") }
	f.expect(t, "d", "s", wire.Unavailable, "unsure", 1)
	if v, found := f.edge.verdict("d", "s"); found {
		t.Errorf("the edge has the verdict %v", v.Outcome)
	}
}

// TestAwaitHoldsNoWorker verifies a device with the only worker while another attempt waits for the fleet. When the
// record of the waiting attempt changes, it stops waiting.
func TestAwaitHoldsNoWorker(t *testing.T) {
	waits := make(chan struct{})
	o := &others{
		begin: func(c *credential.Question) (*credential.Match, bool) { return nil, c.Device == "d" },
		await: func(ctx context.Context, _ *credential.Question, wanted func() bool) *credential.Match {
			close(waits)
			for wanted() && ctx.Err() == nil {
				time.Sleep(time.Millisecond) // yields the processor
			}
			return nil
		},
	}
	f := o.verifier()
	f.Apply(device("other", 1, "s"))
	answer := make(chan credential.Result)
	go func() { answer <- f.Verify(t.Context(), "d", "s") }()
	<-waits
	f.expect(t, "other", "s", wire.Allow, "bcrypt", 1)
	f.Apply(contract.Credential{ID: "d", Version: 8, Deleted: true})
	if r := <-answer; r.Outcome != wire.Deny || r.Reason != "deleted" {
		t.Errorf("after the revocation: %+v", r)
	}
}

// TestOthersNeverFinish: a lock stays for ever; bcrypt runs here after a while.
func TestOthersNeverFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &others{
			begin: func(*credential.Question) (*credential.Match, bool) { return nil, true },
			await: func(ctx context.Context, _ *credential.Question, _ func() bool) *credential.Match {
				<-ctx.Done()
				return nil
			},
		}
		f := o.verifier()
		began := time.Now()
		f.expect(t, "d", "s", wire.Allow, "bcrypt", 1)
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("waited for others for %v, want 5s", took)
		}
	})
}

// TestSharedPin: matches with a longer and with a shorter lifetime than a pin here.
func TestSharedPin(t *testing.T) {
	for _, test := range []struct{ shared, pin time.Duration }{{10 * time.Minute, 10 * time.Minute},
		{100 * time.Hour, time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			o := new(others)
			asked := 0
			o.find = func(c *credential.Question) *credential.Match {
				if asked++; asked > 1 {
					return nil
				}
				return right(c, test.shared)
			}
			f := o.verifier()
			f.expect(t, "d", "s", wire.Allow, "shared", 0)
			time.Sleep(test.pin - time.Second)
			f.expect(t, "d", "s", wire.Allow, "pin", 0)
			time.Sleep(time.Second)
			f.expect(t, "d", "s", wire.Allow, "bcrypt", 1)
		})
	}
}

// TestPatienceIsNotForTheQueue: a device waits long for the only worker, and then for another sidecar's run, with the
// full patience.
func TestPatienceIsNotForTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queued = 6 * time.Second
		o := &others{
			begin: func(c *credential.Question) (*credential.Match, bool) {
				if c.Device == "first" {
					time.Sleep(queued)
				}
				return nil, c.Device == "d"
			},
			await: func(_ context.Context, c *credential.Question, _ func() bool) *credential.Match {
				return right(c, time.Hour)
			},
		}
		f := o.verifier()
		f.Apply(device("first", 1, "s"))
		go f.Verify(t.Context(), "first", "s")
		synctest.Wait()
		if r := f.Verify(t.Context(), "d", "s"); r.Reason != "shared" {
			t.Errorf("after %v in the queue: %+v, want shared", queued, r)
		}
	})
}
