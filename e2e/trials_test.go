package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// trialRules are enforced with %s empty.
const trialRules = `
sidecar: {cluster: gatehouse-sidecar, timeout: 2s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- {name: ready, match: {prefix: /ready}, cache: {}}
- {name: write, match: {prefix: /write}, auth: {permissions: [telemetry.write]%[1]s}}
- {name: writes, match: {prefix: /writ}, auth: {%[2]s}}
- {name: own, match: {prefix: /own}, auth: {%[2]s}, cache: {scope: device}}
- {name: fetch, match: {prefix: /fetch}, auth: {%[2]s}, cache: {on_miss: fetch}}
default: %[3]s
`

// logsTrials returns the configuration that logs what would be refused.
func logsTrials(t *testing.T) string {
	shipped, err := os.ReadFile("../envoy/envoy.yaml")
	require.NoError(t, err)
	return writeFile(t, "envoy.yaml", strings.ReplaceAll(string(shipped), "#trial ", ""))
}

// TestTrials sends the same requests to two stacks with the same rules, one in a trial. The trial gives the upstream's
// answer to each request, and counts the refusals of the enforced rules.
func TestTrials(t *testing.T) {
	t.Parallel()
	opts := stack.Options{EnvoyArgs: []string{"--file-flush-interval-msec", "10"}, Concurrency: 1,
		SidecarArgs: []string{"--limit.device=2"}}
	opts.Rules = fmt.Sprintf(trialRules, "", "", "deny")
	enforced := start(t, opts)
	opts.Rules = fmt.Sprintf(trialRules, ", enforce: false", "enforce: false", "would_deny")
	opts.ConfigPath = logsTrials(t)
	trial := start(t, opts)
	const waiting = 20
	both := []*edge{enforced, trial}
	good := credential("dev", "secret")
	for _, e := range both {
		e.putDevice("dev", "secret", 4, "telemetry.write")
		e.putDevice("poor", "secret", 4)
		e.putDevice("gone", "secret", 4)
		e.putDevice("new", "secret", 4)
		e.ctl("device", "revoke", "gone")
		for i := range waiting {
			e.putDevice(fmt.Sprint("device", i), "secret", 4)
		}
		e.put("/ready", "ready")
		e.put("/fetch/there", "public")
		e.put("@dev/own/x", "dev's")
		e.awaitAnswer("the objects are at the edge", hasBody("ready"), "GET /ready")
		e.awaitAnswer("the device is known", hasStatus(200), "GET /write", good...)
		e.awaitPushed()
	}
	forged := []string{"x-gatehouse-device: forged", "x_gatehouse_permissions: forged"}
	requests := []struct {
		first  string
		lines  []string
		device string // that the upstream sees
		body   string // from the cache, though the rule isn't enforced
	}{
		{"GET /write", nil, "", ""},
		{"GET /write", append(forged[:1:1], credential("poor", "secret")[0]), "", ""},
		{"GET /write", good, "dev", ""},
		{"POST /write", append(forged[:1:1], good...), "dev", ""},
		{"GET /write", credential("poor", "secret"), "", ""},
		{"GET /write", credential("nobody", "secret"), "", ""},
		{"GET /write", credential("gone", "secret"), "", ""},
		{"GET /write", good[:1], "", ""},
		{"GET /write", good[1:], "", ""},
		{"GET /write", append(good[:2:2], good...), "", ""},
		{"GET /write", credential("new", "secret"), "", ""}, // lacks a permission
		{"GET /writes", good, "dev", ""},
		{"GET /writ;e", good, "", ""},
		{"GET /write/..%20/x", good, "", ""},
		{"GET /elsewhere", nil, "", ""},
		{"GET /own/x", nil, "", ""},
		{"GET /own/x", good, "", "dev's"},
		{"GET /fetch/there", nil, "", "public"},
		{"GET /fetch/none", credential("poor", "wrong"), "", ""},
	}
	for i := range 12 { // guesses beyond the limit, from the second on by the sidecar
		requests = append(requests, requests[0])
		requests[len(requests)-1].lines = credential("dev", fmt.Sprint("wrong", i))
	}
	refusals := 0
	client := clientFrom(30)
	for _, r := range requests {
		want, err := enforced.try(client, r.first, r.lines...)
		require.NoError(t, err)
		if want.status >= 400 {
			refusals++
		}
		got, err := trial.try(client, r.first, r.lines...)
		switch {
		case err != nil:
			t.Fatal(err)
		case got.status != 200:
			t.Errorf("%s %q: got %d %s, want the upstream's answer", r.first, r.lines, got.status, got.body)
		case r.body != "":
			if got.body != r.body {
				t.Errorf("%s %q: got %s, want %s", r.first, r.lines, got.body, r.body)
			}
		default:
			seen := got.seenByUpstream(t)
			if device := strings.Join(seen.Headers["x-gatehouse-device"], ","); device != r.device {
				t.Errorf("%s %q: the upstream sees device %q, want %q", r.first, r.lines, device, r.device)
			}
			secret := slices.ContainsFunc(r.lines, func(l string) bool { return strings.HasPrefix(l, "x-device-token: ") })
			if secret != (seen.Headers["x-device-token"] != nil) {
				t.Errorf("%s %q: the upstream sees %v, want the secret", r.first, r.lines, seen.Headers)
			}
			if got.header.Get("Cache-Control") != "" || got.header.Get("Vary") != "" {
				t.Errorf("%s %q: got headers %v that the upstream doesn't send", r.first, r.lines, got.header)
			}
		}
	}
	if refusals < 25 {
		t.Errorf("only %d requests are refused if the rules are enforced", refusals)
	}
	sameRefusals(t, enforced, trial)

	args := []string{"explain", "/write"}
	if onNginx() { // it doesn't show its rules
		args = append(args, "--rules", writeFile(t, "rules.yaml", opts.Rules))
	}
	type shown struct {
		Action, Reason string
		Status         int
		Enforced       *shown
	}
	var explained struct{ Answer shown }
	trial.decodeCtl(&explained, args...)
	if a, then := explained.Answer, explained.Answer.Enforced; a.Action != "pass" || then == nil || then.Status != 401 ||
		a.Reason != "gatehouse_would_deny_no_credential" || then.Reason != "gatehouse_denied_no_credential" {
		t.Errorf("gatehousectl explain: got %+v, %+v", a, then)
	}
	for path, reason := range map[string]string{"/elsewhere": "default", "/writ;e": "ambiguous_path"} {
		await(t, "the log of "+path, patience, func() error {
			if l := trial.accessLog()[path]; !strings.HasSuffix(l.Reason+" "+l.Trial, "gatehouse_would_deny_"+reason+
				map[bool]string{true: " "}[onNginx()]) {
				return fmt.Errorf("got %+v", l)
			}
			return nil
		})
	}

	// Nobody is refused because the sidecar doesn't answer, or waits for longer than allowed.
	for what, stop := range map[string]func(e *edge) error{
		"paused": func(e *edge) error { return e.SignalSidecar(syscall.SIGSTOP) },
		"away":   func(e *edge) error { return e.KillSidecar() },
	} {
		for _, e := range both {
			require.NoError(t, stop(e))
		}
		var wg sync.WaitGroup
		for i := range waiting {
			for _, e := range both {
				for _, first := range []string{"POST /write", "GET /fetch/more"} {
					wg.Go(func() {
						begin := time.Now()
						got, err := e.try(http.DefaultClient, first, credential(fmt.Sprint("device", i), what)...)
						took := time.Since(begin)
						if want := map[bool]int{true: 503, false: 200}[e == enforced]; err != nil || got.status != want ||
							took >= 2*2*time.Second { // it has waited twice
							t.Errorf("sidecar %s: %s: got %d after %v, %v", what, first, got.status, took, err)
						}
					})
				}
			}
		}
		wg.Wait()
		sameRefusals(t, enforced, trial)
		if what == "paused" {
			for _, e := range both {
				require.NoError(t, e.SignalSidecar(syscall.SIGCONT))
			}
		} else {
			for _, e := range both {
				require.NoError(t, e.StartSidecar(t.Context()))
			}
		}
	}
}

// sameRefusals waits until the trial has counted as many refusals of each kind and rule as the enforced edge.
func sameRefusals(t *testing.T, enforced, trial *edge) {
	t.Helper()
	await(t, "the counters", patience, func() error {
		some := 0
		for _, rule := range []string{"write", "writes", "own", "fetch", "none"} {
			for _, outcome := range []string{"deny", "forbidden", "unavailable", "throttled"} {
				labels := []string{`rule="` + rule + `"`, `outcome="` + outcome + `"`}
				want := enforced.edgeMetric("gatehouse_auth_requests_total", labels...)
				if got := trial.edgeMetric("gatehouse_would_deny_requests_total", labels...); got != want {
					return fmt.Errorf("%s: got %d, want %d", labels, got, want)
				}
				some += want
				if n := trial.edgeMetric("gatehouse_auth_requests_total", labels...); n != 0 {
					return fmt.Errorf("%s: %d refused", labels, n)
				}
			}
		}
		if some == 0 {
			return errors.New("nothing is counted")
		}
		return nil
	})
}
