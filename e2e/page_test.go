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

// fill publishes what the page shows, and has a device held back.
func (e *edge) fill() {
	e.t.Helper()
	e.put("/v1/products/1", "body")
	e.put("@sensor-1/v1/me/config", "mine")
	for id, permission := range map[string]string{"sensor-1": "telemetry.write", "new": "telemetry.write",
		"reader": "config.read", "gone": "telemetry.write", "held": "telemetry.write"} {
		e.device(id, "secret", 4, permission)
	}
	e.ctl("device", "revoke", "gone")
	e.until("the object is at the edge", says("body"), "GET /v1/products/1")
	e.until("the device's object is at the edge", says("mine"), "GET /v1/me/config", credential("sensor-1", "secret")...)
	e.until("the revocation", status(401), "GET /v1/telemetry", credential("gone", "secret")...)
	for n := range 3 { // the first costs bcrypt, and then the limit holds the device back
		e.send("POST /v1/telemetry", credential("held", fmt.Sprint("wrong", n))...)
	}
}

// TestPage uses the operator's page in a browser.
func TestPage(t *testing.T) {
	long(t, "TestOperator, TestExplain")
	skipOnThisEdge(t) // before Chromium starts
	t.Parallel()
	b := startBrowser(t)
	e := start(t, stack.Options{Name: "page", Rules: pageRules, EnvoyArgs: []string{"--file-flush-interval-msec", "10"},
		SidecarArgs: []string{"--admin.actions", "--limit.device=1"}})
	b.look(1000, "light")
	b.leave(chromedp.Navigate(e.SidecarAdminURL() + "/"))
	b.appears("All is well")
	e.fill()
	b.appears("2 verifications got a 503, most of them because of limited")
	e.goesLive(b)

	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.leave(chromedp.Reload())
	for _, want := range []string{"2 verifications got a 503", "Objects at the edge\n2",
		"products", "telemetry", "those that never authenticated there"} {
		if all := b.text("body"); !strings.Contains(all, want) {
			t.Errorf("without JavaScript the page has no %q: %s", want, all)
		}
	}
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: false})
	b.leave(chromedp.Reload())

	e.explains(b)
	e.looksWell(b)
	e.acts(b)
	e.showsOutage(b)
	e.onlyShows(b)
}

