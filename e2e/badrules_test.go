package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// badRules are rules with a mistake in a field, and the expected message.
func badRules() []struct{ rules, want string } {
	list := func(n int, item string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(item, i)
		}
		return strings.Join(all, ", ")
	}
	const rule = `{"credentials": {"basic": true}, "rules": [{"match": {"path": "/a"}, %s}]}`
	return []struct{ rules, want string }{
		{`{"virtual_hosts": {"a": {"domains": ["x", "y"]}, "b": {"domains": ["*.x", "y"]}}}`,
			`virtual_hosts.b.domains[1]: "y" is also a domain of virtual_hosts.a`},
		{fmt.Sprintf(rule, `"auth": {"enforce": "no"}`), `rules[0].auth.enforce: is "no", want true or false`},
		{fmt.Sprintf(rule, `"cache": {"scope": ["host", "host"]}`), `rules[0].cache.scope[1]: "host" is listed twice`},
		{fmt.Sprintf(rule, `"cache": {"scope": []}`), "rules[0].cache.scope: is empty"},
		{fmt.Sprintf(rule, `"cache": {"scope": {"host": true}}`), "rules[0].cache.scope: is an object"},
		{fmt.Sprintf(rule, `"auth": null`), "rules[0].auth: has no value, want an object"},
		{`{"virtual_hosts": []}`, "virtual_hosts: is a list, want an object with a field for each virtual host"},
		{`{"virtual_hosts": {"Shop": {"domains": ["x"]}}}`, "virtual_hosts.Shop: the name is not 1 to 64 of a-z"},
		{`{"virtual_hosts": {"a": {}}}`, "virtual_hosts.a.domains: is missing"},
		{`{"virtual_hosts": {"a": {"domains": []}}}`, "virtual_hosts.a.domains: is empty"},
		{`{"virtual_hosts": {"a": {"domains": "x"}}}`, `virtual_hosts.a.domains: is "x", want a list`},
		{`{"virtual_hosts": {"a": {"domains": ["X.example"]}}}`, `virtual_hosts.a.domains[0]: "X.example": want lower case`},
		{`{"virtual_hosts": {"a": {"domains": ["x"], "default": "maybe"}}}`, `virtual_hosts.a.default: is "maybe", want pass`},
		{`{"virtual_hosts": {"a": {"domains": ["x"], "source": {"header": ":x"}}}}`, `virtual_hosts.a.source.header: ":x" is not`},
		{`{"virtual_hosts": {"a": {"domains": ["x"], "credentials": {}}}}`, "virtual_hosts.a.credentials.id_header: is missing"},
		{`{"virtual_hosts": {"a": {"domains": [` + list(65, `"x%d"`) + `]}}}`,
			"virtual_hosts.a.domains: has 65 entries, at most 64"},
		{`{"virtual_hosts": {` + list(257, `"a%[1]d": {"domains": ["x%[1]d"]}`) + `}}`,
			"virtual_hosts: has 257 entries, at most 256"},
		{`{"rules": [{"match": {"path": "/r"}}], "virtual_hosts": {"a": {"domains": ["x"], "rules": [` +
			list(1000, `{"match": {"path": "/%d"}}`) + `]}}}`, "virtual_hosts.a.rules: makes 1001 rules, at most 1000 in all"},
	}
}

// TestBadRulesAreNotTaken gives a running edge rules with a mistake in each field for many hosts, teams and trials: the
// edge refuses the rules, says why, and keeps the old rules.
func TestBadRulesAreNotTaken(t *testing.T) {
	t.Parallel()
	const before = `{"default": "deny"}`
	tests := badRules()
	tests = tests[:pickSize(len(tests), 3)]
	if onNginx() {
		e := start(t, stack.Options{Rules: before})
		e.awaitAnswer("the rules before", hasStatus(403), "GET /open")
		rendered := filepath.Join(e.Dir(), "rules.json")
		good, err := os.ReadFile(rendered)
		require.NoError(t, err)
		for i, tt := range tests {
			file := writeFile(t, "rules.yaml", tt.rules)
			if out, err := gatehousectl(t, "nginx", "render", file, "--output", rendered); err == nil ||
				!strings.Contains(out, tt.want) {
				t.Errorf("%.200s: gatehousectl nginx render: got %v %.300s, want %q", tt.rules, err, out, tt.want)
			}
			if now, err := os.ReadFile(rendered); err != nil || !bytes.Equal(now, good) {
				t.Fatalf("%.200s: gatehousectl nginx render changed the file (%v)", tt.rules, err)
			}
			if err := os.WriteFile(rendered, []byte(tt.rules), 0o600); err != nil { // past gatehousectl
				t.Fatal(err)
			}
			require.NoError(t, e.SignalEdge(syscall.SIGHUP))
			await(t, "nginx refuses what wasn't rendered", patience, func() error {
				if n := strings.Count(e.readLog("nginx"), "has format none, want 3"); n <= i {
					return fmt.Errorf("it did %d times", n)
				}
				return nil
			})
			if a := e.send("GET /open"); a.status != 403 {
				t.Errorf("%.200s: got %d, want 403 by the rules before", tt.rules, a.status)
			}
			require.NoError(t, os.WriteFile(rendered, good, 0o600))
		}
		open := writeFile(t, "rules.yaml", "{}")
		if out, err := gatehousectl(t, "nginx", "render", open, "--output", rendered); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		require.NoError(t, e.SignalEdge(syscall.SIGHUP))
		e.awaitAnswer("the next rules", hasStatus(200), "GET /open")
		return
	}
	e, l := startTwo(t, stack.Options{}, before, before)
	second := func(want int) error {
		response, err := newClient().Get("http://" + l.second + "/open")
		if err != nil {
			return err
		}
		if _ = response.Body.Close(); response.StatusCode != want {
			return fmt.Errorf("got %d, want %d", response.StatusCode, want)
		}
		return nil
	}
	await(t, "the rules before", patience, func() error { return second(http.StatusForbidden) })
	for _, tt := range tests {
		l.replaceRules(before, tt.rules)
		await(t, "Envoy refuses the rules", patience, func() error {
			if !strings.Contains(e.readLog("envoy"), tt.want) {
				return errors.New("its log has no " + tt.want)
			}
			return nil
		})
		if err := second(http.StatusForbidden); err != nil {
			t.Errorf("%.200s: %v by the rules before", tt.rules, err)
		}
	}
	l.replaceRules(before, `{"default": "pass"}`)
	await(t, "the next rules", patience, func() error { return second(http.StatusOK) })
}
