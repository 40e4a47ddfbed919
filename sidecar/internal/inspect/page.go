package inspect

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/internal/envoyrules"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
)

//go:embed page
var pageFiles embed.FS

// pages are the templates: page is the whole page, live the part that is sent repeatedly.
var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"count": formatCount, "size": formatBytes, "ago": formatDuration, "at": formatTime, "seconds": func(s float64) string {
		return formatDuration(time.Duration(s * float64(time.Second)))
	},
	"when": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
}).ParseFS(pageFiles, "page/*.html"))

// policyOfPage lets the page load only what the sidecar serves, with no inline script or style.
const policyOfPage = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// pageData is the data of the templates.
type pageData struct {
	Now     time.Time
	Status  operatorapi.Status
	Held    []operatorapi.Hold
	Top     operatorapi.Top
	Plots   []plot
	Rules   []ruleRates
	Actions bool

	Methods   []string
	Question  operatorapi.Question // without headers, which may have a secret
	Listener  string
	Listeners []string // to choose from; nil: no choice is needed
	Problem   string   // why there is no explanation, or only of the object and the device

	Explanation *operatorapi.Explanation
}

// ruleRates are the requests of a rule, per second.
type ruleRates struct {
	Name                          string
	Answered, Upstream            float64
	Allowed, Refused, Unavailable float64
	WouldDeny                     float64 // not refused, because the rule isn't enforced
	WouldHit                      float64 // not answered, because the rule's cache isn't served
	Different                     float64 // of these, by the upstream's entity-tag
}

// registerPage adds the page to mux.
func (s *Server) registerPage(mux *http.ServeMux) {
	files, err := fs.Sub(pageFiles, "page")
	if err != nil {
		panic(err) // can't happen: embedded
	}
	assets := http.FileServerFS(files)
	for _, name := range []string{"page.css", "page.js"} {
		mux.Handle("GET /"+name, assets)
	}
	mux.HandleFunc("GET /{$}", s.handlePage)
	mux.HandleFunc("POST /{$}", s.handlePage) // for the form: fields may be secret, so not for a URL
	mux.HandleFunc("POST /release", s.requireActions(s.handleReleaseForm))
	mux.HandleFunc("POST /resync", s.requireActions(s.handleResyncForm))
	mux.HandleFunc("GET /v1/live", s.handleLive)
}

func (s *Server) collectPageData() pageData {
	i := s.inspector
	top := i.Top()
	return pageData{
		Now: time.Now().UTC(), Status: i.Status(), Held: i.listHolds(), Top: top, Plots: makePlots(i.history.listSamples()),
		Rules: groupByRule(top.Rates), Actions: s.actions,
	}
}

func (s *Server) handlePage(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxQuestion)
	p := s.collectPageData()
	p.Methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
	p.Question = operatorapi.Question{
		Method: r.FormValue("method"), URL: r.FormValue("url"), Device: r.FormValue("device"),
	}
	p.Listener = r.FormValue("listener")
	if err := r.ParseForm(); err != nil {
		p.Problem = err.Error()
	} else if p.Question.URL != "" || p.Question.Device != "" {
		p.explainForm(r.Context(), s.inspector, r.FormValue("headers"))
	}
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, "page", p); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policyOfPage)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	w.Write(b.Bytes())
}

// explainForm answers the form: for a request with the rules of the edge, otherwise with what is known of an object or
// of a device.
func (p *pageData) explainForm(ctx context.Context, i *Inspector, headers string) {
	q := p.Question
	for line := range strings.Lines(headers) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		if !found {
			p.Problem = "a header has no colon: want NAME: VALUE in each line"
			return
		}
		q.Headers = append(q.Headers, [2]string{strings.TrimSpace(name), strings.TrimSpace(value)})
	}
	if q.URL != "" {
		all, err := i.readRules(ctx)
		of := slices.IndexFunc(all, func(r envoyrules.Rules) bool { return len(all) == 1 || r.Listener == p.Listener })
		switch {
		case err != nil:
			p.Problem = "This is not what the edge answers, for its rules are unknown: " + err.Error() +
				". gatehousectl explain takes them from a file."
		case of < 0:
			p.Problem = "Choose a listener: the edge has rules of several."
			for _, r := range all {
				p.Listeners = append(p.Listeners, r.Listener)
			}
			return
		default:
			q.Rules = all[of].JSON
		}
	}
	e, err := i.Explain(ctx, q)
	if p.Explanation = e; err != nil {
		p.Problem = err.Error()
	}
}

// handleReleaseForm is [Server.handleRelease] for the page's buttons.
func (s *Server) handleReleaseForm(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxQuestion)
	if _, err := s.releaseNetwork(r.PostFormValue("network"), r.PostFormValue("device")); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// handleResyncForm is [Server.handleResync] for the page's button.
func (s *Server) handleResyncForm(w http.ResponseWriter, r *http.Request) {
	if s.startResync(w) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
	}
}

// liveEvery is the interval of events, and maxLive their maximum number in one response. The browser then connects
// again.
const (
	liveEvery = 5 * time.Second
	maxLive   = 720
)

// handleLive sends the page's changing part as server-sent events.
func (s *Server) handleLive(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	out := http.NewResponseController(w)
	for range maxLive {
		var b bytes.Buffer
		if err := pages.ExecuteTemplate(&b, "live", s.collectPageData()); err != nil {
			return
		}
		text := strings.NewReplacer("\n", "\ndata: ", "\r", " ").Replace(b.String())
		if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// groupByRule groups the edge's rates by rule.
func groupByRule(rates map[string]float64) []ruleRates {
	of := map[string]*ruleRates{}
	for full, rate := range rates {
		rule, outcome := labelValue(full, "rule"), labelValue(full, "outcome")
		counter, _, _ := strings.Cut(full, "{")
		if counter != cacheRequests && counter != authRequests && counter != wouldDeny && counter != wouldHit {
			continue
		}
		r := of[rule]
		if r == nil {
			r = &ruleRates{Name: rule}
			of[rule] = r
		}
		if counter == wouldDeny {
			r.WouldDeny += rate
			continue
		}
		if counter == wouldHit {
			r.WouldHit += rate
		}
		switch outcome {
		case "different":
			r.Different += rate
		case "hit", "not_modified", "stale_served":
			r.Answered += rate
		case "miss", "stale", "bypass":
			r.Upstream += rate
		case "allow", "grace":
			r.Allowed += rate
		case "deny", "forbidden":
			r.Refused += rate
		case "unavailable", "throttled":
			r.Unavailable += rate
		}
	}
	all := make([]ruleRates, 0, len(of))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all = append(all, *of[name])
	}
	return all
}

// labelValue returns the value of a label in a counter's name.
func labelValue(full, label string) string {
	_, rest, _ := strings.Cut(full, label+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// formatCount returns n with a separator between thousands.
func formatCount(n float64) string {
	text := fmt.Sprintf("%.0f", n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}

// formatBytes returns bytes in a readable unit.
func formatBytes(bytes float64) string {
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if bytes < 1024 {
			return fmt.Sprintf("%.4g %s", bytes, unit)
		}
		bytes /= 1024
	}
	return fmt.Sprintf("%.4g GiB", bytes)
}

// formatDuration returns a duration with useful precision.
func formatDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "never"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f h", d.Hours())
}

// formatTime returns a time in unix ms.
func formatTime(ms int64) string {
	if ms == 0 {
		return "–"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05")
}
