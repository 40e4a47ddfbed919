package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// checkTrial checks, for a decision under enforced rules, that the same rules on trial judge the request alike and
// refuse nothing, and that the request gets the answer without auth.
func checkTrial(t *testing.T, config string, enforced *Decision, m *memory, token Claims, answers Answers,
	lines ...string) {
	t.Helper()
	if read, ok := token.(*claims); ok {
		unread := *read
		token = &unread
	}
	under := func(change func(c *Config)) (Decision, *Rule) {
		c := mustParse(t, config)
		change(c)
		e := NewEngine(c)
		if m.state.Epoch != 0 {
			e.SetState(now, m.state)
		}
		r := read(e, lines...)
		r.Token = token
		var d Decision
		r.Decide(&d, now, m, &answers)
		d.Headers, d.Body = slices.Clone(d.Headers), slices.Clone(d.Body)
		if r.rule < 0 {
			return d, nil
		}
		return d, &c.Rules[r.rule]
	}
	trial, rule := under(func(c *Config) {
		for i := range c.Rules {
			if c.Rules[i].Auth != nil {
				c.Rules[i].Auth.Trial = true
			}
		}
		c.DenyByDefault, c.WouldDenyByDefault = false, c.DenyByDefault
	})
	if rule != nil && rule.IssueSession {
		return
	}
	if enforced.Action != Reply || enforced.Status < 400 {
		if trial.Action != enforced.Action || trial.Status != enforced.Status || trial.Auth != enforced.Auth ||
			trial.Device != enforced.Device || trial.Permissions != enforced.Permissions {
			t.Errorf("not enforced: got %+v, enforced %+v", trial, enforced)
		}
		return
	}
	status, reason := trial.Enforced()
	if !trial.WouldBeRefused() || status != enforced.Status || reason != enforced.Details() ||
		trial.Device != "" || trial.Hint != enforced.Hint || trial.New {
		t.Errorf("not enforced: got %+v, which would be %d %s; want %d %s", trial, status, reason, enforced.Status,
			enforced.Details())
	}
	if rule == nil || rule.Cache != nil && (rule.Cache.PerDevice || answers.Unreachable) {
		return
	}
	open, _ := under(func(c *Config) {
		for i := range c.Rules {
			c.Rules[i].Auth = nil
		}
	})
	if trial.Action != open.Action || trial.Status != open.Status || trial.CacheStatus != open.CacheStatus ||
		string(trial.Headers) != string(open.Headers) || string(trial.Body) != string(open.Body) {
		t.Errorf("not enforced: got %+v, without auth %+v", trial, open)
	}
}

// TestTrialCache: rules on trial answer from the cache as without auth, but never with a single device's objects.
func TestTrialCache(t *testing.T) {
	const config = `{"credentials": {"id_header": "id", "secret_header": "secret"}, "rules": [
		{"match": {"prefix": "/me"}, "auth": {"enforce": false}, "cache": {"scope": "device"}},
		{"match": {"prefix": "/fetch"}, "auth": {"enforce": false}, "cache": {"on_miss": "fetch"}},
		{"match": {"prefix": "/"}, "auth": {"enforce": false}, "cache": {}}]}`
	good := []string{"id: dev", "secret: s3cret"}
	for _, tt := range []struct {
		name    string
		request []string
		answers Answers
		action  Action
		status  string // Cache-Status of a pass
		control string
		auth    Counter
	}{
		{"no credential", []string{"GET /a"}, Answers{}, Reply, "", "no-cache", WouldDeny},
		{"a good one", append([]string{"GET /a"}, good...), Answers{}, Reply, "", "no-cache", AuthAllow},
		{"a device's object", append([]string{"GET /me"}, good...), Answers{}, Reply, "", "private, no-cache", AuthAllow},
		{"nobody's object", []string{"GET /me"}, Answers{}, Pass, statusBypass, "", WouldDeny},
		{"a fetch", []string{"GET /fetch"}, Answers{}, Fetch, "", "", WouldDeny},
		{"none after waiting in vain", append([]string{"GET /fetch"}, "id: other", "secret: x"),
			Answers{Unreachable: true}, Pass, statusFetchFailed, "", WouldBeUnavailable},
		{"judged before the fetch", append([]string{"GET /fetch"}, good...),
			Answers{Fetch: &wire.FetchResponse{}, Refused: Refusal{WouldThrottle, TooManyGuesses}}, Pass,
			statusFetchFailed, "", WouldThrottle},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory()
			m.put("/a", 0)
			m.put("@dev/me", 0)
			m.put("@/me", 0)
			m.verdict("dev", "s3cret", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000})
			m.device("other", false)
			d := decide(t, m, config, tt.answers, tt.request...)
			control := ""
			for _, f := range fieldsOf(d) {
				if f[0] == "cache-control" {
					control = f[1]
				}
			}
			if d.Action != tt.action || d.CacheStatus != tt.status || control != tt.control || d.Auth != tt.auth {
				t.Errorf("got action %d, %q, %q, %q; want %d, %q, %q, %q", d.Action, d.CacheStatus, control, d.Auth,
					tt.action, tt.status, tt.control, tt.auth)
			}
		})
	}
}

