package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

const pageRules = `
sidecar: {cluster: gatehouse-sidecar, timeout: 1s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
max_staleness: 3s
max_auth_staleness: 3s
stale: serve
rules:
- {name: products, match: {prefix: /v1/products/}, cache: {}}
- {name: fleet-config-for-everybody-with-a-name-as-long-as-names-may-be, match: {path: /v1/fleet/config}, cache: {on_miss: fetch}}
- {name: telemetry, match: {prefix: /v1/telemetry}, auth: {permissions: [telemetry.write]}}
- {name: me, match: {path: /v1/me/config}, auth: {}, cache: {scope: device}}
- {name: open, match: {prefix: /open}}
default: deny
`

// preparePage publishes what the page shows, and has a device held back.
func (e *edge) preparePage() {
	e.t.Helper()
	e.put("/v1/products/1", "body")
	e.put("@sensor-1/v1/me/config", "mine")
	for id, permission := range map[string]string{"sensor-1": "telemetry.write", "new": "telemetry.write",
		"reader": "config.read", "gone": "telemetry.write", "held": "telemetry.write"} {
		e.putDevice(id, "secret", 4, permission)
	}
	e.ctl("device", "revoke", "gone")
	e.awaitAnswer("the object is at the edge", hasBody("body"), "GET /v1/products/1")
	e.awaitAnswer("the device's object is at the edge", hasBody("mine"), "GET /v1/me/config",
		credential("sensor-1", "secret")...)
	e.awaitAnswer("the revocation", hasStatus(401), "GET /v1/telemetry", credential("gone", "secret")...)
	for n := range 3 { // the first costs bcrypt, and then the limit holds the device back
		e.send("POST /v1/telemetry", credential("held", fmt.Sprint("wrong", n))...)
	}
}

func TestPage(t *testing.T) {
	leaveToLongForm(t, "TestOperator, TestExplain")
	skipOnThisEdge(t) // before Chromium starts
	t.Parallel()
	b := startBrowser(t)
	e := start(t, stack.Options{Name: "page", Rules: pageRules, EnvoyArgs: []string{"--file-flush-interval-msec", "10"},
		SidecarArgs: []string{"--admin.actions", "--limit.device=1"}})
	b.setAppearance(1000, "light")
	b.runUntilLoaded(chromedp.Navigate(e.SidecarAdminURL() + "/"))
	b.awaitText("All is well")
	e.preparePage()
	b.awaitText("2 verifications got a 503, most of them because of limited")
	e.goesLive(b)

	callCommand(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.runUntilLoaded(chromedp.Reload())
	for _, want := range []string{"2 verifications got a 503", "Objects at the edge\n2",
		"products", "telemetry", "those that never authenticated there"} {
		if all := b.textOf("body"); !strings.Contains(all, want) {
			t.Errorf("without JavaScript the page has no %q: %s", want, all)
		}
	}
	callCommand(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: false})
	b.runUntilLoaded(chromedp.Reload())

	e.checkExplanations(b)
	e.looksWell(b)
	e.clickActions(b)
	e.showsOutage(b)
	e.onlyShows(b)
}

