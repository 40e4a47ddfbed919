package policy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// full is a configuration that uses every field, in JSON as from the proxy.
const full = `{
	"sidecar": {"cluster": "side", "timeout": "500ms"},
	"credentials": {"id_header": "X-Device-Id", "secret_header": "x-device-token", "forward": true},
	"strip_override_headers": false,
	"log_hits": true,
	"session": {"metadata": "gatehouse"},
	"source": {"filter_state": "gatehouse.source"},
	"max_staleness": "1m",
	"max_auth_staleness": "90s",
	"stale": "serve",
	"verdict_grace": "90s",
	"default": "deny",
	"rules": [
		{"name": "telemetry", "match": {"prefix": "/v1/telemetry", "methods": ["POST"]}, "auth": {"permissions": ["telemetry.write"]}},
		{"match": {"prefix": "/v1/products/"}, "cache": {"query": ["lang"]}},
		{"match": {"path": "/v1/fleet/config"}, "auth": {"permissions": ["config.read"]}, "cache": {"on_miss": "fetch"}},
		{"match": {"path": "/v1/me/config"}, "auth": {"enforce": false}, "cache": {"scope": "device"}},
		{"match": {"path": "/v1/session", "methods": ["POST"]}, "session": "issue"},
		{"match": {"path": "/healthz"}}
	]}`

func parseJSON(t testing.TB, text string) (*Config, error) {
	t.Helper()
	var tree any
	if err := json.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatalf("test configuration: %v", err)
	}
	return Parse(tree)
}

