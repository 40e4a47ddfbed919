package main

import (
	"strings"
	"testing"
)

// TestShown: what comes from Redis can't control a terminal.
func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		"pod-1": "pod-1", "größer": "größer", "": "", "a b": "a b",
		"\x1b]52;c;x\a": `"\x1b]52;c;x\a"`, "a\nb": `"a\nb"`, "\u202e": `"\u202e"`, "\xff": `"\xff"`,
	} {
		if got := printable(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

// TestErrorsControlNoTerminal: errors from Redis and names of files can't control a terminal.
func TestErrorsControlNoTerminal(t *testing.T) {
	s := newShell(t)
	s.redis.SetError("ERR \x1b]52;c;x\a")
	for _, args := range [][]string{{"list"}, {"sync", t.TempDir(), "/"}, {"put", "/a", "--file", "\x1b[2J"}} {
		if r := s.run("", args...); r.code != 1 || !strings.Contains(r.stderr, `\x1b`) || strings.Contains(r.stderr, "\x1b") {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

// TestNoEdges: an empty list says what may be the reason.
func TestNoEdges(t *testing.T) {
	s := newShell(t)
	if got := s.ok("", "edges"); !strings.HasPrefix(got, "no sidecar has listed itself here: ") {
		t.Errorf("got %q", got)
	}
	if got := s.ok("", "edges", "--json"); got != "" {
		t.Errorf("got %q, want no line", got)
	}
}
