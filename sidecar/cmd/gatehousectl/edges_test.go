package main

import "testing"

// TestShown: what comes from Redis can't control a terminal.
func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		"pod-1": "pod-1", "größer": "größer", "": "", "a b": "a b",
		"\x1b]52;c;x\a": `"\x1b]52;c;x\a"`, "a\nb": `"a\nb"`, "\u202e": `"\u202e"`, "\xff": `"\xff"`,
	} {
		if got := shown(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}
