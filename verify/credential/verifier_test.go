package credential_test

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/credential/credentialtest"
)

// edge stores verdicts like the edge's memory, by device and secret.
type edge struct {
	credentialtest.Memory
	mu       sync.Mutex
	verdicts map[string]map[string]wire.Verdict
	stored   []string // devices, in the order of their verdicts
	only     bool     // of the last verdict
	marks    map[string]bool
	complete bool
}

func (e *edge) PutDevice(device string, isNew bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.marks == nil {
		e.marks = map[string]bool{}
	}
	e.marks[device] = isNew
	return nil
}

func (e *edge) DropDevice(device string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.marks, device)
}

func (e *edge) SetDevicesComplete() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.complete = true
}

func (e *edge) PutVerdict(device, secret string, v wire.Verdict, only bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.only = only
	if e.verdicts[device] == nil {
		e.verdicts[device] = map[string]wire.Verdict{}
	}
	e.verdicts[device][secret] = v
	e.stored = append(e.stored, device)
}

func (e *edge) PutAnswer(device, secret string, v wire.Verdict, _ time.Time) {
	e.PutVerdict(device, secret, v, false)
}

// PutSession stores the verdict under an impossible secret.
func (e *edge) PutSession(device, session string, v wire.Verdict) {
	e.PutVerdict(device, "\x00"+session, v, false)
}

func (e *edge) DropVerdicts(device string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.verdicts, device)
}

func (e *edge) verdict(device, secret string) (wire.Verdict, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v, found := e.verdicts[device][secret]
	return v, found
}

type fixture struct {
	*credential.Verifier
	edge    *edge
	metrics *metrics.Metrics
}

// Verify verifies a device whose address is unknown.
func (f fixture) Verify(ctx context.Context, id, secret string) credential.Result {
	return f.Verifier.Verify(ctx, id, secret, "")
}

// start returns a Verifier that has read an empty Redis.
func start(c credential.Config) fixture {
	f := starting(c)
	f.Shard(0).EndResync()
	return f
}

// starting returns a Verifier that is reading shard 0.
func starting(c credential.Config) fixture {
	if c.Workers == 0 {
		c.Workers = 2
	}
	if c.Queue == 0 {
		c.Queue = 2000
	}
	if c.Wait == 0 {
		c.Wait = time.Minute
	}
	if c.MaxCost == 0 {
		c.MaxCost = 14
	}
	if c.AllowTTL == 0 {
		c.AllowTTL, c.DenyTTL = 30*time.Second, 5*time.Second
	}
	e := &edge{verdicts: map[string]map[string]wire.Verdict{}}
	m := metrics.New()
	v := credential.New(c, e, m, slog.New(slog.NewTextHandler(io.Discard, nil)))
	v.Shard(0).BeginResync()
	return fixture{v, e, m}
}

var pinned = credential.Config{PinTTL: time.Hour}

func hashed(secret string, cost int) string {
	h, err := bcrypt.GenerateFromPassword([]byte(secret), cost)
	if err != nil {
		panic(err)
	}
	return string(h)
}

func device(id string, version uint64, secrets ...string) contract.Credential {
	c := contract.Credential{ID: id, Version: version, Permissions: []string{"config.read", "telemetry.write"}}
	for _, secret := range secrets {
		c.Hashes = append(c.Hashes, hashed(secret, bcrypt.MinCost))
	}
	return c
}

func (f fixture) runs(t *testing.T) int {
	return int(metricstest.Value(t, f.metrics, "gatehouse_bcrypt_total"))
}

func (f fixture) expect(t *testing.T, id, secret string, outcome wire.Outcome, reason credential.Reason, runs int) {
	t.Helper()
	before := f.runs(t)
	r := f.Verify(t.Context(), id, secret)
	if r.Outcome != outcome || r.Reason != reason {
		t.Errorf("Verify(%q, %q) = %v because of %s, want %v because of %s", id, secret, r.Outcome, r.Reason, outcome, reason)
	}
	if got := f.runs(t) - before; got != runs {
		t.Errorf("Verify(%q, %q): %d runs of bcrypt, want %d", id, secret, got, runs)
	}
}