// mustParse is parseJSON of a valid configuration.
func mustParse(t testing.TB, text string) *Config {
	t.Helper()
	c, err := parseJSON(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParse(t *testing.T) {
	got := mustParse(t, full)
	want := &Config{
		SidecarCluster:   "side",
		SidecarTimeout:   500 * time.Millisecond,
		Credentials:      Credentials{IDHeader: "x-device-id", SecretHeader: "x-device-token", Forward: true},
		KeepOverrides:    true,
		LogHits:          true,
		SessionMetadata:  "gatehouse",
		Source:           Source{FilterState: "gatehouse.source"},
		MaxStaleness:     time.Minute,
		MaxAuthStaleness: 90 * time.Second,
		ServeStale:       true,
		VerdictGrace:     90 * time.Second,
		DenyByDefault:    true,
		Rules: []Rule{
			{Name: "telemetry", Match: Match{Prefix: "/v1/telemetry", Methods: []string{"POST"}},
				Auth: &Auth{Permissions: []string{"telemetry.write"}}},
			{Name: "1", Match: Match{Prefix: "/v1/products/"}, Cache: &Cache{Query: []string{"lang"}}},
			{Name: "2", Match: Match{Path: "/v1/fleet/config"}, Auth: &Auth{Permissions: []string{"config.read"}},
				Cache: &Cache{Fetch: true}},
			{Name: "3", Match: Match{Path: "/v1/me/config"}, Auth: &Auth{Trial: true}, Cache: &Cache{PerDevice: true}},
			{Name: "4", Match: Match{Path: "/v1/session", Methods: []string{"POST"}}, IssueSession: true},
			{Name: "5", Match: Match{Path: "/healthz"}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestParseDefaults(t *testing.T) {
	got := mustParse(t, `{}`)
	want := &Config{SidecarCluster: "gatehouse-sidecar", SidecarTimeout: 2 * time.Second, MaxStaleness: 30 * time.Second}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	push, err := parseJSON(t, `{"push_listener": true}`)
	if err != nil || !push.PushListener || push.SidecarCluster != "" {
		t.Errorf("push listener: got %+v, %v", push, err)
	}
}

func TestParseRefuses(t *testing.T) {
	const creds = `"credentials": {"id_header": "a", "secret_header": "b"}, `
	tests := []struct {
		name, config string
		want         []string // the problems, each the beginning of a line
	}{
		{"not an object", `[]`, []string{`is a list, want an object`}},
		{"unknown field", `{"rulez": []}`, []string{`rulez: unknown field; known are`}},
		{"unknown field deep", `{"rules": [{"match": {"path": "/a"}, "cache": {"on_mis": "fetch"}}]}`,
			[]string{`rules[0].cache.on_mis: unknown field; known are query, on_miss, serve, scope, languages`}},
		{"every problem", `{"max_staleness": "soon", "default": "maybe", "x": 1}`,
			[]string{`x: unknown field`, `max_staleness: is "soon", want a duration such as "30s"`,
				`default: is "maybe", want pass or deny or would_deny`}},
		{"duration as a number", `{"max_staleness": 30}`, []string{`max_staleness: is 30, want a duration such as "30s"`}},
		{"duration out of bounds", `{"sidecar": {"timeout": "0s"}}`, []string{`sidecar.timeout: is 0s, want 10ms to 1m0s`}},
		{"empty cluster", `{"sidecar": {"cluster": ""}}`, []string{`sidecar.cluster: is empty`}},
		{"no credentials", `{"rules": [{"match": {"path": "/a"}, "auth": {}}]}`,
			[]string{`credentials: is missing, for rules[0]: set where`}},
		{"half of the credentials", `{"credentials": {"id_header": "a"}}`, []string{`credentials.secret_header: is missing`}},
		{"one header for both", `{"credentials": {"id_header": "a", "secret_header": "A"}}`,
			[]string{`credentials.secret_header: "a" is also the id_header`}},
		{"reserved header", `{"credentials": {"id_header": "X-Gatehouse-Device", "secret_header": "b"}}`,
			[]string{`credentials.id_header: "x-gatehouse-device" is a header that Gatehouse sends`}},
		{"a header of the message", `{"credentials": {"api_key_header": "Host"}}`,
			[]string{`credentials.api_key_header: "host" belongs to the message`}},
		{"pseudo-header", `{"credentials": {"id_header": ":path", "secret_header": "b"}}`,
			[]string{`credentials.id_header: ":path" is not a header name`}},
		{"basic and headers", `{"credentials": {"basic": true, "id_header": "a"}}`,
			[]string{`credentials.basic: is given with headers`}},
		{"an API key in the id's header", `{"credentials": {"id_header": "a", "secret_header": "b", "api_key_header": "A"}}`,
			[]string{`credentials.api_key_header: "a" is also the id_header`}},
		{"an API key in the secret's header", `{"credentials": {"id_header": "a", "secret_header": "b", "api_key_header": "b"}}`,
			[]string{`credentials.api_key_header: "b" is also the secret_header`}},
		{"an API key beside Basic in its header", `{"credentials": {"basic": true, "api_key_header": "Authorization"}}`,
			[]string{`credentials.api_key_header: "authorization" is also of basic or bearer`}},
		{"half of the credentials beside an API key", `{"credentials": {"id_header": "a", "bearer": true}}`,
			[]string{`credentials.secret_header: is missing`}},
		{"no API key", `{"credentials": {"bearer": false}}`,
			[]string{`credentials.id_header: is missing`, `credentials.secret_header: is missing`}},
		{"an API key in no header", `{"credentials": {"api_key_header": ""}}`, []string{`credentials.api_key_header: is empty`}},
		{"basic as text", `{"credentials": {"basic": "yes"}}`,
			[]string{`credentials.basic: is "yes", want true or false`}},
		{"forward as text", `{"credentials": {"basic": true, "forward": "no"}, "strip_override_headers": 1}`,
			[]string{`strip_override_headers: is 1, want true or false`, `credentials.forward: is "no", want true or false`}},
		{"allowed for less than can be kept up", `{"max_auth_staleness": "999ms"}`,
			[]string{`max_auth_staleness: is 999ms, want 1s to 24h0m0s, or 0s for no bound`}},
		{"grace beyond that", `{"max_auth_staleness": "5s", "verdict_grace": "6s"}`,
			[]string{`verdict_grace: is 6s, want at most max_auth_staleness, 5s`}},
		{"source as text", `{"source": "client"}`,
			[]string{`source: is "client", want envoy, {header: NAME} or {filter_state: NAME}`}},
		{"two sources", `{"source": {"header": "a", "filter_state": "b"}}`,
			[]string{`source: needs either header or filter_state`}},
		{"no source", `{"source": {}}`, []string{`source: needs either header or filter_state`}},
		{"source in a pseudo-header", `{"source": {"header": ":path"}}`,
			[]string{`source.header: ":path" is not a header name`}},
		{"no match", `{"rules": [{"cache": {}}]}`, []string{`rules[0].match: is missing, want an object`}},
		{"path and prefix", `{"rules": [{"match": {"path": "/a", "prefix": "/b"}}]}`,
			[]string{`rules[0].match: needs either path or prefix`}},
		{"relative path", `{"rules": [{"match": {"path": "a"}}]}`,
			[]string{`rules[0].match.path: "a": want a path that begins with /`}},
		{"no parameter's name", `{"rules": [{"match": {"path": "/a"}, "cache": {"query": ["a", "b=1"]}}]}`,
			[]string{`rules[0].cache.query[1]: "b=1" is not a parameter's name`}},
		{"path with a query", `{"rules": [{"match": {"path": "/a?b"}}]}`,
			[]string{`rules[0].match.path: "/a?b": want a path`}},
		{"path that is never seen", `{"rules": [{"match": {"prefix": "/a/%62//c"}}]}`,
			[]string{
				`rules[0].match.prefix: "/a/%62//c" matches nothing: rules see decoded, normalised paths, such as "/a/b/c"`}},
		{"method in lower case", `{"rules": [{"match": {"path": "/a", "methods": ["get"]}}]}`,
			[]string{`rules[0].match.methods[0]: "get" is not a method`}},
		{"no methods", `{"rules": [{"match": {"path": "/a", "methods": []}}]}`, []string{`rules[0].match.methods: is empty`}},
		{"permission with a comma", `{` + creds + `"rules": [{"match": {"path": "/a"}, "auth": {"permissions": ["a,b"]}}]}`,
			[]string{`rules[0].auth.permissions[0]: "a,b": want at most 64`}},
		{"device scope without auth", `{"rules": [{"match": {"path": "/a"}, "cache": {"scope": "device"}}]}`,
			[]string{`rules[0].cache.scope: device needs auth in the same rule`}},
		{"no languages", `{"rules": [{"match": {"path": "/a"}, "cache": {"languages": []}}]}`,
			[]string{`rules[0].cache.languages: is empty: name a language, e.g. de`}},
		{"bad languages", `{"rules": [{"match": {"path": "/a"}, "cache": {"languages": ["d", "de_DE", "*", "de", 1, "DE"]}}]}`,
			[]string{`rules[0].cache.languages[0]: "d" is not a language tag`, `rules[0].cache.languages[1]: "de_de" is not`,
				`rules[0].cache.languages[2]: "*" is not`, `rules[0].cache.languages[4]: is 1, want text`,
				`rules[0].cache.languages[5]: "de" is listed twice`}},
		{"too many languages", `{"rules": [{"match": {"path": "/a"}, "cache": {"languages": [` +
			strings.Repeat(`"aa",`, 16) + `"ab"]}}]}`, []string{`rules[0].cache.languages: has 17 entries, at most 16`}},
		{"objects as a scope", `{"rules": [{"match": {"path": "/a"}, "cache": {"scope": [{}, {}]}}]}`,
			[]string{`rules[0].cache.scope[0]: is an object`, `rules[0].cache.scope[1]: is an object`}},
		{"cache for POST only", `{"rules": [{"match": {"path": "/a", "methods": ["POST"]}, "cache": {}}]}`,
			[]string{`rules[0].cache: needs GET or HEAD`}},
		{"session as text", `{"session": "gatehouse"}`,
			[]string{`session: is "gatehouse", want an object with the fields metadata`}},
		{"session without metadata", `{"session": {}}`, []string{`session.metadata: is missing, want text`}},
		{"session with more", `{"session": {"metadata": "g", "header": "h"}}`,
			[]string{`session.header: unknown field; known are metadata`}},
		{"token for every method", `{` + creds + `"rules": [{"match": {"path": "/s"}, "session": "issue"}]}`,
			[]string{`rules[0].session: needs methods: [POST]`}},
		{"token and auth",
			`{` + creds + `"rules": [{"match": {"path": "/s", "methods": ["POST"]}, "auth": {}, "session": "issue"}]}`,
			[]string{`rules[0].session: excludes auth and cache`}},
		{"tokens refused", `{` + creds + `"rules": [{"match": {"path": "/s", "methods": ["POST"]}, "session": "refuse"}]}`,
			[]string{`rules[0].session: is "refuse", want issue`}},
		{"token for no credential", `{"rules": [{"match": {"path": "/s", "methods": ["POST"]}, "session": "issue"}]}`,
			[]string{`credentials: is missing, for rules[0]: set where`}},
		{"hidden rule", `{"rules": [{"match": {"prefix": "/"}}, {"match": {"path": "/a"}}]}`,
			[]string{`rules[1].match: is never reached: rules[0] matches everything that it matches`}},
		{"hidden rules",
			`{"rules": [{"match": {"prefix": "/"}}, {"match": {"path": "/a"}}, {"match": {"path": "/b"}}, {"match": {"prefix": "/c"}}]}`,
			[]string{
				`rules[0].match: matches everything that these match, which are never reached: rules[1], rules[2], rules[3]; fix: put this rule below them`}},
		{"push listener with rules", `{"push_listener": true, "rules": []}`,
			[]string{`push_listener: a push listener has no rules`}},
		{"rules as an object", `{"rules": {"a": 1}}`, []string{`rules: is an object, want a list`}},
		{"rule's name in upper case", `{"rules": [{"name": "Fleet", "match": {"path": "/a"}}]}`,
			[]string{`rules[0].name: "Fleet": want at most 64 of a-z, 0-9, _ and -`}},
		{"rule's name of 65", `{"rules": [{"name": "` + strings.Repeat("n", 65) + `", "match": {"path": "/a"}}]}`,
			[]string{`rules[0].name: "nnn`}},
		{"rule's name as a number", `{"rules": [{"name": 0, "match": {"path": "/a"}}]}`,
			[]string{`rules[0].name: is 0, want text`}},
		{"empty rule's name", `{"rules": [{"name": "", "match": {"path": "/a"}}]}`, []string{`rules[0].name: is empty`}},
		{"reserved rule's name", `{"rules": [{"name": "none", "match": {"path": "/a"}}]}`,
			[]string{`rules[0].name: "none" is for requests that no rule governs`}},
		{"two rules of a name",
			`{"rules": [{"name": "a", "match": {"path": "/a"}}, {"name": "b", "match": {"path": "/b"}}, {"name": "a", "match": {"path": "/c"}}]}`, []string{`rules[2].name: "a" is also the name of rules[0]`}},
		{"another rule's index as name", `{"rules": [{"match": {"path": "/a"}}, {"name": "0", "match": {"path": "/b"}}]}`,
			[]string{`rules[1].name: "0" is also the name of rules[0]`}},
		{"a later rule's index as name", `{"rules": [{"name": "1", "match": {"path": "/a"}}, {"match": {"path": "/b"}}]}`,
			[]string{`rules[1].name: "1" is also the name of rules[0]`}},
		{"no credentials for several", `{"rules": [{"name": "a", "match": {"path": "/a"}, "auth": {}}],
			"virtual_hosts": {"h": {"domains": ["h"], "rules": [{"match": {"path": "/a"}, "auth": {}}]}}}`,
			[]string{`credentials: is missing, for rules[0] (a), virtual_hosts.h.rules[0]: set where`}},
		{"hidden rules with names",
			`{"rules": [{"name": "all", "match": {"prefix": "/"}}, {"name": "a", "match": {"path": "/a"}}, {"match": {"path": "/b"}}]}`,
			[]string{`rules[0].match: matches everything that these match, which are never reached: rules[1] (a), rules[2];`}},
		// Consequences of a mistake aren't reported.
		{"misspelt path", `{"rules": [{"match": {"pathh": "/a"}, "cache": {}}, {"match": {"prefix": "/"}}]}`,
			[]string{`rules[0].match.pathh: unknown field`}},
		{"misspelt header", `{"credentials": {"id_heder": "a", "secret_header": "b"}, "rules": [{"match": {"path": "/a"}, "auth": {}}]}`,
			[]string{`credentials.id_heder: unknown field`}},
		{"misspelt source", `{"source": {"headr": "a"}}`, []string{`source.headr: unknown field`}},
		{"misspelt metadata", `{"session": {"metdata": "a"}}`, []string{`session.metdata: unknown field`}},
		{"a method as text", `{"rules": [{"match": {"path": "/a", "methods": "POST"}, "cache": {}}]}`,
			[]string{`rules[0].match.methods: is "POST", want a list`}},
		{"a method of a cache rule in lower case", `{"rules": [{"match": {"path": "/a", "methods": ["post"]}, "cache": {}}]}`,
			[]string{`rules[0].match.methods[0]: "post" is not a method`}},
		{"a method of a session in lower case",
			`{` + creds + `"rules": [{"match": {"path": "/s", "methods": ["post"]}, "session": "issue"}]}`,
			[]string{`rules[0].match.methods[0]: "post" is not a method`}},
		{"path above one that it would hide", `{"rules": [{"match": {"prefix": "a"}}, {"match": {"path": "/a"}}]}`,
			[]string{`rules[0].match.prefix: "a": want a path`}},
		{"null rule", `{"rules": [null]}`, []string{`rules[0]: is missing, want an object`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseJSON(t, tt.config)
			if err == nil {
				t.Fatal("got no error")
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tt.want) {
				t.Fatalf("got %q, want %d problems", lines, len(tt.want))
			}
			for i, want := range tt.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("got %q, want %q…", lines[i], want)
				}
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(twoHosts))
	f.Add([]byte(`{"push_listener": true}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var tree any
		if json.Unmarshal(raw, &tree) != nil {
			return
		}
		c, err := Parse(tree)
		if (c == nil) == (err == nil) {
			t.Errorf("got %v and %v, want one of them", c, err)
		}
	})
}