// rateOf returns the number in a column of a rule's row.
func (b *browser) rateOf(rule string, column int) float64 {
	b.t.Helper()
	text := evaluate[string](b,
		fmt.Sprintf("[...document.querySelectorAll('#live tr')].find(r => r.cells[0].innerText === "+
			"%q)?.cells[%d].innerText ?? ''", rule, column))
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// goesLive: requests change the rates without a reload.
func (e *edge) goesLive(b *browser) {
	e.t.Helper()
	evaluate[bool](b, "window.same = true")
	await(e.t, "rates of both rules", patience, func() error {
		e.send("GET /v1/products/1")
		e.send("POST /v1/telemetry")
		if hits, refused := b.rateOf("products", 1), b.rateOf("telemetry", 4); hits == 0 || refused == 0 {
			return fmt.Errorf("got %v, %v: %s", hits, refused, b.textOf("#live"))
		}
		return nil
	})
	if !evaluate[bool](b, "window.same === true") {
		e.t.Error("the page was loaded again")
	}
}

// question is a request to explain, and the explanation that the page must show.
type question struct {
	request      string
	header       []string
	device       string
	status       int // of the edge
	answer, rule string
}

// explainOnPage fills the form and returns the answer, and the rule.
func (b *browser) explainOnPage(q question) (answer, rule string) {
	b.t.Helper()
	method, path, _ := strings.Cut(q.request, " ")
	for name, text := range map[string]string{"method": method, "url": path, "device": q.device,
		"headers": strings.Join(q.header, "\n")} {
		evaluate[string](b, fmt.Sprintf("document.forms[document.forms.length - 1].elements[%q].value = %q", name, text))
	}
	b.runUntilLoaded(chromedp.Click(chromedp.CSS("form[action^='/#explain'] button")))
	return b.textOf("#answer td"), b.textOf("#answer tr:last-child td")
}

// compareExplanations enters each question on the page, sends the request to the edge, and compares the page with the
// answer and the reason in the access log.
func (e *edge) compareExplanations(b *browser, questions []question) {
	e.t.Helper()
	for n, q := range questions {
		answer, rule := b.explainOnPage(q)
		if !strings.HasPrefix(answer, q.answer) || !strings.HasPrefix(rule, q.rule) {
			e.t.Errorf("%s %q %s: got %q of rule %q, want %q of %q", q.request, q.header, q.device, answer,
				rule, q.answer, q.rule)
		}
		header := q.header
		if q.device != "" {
			header = credential(q.device, "secret")
		}
		id := fmt.Sprintf("6ba7b810-9dad-41d1-80b4-00c04fd4%04x", n)
		if a := e.send(q.request, append(slices.Clone(header), "x-request-id: "+id)...); a.status != q.status {
			e.t.Errorf("%s: the edge answers %d, want %d", q.request, a.status, q.status)
		}
		if _, reason, _ := strings.Cut(q.answer, "gatehouse_"); q.status >= 400 {
			path, _, _ := strings.Cut(strings.Fields(q.request)[1], "?")
			await(e.t, "the access log of "+q.request, patience, func() error {
				if got := e.accessLog()[path].Reason; got != "gatehouse_"+reason {
					return fmt.Errorf("got %q, want gatehouse_%s", got, reason)
				}
				return nil
			})
		}
	}
}

// checkExplanations compares explanations of each kind of answer with the answers.
func (e *edge) checkExplanations(b *browser) {
	e.t.Helper()
	tag := e.send("GET /v1/products/1").header.Get("etag")
	e.awaitAnswer("a verdict of the device", hasStatus(200), "POST /v1/telemetry", credential("sensor-1", "secret")...)
	e.compareExplanations(b, []question{
		{"GET /v1/products/1", nil, "", 200, "reply 200 gatehouse_hit ", "products: prefix /v1/products/"},
		{"GET /v1/products/1", []string{"If-None-Match: " + tag}, "", 304, "reply 304 gatehouse_not_modified", "products"},
		{"GET /v1/products/2", nil, "", 200, "pass The request goes upstream: the edge lacks the object", "products"},
		{"POST /v1/products/1", nil, "", 200, "pass The request goes upstream: its method isn't cached", "products"},
		{"GET /v1/products/1", []string{`If-Match: "x"`}, "", 200,
			"pass The request goes upstream: it can't be answered", "products"},
		{"GET /v1/fleet/config", nil, "", 200, "fetch The edge lacks the object and asks", "fleet"},
		{"GET /v1/me/config", nil, "sensor-1", 200, "reply 200 gatehouse_hit ", "me"},
		{"GET /open", nil, "", 200, "pass The request goes upstream.", "open"},
		{"GET /v1/telemetry/right", nil, "sensor-1", 200, "pass ",
			"telemetry: prefix /v1/telemetry; requires a device, telemetry.write"},
		{"GET /v1/telemetry/new", credential("new", "secret"), "", 200,
			"verify Unless the edge has verified this credential lately, it asks", "telemetry"},
		{"GET /v1/telemetry/none", nil, "", 401, "reply 401 gatehouse_denied_no_credential", "telemetry"},
		{"GET /v1/telemetry/unknown", credential("nobody", "x"), "", 401,
			"reply 401 gatehouse_denied_unknown_device", "telemetry"},
		{"GET /v1/telemetry/gone", nil, "gone", 401, "reply 401 gatehouse_denied_unknown_device", "telemetry"},
		{"GET /v1/telemetry/forbidden", nil, "reader", 403, "reply 403 gatehouse_forbidden_permission", "telemetry"},
		{"GET /other", nil, "", 403, "reply 403 gatehouse_forbidden_default", "none"},
		{"GET /open/..%20/v1/telemetry", nil, "", 403, "reply 403 gatehouse_forbidden_ambiguous_path", "none"},
	})
	right, _ := b.explainOnPage(question{request: "GET /v1/telemetry", header: credential("sensor-1", "secret")})
	if wrong, _ := b.explainOnPage(question{request: "GET /v1/telemetry",
		header: credential("sensor-1", "s3cr3t")}); wrong != right {
		e.t.Errorf("the page tells a right secret from a wrong one: %q, %q", right, wrong)
	}
	if page := evaluate[string](b, "document.documentElement.outerHTML + location"); strings.Contains(page, "s3cr3t") {
		e.t.Error("the page or its address has the secret that was asked with")
	}
}

// looksWell: the page has no serious fault, light or dark, wide or narrow, and can be used by the keyboard alone.
func (e *edge) looksWell(b *browser) {
	e.t.Helper()
	b.explainOnPage(question{request: "GET /v1/me/config", device: "sensor-1"})
	for width := int64(320); width <= 1000; width += 40 {
		b.setAppearance(width, "light")
		b.checkLayout(fmt.Sprintf("%d px", width))
	}
	for _, width := range []int64{1000, 400, 360} {
		for _, scheme := range []string{"light", "dark"} {
			what := fmt.Sprintf("%s-%d", scheme, width)
			b.setAppearance(width, scheme)
			b.checkAccessibility(what)
			b.savePicture("operator-page-" + what)
		}
	}
	want := []string{"Resync", "Release", "Release", "method", "url", "device", "headers", "Explain"}
	if got := b.tabStops(); !slices.Equal(got, want) {
		e.t.Errorf("the key Tab leads to %q, want %q", got, want)
	}
	b.setAppearance(1000, "light")
	b.runUntilLoaded(chromedp.Focus(chromedp.CSS("[name=url]")), chromedp.KeyEvent(kb.End+"?x\r"))
	if got := evaluate[string](b, "document.querySelector('[name=url]').value"); got != "/v1/me/config?x" ||
		b.textOf("#answer td") == "" {
		e.t.Errorf("the key Enter does not explain, but leads to %q", got)
	}
}

// shownEpoch returns the epoch and layout on the page.
func (b *browser) shownEpoch() string {
	b.t.Helper()
	_, after, _ := strings.Cut(b.textOf("#live"), "Epoch, layout\n")
	epoch, _, _ := strings.Cut(after, "\n")
	return epoch
}

// clickActions releases the held device, and makes the sidecar resync, by clicks.
func (e *edge) clickActions(b *browser) {
	e.t.Helper()
	for range 2 {
		b.runUntilLoaded(chromedp.Click(chromedp.CSS("form[action='/release'] button")))
	}
	b.awaitText("No address and no device is held back")
	epoch := b.shownEpoch()
	b.runUntilLoaded(chromedp.Click(chromedp.CSS("form[action='/resync'] button")))
	await(e.t, "everything is pushed again", patience, func() error {
		if log := e.readLog("sidecar"); !strings.Contains(log, "resync ended") {
			return fmt.Errorf("%s", log)
		}
		return nil
	})
	for name, want := range map[string]float64{`gatehouse_epochs_total{reason="demand"}`: 1,
		`gatehouse_catchups_total{reason="demand"}`: 1} {
		if got := e.metric(name); got != want {
			e.t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	for _, line := range []string{"an operator released", "an operator asked for a resync"} {
		if !strings.Contains(e.readLog("sidecar"), line) {
			e.t.Errorf("the log has no %q", line)
		}
	}
	await(e.t, "another epoch on the page", patience, func() error {
		if now := b.shownEpoch(); now == epoch || strings.Contains(b.textOf("#live"), "A resync runs") {
			return fmt.Errorf("got %q after %q", now, epoch)
		}
		return nil
	})
	e.awaitAnswer("the object is at the edge", hasBody("body"), "GET /v1/products/1")
	e.awaitAnswer("the device is verified again", hasStatus(200), "GET /v1/telemetry", credential("sensor-1", "secret")...)
}

// showsOutage: without Redis the page says so first, and explains stale answers; without the sidecar the page says that
// the sidecar is missing.
func (e *edge) showsOutage(b *browser) {
	e.t.Helper()
	require.NoError(e.t, e.KillRedis())
	b.awaitText("Redis is not followed")
	await(e.t, "a stale answer", patience, func() error {
		if got := e.send("GET /v1/products/1").header.Get("cache-status"); !strings.Contains(got, "not-in-step") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	e.compareExplanations(b, []question{
		{"GET /v1/products/1", nil, "", 200, "reply 200 gatehouse_hit_stale", "products"},
		{"GET /v1/telemetry/late", nil, "sensor-1", 503, "reply 503 gatehouse_unavailable_not_in_step", "telemetry"},
	})
	if first := b.textOf("#live li"); !strings.HasPrefix(first, "Critical: Redis is not followed") {
		e.t.Errorf("the page begins with %q", first)
	}
	b.checkAccessibility("without Redis")
	b.wantEmptyConsole()
	require.NoError(e.t, e.KillSidecar())
	b.awaitText("The sidecar doesn't answer")
}

// onlyShows: without permission the page has no buttons for actions, and their calls are refused.
func (e *edge) onlyShows(b *browser) {
	e.t.Helper()
	require.NoError(e.t, e.Renew(e.t.Context(),
		withRedis(e.t, stack.Options{SidecarArgs: []string{"--limit.device=1"}})))
	e.preparePage()
	b.runUntilLoaded(chromedp.Navigate(e.SidecarAdminURL() + "/"))
	b.awaitText("those that never authenticated there")
	if n := evaluate[int](b, "document.querySelectorAll('#live form, #live button').length"); n != 0 {
		e.t.Errorf("the page has %d forms for actions", n)
	}
	for _, path := range []string{"/release", "/resync", "/v1/release", "/v1/resync"} {
		r, err := http.Post(e.SidecarAdminURL()+path, "", nil)
		require.NoError(e.t, err)
		_ = r.Body.Close()
		if r.StatusCode != http.StatusForbidden {
			e.t.Errorf("%s: got %d, want 403", path, r.StatusCode)
		}
	}
}