// rate returns the number in a column of a rule's row.
func (b *browser) rate(rule string, column int) float64 {
	b.t.Helper()
	text := value[string](b,
		fmt.Sprintf("[...document.querySelectorAll('#live tr')].find(r => r.cells[0].innerText === "+
			"%q)?.cells[%d].innerText ?? ''", rule, column))
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// goesLive: requests change the rates without a reload.
func (e *edge) goesLive(b *browser) {
	e.t.Helper()
	value[bool](b, "window.same = true")
	await(e.t, "rates of both rules", patience, func() error {
		e.send("GET /v1/products/1")
		e.send("POST /v1/telemetry")
		if hits, refused := b.rate("products", 1), b.rate("telemetry", 4); hits == 0 || refused == 0 {
			return fmt.Errorf("got %v, %v: %s", hits, refused, b.text("#live"))
		}
		return nil
	})
	if !value[bool](b, "window.same === true") {
		e.t.Error("the page was loaded again")
	}
}

// question is a request to explain, and what the page must say of it.
type question struct {
	request      string
	header       []string
	device       string
	status       int // of the edge
	answer, rule string
}

// ask fills the form and returns the answer, and the rule.
func (b *browser) ask(q question) (answer, rule string) {
	b.t.Helper()
	method, path, _ := strings.Cut(q.request, " ")
	for name, text := range map[string]string{"method": method, "url": path, "device": q.device,
		"headers": strings.Join(q.header, "\n")} {
		value[string](b, fmt.Sprintf("document.forms[document.forms.length - 1].elements[%q].value = %q", name, text))
	}
	b.leave(chromedp.Click(chromedp.CSS("form[action^='/#explain'] button")))
	return b.text("#answer td"), b.text("#answer tr:last-child td")
}

// compare asks each question on the page, and then the edge itself: its answer, and the reason in its access log.
func (e *edge) compare(b *browser, questions []question) {
	e.t.Helper()
	for n, q := range questions {
		answer, rule := b.ask(q)
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

// explains compares explanations of each kind of answer with the answers.
func (e *edge) explains(b *browser) {
	e.t.Helper()
	tag := e.send("GET /v1/products/1").header.Get("etag")
	e.until("a verdict of the device", status(200), "POST /v1/telemetry", credential("sensor-1", "secret")...)
	e.compare(b, []question{
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
	right, _ := b.ask(question{request: "GET /v1/telemetry", header: credential("sensor-1", "secret")})
	if wrong, _ := b.ask(question{request: "GET /v1/telemetry",
		header: credential("sensor-1", "s3cr3t")}); wrong != right {
		e.t.Errorf("the page tells a right secret from a wrong one: %q, %q", right, wrong)
	}
	if page := value[string](b, "document.documentElement.outerHTML + location"); strings.Contains(page, "s3cr3t") {
		e.t.Error("the page or its address has the secret that was asked with")
	}
}

// looksWell: the page has no serious fault, light or dark, wide or narrow, and can be used by the keyboard alone.
func (e *edge) looksWell(b *browser) {
	e.t.Helper()
	b.ask(question{request: "GET /v1/me/config", device: "sensor-1"})
	for width := int64(320); width <= 1000; width += 40 {
		b.look(width, "light")
		b.fits(fmt.Sprintf("%d px", width))
	}
	for _, width := range []int64{1000, 400, 360} {
		for _, scheme := range []string{"light", "dark"} {
			what := fmt.Sprintf("%s-%d", scheme, width)
			b.look(width, scheme)
			b.accessible(what)
			b.picture("operator-page-" + what)
		}
	}
	want := []string{"Resync", "Release", "Release", "method", "url", "device", "headers", "Explain"}
	if got := b.tab(); !slices.Equal(got, want) {
		e.t.Errorf("the key Tab leads to %q, want %q", got, want)
	}
	b.look(1000, "light")
	b.leave(chromedp.Focus(chromedp.CSS("[name=url]")), chromedp.KeyEvent(kb.End+"?x\r"))
	if got := value[string](b, "document.querySelector('[name=url]').value"); got != "/v1/me/config?x" ||
		b.text("#answer td") == "" {
		e.t.Errorf("the key Enter does not explain, but leads to %q", got)
	}
}

// epoch returns the epoch and layout that the page shows.
func (b *browser) epoch() string {
	b.t.Helper()
	_, after, _ := strings.Cut(b.text("#live"), "Epoch, layout\n")
	epoch, _, _ := strings.Cut(after, "\n")
	return epoch
}

// acts releases what is held back, and makes the sidecar resync, by clicks.
func (e *edge) acts(b *browser) {
	e.t.Helper()
	for range 2 {
		b.leave(chromedp.Click(chromedp.CSS("form[action='/release'] button")))
	}
	b.appears("No address and no device is held back")
	epoch := b.epoch()
	b.leave(chromedp.Click(chromedp.CSS("form[action='/resync'] button")))
	await(e.t, "everything is pushed again", patience, func() error {
		if log := e.log("sidecar"); !strings.Contains(log, "resync ended") {
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
		if !strings.Contains(e.log("sidecar"), line) {
			e.t.Errorf("the log has no %q", line)
		}
	}
	await(e.t, "another epoch on the page", patience, func() error {
		if now := b.epoch(); now == epoch || strings.Contains(b.text("#live"), "A resync runs") {
			return fmt.Errorf("got %q after %q", now, epoch)
		}
		return nil
	})
	e.until("the object is at the edge", says("body"), "GET /v1/products/1")
	e.until("the device is verified again", status(200), "GET /v1/telemetry", credential("sensor-1", "secret")...)
}

// showsOutage: without Redis the page says so first, and explains stale answers; without the sidecar it says that.
func (e *edge) showsOutage(b *browser) {
	e.t.Helper()
	if err := e.KillRedis(); err != nil {
		e.t.Fatal(err)
	}
	b.appears("Redis is not followed")
	await(e.t, "a stale answer", patience, func() error {
		if got := e.send("GET /v1/products/1").header.Get("cache-status"); !strings.Contains(got, "not-in-step") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	e.compare(b, []question{
		{"GET /v1/products/1", nil, "", 200, "reply 200 gatehouse_hit_stale", "products"},
		{"GET /v1/telemetry/late", nil, "sensor-1", 503, "reply 503 gatehouse_unavailable_not_in_step", "telemetry"},
	})
	if first := b.text("#live li"); !strings.HasPrefix(first, "Critical: Redis is not followed") {
		e.t.Errorf("the page begins with %q", first)
	}
	b.accessible("without Redis")
	b.quiet()
	if err := e.KillSidecar(); err != nil {
		e.t.Fatal(err)
	}
	b.appears("The sidecar doesn't answer")
}

// onlyShows: without permission the page has no buttons for actions, and their calls are refused.
func (e *edge) onlyShows(b *browser) {
	e.t.Helper()
	if err := e.Renew(e.t.Context(),
		withRedis(e.t, stack.Options{SidecarArgs: []string{"--limit.device=1"}})); err != nil {
		e.t.Fatal(err)
	}
	e.fill()
	b.leave(chromedp.Navigate(e.SidecarAdminURL() + "/"))
	b.appears("those that never authenticated there")
	if n := value[int](b, "document.querySelectorAll('#live form, #live button').length"); n != 0 {
		e.t.Errorf("the page has %d forms for actions", n)
	}
	for _, path := range []string{"/release", "/resync", "/v1/release", "/v1/resync"} {
		r, err := http.Post(e.SidecarAdminURL()+path, "", nil)
		if err != nil {
			e.t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != http.StatusForbidden {
			e.t.Errorf("%s: got %d, want 403", path, r.StatusCode)
		}
	}
}