// registered returns a verifier with a device of each kind.
func registered() fixture {
	f := start(pinned)
	past, future := time.Now().Add(-time.Minute).UnixMilli(), time.Now().Add(time.Minute).UnixMilli()
	with := func(c contract.Credential, change func(*contract.Credential)) contract.Credential {
		change(&c)
		return c
	}
	y := strings.Replace(hashed("s", 4), "$2a$", "$2y$", 1)
	for _, c := range []contract.Credential{
		device("good", 1, "s"),
		device("rotating", 1, "old", "new"),
		with(device("revoked", 1, "s"), func(c *contract.Credential) { c.Disabled, c.Revoked = true, true }),
		with(device("disabled", 1, "s"), func(c *contract.Credential) { c.Disabled = true }),
		{ID: "deleted", Version: 2, Deleted: true, PublishedMS: time.Now().UnixMilli()},
		with(device("over", 1, "s"), func(c *contract.Credential) { c.NotAfterMS = past }),
		with(device("ending", 1, "s"), func(c *contract.Credential) { c.NotAfterMS = future }),
		with(device("costly", 1, "s"), func(c *contract.Credential) {
			c.Hashes = []string{strings.Replace(y, "$04$", "$15$", 1)}
		}),
		with(device("2y", 1, "s"), func(c *contract.Credential) { c.Hashes = []string{y} }),
		with(device("2b", 1, "s"), func(c *contract.Credential) {
			c.Hashes = []string{strings.Replace(y, "$2y$", "$2b$", 1)}
		}),
	} {
		f.Apply(c)
	}
	f.Apply(device("good", 1, "not newer"))
	f.Apply(device("long", 1, long))
	return f
}

// long is a secret of the maximum length.
var long = strings.Repeat("x", limits.MaxSecret)

func TestVerify(t *testing.T) {
	f := registered()
	for _, test := range []struct {
		name, id, secret string
		outcome          wire.Outcome
		reason           credential.Reason
		runs             int
	}{
		{"unknown", "nobody", "s", wire.Deny, "unknown", 0},
		{"revoked", "revoked", "s", wire.Deny, "revoked", 0},
		{"disabled", "disabled", "s", wire.Deny, "disabled", 0},
		{"deleted", "deleted", "s", wire.Deny, "deleted", 0},
		{"past its end", "over", "s", wire.Deny, "expired", 0},
		{"before its end", "ending", "s", wire.Allow, "bcrypt", 1},
		{"cost over the limit", "costly", "s", wire.Deny, "refused_record", 0},
		{"$2y$", "2y", "s", wire.Allow, "bcrypt", 1},
		{"$2b$", "2b", "s", wire.Allow, "bcrypt", 1},
		{"empty secret", "good", "", wire.Deny, "malformed", 0},
		{"secret over the limit", "long", long + "x", wire.Deny, "malformed", 0},
		{"secret at the limit", "long", long, wire.Allow, "bcrypt", 1},
		{"NUL that bcrypt would take for the end", "good", "s\x00s", wire.Deny, "malformed", 0},
		{"bad id", "a/b", "s", wire.Deny, "malformed", 0},
		{"wrong before the right one is known", "good", "t", wire.Deny, "bcrypt", 1},
		{"wrong again", "good", "t", wire.Deny, "refuted", 0},
		{"right", "good", "s", wire.Allow, "bcrypt", 1},
		{"right again", "good", "s", wire.Allow, "pin", 0},
		{"wrong after it", "good", "t", wire.Deny, "refuted", 0},
		{"another wrong one", "good", "u", wire.Deny, "resolved", 0},
		{"one of two", "rotating", "new", wire.Allow, "bcrypt", 2},
		{"wrong when one of two is resolved", "rotating", "t", wire.Deny, "bcrypt", 1},
		{"the other", "rotating", "old", wire.Allow, "bcrypt", 1},
		{"the first again", "rotating", "new", wire.Allow, "pin", 0},
		{"wrong when both are resolved", "rotating", "u", wire.Deny, "resolved", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			f.expect(t, test.id, test.secret, test.outcome, test.reason, test.runs)
			f.expectVerdict(t, test.id, test.secret, test.outcome, test.reason)
			last := f.Describe(test.id).Refused
			if test.outcome == wire.Deny && test.reason != "malformed" && test.reason != "unknown" &&
				(last == nil || last.Reason != test.reason && last.Reason != "refuted" || last.Text == "") {
				t.Errorf("the last refusal is %+v, want one because of %s", last, test.reason)
			}
		})
	}
}

