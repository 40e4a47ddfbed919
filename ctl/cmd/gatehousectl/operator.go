package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gatehouse/gatehouse/internal/envoyrules"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
)

// sidecarFlags are for commands that query the local sidecar.
type sidecarFlags struct {
	sidecarFlag `embed:""`
	jsonFlag    `embed:""`
}

// sidecarFlag is the sidecar's admin address.
type sidecarFlag struct {
	Sidecar string `default:"127.0.0.1:9090" variable:"GATEHOUSE_SIDECAR" placeholder:"HOST:PORT" help:"Admin address of the sidecar."`
}

// maxAnswer bounds an answer of a program, bytes: a config_dump can be long.
const maxAnswer = 64 << 20

// callSidecar sends a question to the sidecar and decodes the answer into v; a nil question is a GET.
func callSidecar(sidecar, path string, question, v any) error {
	from := "http://" + sidecar + path
	method, body := http.MethodGet, io.Reader(nil)
	if question != nil {
		text, err := json.Marshal(question)
		if err != nil {
			return err
		}
		method, body = http.MethodPost, bytes.NewReader(text)
	}
	text, err := fetchBody(method, from, body, maxAnswer)
	if _, unreachable := errors.AsType[*url.Error](err); unreachable {
		return fmt.Errorf(
			"the sidecar doesn't answer: %w\nIts log may have the reason; gatehousectl edges shows whether it is gone. "+
				"Say where it is by --sidecar or $GATEHOUSE_SIDECAR", err)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

// askSidecar queries the sidecar, and prints the answer: as JSON, or with print.
func askSidecar[T any](c *console, f *sidecarFlags, path string, question any, print func(w io.Writer, v *T)) error {
	var v T
	if err := callSidecar(f.Sidecar, path, question, &v); err != nil {
		return err
	}
	if f.JSON {
		return c.printJSON(v)
	}
	w := c.newTable()
	print(w, &v)
	return w.Flush()
}

type statusCmd struct {
	sidecarFlags `embed:""`
}

// Run prints the status, with problems first.
func (cmd *statusCmd) Run(c *console) error {
	return askSidecar(c, &cmd.sidecarFlags, "/v1/status", nil, func(w io.Writer, s *operatorapi.Status) {
		for _, p := range s.Problems {
			fmt.Fprintf(w, "%s: %s\n", strings.ToUpper(p.Severity), p.Text)
		}
		if len(s.Problems) == 0 {
			fmt.Fprintln(w, "all is well")
		}
		since := "not in step"
		switch t := s.Edge.InStepSince; {
		case s.InStep && t.IsZero():
			since = "in step"
		case s.InStep:
			since = "in step since " + t.UTC().Format(time.RFC3339)
		}
		if s.Resyncing {
			fmt.Fprintln(w, "a resync runs")
		}
		fmt.Fprintf(w, "\nversion\t%s, started %s\n", s.Version, s.Started.Format(time.RFC3339))
		namespace := ""
		if s.Redis.Namespace != "" {
			namespace = "namespace " + s.Redis.Namespace + ", "
		}
		fmt.Fprintf(w, "redis\t%sconnected: %t, in step %s, write %.0f\n", namespace, s.Redis.Connected,
			formatAgo(s.Redis.InStepAge), s.Redis.Seq)
		fmt.Fprintf(w, "edge\t%s, acknowledged %s, %s, %d buckets wait\n", since,
			formatAgo(s.Edge.AcknowledgedAge), formatBehind(s.Edge.InStepAge), s.Edge.Waiting)
		fmt.Fprintf(w, "memory\tepoch %s, layout %d\n", cmp.Or(s.Edge.Epoch, "-"), s.Edge.Layout)
		fmt.Fprintf(w, "objects\t%.0f at the edge, %.0f left out, %.0f of %.0f bytes\n", s.Objects.Held,
			s.Objects.LeftOut, s.Objects.Bytes, s.Objects.Budget)
		fmt.Fprintf(w, "devices\t%.0f, known to the edge %d, held back %d\n", s.Devices.Records,
			s.Edge.Devices, s.Devices.Held)
		fmt.Fprintf(w, "verdicts\t%d allow, %d deny\n", s.Edge.Allows, s.Edge.Denies)
		fmt.Fprintf(w, "bcrypt\t%.0f of %d running, %.0f of %d waiting\n", s.Bcrypt.Running, s.Bcrypt.Workers,
			s.Bcrypt.Queued, s.Bcrypt.Queue)
		for _, e := range s.Edges {
			state := "ready"
			if e.Problem != "" {
				state = e.Problem
			}
			fmt.Fprintf(w, "edge %s\t%s, %s, %d buckets wait\n", e.Name, state,
				formatBehind(e.InStepAge), e.Waiting)
		}
	})
}

// formatAgo returns the age of an event in seconds as text.
func formatAgo(seconds float64) string {
	if seconds < 0 {
		return "never"
	}
	return formatAge(seconds) + " ago"
}

// formatBehind returns how many seconds an edge is behind Redis as text.
func formatBehind(seconds float64) string {
	if seconds < 0 {
		return "never in step"
	}
	return formatAge(seconds) + " behind"
}

// formatAge returns an age in seconds as text.
func formatAge(seconds float64) string {
	if seconds < 0 {
		return "never"
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}

// maxHeaders bounds the headers of a request, bytes.
const maxHeaders = 64 << 10

type explainCmd struct {
	URL      string   `arg:"" help:"URL of the request, or its path with the query, as the edge sees it; or the key of an object for a device (@ID/path), a host (//:HOST/path) or in a language (/path#de)."`
	Method   string   `default:"GET" placeholder:"METHOD" help:"Method of the request. Default: ${default}."`
	Header   []string `sep:"none" placeholder:"NAME:VALUE|@FILE" help:"A header of the request, such as If-None-Match, or a file with one a line; @- is standard input. Can be repeated. Give secrets by a file: other users of the machine see the command line."`
	Device   string   `placeholder:"ID" help:"Explain the answer to this device with its right secret."`
	Rules    string   `placeholder:"FILE" help:"Rules, or an Envoy configuration with them; - is standard input. Default: the configuration that the local Envoy runs."`
	Listener string   `placeholder:"NAME" help:"Listener whose rules count, if there are several."`
	Admin    string   `variable:"GATEHOUSE_EDGE_ADMIN" placeholder:"HOST:PORT" help:"Admin address of the edge, Envoy, for its configuration; if not given, the sidecar's --edge.admin."`

	sidecarFlags `embed:""`
}

// Run explains the answer to a request.
func (cmd *explainCmd) Run(c *console) error {
	q := operatorapi.Question{Method: cmd.Method, URL: cmd.URL, Device: cmd.Device}
	var err error
	if q.Headers, err = cmd.readHeaders(c); err != nil {
		return err
	}
	if q.Rules, err = cmd.readEdgeRules(c); err != nil {
		return err
	}
	return askSidecar(c, &cmd.sidecarFlags, "/v1/explain", q, printExplanation)
}

// readHeaders returns the headers of the request. Errors don't quote values, since a value may be secret.
func (cmd *explainCmd) readHeaders(c *console) (headers [][2]string, err error) {
	add := func(from, line string) error {
		name, value, found := strings.Cut(line, ":")
		if !found {
			return usagef("%s: want NAME:VALUE", from)
		}
		headers = append(headers, [2]string{strings.TrimSpace(name), strings.TrimSpace(value)})
		return nil
	}
	for _, line := range cmd.Header {
		file, ok := strings.CutPrefix(line, "@")
		if !ok {
			if err := add("--header", line); err != nil {
				return nil, err
			}
			continue
		}
		text, err := c.readInput(file, maxHeaders, "headers")
		if err != nil {
			return nil, fmt.Errorf("--header: %w", err)
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			if strings.TrimSpace(line) == "" {
				continue
			}
			if err := add(fmt.Sprintf("--header %s, line %d", file, n), line); err != nil {
				return nil, err
			}
		}
	}
	return headers, nil
}

// readEdgeRules returns the rules of the edge.
func (cmd *explainCmd) readEdgeRules(c *console) (json.RawMessage, error) {
	source := cmd.Rules
	var file []byte
	var err error
	if source == "" {
		if cmd.Admin == "" {
			var s operatorapi.Status
			if err := callSidecar(cmd.Sidecar, "/v1/status", nil, &s); err != nil {
				return nil, err
			}
			cmd.Admin = s.Edge.Admin
		}
		source = "http://" + cmd.Admin + "/config_dump"
		if file, err = fetchBody(http.MethodGet, source, nil, maxAnswer); err != nil {
			return nil, fmt.Errorf("%w\nWithout Envoy, give the rules by --rules", err)
		}
	} else if file, err = c.readInput(source, maxConfig, "rules"); err != nil {
		return nil, err
	}
	return chooseRules(source, file, cmd.Listener)
}

// chooseRules returns the rules of a listener, or the common rules of all listeners.
func chooseRules(source string, file []byte, listener string) (json.RawMessage, error) {
	all, err := envoyrules.RulesOf(source, file)
	if err != nil {
		return nil, usagef("%s: %w", source, err)
	}
	var names []string
	several := false
	for _, rules := range all {
		if listener != "" && rules.Listener == listener {
			return rules.JSON, nil
		}
		several = several || !bytes.Equal(rules.JSON, all[0].JSON)
		names = append(names, rules.Listener)
	}
	switch {
	case listener != "":
		return nil, usagef("%s has no listener %q with rules, but %s", source, listener, strings.Join(names, ", "))
	case several:
		return nil, usagef("%s has the rules of several listeners: choose one by --listener: %s", source,
			strings.Join(names, ", "))
	}
	return all[0].JSON, nil
}

func printExplanation(w io.Writer, e *operatorapi.Explanation) {
	var answer func(name string, a *operatorapi.Answer)
	answer = func(name string, a *operatorapi.Answer) {
		what := a.Action
		if a.Status != 0 {
			what += fmt.Sprintf(" %d", a.Status)
		}
		if a.Reason != "" {
			what += ", " + a.Reason
		}
		fmt.Fprintf(w, "%s\t%s\n\t%s\n", name, what, a.Text)
		if a.Enforced != nil {
			answer("  if it were enforced", a.Enforced)
		}
	}
	if e.Warning != "" {
		fmt.Fprintf(w, "WARNING: %s\n", e.Warning)
	}
	answer("answer", &e.Answer)
	if e.IfRight != nil {
		answer("if the secret is right", e.IfRight)
	}
	if e.VirtualHost != "" {
		fmt.Fprintf(w, "virtual host\t%s, by the domain %s\n", e.VirtualHost, e.Domain)
	}
	if r := e.Rule; r != nil {
		fmt.Fprintf(w, "rule\t%s: %s\n", r.Name, r.Match)
		if r.Auth {
			name := map[bool]string{false: "requires", true: "would require"}[r.Trial]
			fmt.Fprintf(w, "%s\t%s\n", name, cmp.Or(strings.Join(r.Permissions, ", "), "-"))
		}
	} else {
		fmt.Fprintln(w, "rule\tnone")
	}
	if o := e.Object; o != nil {
		fmt.Fprintf(w, "key\t%s\n", e.Key)
		fmt.Fprintf(w, "  in Redis\t%s\n", describeVersion(&o.Redis))
		fmt.Fprintf(w, "  in the sidecar\t%s, %s\n", formatVersion(o.Sidecar.Version),
			strings.ReplaceAll(o.Sidecar.Place, "_", " "))
		fmt.Fprintf(w, "  at the edge\t%s%s\n", formatVersion(o.Edge.Version),
			map[bool]string{true: ", not acknowledged yet"}[o.Edge.Pending])
		if len(o.NotSent) > 0 {
			fmt.Fprintf(w, "  not sent\t%s: headers of the whole origin; cache.origin_headers of the rule allows them\n",
				strings.Join(o.NotSent, ", "))
		}
	}
	if d := e.Device; d != nil {
		may := "may authenticate"
		switch d.Sidecar.Refusal {
		case "":
		case "no_authority": // without a record
			may = "the authority decides"
		default:
			may = "may not authenticate: " + string(d.Sidecar.Refusal)
		}
		fmt.Fprintf(w, "device\t%s, %s\n", d.ID, may)
		if r := d.Sidecar.Refused; r != nil {
			fmt.Fprintf(w, "  last refused\t%s, from %s: %s\n", formatTimestamp(r.At.UnixMilli()), cmp.Or(r.From, "-"), r.Text)
		}
		fmt.Fprintf(w, "  permissions\t%s\n", cmp.Or(strings.Join(d.Permissions, ", "), "-"))
		fmt.Fprintf(w, "  in Redis\t%s\n", describeVersion(&d.Redis))
		fmt.Fprintf(w, "  in the sidecar\t%s\n", formatVersion(d.Sidecar.Version))
		known := "unknown"
		if d.Edge.Listed {
			known = "registered"
		}
		fmt.Fprintf(w, "  at the edge\t%s, %d allow and %d deny verdicts\n", known, d.Edge.Allows, d.Edge.Denies)
		if d.LastSeen != nil {
			fmt.Fprintf(w, "  last seen\t%s\n", formatTimestamp(d.LastSeen.UnixMilli()))
		}
		for _, f := range d.Failed {
			fmt.Fprintf(w, "  failed\t%d times from %s since yesterday\n", f.Count, printable(f.Network))
		}
		for _, h := range d.Held {
			who := ""
			if h.Device == "" {
				who = ", as a device that never authenticated there"
			}
			if h.Own {
				who = ", but not with its right secret, since it authenticated there before"
			}
			fmt.Fprintf(w, "  held back\tat %s for %s%s\n", h.Network, formatAge(h.WaitS), who)
		}
	}
}

func formatVersion(version uint64) string {
	if version == 0 {
		return "none"
	}
	return fmt.Sprintf("version %d", version)
}

func describeVersion(v *operatorapi.Version) string {
	text := formatVersion(v.Version)
	switch {
	case v.Error != "":
		return "can't be read: " + v.Error
	case v.Deleted:
		text += ", deleted"
	case v.Revoked:
		text += ", revoked"
	case v.Disabled:
		text += ", disabled"
	}
	if v.PublishedMS != 0 {
		text += ", of " + formatTimestamp(v.PublishedMS)
	}
	return text
}

type heldCmd struct {
	Release string `placeholder:"ADDRESS" help:"Release this address, or its network. The sidecar needs --admin.actions."`
	Device  string `placeholder:"ID" help:"With --release: release only this device there."`

	sidecarFlags `embed:""`
}

// Run lists devices and networks that are throttled after wrong secrets, or releases a network.
func (cmd *heldCmd) Run(c *console) error {
	if cmd.Release != "" {
		what := operatorapi.Release{Network: cmd.Release, Device: cmd.Device}
		return askSidecar(c, &cmd.sidecarFlags, "/v1/release", what, func(w io.Writer, r *operatorapi.Released) {
			fmt.Fprintf(w, "%s: %d released\n", cmd.Release, r.Released)
		})
	}
	if cmd.Device != "" {
		return usagef("--device: is for --release")
	}
	if cmd.JSON {
		var held []operatorapi.Hold
		if err := callSidecar(cmd.Sidecar, "/v1/held", nil, &held); err != nil {
			return err
		}
		return printLines(c, held)
	}
	return askSidecar(c, &cmd.sidecarFlags, "/v1/held", nil, func(w io.Writer, held *[]operatorapi.Hold) {
		fmt.Fprintln(w, "NETWORK\tDEVICE\tLAST WRONG SECRET\tNEXT ATTEMPT")
		for _, h := range *held {
			next := "last in the queue"
			if h.WaitS > 0 {
				next = "in " + formatAge(h.WaitS)
			}
			if h.Own {
				next += "; its right secret now"
			}
			device := h.Device
			if device == "" {
				device = "(new ones)"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", h.Network, device, h.Last.UTC().Format(time.RFC3339), next)
		}
	})
}

type resyncCmd struct {
	sidecarFlags `embed:""`
}

// Run begins a resync.
func (cmd *resyncCmd) Run(c *console) error {
	return askSidecar(c, &cmd.sidecarFlags, "/v1/resync", struct{}{}, func(w io.Writer, _ *operatorapi.Resyncing) {
		fmt.Fprintln(w, "the resync has begun; gatehousectl status tells when it has ended")
	})
}

type topCmd struct {
	Once bool `help:"Print once, and end, as into a pipe or file. On a terminal, the table is otherwise printed every 5 s."`

	sidecarFlags `embed:""`
}

// Run prints the most used and most refused.
func (cmd *topCmd) Run(c *console) error {
	columns, rows, live := terminalSize(c.stdout)
	if cmd.Once || cmd.JSON || !live || c.dumb {
		return askSidecar(c, &cmd.sidecarFlags, "/v1/top", nil,
			func(w io.Writer, t *operatorapi.Top) { printTop(w, t, math.MaxInt) })
	}
	for {
		var t operatorapi.Top
		if err := callSidecar(cmd.Sidecar, "/v1/top", nil, &t); err != nil {
			return err
		}
		var text bytes.Buffer
		w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		most := math.MaxInt
		if rows > 0 {
			most = max(1, (rows-6)/3) // besides three titles, two empty lines and the cursor's
		}
		printTop(w, &t, most)
		if err := w.Flush(); err != nil {
			return err
		}
		screen := "\x1b[H\x1b[2J" // the terminal's upper left corner, and clear
		for line := range strings.Lines(text.String()) {
			if columns > 0 {
				line = truncateLine(strings.TrimSuffix(line, "\n"), columns) + "\n"
			}
			screen += line
		}
		if _, err := io.WriteString(c.stdout, screen); err != nil {
			return err
		}
		time.Sleep(5 * time.Second)
		columns, rows, _ = terminalSize(c.stdout)
	}
}

// printTop prints at most some lines of each list.
func printTop(w io.Writer, t *operatorapi.Top, most int) {
	fmt.Fprintln(w, "PER SECOND\tCOUNTER")
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(t.Rates)), func(name string) bool { return t.Rates[name] <= 0 })
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(t.Rates[b], t.Rates[a]) })
	for _, name := range names[:min(len(names), most)] {
		fmt.Fprintf(w, "%.1f\t%s\n", t.Rates[name], name)
	}
	for _, list := range []struct {
		title  string
		counts []operatorapi.Count
	}{{"HITS (SAMPLE)\tOBJECT", t.Objects}, {"REFUSED\tNETWORK", t.Refused}, {"CALLS\tEDGE", t.Edges}} {
		if list.counts == nil {
			continue // with one edge
		}
		fmt.Fprintln(w, "\n"+list.title)
		for _, n := range list.counts[:min(len(list.counts), most)] {
			fmt.Fprintf(w, "%.0f\t%s\n", n.Count, n.Name)
		}
	}
}

type logLevelCmd struct {
	Level string `arg:"" enum:"debug,info,warn,error" help:"debug, info, warn or error."`

	sidecarFlags `embed:""`
}

// Run changes the level of the sidecar's log.
func (cmd *logLevelCmd) Run(c *console) error {
	var to operatorapi.LogLevel
	if err := to.Level.UnmarshalText([]byte(cmd.Level)); err != nil {
		return usagef("%w", err)
	}
	return askSidecar(c, &cmd.sidecarFlags, "/v1/log-level", to, func(w io.Writer, _ *operatorapi.LogLevel) {
		fmt.Fprintf(w, "the sidecar logs from %s on, until it exits\n", cmd.Level)
	})
}
