package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// browser is a page in a headless Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context
	axe string // source of axe-core

	mu   sync.Mutex
	said []string // errors and warnings in the console, with what its policy forbids the page
}

// startBrowser runs Chromium until the test ends.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.CommandContext(t.Context(), "../scripts/install-browser.sh").Output()
	if err != nil {
		t.Fatalf("install-browser.sh: %v", err)
	}
	axe, err := os.ReadFile(strings.TrimSpace(string(path)))
	require.NoError(t, err)
	all, end := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()),
		append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
			chromedp.ExecPath("chromium"), chromedp.DisableGPU, chromedp.NoSandbox)...) // tests run as root, in containers
	ctx, _ := chromedp.NewContext(all)
	b := &browser{t: t, axe: string(axe)}
	if err := chromedp.Listen(ctx, b.recordEvent); err != nil { // starts it
		t.Fatalf("chromium: %v", err)
	}
	var stop context.CancelFunc
	b.ctx, stop = context.WithTimeout(ctx, 6*patience)
	t.Cleanup(func() {
		stop()
		if err := chromedp.Cancel(ctx); err != nil {
			t.Error(err)
		}
		end()
	})
	return b
}

func (b *browser) recordEvent(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		b.said = append(b.said, fmt.Sprintf("%s: %s: %s", e.Entry.Level, e.Entry.Source, e.Entry.Text))
	case *runtime.EventConsoleAPICalled:
		b.said = append(b.said, fmt.Sprintf("console.%s", e.Type))
	case *runtime.EventExceptionThrown:
		b.said = append(b.said, e.ExceptionDetails.Text)
	}
}

// wantEmptyConsole fails the test if the console has an entry.
func (b *browser) wantEmptyConsole() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.said) > 0 {
		b.t.Errorf("the browser's console: %q", b.said)
	}
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, actions...))
}

// runUntilLoaded runs actions that load another page, and waits for the page.
func (b *browser) runUntilLoaded(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	response, err := chromedp.RunResponse(b.ctx, actions...)
	if err != nil || response.Status != 200 {
		b.t.Fatalf("got %+v, %v", response, err)
	}
}

// evaluate returns the value of a JavaScript expression, or of its promise.
func evaluate[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

func callCommand[P any](b *browser, command cdp.Command[P, cdp.Empty], params P) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, command, params)
		return err
	}))
}

// textOf returns the text of the first element that a selector matches, or "".
func (b *browser) textOf(selector string) string {
	b.t.Helper()
	return evaluate[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

func (b *browser) awaitText(text string) {
	b.t.Helper()
	await(b.t, fmt.Sprintf("%q on the page", text), patience, func() error {
		if all := b.textOf("body"); !strings.Contains(all, text) {
			return fmt.Errorf("the page says %s", all)
		}
		return nil
	})
}

// setAppearance sets the width of the page, and light or dark.
func (b *browser) setAppearance(width int64, scheme string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, 800))
	callCommand(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
}

// checkAccessibility fails the test for each fault that axe-core finds serious or critical.
func (b *browser) checkAccessibility(what string) {
	b.t.Helper()
	if evaluate[bool](b, "typeof axe === 'undefined'") {
		b.do(chromedp.Evaluate[chromedp.Void](b.axe))
	}
	text := evaluate[string](b, `axe.run({resultTypes: ['violations']}).then(r => JSON.stringify({
		passes: r.passes.length,
		faults: r.violations.filter(v => ['serious', 'critical'].includes(v.impact))
			.map(v => v.id + ': ' + v.nodes.map(n => n.html + ' ' + n.failureSummary).join('; '))}))`)
	var found struct {
		Passes int
		Faults []string
	}
	if err := json.Unmarshal([]byte(text), &found); err != nil || found.Passes < 10 {
		b.t.Errorf("%s: axe: %v: %s", what, err, text)
	}
	for _, fault := range found.Faults {
		b.t.Errorf("%s: %s", what, fault)
	}
}

// checkLayout fails the test if the page is wider than the window, if a table's cell is partly hidden, or if a cell
// stands neither under its header nor beside its name.
func (b *browser) checkLayout(what string) {
	b.t.Helper()
	faults := evaluate[[]string](b, `(() => {
		const wide = document.documentElement.clientWidth, faults = [];
		if (document.documentElement.scrollWidth > wide) faults.push('the page is ' + document.documentElement.scrollWidth + ' px wide');
		const cells = [...document.querySelectorAll('th, td')], shown = c => c.getClientRects().length > 0;
		if (cells.filter(shown).length < 40) faults.push('only ' + cells.filter(shown).length + ' cells are shown');
		for (const c of cells) {
			const box = c.getBoundingClientRect(), head = c.closest('table').tHead?.rows[0].cells[c.cellIndex];
			if (!shown(c)) {
				if (c.innerText !== '' && c !== head) faults.push(c.innerText + ' is hidden');
			} else if (box.width === 0 || box.left < 0 || box.right > wide || c.scrollWidth > c.clientWidth) {
				faults.push(c.innerText + ' is from ' + box.left + ' to ' + box.right + ', with a content of ' + c.scrollWidth + ' px');
			} else if (head && !shown(head) && c.cellIndex > 0 && getComputedStyle(c, '::before').content !== JSON.stringify(head.textContent) && head.textContent !== '') {
				faults.push(c.innerText + ' has no name, want ' + head.textContent);
			}
		}
		return faults;
	})()`)
	for _, fault := range faults {
		b.t.Errorf("%s: %s", what, fault)
	}
}

// savePicture writes the page to $GATEHOUSE_SCREENSHOTS/NAME.png, if the variable is set.
func (b *browser) savePicture(name string) {
	b.t.Helper()
	dir := os.Getenv("GATEHOUSE_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600))
}

// tabStops presses Tab until the focus leaves the page, and returns the focused elements.
func (b *browser) tabStops() (stops []string) {
	b.t.Helper()
	begun := false // after the end the focus begins at the top
	for range 50 {
		b.do(chromedp.KeyEvent("\t"))
		stop := evaluate[string](b, `(() => {
			const at = document.activeElement;
			if (at === document.body) return '';
			const name = at.name || at.getAttribute('aria-label') || at.innerText;
			return getComputedStyle(at).outlineStyle === 'none' ? name + ' without an outline' : name;
		})()`)
		switch {
		case stop == "" && begun:
			return stops
		case stop == "":
			begun = true
		case begun:
			stops = append(stops, stop)
		}
	}
	b.t.Errorf("the focus is caught: %q", stops)
	return stops
}