// expectVerdict checks the verdict that the edge has.
func (f fixture) expectVerdict(t *testing.T, id, secret string, outcome wire.Outcome, reason credential.Reason) {
	t.Helper()
	v, found := f.edge.verdict(id, secret)
	if reason == "malformed" {
		if found {
			t.Error("a verdict was stored for what the edge refuses by itself")
		}
		return
	}
	if !found && outcome == wire.Deny { // the first deny of a credential; only the second is stored
		if reason == "resolved" {
			reason = "refuted" // the secret was stored as refuted
		}
		f.expect(t, id, secret, outcome, reason, 0)
		v, found = f.edge.verdict(id, secret)
	}
	if !found || v.Outcome != outcome {
		t.Errorf("stored %v, %v; want %v", v.Outcome, found, outcome)
	}
	life := time.Until(time.UnixMilli(v.ExpiresMS))
	refresh := time.Until(time.UnixMilli(v.RefreshAfterMS))
	if outcome == wire.Allow && (life < 26*time.Second || life > 33*time.Second || refresh < 17*time.Second ||
		refresh > 23*time.Second || v.Permissions != "config.read,telemetry.write") {
		t.Errorf("allow for %v, refreshed after %v, permissions %q", life, refresh, v.Permissions)
	}
	if outcome == wire.Deny && (life <= 4*time.Second || life > 5*time.Second || v.Permissions != "") {
		t.Errorf("deny for %v, permissions %q", life, v.Permissions)
	}
}

func TestUnavailableBeforeTheFirstSync(t *testing.T) {
	m := metrics.New()
	e := &edge{verdicts: map[string]map[string]wire.Verdict{}}
	v := credential.New(credential.Config{Workers: 1, Queue: 1, MaxCost: 14}, e, m, slog.New(slog.DiscardHandler))
	if r := v.Verify(t.Context(), "d", "s", ""); r.Outcome != wire.Unavailable || r.RetryAfter != time.Second {
		t.Errorf("Verify = %+v, want unavailable", r)
	}
	if _, found := e.verdict("d", "s"); found {
		t.Error("a verdict was stored")
	}
}

func TestNotAfterEndsAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(pinned)
		end := time.Now().Add(10 * time.Second)
		c := device("d", 1, "s")
		c.NotAfterMS = end.UnixMilli()
		f.Apply(c)
		f.expect(t, "d", "s", wire.Allow, "bcrypt", 1)
		if v, _ := f.edge.verdict("d", "s"); v.ExpiresMS != end.UnixMilli() || v.NotAfterMS != end.UnixMilli() {
			t.Errorf("verdict until %v and %v, want %v", time.UnixMilli(v.ExpiresMS), time.UnixMilli(v.NotAfterMS), end)
		}
		time.Sleep(10 * time.Second)
		f.expect(t, "d", "s", wire.Deny, "expired", 0)
	})
}

func TestPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name   string
			pin    time.Duration
			after  time.Duration
			reason credential.Reason
			runs   int
		}{
			{"before its earliest end", time.Hour, 44 * time.Minute, "pin", 0},
			{"after its end", time.Hour, time.Hour, "bcrypt", 1},
			{"none", 0, 0, "bcrypt", 1},
		} {
			f := start(credential.Config{PinTTL: test.pin})
			f.Apply(device("d", 1, "s"))
			f.expect(t, "d", "s", wire.Allow, "bcrypt", 1)
			time.Sleep(test.after)
			f.expect(t, "d", "t", wire.Deny, "resolved", 0)
			f.expect(t, "d", "s", wire.Allow, test.reason, test.runs)
		}
	})
}

func TestNewRecordForgetsPins(t *testing.T) {
	f := start(pinned)
	f.Apply(device("d", 1, "s"))
	f.expect(t, "d", "s", wire.Allow, "bcrypt", 1)
	f.Apply(device("d", 2, "t"))
	if _, found := f.edge.verdict("d", "s"); found {
		t.Error("the verdict outlived its record")
	}
	f.expect(t, "d", "s", wire.Deny, "bcrypt", 1)
	f.expect(t, "d", "t", wire.Allow, "bcrypt", 1)
	f.Remove("d")
	f.expect(t, "d", "t", wire.Deny, "unknown", 0)
}

// TestDoubt: a device whose record may have changed is neither allowed nor refused until the record was read.
func TestDoubt(t *testing.T) {
	f := start(pinned)
	f.Apply(device("d", 5, "s"))
	f.expect(t, "d", "s", wire.Allow, "bcrypt", 1)
	f.Doubt("d")
	if _, found := f.edge.verdict("d", "s"); found {
		t.Error("the edge has a verdict of a device in doubt")
	}
	if got := f.edge.marked(); !slices.Equal(got, []string{"d"}) {
		t.Errorf("got marks of %q, want d: without one the edge refuses the device itself", got)
	}
	for _, secret := range []string{"s", "wrong"} {
		f.expect(t, "d", secret, wire.Unavailable, "unsure", 0)
	}
	f.Apply(device("d", 1, "t")) // Redis has lost data, and counts again
	f.expect(t, "d", "s", wire.Deny, "bcrypt", 1)
	f.expect(t, "d", "t", wire.Allow, "bcrypt", 1)
	f.Doubt("d")
	f.Remove("d")
	f.expect(t, "d", "t", wire.Deny, "unknown", 0)
	f.Doubt("d")
	f.expect(t, "d", "t", wire.Deny, "unknown", 0)
}

