package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/creack/pty"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// onTerminal runs commands on a terminal of the given size, and returns the output so far.
func onTerminal(t *testing.T, columns, rows uint16) (tty *os.File, shown *logbuffer.Buffer) {
	t.Helper()
	ours, tty, err := pty.Open()
	require.NoError(t, err)
	t.Cleanup(func() { _ = tty.Close(); _ = ours.Close() })
	require.NoError(t, pty.Setsize(tty, &pty.Winsize{Rows: rows, Cols: columns}))
	shown = &logbuffer.Buffer{}
	go func() { _, _ = io.Copy(shown, ours) }()
	return tty, shown
}

// sidecar answers status, explain and top with many and long names.
func sidecar(t *testing.T) *httptest.Server {
	t.Helper()
	top := operatorapi.Top{Rates: map[string]float64{}}
	for n := range 50 {
		name := fmt.Sprintf("/v1/%d/%s", n, strings.Repeat("x", 100))
		top.Rates[name] = float64(n + 1)
		top.Objects = append(top.Objects, operatorapi.Count{Name: name, Count: float64(n)})
		top.Refused = append(top.Refused, operatorapi.Count{Name: name, Count: float64(n)})
	}
	mux := http.NewServeMux()
	for path, v := range map[string]any{
		"/v1/status": operatorapi.Status{
			Problems: []operatorapi.Problem{{Severity: "error", Text: strings.Repeat("word ", 40)}}},
		"/v1/explain": operatorapi.Explanation{Answer: operatorapi.Answer{Action: "local", Status: 200,
			Text: strings.Repeat("word ", 40)}},
		"/v1/top": top,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) })
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// lines checks that no line is wider than the terminal and none has escape sequences, and returns their number.
func lines(t *testing.T, what, text string, columns int) (n int) {
	t.Helper()
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if utf8.RuneCountInString(line) > columns || strings.Contains(line, "\x1b") {
			t.Errorf("%s: %q, want at most %d columns without escape sequences", what, line, columns)
		}
	}
	return n
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	local := sidecar(t)
	rules := s.file("rules.yaml", "rules: [{match: {path: /a}, cache: {}}]")
	env := map[string]string{"TERM": "xterm", "GATEHOUSE_SIDECAR": strings.TrimPrefix(local.URL, "http://")}
	getenv := func(name string) string { return env[name] }
	commands := [][]string{{"status"}, {"explain", "/a", "--rules", rules}, {"top"}}

	// On a terminal, lines are no wider than it is.
	for _, args := range commands[:2] {
		tty, shown := onTerminal(t, 60, 20)
		if code := run(args, nil, tty, tty, getenv); code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, shown)
		}
		await.Until(t, "all of it", func() bool { return strings.Count(shown.String(), "word") == 40 })
		if lines(t, args[0], shown.String(), 60) < 4 {
			t.Errorf("%v: got %s, want more lines", args, shown)
		}
	}
	// Elsewhere they end, and have whole lines without escape sequences.
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	for _, args := range commands {
		read, write, err := os.Pipe()
		require.NoError(t, err)
		text := make(chan string)
		go func() {
			all, _ := io.ReadAll(read)
			text <- string(all)
		}()
		code := run(args, nil, write, io.Discard, getenv)
		_ = write.Close()
		if got := <-text; code != 0 || lines(t, args[0]+" into a pipe", got, 400) == 0 || strings.Contains(got, "…") {
			t.Errorf("%v into a pipe: exit code %d: %s", args, code, got)
		}
		if code := run(args, nil, null, io.Discard, getenv); code != 0 {
			t.Errorf("%v into /dev/null: exit code %d", args, code)
		}
	}
	env["TERM"] = "dumb"
	tty, shown := onTerminal(t, 60, 20)
	if code := run([]string{"top"}, nil, tty, tty, getenv); code != 0 {
		t.Errorf("top on a dumb terminal: exit code %d: %s", code, shown)
	}
	await.Until(t, "all of it", func() bool { return strings.Contains(shown.String(), "REFUSED") })
	lines(t, "top on a dumb terminal", shown.String(), 400)

	// top fills the screen again and again, until nobody answers.
	env["TERM"] = "xterm"
	tty, shown = onTerminal(t, 60, 20)
	ended := make(chan int)
	go func() { ended <- run([]string{"top"}, nil, tty, tty, getenv) }()
	const clear = "\x1b[H\x1b[2J"
	await.Until(t, "two tables", func() bool { return strings.Count(shown.String(), clear) > 1 })
	local.Close()
	if code := <-ended; code != exitRuntime {
		t.Errorf("top without a sidecar: exit code %d", code)
	}
	first := strings.Split(shown.String(), clear)[1]
	if n := lines(t, "top", first, 60); n >= 20 || !strings.Contains(first, "REFUSED") ||
		!strings.Contains(first, "…") || !strings.HasPrefix(first, "PER SECOND  COUNTER\r\n50.0        /v1/49/x") {
		t.Errorf("top: %d lines: %s", n, first)
	}
}

// TestProgressOnTerminal: an import shows progress on a terminal only, and removes the progress at the end.
func TestProgressOnTerminal(t *testing.T) {
	s := newShell(t)
	file := s.file("devices.csv", "id,secret\na,secret\nb,\n")
	args := []string{"device", "import", file, "--dry-run"}
	tty, shown := onTerminal(t, 40, 20)
	var stdout bytes.Buffer
	env := func(string) string { return "" }
	if code := run(args, nil, &stdout, tty, env); code != exitRuntime {
		t.Fatalf("exit code %d: %s", code, shown)
	}
	await.Until(t, "the error", func() bool { return strings.Contains(shown.String(), "1 of 2 devices failed") })
	if got := shown.String(); !strings.Contains(got, "\r2 devices, ") || !strings.Contains(got, "\r\x1b[K") {
		t.Errorf("on a terminal: %q", got)
	}
	if got := s.run("", args...); strings.ContainsAny(got.stderr+stdout.String(), "\x1b\r") {
		t.Errorf("elsewhere: %+v", got)
	}
	s.env["TERM"] = "dumb"
	tty, shown = onTerminal(t, 40, 20)
	_ = run(args, nil, io.Discard, tty, func(name string) string { return s.env[name] })
	await.Until(t, "the error", func() bool { return strings.Contains(shown.String(), "1 of 2 devices failed") })
	if got := shown.String(); strings.Contains(got, "\x1b") {
		t.Errorf("on a dumb terminal: %q", got)
	}
}

func TestWrap(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"short", "short"},
		{"", ""},
		{"answer  allow and so on", "answer  allow and so\n        on"},
		{"answer  allow and on, on", "answer  allow and\n        on, on"},
		{"a  " + strings.Repeat("x", 20) + " y", "a  " + strings.Repeat("x", 17) + "\n   xxx y"},
		{"no second column in this line", "no second column in\nthis line"},
		{strings.Repeat("ü", 21), strings.Repeat("ü", 20) + "\nü"},
		{"last column is far  right of it", "last column is far\nright of it"},
	} {
		if got := wrapLine(test.line, 20); got != test.want {
			t.Errorf("%q: got %q, want %q", test.line, got, test.want)
		}
	}
}