// TestTrialReadings: a request whose readings meet different rules passes, and is counted, unless a rule is enforced.
func TestTrialReadings(t *testing.T) {
	const rules = `"credentials": {"basic": true}, "rules": [
		{"match": {"prefix": "/try/a"}, "auth": {"enforce": false}},
		{"match": {"prefix": "/try/"}, "auth": {"enforce": false, "permissions": ["x"]}},
		{"match": {"prefix": "/cache/a"}, "cache": {}},
		{"match": {"prefix": "/cache/", "methods": ["GET"]}, "auth": {"enforce": false}},
		{"match": {"prefix": "/both/a"}, "auth": {}},
		{"match": {"prefix": "/both/"}, "auth": {"enforce": false}},
		{"match": {"path": "/1/a"}, "auth": {}},
		{"match": {"path": "/1/ab"}, "auth": {"enforce": false}},
		{"match": {"prefix": "/1/"}, "auth": {"enforce": false}},
		{"match": {"path": "/2/a"}, "auth": {"enforce": false}},
		{"match": {"path": "/2/ab"}, "auth": {}},
		{"match": {"prefix": "/2/"}, "auth": {"enforce": false}},
		{"match": {"path": "/3/a"}, "auth": {"enforce": false}},
		{"match": {"path": "/3/ab"}, "auth": {"enforce": false}},
		{"match": {"prefix": "/3/"}, "auth": {}},
		{"match": {"prefix": "/open/a"}, "cache": {}},
		{"match": {"prefix": "/open/"}}]`
	const trials = `"credentials": {"basic": true}, "rules": [{"match": {"prefix": "/try/"}, "auth": {"enforce": false}}]`
	const (
		passes  = "passes"
		refused = "refused"
	)
	for _, tt := range []struct{ name, rules, fallback, target, want string }{
		{"two trials", rules, "pass", "/try/%61", "would_deny_ambiguous_path"},
		{"a trial and a cache", rules, "pass", "/cache/%61", "would_deny_ambiguous_path"},
		{"a trial and none", rules, "pass", "/%74ry/b", "would_deny_no_credential"},
		{"a trial and none, denied", rules, "deny", "/%74ry/b", refused},
		{"a trial and none, not denied yet", rules, "would_deny", "/%74ry/b", "would_deny_no_credential"},
		{"a trial and an enforced rule", rules, "pass", "/both/%61", refused},
		{"an enforced rule and none, not denied yet", rules, "would_deny", "/%62oth/a", refused},
		{"the first of three is enforced", rules, "pass", "/1/a;b", refused},
		{"the second of three is enforced", rules, "pass", "/2/a;b", refused},
		{"the third of three is enforced", rules, "pass", "/3/a;b", refused},
		{"two caches", rules, "pass", "/open/%61", refused},
		{"a cache and none, not denied yet", rules, "would_deny", "/%6fpen/a", "would_deny_ambiguous_path"},
		{"none", rules, "pass", "/x", passes},
		{"none, not denied yet", rules, "would_deny", "/x", "would_deny_default"},
		{"none, not denied yet, spelled", rules, "would_deny", "/%78", "would_deny_default"},
		{"none, denied", rules, "deny", "/x", refused},
		{"it climbs, and some rule is enforced", rules, "pass", "/try/..;/x", refused},
		{"it climbs, and no rule is enforced", trials, "pass", "/try/..;/x", "would_deny_ambiguous_path"},
		{"it climbs, and the default is", trials, "deny", "/try/..;/x", refused},
		{"it climbs, and the default isn't", trials, "would_deny", "/x/..;/x", "would_deny_ambiguous_path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := decide(t, newMemory(), `{"default": "`+tt.fallback+`", `+tt.rules+`}`, Answers{}, "GET "+tt.target)
			got := passes
			switch {
			case d.WouldBeRefused() && d.Action == Pass:
				got = d.Reason.WouldDeny()[len("gatehouse_"):]
			case d.Action == Reply:
				got = refused
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestTrialHost: an ambiguous host is refused as soon as some host's rules are enforced.
func TestTrialHost(t *testing.T) {
	for rule, want := range map[string]Counter{`"auth": {"enforce": false}`: WouldForbid, `"auth": {}`: AuthForbidden,
		`"cache": {}`: None} {
		d := decide(t, newMemory(), `{"credentials": {"basic": true}, "virtual_hosts": {"a": {"domains": ["a"],
			"rules": [{"match": {"prefix": "/"}, `+rule+`}]}}}`, Answers{}, "GET /", "host: b")
		if d.Auth != want || want != None && d.Reason != AmbiguousHost {
			t.Errorf("%s: got %q, %s, want %q", rule, d.Auth, d.Reason, want)
		}
	}
}

// TestWouldDenyNames: each reason has a unique name.
func TestWouldDenyNames(t *testing.T) {
	names := map[string]bool{}
	for r := range reasonHit {
		if r != TokenIssued {
			names[r.WouldDeny()] = true
		}
	}
	if len(names) != int(reasonHit)-1 || !names["gatehouse_would_deny_wrong_secret"] {
		t.Errorf("got %v", names)
	}
}

// TestTriedCache: a rule with a cache on trial decides as without a cache, and tells the entity-tag of the would-be
// answer.
func TestTriedCache(t *testing.T) {
	const config = `{"credentials": {"id_header": "id", "secret_header": "secret"}, "rules": [
		{"match": {"prefix": "/me"}, "auth": {}, "cache": {"scope": "device"}},
		{"match": {"prefix": "/tried"}, "auth": {"enforce": false}, "cache": {}},
		{"match": {"prefix": "/fetch"}, "cache": {"on_miss": "fetch"}},
		{"match": {"prefix": "/"}, "cache": {}}]}`
	good := []string{"id: dev", "secret: s3cret"}
	for _, tt := range []struct {
		name    string
		request []string
		etag    string
		cache   Counter
	}{
		{"a hit", []string{"GET /a"}, `"v1"`, None},
		{"not modified", []string{"GET /a", `if-none-match: "v1"`}, `"v1"`, None},
		{"an encoding", []string{"HEAD /a", "accept-encoding: gzip"}, `W/"v1"`, None},
		{"a date", []string{"GET /a", "if-modified-since: Thu, 01 Jan 1970 00:00:00 GMT"}, `"v1"`, None},
		{"a write", []string{"POST /a"}, "", CacheBypass},
		{"a miss", []string{"GET /b"}, "", CacheMiss},
		{"expired", []string{"GET /expired"}, "", CacheStale},
		{"not fetched", []string{"GET /fetch"}, "", CacheMiss},
		{"a device's", append([]string{"GET /me"}, good...), `"v1"`, None},
		{"nobody's", []string{"GET /me"}, "", None},
		{"of a trial", []string{"GET /tried"}, `"v1"`, None},
		{"of a trial, good", append([]string{"GET /tried"}, good...), `"v1"`, None},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory()
			for _, key := range []string{"/a", "@dev/me", "@/me", "/tried"} {
				m.put(key, 0)
			}
			m.put("/expired", 1000)
			m.verdict("dev", "s3cret", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000})
			under := func(change func(r *Rule)) (d Decision, vary string) {
				c := mustParse(t, config)
				for i := range c.Rules {
					change(&c.Rules[i])
				}
				e := NewEngine(c)
				e.SetState(now, m.state)
				r := read(e, tt.request...)
				for range 3 { // then answers are cached
					d = decideRequest(m, r)
				}
				if hits, tries := c.ExpectsCounter(r.rule, CacheHit), c.ExpectsCounter(r.rule, WouldHitSame); hits ||
					tries != (c.Rules[r.rule].Cache != nil) {
					t.Errorf("counts hits: %t, what would be one: %t", hits, tries)
				}
				d.WouldHit = strings.Clone(d.WouldHit)
				return d, r.UpstreamVary()
			}
			tried, vary := under(func(r *Rule) { r.Cache.Trial = true })
			if tried.WouldHit != tt.etag || tried.Cache != tt.cache || (tried.Key != "") != (tt.etag != "") {
				t.Errorf("got %q, %q, key %q; want %q, %q", tried.WouldHit, tried.Cache, tried.Key, tt.etag, tt.cache)
			}
			without, same := under(func(r *Rule) { r.Cache = nil })
			tried.WouldHit, tried.Cache, tried.Key = "", None, ""
			if fmt.Sprintf("%+v", tried) != fmt.Sprintf("%+v", without) || vary != same {
				t.Errorf("got %+v, Vary %q\nwant %+v, %q, as without a cache", tried, vary, without, same)
			}
		})
	}
}

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		held, upstream string
		want           Counter
	}{
		{`"a"`, `"a"`, WouldHitSame}, {`W/"a"`, `"a"`, WouldHitSame}, {`"a"`, `W/"a"`, WouldHitSame},
		{`"a"`, `"b"`, WouldHitDifferent}, {`"a"`, `a`, WouldHitDifferent}, {`"a"`, "", WouldHitNoETag},
	} {
		if got := CompareETags(tt.held, tt.upstream); got != tt.want {
			t.Errorf("%s, %s: got %s, want %s", tt.held, tt.upstream, got, tt.want)
		}
	}
}