// TestDoubtEnds: bcrypt's results count after a doubt for the hashes that the record still has.
func TestDoubtEnds(t *testing.T) {
	c := device("d", 5, "s")
	changed := func(change func(*contract.Credential)) func(fixture) {
		next := c
		change(&next)
		return func(f fixture) { f.Apply(next) }
	}
	same := changed(func(*contract.Credential) {})
	for _, test := range []struct {
		name    string
		then    func(fixture)
		outcome wire.Outcome
		reason  credential.Reason
		runs    int
	}{
		{"same", same, wire.Allow, "pin", 0},
		{"never read", func(fixture) {}, wire.Unavailable, "unsure", 0},
		{"same after another doubt", func(f fixture) { f.Doubt("d"); same(f) }, wire.Allow, "pin", 0},
		{"same in a resync", func(f fixture) {
			f.Shard(0).BeginResync()
			same(f)
			f.Shard(0).EndResync()
		}, wire.Allow, "pin", 0},
		{"not in a resync", func(f fixture) { f.Shard(0).BeginResync(); f.Shard(0).EndResync() }, wire.Deny, "unknown", 0},
		{"same after a resync", func(f fixture) {
			f.Shard(0).BeginResync()
			f.Shard(0).EndResync()
			same(f)
		}, wire.Allow, "bcrypt", 1},
		{"removed", func(f fixture) { f.Remove("d") }, wire.Deny, "unknown", 0},
		{"same after removal", func(f fixture) { f.Remove("d"); same(f) }, wire.Allow, "bcrypt", 1},
		{"next version", changed(func(c *contract.Credential) { c.Version++ }), wire.Allow, "pin", 0},
		{"older version", changed(func(c *contract.Credential) { c.Version-- }), wire.Allow, "pin", 0},
		{"other time", changed(func(c *contract.Credential) { c.PublishedMS++ }), wire.Allow, "pin", 0},
		{"other hash", changed(func(c *contract.Credential) {
			c.Hashes = device("d", 5, "s").Hashes
		}), wire.Allow, "bcrypt", 1},
		{"another hash", changed(func(c *contract.Credential) {
			c.Hashes = device("d", 5, "t").Hashes
		}), wire.Deny, "bcrypt", 1},
		{"other permissions", changed(func(c *contract.Credential) { c.Permissions = nil }), wire.Allow, "pin", 0},
		{"revoked", changed(func(c *contract.Credential) { c.Disabled, c.Revoked = true, true }), wire.Deny, "revoked", 0},
		{"deleted", changed(func(c *contract.Credential) {
			*c = contract.Credential{ID: "d", Version: 5, Deleted: true}
		}), wire.Deny, "deleted", 0},
		{"expired", changed(func(c *contract.Credential) { c.NotAfterMS = 1 }), wire.Deny, "expired", 0},
	} {
		f := start(pinned)
		f.Apply(c)
		f.expect(t, "d", "s", wire.Allow, "bcrypt", 1)
		f.Doubt("d")
		t.Log(test.name)
		f.expect(t, "d", "s", wire.Unavailable, "unsure", 0)
		test.then(f)
		f.expect(t, "d", "s", test.outcome, test.reason, test.runs)
		if v, _ := f.edge.verdict("d", "s"); (v.Outcome == wire.Allow) != (test.outcome == wire.Allow) {
			t.Errorf("the edge has the verdict %v", v.Outcome)
		}
	}
}

func TestResync(t *testing.T) {
	f := start(pinned)
	c := device("kept", 5, "s")
	f.Apply(c)
	f.Apply(device("gone", 5, "s"))
	f.Apply(device("older", 5, "s"))
	f.expect(t, "kept", "s", wire.Allow, "bcrypt", 1)
	f.expect(t, "gone", "s", wire.Allow, "bcrypt", 1)
	f.Shard(0).BeginResync()
	f.Apply(c)
	f.Apply(device("older", 1, "t"))
	f.Apply(device("older", 1, "u")) // not newer in this resync
	f.Shard(0).EndResync()
	f.expect(t, "kept", "s", wire.Allow, "pin", 0)
	f.expect(t, "gone", "s", wire.Deny, "unknown", 0)
	f.expect(t, "older", "s", wire.Deny, "bcrypt", 1)
	f.expect(t, "older", "t", wire.Allow, "bcrypt", 1)
	if got := metricstest.Value(t, f.metrics, "gatehouse_credentials"); got != 2 {
		t.Errorf("%v credentials, want 2", got)
	}
}
