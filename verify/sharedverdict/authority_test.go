package sharedverdict

import (
	"bytes"
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/credential/credentialtest"
)

var question = credential.Question{Device: "d", Secret: "s", Authority: true, Timeout: time.Second}

func answered() *credential.Match {
	return &credential.Match{Until: until, Authority: &credential.AuthorityAllow{
		Permissions: []string{"a", "b"}, Ends: until.Add(time.Second), NotAfter: until.Add(time.Hour),
		Labels: map[string]string{"fleet": "eu"},
	}}
}

// TestAuthoritysNames: each question to an authority has another name, also after each invalidation.
func TestAuthoritysNames(t *testing.T) {
	questions := []credential.Question{question, {Device: "d", Secret: "s"}}
	for _, change := range []func(*credential.Question){
		func(c *credential.Question) { c.Device = "e" },
		func(c *credential.Question) { c.Secret = "t" },
		func(c *credential.Question) { c.Version = 1 },
		func(c *credential.Question) { c.PublishedMS = 1 },
		func(c *credential.Question) { c.Invalidations = 1 },
	} {
		c := question
		change(&c)
		questions = append(questions, c)
	}
	seen := map[[32]byte]bool{}
	for i := range questions {
		seen[secret.verdictName(&questions[i])] = true
	}
	if len(seen) != len(questions) {
		t.Errorf("%d names for %d questions", len(seen), len(questions))
	}
}

// TestOpenSaid accepts the seal's answer to the question, whole, and nothing else.
func TestOpenSaid(t *testing.T) {
	name, now := secret.verdictName(&question), until.Add(-time.Millisecond)
	good := secret.sealAnswer(name, answered())
	m, ok := secret.openValue(&question, name, string(good), now)
	if !ok || !reflect.DeepEqual(m, answered()) {
		t.Fatalf("what was sealed: %+v, %v", m, ok)
	}
	hashes := question
	hashes.Authority, hashes.Hashes = false, []string{"h"}
	over := answered()
	over.Authority.Ends = now
	for what, open := range map[string]func() (*credential.Match, bool){
		"over": func() (*credential.Match, bool) { return secret.openValue(&question, name, string(good), until) },
		"a match": func() (*credential.Match, bool) {
			return secret.openValue(&question, name, string(secret.sealMatch(name, 0, until)), now)
		},
		"of bcrypt": func() (*credential.Match, bool) { return secret.openValue(&hashes, name, string(good), now) },
		"short":     func() (*credential.Match, bool) { return secret.openValue(&question, name, string(good[:40]), now) },
		"its end first": func() (*credential.Match, bool) {
			return secret.openValue(&question, name, string(secret.sealAnswer(name, over)), now)
		},
	} {
		if m, ok := open(); ok {
			t.Errorf("%s: believed, %+v", what, m)
		}
	}
	for bit := range len(good) * 8 {
		forged := slices.Clone(good)
		forged[bit/8] ^= 1 << (bit % 8)
		if m, ok := secret.openValue(&question, name, string(forged), now); ok {
			t.Fatalf("bit %d changed: believed, %+v", bit, m)
		}
	}
}

// authority allows every device that has the secret "right", after a while.
type authority struct {
	calls atomic.Int64
	ends  time.Time
}

func (a *authority) Ask(_ context.Context, id, secret string, _ bool) (credential.Answer, error) {
	a.calls.Add(1)
	time.Sleep(50 * time.Millisecond)
	return credential.Answer{Allow: secret == "right", Permissions: []string{"config.read"}, NotAfter: a.ends,
		Labels: map[string]string{"fleet": "eu"}}, nil
}

// TestOneCallOfTheAuthority: 1,000 concurrent first requests of a device at two sidecars need one call. After an
// invalidation there is one more, and each sidecar knows the answer's permissions, labels and end.
func TestOneCallOfTheAuthority(t *testing.T) {
	url := redistest.Start(t)
	a := &authority{ends: time.Now().Add(time.Hour).Truncate(time.Millisecond)}
	var verifiers []*credential.Verifier
	for range 2 {
		log := new(bytes.Buffer)
		fleet := join(t, strings.TrimPrefix(url, "redis://"), secret).Verdicts
		v := credential.New(credential.Config{Workers: 1, Queue: 10, Wait: time.Minute, AllowTTL: time.Minute,
			DenyTTL: time.Second, Fleet: fleet, Authority: a, MaxAnswers: 100}, credentialtest.Memory{}, metrics.New(),
			slog.New(slog.NewTextHandler(log, nil)))
		v.Shard(0).EndResync()
		verifiers = append(verifiers, v)
	}
	burst := func(id string) {
		t.Helper()
		before := a.calls.Load()
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				r := verifiers[i%2].Verify(t.Context(), id, "right", "")
				if r.Outcome != wire.Allow || !r.NotAfter.Equal(a.ends) ||
					r.Permissions != "config.read" {
					t.Errorf("%+v", r)
				}
			})
		}
		wg.Wait()
		if got := a.calls.Load() - before; got != 1 {
			t.Errorf("%s: %d calls, want 1", id, got)
		}
	}
	burst("d")
	burst("e")
	for i, id := range []string{"d", contract.InvalidateLabel("fleet", "eu"), contract.InvalidateAll} {
		tombstone := contract.Credential{ID: id, Version: uint64(i + 1), Deleted: true, PublishedMS: time.Now().UnixMilli()}
		for _, v := range verifiers {
			v.Apply(tombstone)
		}
		burst("d")
	}
}
